"""The middleware around one call: what it passes to `next` is what runs, unless it has changed more than it may.

Rights never widen: arguments that the gate did not see go past it first.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from retinue.agent.call_arguments import canonical
from retinue.agent.middleware import Middleware, ToolInvocation, accepted, chain
from retinue.agent.next_step import CallAction
from retinue.agent.ports import CallOutcome, Prepared
from retinue.agent.started_call import StartedCall, called_twice
from retinue.agent.texts import denied
from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.messages import CallRef, ToolCall
from retinue.states import ResultStatus

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["CHANGED_ARGUMENTS", "around_call"]

CHANGED_ARGUMENTS: Final = "changedArguments"
"""Under which name a result's metadata hold the arguments (JSON text) that a middleware put in the place of the model's."""
UNASKED: Final = "a middleware changed its arguments, and these would have to be asked for"


async def around_call(run: "Run", one: StartedCall, middleware: Sequence[Middleware]) -> object:
    """Run a call with the middleware around it; what the outermost made of it.

    Raises:
        ConfigurationError: `middleware_changed`, `next_called_twice`, where no middleware has taken that in.
    """
    given = _invocation(run, one.action)
    changed: list[str] = []

    async def innermost(passed: ToolInvocation) -> CallOutcome:
        call = accepted(given, passed).call
        if one.prepared.stop is not None:
            return await _delegated(run, one, given.call, call)
        return await _called(run, one, given.call, call, changed)

    made = cast("object", await chain(middleware, "around_tool_call", innermost)(given))
    if changed and isinstance(made, CallOutcome):
        return replace(made, metadata={**made.metadata, CHANGED_ARGUMENTS: changed[-1]})
    return made


def _invocation(run: "Run", action: CallAction) -> ToolInvocation:
    """The call as the gate saw it."""
    read = canonical(action.call)
    return ToolInvocation(
        ref=action.ref,
        call=action.call if isinstance(read, CallOutcome) else read[1],
        agent_id=run.definition.agent_id,
        run_id=run.row.run_id,
        depth=run.row.depth,
        state=run.state,
    )


async def _delegated(run: "Run", one: StartedCall, given: ToolCall, call: ToolCall) -> CallOutcome:
    if call.arguments != given.arguments:
        raise ConfigurationError(
            f"a middleware changed the arguments of the delegation `{call.name}`, whose child is committed",
            code="middleware_changed",
            remedy="pass on `call` as it is; what a fork begins with is changed in `before_fork_commit`",
        )
    return await one.drive_inside(run)


async def _called(run: "Run", one: StartedCall, given: ToolCall, call: ToolCall, changed: list[str]) -> CallOutcome:
    """The call of a plain tool: as it was prepared, or prepared again where it is another one or is made once more."""
    if one.given_up:
        raise asyncio.CancelledError
    if one.at_work:
        raise called_twice(f"`{call.name}`", "while the first call is still at work", "wait for it first")
    one.at_work = True
    try:
        if call.arguments != given.arguments or one.begun:
            prepared = await _prepared_again(run, one.action.ref, given, call, changed)
            if isinstance(prepared, CallOutcome):
                return prepared
            one.prepared = prepared
        one.begun = True
        return await one.prepared.execute()
    finally:
        one.at_work = False


async def _prepared_again(
    run: "Run", ref: CallRef, given: ToolCall, call: ToolCall, changed: list[str]
) -> Prepared | CallOutcome:
    """What a person would have to be asked for does not run: the answer that there may be was for other arguments."""
    read, handler = canonical(call), run.definition.tools[call.name]
    if isinstance(read, CallOutcome):
        return read
    arguments, call = read
    if call.arguments != given.arguments:
        refused = await handler.refusal(run, call)
        if refused is not None:
            return refused
        decision = await run.definition.gate.decide(await handler.gated(run, arguments), run.tree.remembered)
        if decision.verdict is not Verdict.ALLOW:
            because = decision.because if decision.verdict is Verdict.DENY else UNASKED
            return CallOutcome(content=denied(call.name, because), status=ResultStatus.DENIED)
        changed.append(call.arguments)
    return await handler.prepare(run, ref, call)
