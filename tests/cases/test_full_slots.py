"""Public faults of full slots: who has ended holds none, who gets none ends in its time, a full tree refuses at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue import Agent, Limits, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.testing import StrictProvider, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
ALL = PermissionRules(allow=["*"])
BOUND = 30
HELPER = SubAgent("helper", "Helps.", instructions="Help.", on_timeout="cancel")
SPAWN = ("agent_spawn", {"agent_id": "helper", "task": "x"})


@pytest.mark.case("B211")
async def test_children_that_have_ended_hold_no_slot_and_a_spawn_beside_full_ones_begins_when_one_ends(parent: Parent) -> None:
    script = {"parent": [calls(SPAWN, SPAWN), calls(SPAWN, SPAWN, SPAWN), "ok"], "helper": ["helped"]}
    async with StrictProvider(script) as provider, parent(provider, subagents=[HELPER], limits=Limits(max_children=2)) as agent:
        wrap_up = provider.hold(agent="parent", step=2)
        running = asyncio.create_task(agent.run("Go.", context=HERE))
        await wrap_up.arrived.wait()
        assert len(provider.asked("helper")) == 2  # two have ended, and nobody is told of them any more
        gates = [provider.hold(agent="helper") for _ in range(3)]
        wrap_up.release()
        await asyncio.gather(*(gate.arrived.wait() for gate in gates[:2]))
        assert [tree.slots.queued for tree in agent._own_trees] == [1]
        gates[0].release()
        await gates[2].arrived.wait()
        for gate in gates[1:]:
            gate.release()
        assert (await running).text == "ok"
        assert provider.refused == []
        assert len(provider.asked("helper")) == 5


@pytest.mark.case("B211")
async def test_a_spawn_into_a_full_tree_is_refused_at_once_while_the_others_still_run(parent: Parent) -> None:
    script = {"parent": [calls(SPAWN, SPAWN, SPAWN), "ok"], "helper": ["helped"]}
    async with (
        StrictProvider(script) as provider,
        parent(provider, subagents=[HELPER], limits=Limits(max_tree_children=2)) as agent,
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


@pytest.mark.case("B211")
async def test_a_child_that_waits_for_a_slot_ends_at_its_time_limit_and_is_never_asked(tmp_path: Path) -> None:
    clock = VirtualClock()
    script = {"parent": [calls(SPAWN, SPAWN, (SPAWN[0], {**SPAWN[1], "timeout_seconds": 1})), "ok"], "helper": ["Done."]}
    async with StrictProvider(script) as provider:
        gates = [provider.hold(agent="helper") for _ in range(2)]
        runtime = Runtime(ledger=tmp_path / "l.sqlite3", clock=clock, limits=Limits(max_children=2))
        async with (
            runtime,
            Agent("parent", model=provider.model(), subagents=[HELPER], permissions=ALL, runtime=runtime) as agent,
        ):
            ended = asyncio.Event()

            async def follow() -> None:
                async for event in agent.stream("Go.", context=HERE):
                    if event.TYPE == "SUBAGENT_INVOCATION_FAILED":
                        ended.set()

            following = asyncio.create_task(follow())
            for gate in gates:
                await gate.arrived.wait()
            await clock.advance(1.1)
            async with asyncio.timeout(BOUND):
                await ended.wait()
            assert not following.done()  # the two that hold the slots are still at work
            for gate in gates:
                gate.release()
            await following
        texts = provider.asked("parent")[-1].results
        assert len(provider.asked("helper")) == 2
    assert ["Done." in text for text in texts] == [True, True, False]
    assert "status: timeout" in texts[2]
