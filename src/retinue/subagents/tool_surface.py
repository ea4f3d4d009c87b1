"""The tool surface: a subagent as a function of its own, named after it, with one argument `input` (H-02)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.agent.call_arguments import fault, read
from retinue.agent.definition import AgentDefinition
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.run import Run
from retinue.agent.tool_handler import main_argument
from retinue.config import AgentInvocationModePolicy, RuntimeContext, SubAgentContextPolicy, Verdict
from retinue.events import SubAgentInvocationStartedEvent
from retinue.json_text import dumps
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.rows import InvocationRow
from retinue.subagents.delegate import delegate, limit_refusal, reattach
from retinue.subagents.delegation import ASKS, ChildEnd, Delegation, Format
from retinue.subagents.equipment import Equipment, assemble, child_equipment
from retinue.subagents.resolved import ResolvedDeclaration

__all__ = ["SubAgentTool"]

_POLICIES = SubAgentContextPolicy
_MODES = AgentInvocationModePolicy


class _Arguments(msgspec.Struct, frozen=True):
    """What the model may send; both spellings are accepted (D-25)."""

    input: str
    context: str | None = None
    invocationMode: str | None = None  # the documented name on the wire
    invocation_mode: str | None = None


class _Words(Format):
    """The child's text is the result (H-10)."""

    def content(self, end: ChildEnd) -> str:
        """See `Format`."""
        if end.status == "completed":
            return end.text
        why = end.message or end.reason or end.status
        told = f"The subagent `{end.row.name}` {_ENDED[end.status]}: {why}."
        if end.remedy:
            told += f" ({end.remedy}.)"
        return f"{told}\nPartial text:\n{end.text}" if end.text.strip() else told

    def receipt(self, row: InvocationRow, *, promoted: bool, asks: Sequence[str] = ()) -> str:
        """See `Format`: the documented fields (H-12)."""
        told = {
            "status": "waiting" if asks else "timeout_promoted" if promoted else "accepted",
            "taskId": row.task_id,
            "subAgentName": row.name,
            "invocationId": row.invocation_id,
            "message": _PROMOTED if promoted else _LATER,
        }
        if asks:
            told |= {"question": "\n".join(asks), "message": ASKS}
        return dumps(told).decode()


_LATER = "It works in the background. Go on with something else: its result reaches you by itself when it is there."
_PROMOTED = "It is not done yet and goes on in the background. Do not call it again for this: its result reaches you by itself."
_ENDED: Mapping[str, str] = {"failed": "failed", "timeout": "was stopped", "cancelled": "was stopped"}


def _spec(resolved: ResolvedDeclaration) -> ToolSpec:
    properties: dict[str, Any] = {
        "input": {"type": "string", "description": "The task, with everything the subagent needs to know."}
    }
    if resolved.invocation_mode_policy is _MODES.MODEL_CHOICE:
        properties["invocationMode"] = {
            "type": "string",
            "enum": ["synchronous", "background"],
            "description": "synchronous (default): wait for its answer; background: go on, the answer comes by itself later.",
        }
    if resolved.context_policy is _POLICIES.MODEL_CHOICE:
        properties["context"] = {
            "type": "string",
            "enum": ["fork", "fresh"],
            "description": "fork: it sees this conversation; fresh (default): it sees only `input`.",
        }
    parameters = {"type": "object", "properties": properties, "required": ["input"], "additionalProperties": False}
    return ToolSpec(name=resolved.name, description=resolved.description, parameters=parameters)


