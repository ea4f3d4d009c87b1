"""A plain tool as the run loop calls it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retinue.agent.ports import CallOutcome, Prepared
from retinue.agent.texts import CANCELLED
from retinue.events import SubAgentInvocationStartedEvent, ToolProgressEvent
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.states import ResultStatus
from retinue.tools.port import Tool, ToolContext

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["ToolHandler", "main_argument"]


def main_argument(arguments: Mapping[str, Any], name: str | None) -> str | None:
    """The text that a rule's glob is matched against: the named argument, or the first one. None for a list, whose parts are
    places (`Tool.places`)."""
    value = arguments.get(name) if name is not None else next(iter(arguments.values()), None)
    if isinstance(value, list):
        return None
    return value if isinstance(value, str) or value is None else str(value)


class ToolHandler:
    """`CallHandler` for a `Tool`."""

    __slots__ = ("_main", "delegates", "repeatable", "spec", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.spec: ToolSpec = tool.spec
        self.repeatable = tool.flags.repeatable
        self.delegates = False
        parameters: Mapping[str, Any] = self.spec.parameters.get("properties") or {}
        self._main = tool.flags.main_argument or next(iter(parameters), None)

    async def gated(self, run: "Run", arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`."""
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=main_argument(arguments, self._main),
            need=self.tool.flags.need,
            always=self.tool.always(arguments),
            subject=run.definition.agent_id,
            forms=tuple(self.tool.places(arguments)),
        )

    async def refusal(self, run: "Run", call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`: a plain tool checks its arguments where it runs."""
        return None

    async def prepare(self, run: "Run", ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        context = run.tool_context(ref)
        context_report = _Report(run, ref, call.name)
        context._report = context_report

        hold = run.place.hold()

        async def execute() -> CallOutcome:
            try:
                async with hold:
                    if run.stop_reason is not None:  # asked to stop while it waited for its turn: nothing starts (M8)
                        return CallOutcome(content=CANCELLED, status=ResultStatus.CANCELLED)
                    output = await self.tool.run(call.arguments, context)
            finally:
                context.cancelled = True  # whoever still holds it can report nothing any more
            return CallOutcome(content=output.content, status=output.status, metadata=output.metadata, media=output.media)

        def abandoned() -> None:
            context.cancelled = True
            hold.release()  # what is stuck must not keep others from working

        return Prepared(
            execute=execute,
            barrier=not self.tool.flags.read_only,
            blocking=self.tool.blocking,
            abandoned=abandoned,
        )

    async def reattach(
        self, run: "Run", ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`: never called, a plain tool has no child."""
        raise NotImplementedError


class _Report:
    """Shows a tool's progress to the tree's viewers."""

    __slots__ = ("_name", "_ref", "_run")

    def __init__(self, run: "Run", ref: CallRef, name: str) -> None:
        self._run = run
        self._ref = ref
        self._name = name

    def __call__(self, text: str) -> None:
        self._run.show(ToolProgressEvent(call=self._ref, name=self._name, text=text))


def make_context(run: "Run", ref: CallRef) -> ToolContext:
    """The context of one call."""
    row = run.row
    return ToolContext(
        agent_id=row.agent_id,
        user_id=row.key.user,
        session_id=row.key.session,
        run_id=row.run_id,
        path=row.path,
        call=ref,
        attempt=row.attempt,
        attributes=run.tree.attributes if run.definition.shares_context else None,
        threads=run.tree.services.threads,
        closes_place=run.definition.gate.closes_place,
    )
