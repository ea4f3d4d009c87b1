"""Public faults of hanging: full slots, runs inside synchronous tools, and children that say that they wait."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, Limits, PermissionRules, RuntimeContext, SubAgent
from retinue.events import SubAgentInvocationCompletedEvent
from retinue.messages import ToolResult
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, StrictProvider, calls, messages_of

BOUND = 10
HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
HELPER = SubAgent("helper", "Helps.", instructions="Help.")
SPAWN = ("agent_spawn", {"agent_id": "helper", "task": "x"})


# B211


@pytest.mark.anyio
@pytest.mark.case("B211")
async def test_children_that_have_ended_hold_no_slot_and_a_spawn_beside_full_ones_begins_when_one_ends(tmp_path: Path) -> None:
    script = {"parent": [calls(SPAWN, SPAWN), calls(SPAWN, SPAWN, SPAWN), "ok"], "helper": ["helped"]}
    async with (
        StrictProvider(script) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[HELPER],
            permissions=ALL,
            limits=Limits(max_children=2),
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        wrap_up = provider.hold(agent="parent", step=2)
        running = asyncio.create_task(agent.run("Go.", context=HERE))
        await wrap_up.arrived.wait()
        assert len(provider.asked("helper")) == 2  # two have ended, and nobody is told of them any more
        gates = [provider.hold(agent="helper") for _ in range(3)]
        wrap_up.release()
        await asyncio.gather(*(gate.arrived.wait() for gate in gates[:2]))
        assert [tree.slots.queued for tree in agent.own_trees] == [1]
        gates[0].release()
        await gates[2].arrived.wait()
        for gate in gates[1:]:
            gate.release()
        assert (await running).text == "ok"
        assert provider.refused == []
        assert len(provider.asked("helper")) == 5


@pytest.mark.anyio
@pytest.mark.case("B211")
async def test_a_spawn_into_a_full_tree_is_refused_at_once_while_the_others_still_run(tmp_path: Path) -> None:
    script = {"parent": [calls(SPAWN, SPAWN, SPAWN), "ok"], "helper": ["helped"]}
    async with (
        StrictProvider(script) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[HELPER],
            permissions=ALL,
            limits=Limits(max_tree_children=2),
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        gates = [provider.hold(agent="helper") for _ in range(2)]
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def follow() -> None:
            async for event in agent.stream("Go.", context=HERE):
                if event.TYPE == "TOOL_CALL_RESULT" and not refused.done():
                    refused.set_result(event.content)  # type: ignore[attr-defined]

        following = asyncio.create_task(follow())
        await asyncio.gather(*(gate.arrived.wait() for gate in gates))
        assert "`Limits(max_tree_children=…)` is 2" in await refused
        for gate in gates:
            gate.release()
        await following


# B212


def nested(limit: int) -> Agent:
    """An agent whose synchronous tool runs the agent itself, whose synchronous tool it needs then."""

    def nest() -> str:
        """Ask yourself."""
        return agent.run_sync("inner").text

    def leaf() -> str:
        """Say it."""
        return "leaf"

    def answer(request: ModelRequest) -> Any:
        last = messages_of(request)[-1]
        if isinstance(last, ToolResult):
            return last.content
        return calls(("leaf", {})) if last.text == "inner" else calls(("nest", {}))

    agent = Agent("parent", model=RecordingModel(answer), tools=[nest, leaf], limits=Limits(tool_threads=limit))
    return agent


@pytest.mark.case("B212")
@pytest.mark.parametrize(("threads", "runs"), [(1, 1), (4, 20)])
def test_runs_inside_synchronous_tools_need_no_thread_that_these_hold(threads: int, runs: int) -> None:
    agent = nested(threads)
    try:
        with ThreadPoolExecutor(runs) as pool:
            begun = [pool.submit(agent.run_sync, "outer") for _ in range(runs)]
            try:
                assert [one.result(BOUND).text for one in begun] == ["leaf"] * runs
            finally:
                agent.close_sync()  # before the pool waits for its threads
    finally:
        agent.close_sync()


@pytest.mark.anyio
@pytest.mark.case("B212")
async def test_a_run_inside_a_synchronous_tool_of_an_awaited_run_is_refused_in_words() -> None:
    async with nested(4) as agent:
        result = await agent.run("outer")
        assert "another event loop" in result.text
        with pytest.raises(ConfigurationError, match="from async code"):
            agent.run_sync("outer")


# B216


@pytest.mark.anyio
@pytest.mark.case("B216")
async def test_a_child_that_says_it_waits_has_answered_and_nothing_stays_open(tmp_path: Path) -> None:
    words = "I am waiting for the background agents to finish."
    script = {"parent": [calls(SPAWN), "ok"], "helper": [words]}
    async with (
        StrictProvider(script) as provider,
        Agent("parent", model=provider.model(), subagents=[HELPER], permissions=ALL, ledger=tmp_path / "l.sqlite3") as agent,
    ):
        result = await agent.run("Go.", context=HERE)
        told = provider.asked("parent")[-1].messages[-1]["content"]
        assert result.thread is not None
        ended = [one for one in await result.thread.events() if isinstance(one, SubAgentInvocationCompletedEvent)]
    assert (result.status, result.requests, result.tasks) == ("completed", (), ())
    assert "status: ok" in told
    assert words in told
    assert [one.summary for one in ended] == [words]
