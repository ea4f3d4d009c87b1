"""An agent whose code is not here: enough to bring a run to its end that is being stopped (M8). It asks and calls nothing."""

from collections.abc import Sequence

from retinue.agent.definition import AgentDefinition
from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.models.port import Emit, ModelAnswer, ModelRequest
from retinue.permissions.gate import GatedCall, Remembered
from retinue.permissions.rules import Decision

__all__ = ["nobody"]


def nobody(agent_id: str) -> AgentDefinition:
    """The definition to end a run of this agent with, whose intent to stop is in the ledger."""
    model, gate = _NoModel(), _NoGate()
    return AgentDefinition(agent_id=agent_id, model=model, model_reference="none", instructions="", tools={}, gate=gate)


class _NoModel:
    """Asked by nobody: a run that is being stopped does not ask."""

    provider = "none"
    name = "none"

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """Refuse."""
        raise ConfigurationError(
            f"run `{request.run_id}` of `{request.agent_id}` cannot go on without the agent's own code",
            code="no_executor",
            remedy="resume it with the agent that it was started with",
        )

    async def close(self) -> None:
        """Nothing is open."""


class _NoGate:
    async def decide(self, call: GatedCall, remembered: Remembered) -> Decision:
        """Deny."""
        return Decision(Verdict.DENY, "its agent's code is not here")

    def closes_place(self, tools: Sequence[str], place: str, asked: str) -> bool:
        """Deny."""
        return True
