"""Tasks whose tools do not stop, whose engine cannot be trusted, and whose clock jumps."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import Agent, Limits, Runtime, RuntimeContext, SubAgent, tool
from retinue.events import SubAgentInvocationCancelledEvent, decode
from retinue.harness import tasks as tasks_module
from retinue.harness.tasks import resume_tasks
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
Sound = Callable[[Ledger], Awaitable[None]]


def model(kid: Any, *, spawns: int = 1, seconds: float = 0) -> RecordingModel:
    """A root that gives its tasks once in its thread."""
    spawn = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": seconds})

    async def answer(request: ModelRequest) -> Any:
        heard = [entry.message.content for entry in request.history if isinstance(entry.message, ToolResult)]
        if request.agent_id == "root":
            return "noted" if heard else calls(*[spawn] * spawns)
        return await kid(request, heard)

    return RecordingModel(answer)


def notices(asked: RecordingModel) -> str:
    """What the root was told of ends, in its last request."""
    messages = (entry.message for entry in asked.asked("root")[-1].history)
    return "\n".join(one.text for one in messages if isinstance(one, UserMessage) and one.notice)


KID = SubAgent("kid", "Helps.", instructions="Help.")


@pytest.mark.contract("D-07")
async def test_a_tool_that_swallows_cancellation(sound: Sound) -> None:
    """A task that is stopped ends within the grace, whatever its tool makes of that, and asks its model nothing more."""
    clock, begun, go = VirtualClock(auto=True), asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Does not stop."""
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass
        return "late"

    async def kid(_: ModelRequest, heard: list[str]) -> Any:
        return "never" if heard else calls(("stubborn", {}))

    asked = model(kid)
    async with Runtime(ledger=MemoryLedger(), clock=clock, limits=Limits(stop_grace=5)) as runtime:
        async with Agent("root", model=asked, subagents=[KID], tools=[stubborn], runtime=runtime) as agent:
            (task,) = (await agent.run("go", context=HERE)).tasks
            await begun.wait()
            before = clock.monotonic()
            await task.cancel("enough")
            end = await task.wait(60)
            assert (end.status, end.reason) == ("cancelled", "enough")
            assert 5 <= clock.monotonic() - before < 7
            go.set()
            await agent.run("and?", context=HERE)  # its model is not told (H-13), its journal is
        assert len(asked.asked("kid")) == 1
        journal = await runtime.ledger.journal(KEY)
        assert journal is not None
        told = [event for event in map(decode, journal.own) if isinstance(event, SubAgentInvocationCancelledEvent)]
        assert [event.reason for event in told] == ["enough"]
        await sound(runtime.ledger)


@pytest.mark.contract("D-07")
async def test_sync_tool_that_never_returns(sound: Sound) -> None:
    """A thread cannot be killed: the task ends without it, and so does the agent."""
    clock, begun, go = VirtualClock(), threading.Event(), threading.Event()

    @tool
    def stuck() -> str:
        """Never comes back."""
        begun.set()
        go.wait()
        return "late"

    async def kid(_: ModelRequest, heard: list[str]) -> Any:
        return "never" if heard else calls(("stuck", {}))

    asked = model(kid)
    try:
        async with Runtime(ledger=MemoryLedger(), clock=clock, limits=Limits(stop_grace=5)) as runtime:
            agent = Agent("root", model=asked, subagents=[KID], tools=[stuck], runtime=runtime, on_exit="detach")
            async with agent:
                (task,) = (await agent.run("go", context=HERE)).tasks
                await asyncio.to_thread(begun.wait)
                await task.cancel("enough")
                waiting = asyncio.create_task(task.wait())
                while not waiting.done():
                    await clock.advance(1)
                assert (await waiting).status == "cancelled"
            await sound(runtime.ledger)
            go.set()
        assert len(asked.asked("kid")) == 1
    finally:
        go.set()


class Hostile:
    """An engine that loses, repeats and delays what it is given (M6)."""

    def __init__(self, seed: int, drive: Callable[..., None]) -> None:
        self._random = random.Random(seed)
        self._drive = drive
        self.lost = 0
        self._late: list[asyncio.Task[Any]] = []

    def __call__(self, agent: Agent, context: Any, task: Any, drive: Any) -> None:
        """Start a task, or not, or twice, or later."""
        how = self._random.choice(["lose", "twice", "late", "right"])
        if how == "lose" and drive is None:
            self.lost += 1
            task.run.tree.branches.discard(task.branch)
            return
        if how == "late" and drive is None:
            self._late.append(asyncio.create_task(self._later(agent, context, task)))
            return
        self._drive(agent, context, task, drive)
        if how == "twice":
            self._late.append(asyncio.create_task(resume_tasks(agent)))

    async def _later(self, agent: Agent, context: Any, task: Any) -> None:
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)
        self._drive(agent, context, task, None)

    async def over(self) -> None:
        """What was delayed has been done."""
        await asyncio.gather(*self._late)


@pytest.mark.contract("A-35", "A-38")
@pytest.mark.parametrize("seed", range(12))
async def test_hostile_engine(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever becomes of a hint, the ledger knows the task: each is done once, and told once, at the latest after a restart."""

    async def kid(_: ModelRequest, heard: list[str]) -> Any:
        return "kid is done" if heard else calls(("look", {}))

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    asked = model(kid, spawns=6)
    hostile = Hostile(seed, tasks_module.drive_task)
    monkeypatch.setattr(tasks_module, "drive_task", hostile)
    agent = Agent("root", model=asked, subagents=[KID], tools=[look], runtime=runtime)
    async with agent:
        await agent.run("go", context=HERE)
        await hostile.over()
    assert len(await runtime.ledger.tasks(unfinished=True)) <= hostile.lost  # who looks twice finds some of them
    async with agent:  # whoever starts next finds what was lost
        pass
    assert {row.state.value for row in await runtime.ledger.tasks()} == {"completed"}
    assert len(asked.asked("kid")) == 12
    await agent.run("and?", context=HERE)
    assert notices(asked).count("is completed") == 6


class Jumping(VirtualClock):
    """A clock whose wall time somebody sets."""

    def __init__(self) -> None:
        super().__init__(auto=True)
        self.set = 0

    def now_ms(self) -> int:
        """See `Clock`."""
        return super().now_ms() + self.set


@pytest.mark.contract("D-08", "D-19")
@pytest.mark.parametrize("jump", [3_600_000, -3_600_000])
async def test_clock_jumps(jump: int, sound: Sound) -> None:
    """The machine's clock is set an hour on or back: waits last as long as they say, nothing is taken for lost or for over."""
    clock, ledger = Jumping(), MemoryLedger()

    async def kid(request: ModelRequest, heard: list[str]) -> Any:
        if request.agent_id == "kid":
            clock.set = jump
        await clock.sleep(40)
        return "kid is done"

    asked = model(kid, seconds=30)
    async with Runtime(ledger=ledger, clock=clock) as runtime:
        async with Agent("root", model=asked, subagents=[KID], runtime=runtime) as agent:
            before = clock.monotonic()
            result = await agent.run("go", context=HERE)
            assert 30 <= clock.monotonic() - before < 31  # it was waited for as long as was said, then it went on
            (task,) = result.tasks
            end = await task.wait(60)
            assert (end.status, end.text) == ("completed", "kid is done")
            assert 40 <= clock.monotonic() - before < 42
        await sound(ledger)
        (row,) = await ledger.tasks()
        assert row.state == "completed"
