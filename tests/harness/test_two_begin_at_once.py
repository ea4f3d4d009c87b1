"""A thread has one run that is not finished: who comes second is told so, and takes nothing from the first."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, ThreadBusy
from retinue.events import RunStartedEvent, encode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Journal
from retinue.messages import ToolResult, UserMessage
from retinue.ops import Append, NewEvent, PutRun
from retinue.rows import ThreadKey
from retinue.states import RunState
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


class Late(MemoryLedger):
    """Lets something happen just before a thread's journal is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[ThreadKey], Awaitable[None]] | None = None

    async def journal(self, key: ThreadKey) -> Journal | None:
        before, self.before = self.before, None
        if before is not None:
            await before(key)
        return await super().journal(key)


class Slow:
    """A model that is asked and answers when it may."""

    def __init__(self) -> None:
        self.asked, self.leave = asyncio.Event(), asyncio.Event()

    async def __call__(self, _request: Any) -> str:
        self.asked.set()
        await self.leave.wait()
        return "first"


async def ended(agent: Agent, **more: Any) -> str:
    events = [event async for event in agent.stream("one", **more)]
    return events[-1].result.text  # type: ignore[attr-defined]


async def test_a_run_that_began_while_another_one_was_being_begun_keeps_its_thread() -> None:
    ledger, slow = Late(), Slow()
    async with Runtime(ledger=ledger) as mine, Runtime(ledger=ledger) as theirs:
        second = Agent("a", model=ScriptedModel(["second"]), runtime=mine)
        first = Agent("a", model=ScriptedModel(slow), runtime=theirs)
        await Agent("a", model=ScriptedModel(["before"]), runtime=theirs).run("zero", context=HERE)
        running: list[asyncio.Task[str]] = []

        async def begin(_key: ThreadKey) -> None:
            running.append(asyncio.create_task(ended(first, context=HERE)))
            await slow.asked.wait()

        ledger.before = begin
        with pytest.raises(ThreadBusy):
            await second.run("two", context=HERE)
        slow.leave.set()
        assert await running[0] == "first"
        for row in await ledger.runs():
            assert await audit(ledger, row.run_id) == []


async def test_a_childs_thread_that_is_taken_while_it_is_sent_to_is_left_alone() -> None:
    ledger = Late()

    def root(request: Any) -> Any:
        last = request.history[-1].message
        if isinstance(last, UserMessage) and last.text == "spawn":
            return {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "child", "task": "x", "label": "kid"}}]}
        if isinstance(last, UserMessage):
            return {"calls": [{"name": "agent_send", "arguments": {"label": "kid", "message": "more"}}]}
        assert isinstance(last, ToolResult)
        return last.content

    async with Runtime(ledger=ledger, models={"quick": ScriptedModel(["child is done"])}) as runtime:
        child = SubAgent("child", "Helps.", instructions="Help.", model="quick")
        agent = Agent(
            "root", model=ScriptedModel(root), subagents=[child], runtime=runtime, permissions=PermissionRules(allow=["*"])
        )
        await agent.run("spawn", context=HERE)

        async def begin(key: ThreadKey) -> None:
            """Another process begins a run there."""
            last, thread = await ledger.last_run(key), await ledger.thread(key)
            assert last is not None
            assert thread is not None
            other = msgspec.structs.replace(last, run_id="run_other", lineage=("run_other",), state=RunState.RUNNING)
            event = RunStartedEvent(agent_id="child", owner="own_other", attempt=1)
            new = NewEvent(event.TYPE, encode(event), "run_other", 1, 0)
            await ledger.commit([PutRun(other), Append(key, thread.generation, thread.head, (new,))])

        ledger.before = begin
        result = await agent.run("send", context=HERE)
        assert "was given another run at the same moment" in result.text
        (kid,) = [row for row in await ledger.threads(hidden=True) if row.label == "kid"]
        last = await ledger.last_run(kid.key)
        assert last is not None
        assert last.run_id == "run_other"
