"""Whom a cancel stops: the runs of the agent that is asked, or the run that is named with all below it, and nobody else."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RunResult, Runtime, ScriptedModel, SubAgent
from retinue.models.port import ModelRequest
from retinue.testing import calls

pytestmark = pytest.mark.anyio


class Holding:
    """A model whose agents named `held-*` answer when they are let go; any other asks for its children first."""

    def __init__(self, *children: str) -> None:
        self.model = ScriptedModel(self._reply)
        self.begun: dict[str, asyncio.Event] = {}
        self.go = asyncio.Event()
        self._children = children

    def begins(self, agent_id: str) -> asyncio.Event:
        return self.begun.setdefault(agent_id, asyncio.Event())

    async def _reply(self, request: ModelRequest) -> Any:
        if request.agent_id.startswith("held"):
            self.begins(request.agent_id).set()
            await self.go.wait()
            return "kept on"
        return "done" if request.step > 1 else calls(*((name, {"input": "x"}) for name in self._children))


@pytest.fixture
async def runtime() -> AsyncGenerator[Runtime, None]:
    async with Runtime() as one:
        yield one


def agent(name: str, holding: Holding, runtime: Runtime, *children: str) -> Agent:
    made = [SubAgent(child, "D.", instructions="…", surface="tool", requires_permission=False) for child in children]
    return Agent(name, model=holding.model, subagents=made, runtime=runtime, permissions=PermissionRules(allow=["*"]))


async def started(one: Agent, holding: Holding, *begun: str) -> "asyncio.Task[RunResult]":
    task = asyncio.create_task(one.run("go", check=False))
    for name in begun:
        await holding.begins(name).wait()
    return task


async def test_without_an_id_only_the_runs_of_this_agent_and_their_trees_stop(runtime: Runtime) -> None:
    mine, other = Holding("held-child"), Holding("held-child")
    first, second = agent("first", mine, runtime, "held-child"), agent("second", other, runtime, "held-child")
    run, foreign = await started(first, mine, "held-child"), await started(second, other, "held-child")
    await first.cancel()
    assert (await run).status == "cancelled"
    assert {row.state.value for row in await runtime.ledger.runs() if row.path[0] == "first"} == {"cancelled"}
    other.go.set()
    assert (await foreign).status == "completed"


async def test_two_agents_of_one_name_are_two_agents(runtime: Runtime) -> None:
    holding = Holding()
    first, second = agent("held", holding, runtime), agent("held", holding, runtime)
    run = await started(first, holding, "held")
    await second.cancel()
    holding.go.set()
    assert (await run).status == "completed"


@pytest.mark.parametrize("pick", [0, 1])
async def test_the_cancel_of_a_child_leaves_those_beside_and_above_it(runtime: Runtime, pick: int) -> None:
    names = ("held-a", "held-b")
    holding = Holding(*names)
    boss = agent("boss", holding, runtime, *names)
    run = await started(boss, holding, *names)
    (tree,) = runtime._trees.values()
    target = next(one.row.run_id for one in tree.runs.values() if one.row.agent_id == names[pick])
    await boss.cancel(target)
    holding.go.set()
    result = await run
    assert (result.status, result.text) == ("completed", "done")
    states = {row.agent_id: row.state.value for row in await runtime.ledger.tree(result.run_id)}
    assert states == {"boss": "completed", names[pick]: "cancelled", names[1 - pick]: "completed"}
