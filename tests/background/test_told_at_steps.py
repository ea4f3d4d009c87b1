"""When a parent is told: at the next step of a run that goes on, by being woken where its agent is started, or in its next run
(D-20). Exactly one request of its model is the first that has the notice."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent, ToolHarness, UserMessage, tool
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})
Answer = Callable[[ModelRequest], Awaitable[Any]]


def told(request: ModelRequest) -> int:
    """How many notices of tasks a request has."""
    spoken = [message for message in messages_of(request) if isinstance(message, UserMessage)]
    return sum(message.notice == "background-task" for message in spoken)


class Held(ToolHarness):
    """A tool that stays until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    @tool
    async def work(self) -> str:
        """Work."""
        self.arrived.set()
        await self.go.wait()
        return "worked"


class Stage:
    """A root with a task that ends when it is let go."""

    def __init__(self, runtime: Runtime, second: Any = "ended", **options: Any) -> None:
        self.go, self.held = asyncio.Event(), Held()
        self.woken = asyncio.Event()
        self.second = second
        self.model = RecordingModel(self._answer)
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        self.agent = Agent(
            "root",
            model=self.model,
            subagents=[kid],
            runtime=runtime,
            permissions=ALL,
            tool_harnesses=[self.held],
            **options,
        )

    async def _answer(self, request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await self.go.wait()
            return "kid is done"
        if told(request):
            self.woken.set()
            return "I was told"
        asked = len(self.model.asked("root"))
        return calls(SPAWN) if asked == 1 else self.second

    @property
    def notices(self) -> list[int]:
        """How many notices each request of the root had."""
        return [told(request) for request in self.model.asked("root")]


@pytest.mark.contract("D-20")
async def test_a_busy_parent_is_told_at_its_next_step_and_no_sooner(runtime: Runtime) -> None:
    stage = Stage(runtime, calls(("work", {})))
    run = asyncio.create_task(stage.agent.run("go", context=HERE))
    await stage.held.arrived.wait()
    stage.go.set()
    (task,) = await stage.agent.tasks("s")
    assert (await task.wait()).status == "completed"
    assert stage.notices == [0, 0]
    stage.held.go.set()
    assert (await run).text == "I was told"
    assert stage.notices == [0, 0, 1]


@pytest.mark.contract("D-20")
async def test_an_idle_parent_is_woken_while_its_agent_is_started(runtime: Runtime) -> None:
    stage = Stage(runtime)
    async with stage.agent:
        assert (await stage.agent.run("go", context=HERE)).text == "ended"
        stage.go.set()
        await stage.woken.wait()
    assert stage.notices == [0, 0, 1]
    woken, first = await runtime.ledger.runs(roots_only=True)
    assert (woken.key, woken.state.value) == (first.key, "completed")
    again = Stage(runtime)
    await again.agent.run("and?", context=HERE)
    assert again.notices == [1]  # the one that it has in its history


@pytest.mark.contract("D-20")
@pytest.mark.parametrize("how", ["not started", "wake=False"])
async def test_otherwise_an_idle_parent_is_told_in_its_next_run(runtime: Runtime, how: str) -> None:
    stage = Stage(runtime, wake=how != "wake=False")
    if how == "wake=False":
        async with stage.agent:
            await stage.agent.run("go", context=HERE)
            stage.go.set()
    else:
        await stage.agent.run("go", context=HERE)
        stage.go.set()
        await (await stage.agent.tasks("s"))[0].wait()
    assert stage.notices == [0, 0]
    assert len(await runtime.ledger.mail((await runtime.ledger.runs(roots_only=True))[0].key)) == 1
    assert (await stage.agent.run("and?", context=HERE)).text == "I was told"
    assert stage.notices == [0, 0, 1]
    request = stage.model.asked("root")[-1]
    said = [message.text for message in messages_of(request) if isinstance(message, UserMessage)]
    assert said[0] == "go"
    assert {said[1] == "and?", said[2] == "and?"} == {True, False}


@pytest.mark.contract("D-20")
async def test_an_end_that_nobody_is_told_wakes_nobody_more_than_once(runtime: Runtime) -> None:
    """A cancelled task is not told; its end is taken, and the parent's model is not asked without a reason."""
    stage = Stage(runtime)
    async with stage.agent:
        (task,) = (await stage.agent.run("go", context=HERE)).tasks
        await task.cancel()
        assert (await task.wait()).status == "cancelled"
    assert stage.notices == [0, 0]


@pytest.mark.contract("D-20", "H-20")
@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_a_parents_end_races_with_the_tasks_end(runtime: Runtime, turns: int) -> None:
    """However many steps of the loop the task's end comes after the parent began its last: it is told in exactly one run."""
    go = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await go.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            return "kid is done"
        if len(model.asked("root")) == 1:
            return calls(SPAWN)
        go.set()
        return "told" if told(request) else "ended"

    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[SubAgent("kid", "Helps.", instructions="Help.")], runtime=runtime)
    async with agent:
        result = await agent.run("go", context=HERE)
        await result.tasks[0].wait()
    notices = [told(request) for request in model.asked("root")]
    assert notices[-1] == 1
    assert notices.count(1) == 1
