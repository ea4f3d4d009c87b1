"""A run is cancelled at each of its suspensions, one by one: it always ends in good order, and its conversation can go on."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolHarness,
    subagent,
    tool,
)
from retinue.events import RunFinishedEvent
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.models.port import ModelRequest
from retinue.states import RequestState
from retinue.testing import ScriptedModel, VirtualClock
from retinue.testing.audit import audit, told
from retinue.testing.mortal import SharedStore
from retinue.testing.transcripts import assert_valid_transcript

HERE = RuntimeContext(session_id="s")
ANY = SubAgentAvailability.ANY_ALLOWED_DEPTH


class Tools(ToolHarness):
    """An effect, and a look."""

    @tool
    async def write(self, text: str) -> str:
        """Write."""
        await asyncio.sleep(0)
        return f"wrote {text}"

    @tool(read_only=True)
    async def look(self) -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    @tool
    def block(self) -> str:
        """Work in a thread."""
        return "blocked"


class Below(Tools):
    """What the middle one has."""

    @subagent
    def low(self) -> SubAgent:
        """The lowest."""
        return SubAgent("low", "Low.", instructions="You are low.", tool_harnesses=[Tools], availability=ANY)


class Above(Tools):
    """What the root has."""

    @subagent
    def mid(self) -> SubAgent:
        """The middle one."""
        return SubAgent("mid", "Mid.", instructions="You are mid.", tool_harnesses=[Below], availability=ANY)

    @subagent
    def asked(self) -> SubAgent:
        """One that has to ask for `write`."""
        return SubAgent("asked", "Asked.", instructions="You are asked.", tool_harnesses=[Tools], timeout_seconds=60)


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def _answer(request: ModelRequest) -> Any:
    await asyncio.sleep(0)
    low = [{"calls": [_call("look")]}, {"calls": [_call("look"), _call("write", text="x")]}, "low is done"]
    turns: dict[str, list[Any]] = {
        "root": [
            {"calls": [_call("mid", input="a"), _call("look"), _call("asked", input="b")]},
            {"calls": [_call("block"), _call("write", text="y")]},
            {"calls": [_call("mid", input="c")]},
            "root is done",
        ],
        "mid": [{"text": "mid begins", "calls": [_call("low", input="d"), _call("write", text="z")]}, "mid is done"],
        "low": low,
        "asked": low,
    }
    return turns[request.agent_id][request.step - 1] if request.step <= len(turns[request.agent_id]) else "more"


class Interruption:
    """Cancels a task when the work of a tree is suspended for the n-th time, whichever of its tasks that is."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.suspended = 0
        self.task: asyncio.Task[Any] | None = None

    def over(self, work: Coroutine[Any, Any, Any]) -> "Watched":
        """The same work, watched."""
        return Watched(self, work)

    def count(self) -> None:
        """One more suspension."""
        self.suspended += 1
        if self.suspended == self.at and self.task is not None:
            self.task.cancel()


class Watched:
    """Awaits a coroutine and counts its suspensions."""

    def __init__(self, interruption: Interruption, work: Coroutine[Any, Any, Any]) -> None:
        self.interruption = interruption
        self.work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                future = self.work.send(None) if thrown is None else self.work.throw(thrown)
            except StopIteration as end:
                return end.value
            self.interruption.count()
            try:
                thrown = None
                yield future
            except BaseException as error:  # noqa: BLE001
                thrown = error


async def _await(work: Awaitable[Any]) -> Any:
    return await work


async def _ledger(kind: str, path: Path) -> Ledger:
    """A ledger whose commits are there at once, after a few rounds of the loop, or when a disk has them."""
    if kind == "sqlite":
        return SqliteLedger(path, durability="process")
    if kind == "memory":
        return MemoryLedger()
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    return store.process().ledger


def _agent(runtime: Runtime, on_request: Any) -> Agent:
    rules = PermissionRules(allow=["mid", "low", "asked", "look", "block"], ask=["write"])
    return Agent(
        "root", model=ScriptedModel(_answer), tool_harnesses=[Above], runtime=runtime, permissions=rules, on_request=on_request
    )


async def _scene(kind: str, path: Path, at: int, whose: str, grace: float) -> tuple[bool, str]:
    """Run, cancelled at its n-th suspension. Whether it came that far, and how it ended."""
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    before = asyncio.all_tasks()
    runtime = Runtime(
        ledger=await _ledger(kind, path), clock=VirtualClock(auto=True), limits=Limits(max_children=1, stop_grace=grace)
    )

    async def on_request(_request: Any) -> bool:
        await asyncio.sleep(0)
        return True

    agent = _agent(runtime, on_request)
    interruption = _watch(loop, at, whose)
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    if whose == "caller":
        interruption.task = run
    await asyncio.wait((run,))
    loop.set_task_factory(None)
    reached = interruption.suspended >= at
    assert run.cancelled() or run.exception() is None, run.exception()
    state = await _check(runtime, agent, reached)
    await runtime.close()
    assert asyncio.all_tasks() == before
    assert not faults
    return reached, state


def _watch(loop: asyncio.AbstractEventLoop, at: int, whose: str) -> Interruption:
    """Watch the tasks that do a run's work."""
    interruption = Interruption(at)

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        driver = work.__qualname__ == "Driver._drive"
        if not driver and work.__qualname__ != "Calls._execute":
            return asyncio.Task(work, loop=loop, **options)
        task = asyncio.Task(_await(interruption.over(work)), loop=loop, **options)
        task.add_done_callback(lambda _task: work.close())  # it may have been cancelled before it began
        if driver and whose == "driver":
            interruption.task = task
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    return interruption


async def _check(runtime: Runtime, agent: Agent, reached: bool) -> str:
    """What the ledger says is sound, and the conversation goes on."""
    await runtime.open()
    rows = await runtime.ledger.runs(roots_only=True)
    for row in rows:
        assert row.state.value in ("completed", "cancelled")
        assert reached or row.state.value == "completed"
        assert await audit(runtime.ledger, row.run_id) == []
        for one in await told(runtime.ledger, row.run_id):
            messages = [event.message for event in one.of(RunFinishedEvent)]
            assert not any(f"`{child}`" in message for message in messages for child in ("mid", "low", "asked"))  # none is stuck
        assert await runtime.ledger.requests(root_run=row.run_id, state=RequestState.OPEN) == []
    assert len(rows) <= 1
    again = await agent.run("and now?", context=HERE)
    assert again.thread is not None
    assert_valid_transcript(await again.thread.messages())
    return rows[0].state.value if rows else "not begun"


@pytest.mark.parametrize(
    ("kind", "step", "grace"),
    [("memory", 1, 5.0), ("memory", 1, 0.0), ("shared", 1, 5.0), ("shared", 1, 0.0), ("sqlite", 5, 5.0)],
)
@pytest.mark.parametrize("whose", ["caller", "driver"])
@pytest.mark.case("B012", "B026", "B028")
def test_cancelled_at_every_await(
    kind: str, step: int, grace: float, whose: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []
    at, reached = 1, True
    while reached:
        with caplog.at_level(logging.WARNING):
            reached, state = asyncio.run(asyncio.wait_for(_scene(kind, tmp_path / f"{at}.db", at, whose, grace), 20))
        assert caplog.records == []
        ends.append(state)
        at += step
    assert at > 60
    assert ends[-1] == "completed"
    assert set(ends) <= {"cancelled", "completed", "not begun"}
    if kind == "sqlite":  # how often one is suspended depends on the disk
        assert ends.count("cancelled") > 0.6 * len(ends)
    else:
        assert set(ends[3:-3]) == {"cancelled"}
