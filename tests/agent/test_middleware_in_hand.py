"""`next` is a middleware's for as long as it is at work: nothing of it goes on behind its back, and a time limit of its own ends
what it is around and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import (
    Agent,
    CallOutcome,
    ConfigurationError,
    Middleware,
    ModelAnswer,
    ModelCall,
    ModelRequest,
    PermissionRules,
    RunCall,
    RunResult,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolInvocation,
    tool,
)
from retinue.agent.ports import RunEnd
from retinue.events import decode
from retinue.messages import ToolResult
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, VirtualClock, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
Next = Callable[[Any], Awaitable[Any]]

ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing has run."""
    ran.clear()


@tool
async def slow(n: int) -> str:
    """Take long."""
    ran.append(f"slow {n} begins")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ran.append(f"slow {n} ends")
    return "done"


class Hanging:
    """A model that waits for ever on its second turn, and says when it is interrupted."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.interrupted = 0

    async def __call__(self, request: ModelRequest) -> Any:
        if request.step == 1:
            return calls(("slow", {"n": 1}))
        self.waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.interrupted += 1
            raise


async def journal(runtime: Runtime) -> list[str]:
    """The types of the events in the thread."""
    stored = await runtime.ledger.journal(KEY)
    assert stored is not None
    return [decode(record).TYPE for record in stored.own]


async def ended(agent: Agent, runtime: Runtime) -> RunResult:
    """The run's end; its journal ends with it, once, and the tree is sound."""
    result = await agent.run("go", context=HERE, check=False)
    for _ in range(5):
        await asyncio.sleep(0)
    types = await journal(runtime)
    assert types[-1] == "RUN_FINISHED"
    assert types.count("RUN_FINISHED") == 1
    for row in await runtime.ledger.runs(roots_only=True):
        assert await audit(runtime.ledger, row.run_id) == []
    return result


class Abandons(Middleware):
    """Starts the run in a task of its own, and leaves it there."""

    def __init__(self, model: Hanging) -> None:
        self.model = model
        self.tasks: list[asyncio.Future[Any]] = []

    async def around_run(self, call: RunCall, next: Next) -> RunEnd:
        self.tasks.append(asyncio.ensure_future(next(call)))
        await self.model.waits.wait()
        return RunEnd("completed")


async def test_a_run_that_a_middleware_leaves_alone_is_stopped() -> None:
    model = Hanging()
    leaves = Abandons(model)
    async with Runtime() as runtime:
        agent = Agent("root", model=RecordingModel(model), tools=[slow], middleware=[leaves], runtime=runtime)
        result = await ended(agent, runtime)
    assert (result.status, result.reason) == ("cancelled", "interrupted by a middleware")
    assert ran == ["slow 1 begins", "slow 1 ends"]  # once
    assert model.interrupted == 1
    assert all(task.done() for task in leaves.tasks)


class Limits(Middleware):
    """Gives the run some seconds, by the way that its test names."""

    def __init__(self, clock: VirtualClock, how: str) -> None:
        self.clock = clock
        self.how = how
        self.seen: list[str] = []

    async def around_run(self, call: RunCall, next: Next) -> RunEnd:
        if call.depth:
            return await next(call)
        limit = asyncio.create_task(self.clock.sleep(3))
        inner = asyncio.ensure_future(next(call))
        try:
            if self.how == "task":
                await asyncio.wait([limit, inner], return_when=asyncio.FIRST_COMPLETED)
                inner.cancel()
                return await inner
            async with asyncio.timeout(None) as within:
                limit.add_done_callback(lambda _: within.reschedule(0))
                return await inner
        except (TimeoutError, asyncio.CancelledError) as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            limit.cancel()
            await asyncio.gather(limit, return_exceptions=True)


@pytest.mark.parametrize(("how", "seen"), [("task", "CancelledError"), ("timeout", "TimeoutError")])
async def test_a_time_limit_of_a_middleware_ends_the_run_as_cancelled(how: str, seen: str) -> None:
    """The caller gets the run's end, no CancelledError: nobody has cancelled the caller."""
    model, clock = Hanging(), VirtualClock(auto=True)
    limits = Limits(clock, how)
    async with Runtime(clock=clock) as runtime:
        agent = Agent("root", model=RecordingModel(model), tools=[slow], middleware=[limits], runtime=runtime)
        result = await ended(agent, runtime)
    assert (result.status, result.reason) == ("cancelled", "interrupted by a middleware")
    assert limits.seen == [seen]
    assert model.interrupted == 1


class InPlace(Middleware):
    """`asyncio.timeout` around `next`, in the middleware's own task."""

    def __init__(self, model: Hanging) -> None:
        self.model = model
        self.seen: list[str] = []

    async def around_run(self, call: RunCall, next: Next) -> RunEnd:
        try:
            async with asyncio.timeout(None) as within:
                waits = asyncio.create_task(self.model.waits.wait())
                waits.add_done_callback(lambda _: within.reschedule(0))
                return await next(call)
        except TimeoutError:
            self.seen.append("TimeoutError")
            return RunEnd("completed")


