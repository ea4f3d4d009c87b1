"""A call that was given its slot at the moment of a stop does not begin (M8, M9)."""

import asyncio
from pathlib import Path

import pytest

from retinue import Agent, Limits, PermissionRules, RuntimeContext, SubAgent, ToolCallResultEvent, ToolHarness, tool
from retinue.testing import StrictProvider, calls

pytestmark = pytest.mark.anyio


class Touching(ToolHarness):
    """A tool that stays until it is let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    @tool
    async def touch(self, place: int) -> str:
        """Touch it."""
        self.begun.append(place)
        self.arrived.set()
        await self.go.wait()
        return "touched"


@pytest.mark.contract("D-30")
async def test_a_call_behind_a_slot_does_not_begin_when_the_stop_comes_with_the_slot(tmp_path: Path) -> None:
    touching = Touching()
    script = {
        "parent": [calls(*(("agent_spawn", {"agent_id": f"helper-{n}", "task": "x"}) for n in (1, 2))), "never said"],
        **{f"helper-{n}": [calls(("touch", {"place": n})), "never said"] for n in (1, 2)},
    }
    async with (
        StrictProvider(script) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[SubAgent(f"helper-{n}", "Helps.", instructions="Help.", tool_harnesses=[touching]) for n in (1, 2)],
            permissions=PermissionRules(allow=["*"]),
            limits=Limits(max_children=1),
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        running = asyncio.create_task(agent.run("Go.", context=RuntimeContext(session_id="s"), check=False))
        await touching.arrived.wait()
        (tree,) = agent._own_trees
        root = tree.runs[tree.root_run]
        async with asyncio.timeout(10):
            while tree.slots.queued < 1:  # noqa: ASYNC110 (the other's call comes to its slot; nobody tells)
                await asyncio.sleep(0)
        touching.go.set()  # the first call gives its slot back, and only then is the run stopped
        asyncio.get_running_loop().call_soon(lambda: root.stopping.ask_with_intent("enough", by="test"))
        result = await running
        graph = await agent.threads.graph("s")
        told = [one for child in graph.runtime_children for one in await child.events() if isinstance(one, ToolCallResultEvent)]
        assert len(provider.requests) == 3
    assert result.status == "cancelled"
    assert touching.begun == [1]
    assert [one.status.value for one in told] == ["ok", "cancelled"]
