"""A middleware that heeds no cancellation holds up no stop: it is waited for no longer than the grace, and named."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from retinue import Agent, Limits, Middleware, ModelRequest, PermissionRules, RunResult, Runtime, ScriptedModel, SubAgent
from retinue.agent.middleware import RunCall
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


class DeafAround(Middleware):
    """Waits around a run, whoever cancels it, `before` or `after` it. `once`: from the second cancellation on it heeds."""

    def __init__(self, where: str, *, once: bool = False, agent_id: str = "a") -> None:
        self.where, self.once, self.agent_id = where, once, agent_id
        self.begun, self.leave = asyncio.Event(), asyncio.Event()
        self.cancels = 0
        self.refused = False

    async def around_run(self, call: RunCall, next: Any) -> Any:
        """Wait on one side."""
        if call.agent_id != self.agent_id:
            return await next(call)
        if self.where == "before":
            await self.wait()
        try:
            end = await next(call)
        except asyncio.CancelledError:
            self.refused = True
            raise
        if self.where == "after":
            await self.wait()
        return end

    async def wait(self) -> None:
        """Wait."""
        self.begun.set()
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.cancels += 1
                if self.once and self.cancels > 1:
                    raise


@pytest.mark.parametrize("agent_id", ["a", "child"])
@pytest.mark.parametrize(("where", "status"), [("before", "cancelled"), ("after", "completed")])
async def test_a_middleware_around_a_run_is_left_behind_after_the_grace(where: str, status: str, agent_id: str) -> None:
    deaf, clock = DeafAround(where, agent_id=agent_id), VirtualClock(auto=True)
    model = ScriptedModel({"a": [SPAWN, "x"] if agent_id == "child" else ["x"], "child": ["y"]})
    child = SubAgent("child", "Helps.", instructions="Help.")
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=model, middleware=[deaf], subagents=[child], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await deaf.begun.wait()
        before = clock.monotonic()
        await agent.cancel(reason="enough")
        result = await running
        assert clock.monotonic() - before == pytest.approx(5)
        assert result.status == ("cancelled" if agent_id == "child" else status)
        if result.status == "cancelled":
            assert "still stopping: `around_run of a middleware`" in result.message
        assert deaf.cancels >= 1
        deaf.leave.set()
        for _ in range(20):
            await asyncio.sleep(0)
        rows = await runtime.ledger.tree(result.run_id)
        assert all(row.state.terminal for row in rows)
    assert deaf.refused is (where == "before")  # it was too late for `next`


async def test_a_middleware_that_heeds_the_second_cancellation_is_not_left_behind() -> None:
    deaf, clock = DeafAround("before", once=True), VirtualClock(auto=True)
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=ScriptedModel(["x"]), middleware=[deaf], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await deaf.begun.wait()
        await agent.cancel(reason="enough")
        result = await running
    assert (result.status, result.reason, deaf.cancels) == ("cancelled", "enough", 2)
    assert "still stopping" not in result.message


async def test_what_a_middleware_does_behind_a_run_that_was_stopped_has_the_grace_and_no_more() -> None:
    """The stop came while the run was driven: nothing interrupts what is done behind it before the grace is over."""
    here, clock, deaf = asyncio.Event(), VirtualClock(auto=True), DeafAround("after")

    async def answer(_request: ModelRequest) -> str:
        here.set()
        await asyncio.Event().wait()
        return "never"

    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=ScriptedModel(answer), middleware=[deaf], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await here.wait()
        before = clock.monotonic()
        await agent.cancel(reason="enough")
        assert (await running).status == "cancelled"
        assert clock.monotonic() - before == pytest.approx(5)
        deaf.leave.set()


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_caller_that_is_cancelled_twice_does_not_wait_for_a_middleware(where: str) -> None:
    deaf, clock = DeafAround(where), VirtualClock()
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=ScriptedModel(["x"]), middleware=[deaf], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await deaf.begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        deaf.leave.set()


NOTED: ContextVar[str] = ContextVar("NOTED", default="nothing")


async def test_what_a_middleware_sets_in_its_context_is_seen_inside_of_the_run() -> None:
    seen: list[str] = []

    class Setting(Middleware):
        async def around_run(self, call: RunCall, next: Any) -> Any:
            token = NOTED.set("a span")
            try:
                return await next(call)
            finally:
                NOTED.reset(token)

    def answer(_request: ModelRequest) -> str:
        seen.append(NOTED.get())
        return "x"

    async with Agent("a", model=ScriptedModel(answer), middleware=[Setting()]) as agent:
        await agent.run("go")
    assert (seen, NOTED.get()) == (["a span"], "nothing")


async def test_a_fault_behind_a_run_that_waits_leaves_it_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Middleware):
        async def around_run(self, call: RunCall, next: Any) -> Any:
            await next(call)
            raise OSError("no disk")

    model = ScriptedModel({"a": [SPAWN, "x"], "child": ["y"]})
    child = SubAgent("child", "Helps.", instructions="Help.")
    rules = PermissionRules(ask=["agent_spawn"])
    async with Agent("a", model=model, middleware=[Broken()], subagents=[child], permissions=rules) as agent:
        waiting = await agent.run("go")
        assert waiting.status == "waiting"
        assert "a middleware raised OSError: no disk" in caplog.text
        result = await agent.answer(waiting.requests[0], allow=True)
        assert result is not None
        assert result.text == "x"


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
