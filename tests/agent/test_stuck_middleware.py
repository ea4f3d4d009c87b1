"""A middleware that heeds no cancellation holds up no stop: it is waited for no longer than the grace, and named."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, Limits, Middleware, RunResult, Runtime, ScriptedModel, SubAgent
from retinue.testing import VirtualClock, calls

pytestmark = pytest.mark.anyio


class Deaf(Middleware):
    """Waits in `before_reasoning`, whoever cancels it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()

    async def before_reasoning(self, state: Any) -> None:
        """Wait."""
        self.begun.set()
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                pass


@pytest.mark.parametrize("how", ["cancel", "caller"])
async def test_a_middleware_before_the_model_is_left_behind_after_the_grace(how: str) -> None:
    deaf, clock = Deaf(), VirtualClock(auto=True)
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=ScriptedModel(["x"]), middleware=[deaf], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await deaf.begun.wait()
        before = clock.monotonic()
        if how == "cancel":
            await agent.cancel(reason="enough")
            result = await running
            assert (result.status, result.reason) == ("cancelled", "enough")
            assert "still stopping: `before_reasoning of a middleware`" in result.message
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert clock.monotonic() - before == pytest.approx(5)
        deaf.leave.set()


class Slow(Middleware):
    """Waits around a run, before it or after it, until it is cancelled; what it makes of that is `then`."""

    def __init__(self, where: str, then: str) -> None:
        self.where, self.then = where, then
        self.begun = asyncio.Event()

    async def around_run(self, call: Any, next: Any) -> Any:
        """Wait on one side."""
        if self.where == "before":
            await self.wait()
        end = await next(call)
        if self.where == "after":
            await self.wait()
        return end

    async def wait(self) -> None:
        """Wait for ever."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.then == "raises":
                raise
            if self.then == "breaks":
                raise OSError("broken off") from None


ENDS = [
    ("before", "raises", "cancelled"),
    ("before", "goes_on", "cancelled"),
    ("before", "breaks", "cancelled"),
    ("after", "raises", "completed"),
    ("after", "goes_on", "completed"),
    ("after", "breaks", "completed"),
]


SPAWN = calls(("agent_spawn", {"agent_id": "child", "task": "x"}))


@pytest.mark.parametrize("child", [False, True], ids=["root", "child"])
@pytest.mark.parametrize(("where", "then", "status"), ENDS)
async def test_a_stop_interrupts_what_a_middleware_does_around_a_run(where: str, then: str, status: str, child: bool) -> None:
    slow = Slow(where, then)
    script: dict[str, Any] = {"a": [SPAWN, "x"] if child else ["x"], "child": ["y"]}
    declared = [SubAgent.from_factory("child", lambda _: Agent("child", middleware=[slow]), "Helps.")]
    own = [] if child else [slow]
    async with Agent("a", model=ScriptedModel(script), middleware=own, subagents=declared) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await slow.begun.wait()
        await agent.cancel(reason="enough")
        result = await running
        expected = "cancelled" if child else status  # a child's end is not committed before the stop: it rides with its parent
        assert result.status == expected
        rows = {row.agent_id: row.state.value for row in await agent.runtime.ledger.tree(result.run_id)}
    assert rows["child" if child else "a"] == expected


@pytest.mark.parametrize("turns", range(12))
async def test_a_stop_that_comes_before_a_middleware_began_is_not_held_up_by_it(turns: int) -> None:
    async with Agent("a", model=ScriptedModel(["x"]), middleware=[Slow("before", "raises")]) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        await agent.cancel(reason="enough")
        if turns == 0:
            running.cancel()  # it was not there yet
        (result,) = await asyncio.gather(running, return_exceptions=True)
    assert turns == 0 or (isinstance(result, RunResult) and result.status == "cancelled")


class Counts(Middleware):
    """Notes how often the task that drives the run is still being cancelled when the run is over."""

    priority = -1

    def __init__(self) -> None:
        self.left: list[int] = []

    async def around_run(self, call: Any, next: Any) -> Any:
        """Note it behind the run."""
        end = await next(call)
        task = asyncio.current_task()
        assert task is not None
        self.left.append(task.cancelling())
        return end


async def test_an_interruption_that_a_middleware_kept_to_itself_is_taken_in_before_the_run_goes_on() -> None:
    slow, counts = Slow("before", "goes_on"), Counts()
    async with Agent("a", model=ScriptedModel(["x"]), middleware=[counts, slow]) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await slow.begun.wait()
        await agent.cancel(reason="enough")
        assert (await running).status == "cancelled"
    assert counts.left == [0]
