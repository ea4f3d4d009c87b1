"""What a surface asks for when it delegates, and what it is given to put into words."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.agent.definition import AgentDefinition
from retinue.config import Budget, SubAgentContextPolicy
from retinue.rows import InvocationRow, ThreadRow
from retinue.states import InvocationState

__all__ = ["ASKS", "ChildEnd", "Delegation", "Format"]


ASKS: Final = (
    "It asks you this, and waits for the answer in the background. Answer it with `task_answer`; ask the user first if you do "
    "not know. Its result reaches you by itself."
)
"""What a parent is told whose child asks it something."""


class Delegation(msgspec.Struct, kw_only=True):
    """What a surface asks for. `definition` is the child as it will run; `existing` a child thread to go on with.

    `promote`: at `timeout_seconds` the caller gets a receipt, and the child goes on as a task (D-08). `background`: it gets one
    at once. Its model is told the ends in `notify` (H-13).
    """

    definition: AgentDefinition
    name: str
    source: str
    surface: str
    text: str
    context_policy: SubAgentContextPolicy
    timeout_seconds: float | None = None
    inherits_output: bool = False
    promote: bool = False
    background: bool = False
    notify: tuple[str, ...] = ("completed", "failed")
    strategy: str | None = None
    existing: ThreadRow | None = None
    agent_key: str | None = None
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    budget: Budget | None = None


class ChildEnd(msgspec.Struct, kw_only=True):
    """How a delegation ended, for a surface to put into words. `status` is completed, failed, timeout or cancelled."""

    status: str
    text: str
    reason: str | None
    message: str
    remedy: str | None
    row: InvocationRow

    @property
    def state(self) -> InvocationState:
        """The state that the delegation has then."""
        return InvocationState.FAILED if self.status == "timeout" else InvocationState(self.status)


class Format:
    """How a surface words a child's end."""

    def content(self, end: ChildEnd) -> str:
        """The tool result's text."""
        raise NotImplementedError

    def receipt(self, row: InvocationRow, *, promoted: bool, asks: Sequence[str] = ()) -> str:
        """The tool result's text for a task that goes on in the background (H-12); `promoted`: after it was waited for (D-08);
        `asks`: what it wants to know of its parent before it goes on."""
        raise NotImplementedError
