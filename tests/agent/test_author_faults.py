"""Faults of an author's code end in order: a model that does not end, middleware around a child, `SystemExit`, `close`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import Agent, Limits, Middleware, PermissionRules, Runtime, SubAgent
from retinue.agent.middleware import ToolInvocation
from retinue.agent.ports import CallOutcome
from retinue.models.port import Emit, ModelAnswer, ModelRequest, TextDelta
from retinue.testing import RecordingModel, ScriptedModel, calls, results_of

pytestmark = pytest.mark.anyio

ALL = PermissionRules(allow=["*"])
SOON = Limits(stop_grace=0.05)


class Deaf:
    """Does not heed a cancellation until it is let go; emits afterwards."""

    provider, name = "own", "deaf"

    def __init__(self, deaf: str) -> None:
        self.deaf = deaf
        self.here, self.go, self.late = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        if request.agent_id != self.deaf:
            return ModelAnswer(text="done")
        self.here.set()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                continue
        emit(TextDelta("late"))
        self.late.set()
        return ModelAnswer(text="late")

    async def close(self) -> None:
        return None


async def test_a_model_that_never_ends_is_given_up_after_the_grace() -> None:
    model = Deaf("a")
    agent = Agent("a", model=model, limits=SOON)
    run = asyncio.create_task(agent.run("x", check=False))
    await model.here.wait()
    await agent.cancel()
    result = await asyncio.wait_for(run, 5)
    assert (result.status, result.message) == ("cancelled", "still stopping: `model deaf`")
    model.go.set()
    await model.late.wait()
    assert result.thread is not None
    assert "late" not in str(await result.thread.messages())
    await agent.close()


class Around(Middleware):
    """Does something wrong around a delegation."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.here = asyncio.Event()

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        if self.how == "raises":
            raise RuntimeError("mine")
        if self.how == "exits":
            raise SystemExit(3)
        if self.how == "hangs":
            self.here.set()
            await asyncio.Event().wait()
        made: Any = await next(call) if self.how in ("twice", "raises after", "none after") else None
        if self.how == "twice":
            return await next(call)
        if self.how == "raises after":
            raise RuntimeError("mine")
        return made if self.how == "other" else None  # type: ignore[return-value]


def parent(request: ModelRequest) -> Any:
    """One delegation, then the end."""
    if request.agent_id == "kid":
        return "kid is done"
    return calls(("kid", {"input": "t"})) if request.step == 1 else "done"


@pytest.mark.parametrize(
    ("how", "child", "told"),
    [
        ("raises", "cancelled", "RuntimeError: mine"),
        ("exits", "cancelled", "SystemExit: 3"),
        ("none", "cancelled", "not a `CallOutcome`"),
        ("twice", "completed", "called `next` twice"),
        ("raises after", "completed", "RuntimeError: mine"),
        ("none after", "completed", "not a `CallOutcome`"),
    ],
)
async def test_a_fault_of_middleware_around_a_child_is_the_calls_error(how: str, child: str, told: str) -> None:
    runtime, model = Runtime(), RecordingModel(parent)
    kid = SubAgent("kid", "k", instructions="i", surface="tool")
    agent = Agent("a", model=model, subagents=[kid], middleware=[Around(how)], permissions=ALL, runtime=runtime)
    result = await asyncio.wait_for(agent.run("x", check=False), 5)
    assert (result.status, result.text) == ("completed", "done")
    rows = await runtime.ledger.tree(result.run_id)
    assert [row.state.value for row in rows] == ["completed", child]
    assert told in str(results_of(model.asked("a")[-1]))
    await runtime.close()


async def test_a_middleware_that_hangs_around_a_child_ends_with_a_stop() -> None:
    runtime, around = Runtime(limits=SOON), Around("hangs")
    kid = SubAgent("kid", "k", instructions="i", surface="tool")
    agent = Agent("a", model=ScriptedModel(parent), subagents=[kid], middleware=[around], permissions=ALL, runtime=runtime)
    run = asyncio.create_task(agent.run("x", check=False))
    await around.here.wait()
    await agent.cancel()
    result = await asyncio.wait_for(run, 5)
    rows = await runtime.ledger.tree(result.run_id)
    assert [row.state.value for row in rows] == ["cancelled", "cancelled"]
    await runtime.close()


@pytest.mark.parametrize("error", [SystemExit(3), BaseException("x"), GeneratorExit("x")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("blocking", [False, True])
async def test_what_a_tool_raises_is_a_result(error: BaseException, blocking: bool) -> None:
    async def boom() -> str:
        """Fail."""
        raise error

    def blocked() -> str:
        """Fail."""
        raise error

    model = RecordingModel([calls(("blocked" if blocking else "boom", {})), "done"])
    agent = Agent("a", model=model, tools=[boom, blocked], permissions=ALL)
    result = await asyncio.wait_for(agent.run("x", check=False), 5)
    assert (result.status, result.text) == ("completed", "done")
    assert type(error).__name__ in str(results_of(model.asked("a")[-1]))
    await agent.close()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_models_close_does_not_decide_a_runs_fate(hangs: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Closing(Deaf):
        async def close(self) -> None:
            if hangs:
                await asyncio.Event().wait()
            raise RuntimeError("cannot close")

    agent = Agent("a", model=Closing("nobody"), limits=SOON)
    result = await asyncio.wait_for(agent.run("x"), 5)
    assert result.text == "done"
    await asyncio.wait_for(agent.close(), 5)
    assert ("within the grace" if hangs else "cannot close") in caplog.text


@pytest.mark.parametrize("said", ["no", 1, None])
async def test_only_a_bool_answers_a_request(said: Any) -> None:
    ran: list[int] = []

    async def use() -> str:
        """Use."""
        ran.append(1)
        return "used"

    async def on_request(_request: object) -> Any:
        return said

    model = RecordingModel([calls(("use", {})), "done"])
    agent = Agent("a", model=model, tools=[use], permissions=PermissionRules(ask=["*"]), on_request=on_request)
    result = await asyncio.wait_for(agent.run("x"), 5)
    assert (result.text, ran) == ("done", [])
    assert "not True or False" in str(results_of(model.asked("a")[-1]))
    await agent.close()


async def test_an_on_request_that_exits_fails_the_run() -> None:
    async def use() -> str:
        """Use."""
        return "used"

    async def on_request(_request: object) -> bool:
        raise SystemExit(3)

    model = RecordingModel([calls(("use", {})), "done"])
    agent = Agent("a", model=model, tools=[use], permissions=PermissionRules(ask=["*"]), on_request=on_request)
    result = await asyncio.wait_for(agent.run("x", check=False), 5)
    assert (result.status, result.reason) == ("failed", "on_request_raised")
    assert "SystemExit" in result.message
    await agent.close()