async def test_a_timeout_in_place_is_told_to_the_middleware() -> None:
    model = Hanging()
    limits = InPlace(model)
    async with Runtime() as runtime:
        agent = Agent("root", model=RecordingModel(model), tools=[slow], middleware=[limits], runtime=runtime)
        result = await ended(agent, runtime)
    assert (result.status, result.reason) == ("cancelled", "interrupted by a middleware")
    assert limits.seen == ["TimeoutError"]


async def test_a_cancelled_caller_still_ends_the_run_and_learns_of_it() -> None:
    """Where the run is in a task of the middleware's, a cancellation from outside is still one from outside."""
    model = Hanging()
    limits = Limits(VirtualClock(), "task")
    async with Runtime() as runtime:
        agent = Agent("root", model=RecordingModel(model), tools=[slow], middleware=[limits], runtime=runtime)
        caller = asyncio.create_task(agent.run("go", context=HERE))
        await model.waits.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        (row,) = await runtime.ledger.runs()
        assert (row.state.value, row.reason) == ("cancelled", "interrupted")
        assert (await journal(runtime)).count("RUN_FINISHED") == 1


class Keeps(Middleware):
    """Keeps `next` and calls it again when its own part is over."""

    def __init__(self) -> None:
        self.kept: list[tuple[Next, Any]] = []

    async def around_run(self, call: RunCall, next: Next) -> RunEnd:
        self.kept.append((next, call))
        return await next(call)

    async def around_model_call(self, call: ModelCall, next: Next) -> ModelAnswer:
        self.kept.append((next, call))
        return await next(call)

    async def around_tool_call(self, call: ToolInvocation, next: Next) -> CallOutcome:
        self.kept.append((next, call))
        return await next(call)


async def test_a_kept_next_is_refused() -> None:
    keeps, asked = Keeps(), 0

    def answer(request: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        return calls(("slow", {"n": request.step})) if request.step == 1 else "done"

    async with Runtime() as runtime:
        agent = Agent("root", model=RecordingModel(answer), tools=[slow], middleware=[keeps], runtime=runtime)
        await ended(agent, runtime)
        assert len(keeps.kept) == 4
        for kept, call in keeps.kept:
            with pytest.raises(ConfigurationError, match="after its `around_") as refused:
                await kept(call)
            assert refused.value.code == "next_called_late"
    assert asked == 2
    assert ran == ["slow 1 begins", "slow 1 ends"]


class LimitsCalls(Middleware):
    """Gives a call no time, and answers in its place."""

    def __init__(self, started: asyncio.Future[None]) -> None:
        self.started = started

    async def around_tool_call(self, call: ToolInvocation, next: Next) -> CallOutcome:
        try:
            async with asyncio.timeout(None) as within:
                self.started.add_done_callback(lambda _: within.reschedule(0))
                return await next(call)
        except TimeoutError:
            return CallOutcome(content="took too long")


@pytest.mark.parametrize("what", ["tool", "child"])
async def test_a_time_limit_around_a_call_ends_that_call_alone(what: str) -> None:
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @tool
    async def hangs() -> str:
        """Never comes back."""
        started.set_result(None)
        await asyncio.Event().wait()
        return ""

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            started.set_result(None)
            await asyncio.Event().wait()
        if request.step == 1:
            return calls(("hangs", {})) if what == "tool" else calls(("kid", {"input": "x"}))
        heard = request.history[-1].message
        assert isinstance(heard, ToolResult)
        return f"heard: {heard.content}"

    kid = SubAgent("kid", "Hangs.", instructions="Hang.", surface="tool", requires_permission=False)
    async with Runtime() as runtime:
        agent = Agent(
            "root",
            model=RecordingModel(answer),
            tools=[hangs],
            tool_harnesses=[],
            subagents=[kid],
            middleware=[LimitsCalls(started)],
            runtime=runtime,
            permissions=PermissionRules(allow=["*"]),
        )
        result = await ended(agent, runtime)
        assert (result.status, result.text) == ("completed", "heard: took too long")
        rows = await runtime.ledger.tree(result.run_id)
        assert [row.state.value for row in rows if row.depth] == (["cancelled"] if what == "child" else [])


class Hedges(Middleware):
    """Asks the model twice at once."""

    async def around_model_call(self, call: ModelCall, next: Next) -> ModelAnswer:
        first = asyncio.ensure_future(next(call))
        await asyncio.sleep(0)
        with pytest.raises(ConfigurationError, match="still at work") as refused:
            await next(call)
        assert refused.value.code == "next_called_twice"
        return await first


async def test_a_model_is_not_asked_twice_at_once() -> None:
    go = asyncio.Event()

    async def answer(_: ModelRequest) -> Any:
        go.set()
        await asyncio.sleep(0)
        return "one answer"

    model = RecordingModel(answer)
    async with Runtime() as runtime:
        agent = Agent("root", model=model, middleware=[Hedges()], runtime=runtime)
        assert (await ended(agent, runtime)).text == "one answer"
    assert len(model.asked("root")) == 1
