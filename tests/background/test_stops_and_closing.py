"""Stops, streams, and the end of an agent, with tasks at work (M8, H-12)."""

import asyncio
from typing import Any

import pytest

from retinue import (
    Agent,
    PermissionRules,
    RunFinishedEvent,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationStartedEvent,
)
from retinue.ledger.port import Ledger
from retinue.models.port import ModelRequest
from retinue.states import RunState
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


class Stage:
    """A root that gives a task to a kid, which waits for one of its own below it; all wait until they are let go."""

    def __init__(self, *, root_waits: bool = False) -> None:
        self.go, self.low_at_work = asyncio.Event(), asyncio.Event()
        self.root_waits = root_waits
        self.model = RecordingModel(self._answer)
        kid = SubAgent("kid", "Helps.", instructions="Help.", leaf=False)
        self.subagents = [kid, SubAgent("low", "Low.", instructions="Low.")]

    def agent(self, runtime: Runtime, **options: Any) -> Agent:
        """The root."""
        return Agent("root", model=self.model, subagents=self.subagents, runtime=runtime, permissions=ALL, **options)

    async def _answer(self, request: ModelRequest) -> Any:
        if request.agent_id == "low":
            self.low_at_work.set()
            await self.go.wait()
            return "low"
        if request.agent_id == "kid":
            return calls(("agent_spawn", {"agent_id": "low", "task": "x"})) if request.step == 1 else "kid"
        if len(self.model.asked("root")) == 1:
            return calls(SPAWN)
        if self.root_waits:
            await asyncio.Event().wait()
        return "ended"


@pytest.mark.contract("D-07", "H-12")
async def test_a_stop_of_the_parent_stops_its_tasks_and_what_is_below_them(runtime: Runtime) -> None:
    stage = Stage(root_waits=True)
    agent = stage.agent(runtime)
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await stage.low_at_work.wait()
    await agent.cancel(reason="enough")
    result = await run
    assert (result.status, result.reason) == ("cancelled", "enough")
    rows = await runtime.ledger.tree(result.run_id)
    assert [(row.agent_id, row.state) for row in rows] == [(name, RunState.CANCELLED) for name in ("root", "kid", "low")]
    (task,) = await agent.tasks("s")
    assert ((await task.result()).status, (await task.result()).reason) == ("cancelled", "enough")


@pytest.mark.contract("D-07")
async def test_a_stop_of_a_parent_that_has_ended_leaves_its_task(runtime: Runtime) -> None:
    stage = Stage()
    agent = stage.agent(runtime)
    result = await agent.run("go", context=HERE)
    await stage.low_at_work.wait()
    await result.tasks[0].cancel("enough")
    ended = await result.tasks[0].wait()
    assert (ended.status, ended.reason) == ("cancelled", "enough")
    rows = await runtime.ledger.tree(result.run_id)
    assert [row.state.value for row in rows] == ["completed", "cancelled", "cancelled"]


async def test_a_stream_shows_the_events_of_tasks_while_it_lasts(runtime: Runtime) -> None:
    stage = Stage()
    agent = stage.agent(runtime)
    stage.go.set()
    seen: list[Any] = []
    async for event in agent.stream("go", context=HERE):
        seen.append(event)
        if isinstance(event, SubAgentInvocationStartedEvent) and event.name == "kid":
            (task,) = await agent.tasks("s")
    last = seen[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.path == ("root",)
    assert last.result is not None
    (task,) = last.result.tasks
    assert (await task.wait()).text == "kid"
    paths = {event.path for event in seen}
    assert {("root",), ("root", "kid")} <= paths
    assert sum(isinstance(event, RunFinishedEvent) and event.path == ("root",) for event in seen) == 1


@pytest.mark.parametrize("how", ["wait", "detach", "cancel"])
async def test_a_closed_agent_leaves_nothing_that_runs(store: Ledger, sound: Any, how: Any) -> None:
    stage = Stage()
    before = asyncio.all_tasks()
    async with Runtime(ledger=store) as runtime:
        async with stage.agent(runtime, on_exit=how, wake=False) as agent:
            (task,) = (await agent.run("go", context=HERE)).tasks
            await stage.low_at_work.wait()
            if how == "wait":
                asyncio.get_running_loop().call_later(0.02, stage.go.set)
        row = await runtime.ledger.task(task.task_id)
        assert row is not None
        assert row.state.value == {"wait": "completed", "detach": "running", "cancel": "cancelled"}[how]
        await sound(runtime.ledger)
        if how == "detach":  # whoever opens it next goes on with it
            stage.go.set()
            async with stage.agent(runtime, on_exit="wait", wake=False) as again:
                assert (await (await again.task(task.task_id)).wait()).text == "kid"
            await sound(runtime.ledger)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_runtime_that_is_closed_under_its_tasks_leaves_nothing_that_runs(store: Ledger, sound: Any) -> None:
    stage = Stage()
    before = asyncio.all_tasks()
    async with Runtime(ledger=store) as runtime:
        (task,) = (await stage.agent(runtime).run("go", context=HERE)).tasks
        await stage.low_at_work.wait()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    async with Runtime(ledger=store) as runtime:
        await sound(runtime.ledger)
        stage.go.set()
        async with stage.agent(runtime, wake=False) as again:
            ended = await (await again.task(task.task_id)).wait()
            assert ended.status in ("completed", "cancelled")
        await sound(runtime.ledger)