class SubAgentTool:
    """`CallHandler` of one subagent on the tool surface, at one agent's place in the tree."""

    repeatable = False
    delegates = True

    def __init__(self, parent: Equipment, resolved: ResolvedDeclaration) -> None:
        self._parent = parent
        self.resolved = resolved
        self._definition: AgentDefinition | None = None
        self.spec = _spec(resolved)

    @property
    def agent_id(self) -> str:
        """The child's agent id."""
        return self.resolved.agent_id

    def equipment(self, tools: Mapping[str, CallHandler], *, trial: bool = False) -> Equipment:
        """The child's equipment where its parent has these tools."""
        return child_equipment(self._parent, tools, self.resolved, RuntimeContext(), trial=trial)

    def definition(self, run: Run) -> AgentDefinition:
        """The child as it runs here; made once for this place."""
        if self._definition is None:
            self._definition = assemble(self.equipment(run.definition.tools))
        return self._definition

    def check(self, tools: Mapping[str, CallHandler]) -> None:
        """Raise at build what would be raised at the first call (D-27)."""
        assemble(self.equipment(tools, trial=True))

    async def gated(self, run: Run, arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`. A subagent's call asks by default (H-05)."""
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=main_argument(arguments, "input"),
            need=Verdict.ASK if self.resolved.requires_permission else Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=self.resolved.agent_id,
        )

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        parsed = self._parse(call)
        return parsed if isinstance(parsed, CallOutcome) else limit_refusal(run, self._parent.ceiling)

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        parsed = self._parse(call)
        if isinstance(parsed, CallOutcome):
            return parsed
        refused = limit_refusal(run, self._parent.ceiling)  # again: others of the same batch may have used it up
        if refused is not None:
            return refused
        text, policy, background = parsed
        resolved = self.resolved
        wanted = Delegation(
            definition=self.definition(run),
            name=resolved.name,
            source=resolved.declaration.source,
            surface="tool",
            text=text,
            context_policy=policy,
            timeout_seconds=resolved.timeout_seconds,
            metadata=resolved.declaration.metadata,
            inherits_output=resolved.inherits_output,
            promote=resolved.on_timeout == "promote",
            background=background,
            notify=resolved.notify,
            strategy=resolved.strategy,
            budget=resolved.declaration.budget,
        )
        return await delegate(run, ref, call, wanted, _Words())

    async def reattach(
        self, run: Run, ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        promote = self.resolved.on_timeout == "promote"
        return await reattach(run, started, self.definition(run), _Words(), promote=promote)

    def _parse(self, call: ToolCall) -> tuple[str, SubAgentContextPolicy, bool] | CallOutcome:
        """The input, the context policy of this call (H-17) and whether it is for the background, or what does not fit."""
        form = '{"input": "the task"}'
        parsed = read(call, _Arguments, ("input", "context", "invocationMode", "invocation_mode"), form)
        if isinstance(parsed, CallOutcome):
            return parsed
        if not parsed.input.strip():
            return fault(call.name, "`input` is blank", "Write the task, with everything the subagent needs to know")
        background = self._background(call, parsed.invocationMode or parsed.invocation_mode)
        if isinstance(background, CallOutcome):
            return background
        fixed = self.resolved.context_policy
        asked = None if parsed.context is None else parsed.context.strip().lower()
        if fixed is not _POLICIES.MODEL_CHOICE:
            if asked is None or (asked == fixed.value and fixed is not _POLICIES.ISOLATED):
                return parsed.input, fixed, background
            return fault(call.name, f"`context` was `{asked}`", f"Its context is always `{fixed.value}`: leave it out")
        if asked not in (None, "fork", "fresh"):
            return fault(call.name, f"`context` was `{asked}`", "Expected `fork` or `fresh`")
        return parsed.input, _POLICIES.FORK if asked == "fork" else _POLICIES.FRESH, background

    def _background(self, call: ToolCall, asked: str | None) -> bool | CallOutcome:
        """Whether the call is for the background (H-11)."""
        policy, mode = self.resolved.invocation_mode_policy, None if asked is None else asked.strip().lower()
        if mode not in (None, "synchronous", "background"):
            return fault(call.name, f"`invocationMode` was `{mode}`", "Expected `synchronous` or `background`")
        if policy is _MODES.MODEL_CHOICE:
            return mode == "background"
        only = "background" if policy is _MODES.BACKGROUND_ONLY else "synchronous"
        if mode not in (None, only):
            said = "in the background" if only == "background" else "synchronously"
            return fault(
                call.name,
                f"`invocationMode` was `{mode}`",
                f"This subagent is called {said} only: leave `invocationMode` out (invalid_invocation_mode)",
            )
        return only == "background"
