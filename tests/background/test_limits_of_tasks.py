"""Limits hold for children in the background too: depth, how many there may be, how many may be at work at once (D-03, D-30)."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, Limits, PermissionRules, Runtime, RuntimeContext, SubAgent, ToolHarness, tool
from retinue.ledger.port import Ledger
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


def kid(**declared: Any) -> SubAgent:
    """A subagent."""
    return SubAgent("kid", "Helps.", instructions="Help.", **declared)


@pytest.mark.contract("D-30")
async def test_there_are_no_more_children_than_the_tree_may_have(store: Ledger, sound: Any) -> None:
    model = RecordingModel({"root": [calls(*[SPAWN] * 3), calls(SPAWN), "ok"], "kid": ["done"]})
    async with Runtime(ledger=store, limits=Limits(max_tree_children=2)) as runtime:
        agent = Agent("root", model=model, subagents=[kid()], runtime=runtime)
        result = await agent.run("go", context=HERE)
        assert len(result.tasks) == 2
        for task in result.tasks:
            assert (await task.wait()).status == "completed"
        given = results_of(model.asked("root")[2])
        assert ["status: accepted" in one for one in given] == [True, True, False, False]
        assert all("max_tree_children" in one for one in given[2:])
        await sound(runtime.ledger)


@pytest.mark.contract("D-03", "D-30")
async def test_a_task_is_no_way_around_the_depth(runtime: Runtime) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return calls(("agent_spawn", {"agent_id": "low", "task": "x"})) if request.step == 1 else results_of(request)[-1]
        return calls(SPAWN) if request.step == 1 else "ok"

    low = SubAgent("low", "Low.", instructions="Low.", invocation_mode_policy="background_only")
    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[kid(leaf=False), low], runtime=runtime, permissions=ALL, max_subagent_depth=1)
    (task,) = (await agent.run("go", context=HERE)).tasks
    ended = await task.wait()
    assert "There is no tool `agent_spawn`" in ended.text
    assert model.asked("low") == []


class Busy(ToolHarness):
    """A tool that counts who is in it at once, and stays until it is let go."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self.go, self.two = asyncio.Event(), asyncio.Event()

    @tool
    async def work(self) -> str:
        """Work."""
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == 2:
            self.two.set()
        await self.go.wait()
        self.now -= 1
        self.done += 1
        return "worked"


@pytest.mark.contract("D-30")
async def test_tasks_hold_a_slot_only_while_they_work(store: Ledger, sound: Any) -> None:
    """With two slots, four tasks that each wait for a child of their own come to their ends: waiting takes none."""
    busy = Busy()

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "low":
            return calls(("work", {})) if request.step == 1 else "low"
        if request.agent_id == "kid":
            return calls(("agent_spawn", {"agent_id": "low", "task": "x"})) if request.step == 1 else "kid"
        return calls(*[SPAWN] * 4) if request.step == 1 else "ok"

    low = SubAgent("low", "Low.", instructions="Low.", tool_harnesses=[busy])
    async with Runtime(ledger=store, limits=Limits(max_children=2)) as runtime:
        agent = Agent("root", model=RecordingModel(answer), subagents=[kid(leaf=False), low], runtime=runtime, permissions=ALL)
        tasks = (await agent.run("go", context=HERE)).tasks
        await busy.two.wait()
        assert busy.most == 2
        busy.go.set()
        assert [(await task.wait()).status for task in tasks] == ["completed"] * 4
        assert (busy.most, busy.done) == (2, 4)
        await sound(runtime.ledger)


@pytest.mark.contract("D-30", "D-10")
async def test_a_task_that_waits_for_a_person_holds_no_slot(store: Ledger, sound: Any) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "asks":
            return calls(("ask", {})) if request.step == 1 else "asked"
        if request.agent_id == "kid":
            return "kid"
        spawn = ("agent_spawn", {"agent_id": "asks", "task": "x", "timeout_seconds": 0})
        return calls(spawn, SPAWN) if request.step == 1 else "ok"

    class Asks(ToolHarness):
        @tool(read_only=False)
        async def ask(self) -> str:
            """Ask."""
            return "allowed"

    asks = SubAgent("asks", "Asks.", instructions="Ask.", tool_harnesses=[Asks])
    async with Runtime(ledger=store, limits=Limits(max_children=1)) as runtime:
        agent = Agent(
            "root",
            model=RecordingModel(answer),
            subagents=[asks, kid()],
            runtime=runtime,
            permissions=PermissionRules(ask=["ask"]),
        )
        waiting, other = (await agent.run("go", context=HERE)).tasks
        assert (await other.wait()).status == "completed"
        now = await waiting.wait()
        assert now.status == "waiting"
        await agent.answer(now.requests[0], allow=True)
        assert (await waiting.wait()).text == "asked"
        await sound(runtime.ledger)
