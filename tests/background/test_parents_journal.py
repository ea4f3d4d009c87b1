"""What the parent's journal says of a task, and in which order (H-20)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import (
    Agent,
    MessageEvent,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
    UserMessage,
)
from retinue.models.port import ModelRequest
from retinue.ops import Append, CreateThread, PutInvocation, PutMail, PutRun, TakeMail
from retinue.states import InvocationState
from retinue.testing import RecordingLedger, RecordingModel, calls

pytestmark = pytest.mark.anyio

Events = Callable[[Runtime], Awaitable[list[Any]]]
HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
ENDS = (SubAgentInvocationCompletedEvent, SubAgentInvocationFailedEvent, SubAgentInvocationCancelledEvent)


def kid(surface: Any = "roster") -> SubAgent:
    """A subagent that only works in the background."""
    return SubAgent("kid", "Helps.", instructions="Help.", surface=surface, invocation_mode_policy="background_only")


def call(surface: str) -> tuple[str, dict[str, Any]]:
    """A call of it."""
    return ("kid", {"input": "x"}) if surface == "tool" else ("agent_spawn", {"agent_id": "kid", "task": "x"})


@pytest.mark.contract("H-20", "A-33")
@pytest.mark.parametrize("surface", ["roster", "tool"])
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_started_receipt_end_notice(runtime: Runtime, events: Events, surface: str, end: str) -> None:
    at_work = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(call(surface)) if len(model.asked("root")) == 1 else "ok"
        at_work.set()
        if end == "cancelled":
            await asyncio.Event().wait()
        return "done" if end == "completed" else " "

    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[kid(surface)], runtime=runtime, permissions=ALL)
    (task,) = (await agent.run("go", context=HERE)).tasks
    await at_work.wait()
    if end == "cancelled":
        await task.cancel("enough")
    assert (await task.wait()).status == end
    await agent.run("and?", context=HERE)  # nobody was woken: it has the end now
    row = await runtime.ledger.task(task.task_id)
    assert row is not None
    said = [one for one in await events(runtime) if getattr(one, "invocation_id", None) == row.invocation_id]
    started, ended = said
    assert isinstance(started, SubAgentInvocationStartedEvent)
    assert f"SUBAGENT_INVOCATION_{end.upper()}" == ended.TYPE
    for one in said:
        assert (one.child_agent_id, one.child_session_id, one.child_thread_id) == ("kid", row.child.session, row.child.thread)
        assert (one.context_policy, one.mode, one.depth) == (row.context_policy, "background", 1)
    kinds = (SubAgentInvocationStartedEvent, ToolCallResultEvent, *ENDS)
    order = [type(one) for one in await events(runtime) if isinstance(one, kinds)]
    assert order == [SubAgentInvocationStartedEvent, ToolCallResultEvent, type(ended)]
    notices = [
        one.message.text
        for one in await events(runtime)
        if isinstance(one, MessageEvent) and isinstance(one.message, UserMessage) and one.message.notice == "background-task"
    ]
    assert len(notices) == (0 if end == "cancelled" else 1)


@pytest.mark.contract("H-20", "A-33", "D-20")
async def test_what_belongs_together_is_one_commit(sound: Callable[[Any], Awaitable[None]]) -> None:
    ledger = RecordingLedger()

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return "done"
        return calls(call("roster")) if len(model.asked("root")) == 1 else "ok"

    model = RecordingModel(answer)
    async with Runtime(ledger=ledger) as runtime:
        agent = Agent("root", model=model, subagents=[kid()], runtime=runtime)
        (task,) = (await agent.run("go", context=HERE)).tasks
        await task.wait()
        await agent.run("and?", context=HERE)
        await sound(ledger)
    moves = [
        (place, op.row.state, op.expect)
        for place, commit in enumerate(ledger.commits)
        for op in commit
        if isinstance(op, PutInvocation)
    ]
    assert [state for _, state, _ in moves] == [InvocationState.PENDING, InvocationState.RUNNING, InvocationState.COMPLETED]
    spawn, _, end = (ledger.commits[place] for place, _, _ in moves)
    types = [[event.type for event in op.events] for op in spawn if isinstance(op, Append)]
    assert any(isinstance(op, CreateThread) for op in spawn)
    assert any(isinstance(op, PutRun) for op in spawn)
    assert any({"SUBAGENT_INVOCATION_STARTED", "TOOL_CALL_RESULT"} <= set(one) for one in types)
    assert any("RUN_STARTED" in one for one in types)  # the child's own journal
    assert any(isinstance(op, PutMail) for op in end)
    assert any(isinstance(op, PutRun) and op.row.state.terminal for op in end)
    taken = [commit for commit in ledger.commits if any(isinstance(op, TakeMail) for op in commit)]
    (told,) = ([event.type for op in commit if isinstance(op, Append) for event in op.events] for commit in taken)
    assert told[-2:] == ["SUBAGENT_INVOCATION_COMPLETED", "MESSAGE"]
