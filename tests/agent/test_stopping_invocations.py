"""A delegation whose child has a call that cannot be stopped is `stopping` until that returns, or its process ends (M8)."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Limits, PermissionRules, RunCancelled, Runtime, SubAgent, ToolHarness, tool
from retinue.agent.stopping import settle_stopped
from retinue.ledger.explain import explain
from retinue.ledger.port import Ledger
from retinue.models.scripted import ScriptedModel
from retinue.ops import DropOwner
from retinue.rows import InvocationRow
from retinue.states import InvocationState
from retinue.testing import VirtualClock
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

SCRIPT = {
    "root": [{"calls": [{"name": "child", "arguments": {"input": "go"}}]}, "done"],
    "child": [{"text": "begun", "calls": [{"name": "block"}]}, "child is done"],
}


class Blocking(ToolHarness):
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.leave = threading.Event()

    @tool
    def block(self) -> str:
        """Wait in a thread."""
        self.loop.call_soon_threadsafe(self.begun.set)
        self.leave.wait(20)
        return "the thread came back"


def scene(ledger: str | Path | Ledger, **child: Any) -> tuple[Agent, Blocking, VirtualClock]:
    clock, blocking = VirtualClock(), Blocking()
    agent = Agent(
        "root",
        model=ScriptedModel(SCRIPT),
        subagents=[SubAgent("child", "Helps.", instructions="Help.", surface="tool", tool_harnesses=[blocking], **child)],
        permissions=PermissionRules(allow=["child", "block"]),
        runtime=Runtime(ledger=ledger, clock=clock, limits=Limits(stop_grace=5)),
    )
    return agent, blocking, clock


async def stopped(agent: Agent, blocking: Blocking, clock: VirtualClock) -> InvocationRow:
    """Cancel a run whose child blocks, until its end: the delegation as it is then."""
    run = asyncio.create_task(agent.run("go"))
    await blocking.begun.wait()
    await agent.cancel()
    while not run.done():
        await clock.advance(1)
    with pytest.raises(RunCancelled, match="cancelled") as raised:
        await run
    assert raised.value.result.message == "still stopping: `block`"
    root = raised.value.result.run_id
    assert await audit(agent.runtime.ledger, root) == []
    (row,) = await agent.runtime.ledger.invocations(root_run=root)
    return row


async def afterwards(agent: Agent, row: InvocationRow) -> InvocationRow:
    """The delegation once nothing of it is left."""
    strays = agent.runtime._services.strays
    if strays:
        await asyncio.wait(strays, timeout=10)
    found = await agent.runtime.ledger.invocation(row.invocation_id)
    assert found is not None
    return found


@pytest.mark.contract("D-07")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_it_is_stopping_until_its_thread_returns(kind: str, tmp_path: Path) -> None:
    agent, blocking, clock = scene("memory" if kind == "memory" else tmp_path / "l.db")
    row = await stopped(agent, blocking, clock)
    assert (row.state, row.owner) == (InvocationState.STOPPING, agent.runtime._owner_id)
    said = await explain(agent.runtime.ledger, row.invocation_id)
    assert "it can write nothing any more" in said.text
    assert said.held_by.endswith("which is alive")
    blocking.leave.set()
    ended = await afterwards(agent, row)
    assert (ended.state, ended.owner, ended.ends_as) == (InvocationState.CANCELLED, None, None)
    assert await audit(agent.runtime.ledger, row.root_run) == []
    await agent.runtime.close()


@pytest.mark.contract("D-08")
async def test_a_time_limit_ends_as_failed_however_long_the_thread_takes() -> None:
    agent, blocking, clock = scene("memory", timeout_seconds=60)
    run = asyncio.create_task(agent.run("go"))
    await blocking.begun.wait()
    while not run.done():
        await clock.advance(1)
    result = await run
    assert result.text == "done"
    (row,) = await agent.runtime.ledger.invocations(root_run=result.run_id)
    assert (row.state, row.reason) == (InvocationState.STOPPING, "timeout")
    blocking.leave.set()
    assert (await afterwards(agent, row)).state is InvocationState.FAILED
    await agent.runtime.close()


async def test_a_cancel_that_calls_itself_timeout_ends_cancelled() -> None:
    agent, blocking, clock = scene("memory")
    run = asyncio.create_task(agent.run("go", check=False))
    await blocking.begun.wait()
    await agent.cancel(reason="timeout")
    while not run.done():
        await clock.advance(1)
    (row,) = await agent.runtime.ledger.invocations(root_run=(await run).run_id)
    blocking.leave.set()
    assert (await afterwards(agent, row)).state is InvocationState.CANCELLED
    await agent.runtime.close()


@pytest.mark.contract("D-19")
async def test_whoever_opens_the_ledger_next_ends_what_a_dead_process_left(tmp_path: Path) -> None:
    agent, blocking, clock = scene(tmp_path / "l.db")
    row = await stopped(agent, blocking, clock)
    async with Runtime(ledger=tmp_path / "l.db") as other:  # its process lives: it is still stopping
        assert await other.ledger.invocation(row.invocation_id) == row
    closing = asyncio.create_task(agent.runtime.close())
    while not closing.done():
        await clock.advance(1)
    await closing  # the thread goes on, and nobody is there any more to see it return
    async with Runtime(ledger=tmp_path / "l.db") as next_one:
        found = await next_one.ledger.invocation(row.invocation_id)
        assert found is not None
        assert (found.state, found.owner) == (InvocationState.CANCELLED, None)
    blocking.leave.set()


async def test_two_that_find_it_at_once_end_it_once() -> None:
    agent, blocking, clock = scene("memory")
    ledger, row = agent.runtime.ledger, await stopped(*(agent, blocking, clock))
    await ledger.commit([DropOwner(agent.runtime._owner_id)])
    await asyncio.gather(settle_stopped(ledger, clock), settle_stopped(ledger, clock))
    found = await ledger.invocation(row.invocation_id)
    assert found is not None
    assert found.state is InvocationState.CANCELLED
    blocking.leave.set()
    assert await afterwards(agent, row) == found
    await agent.runtime.close()
