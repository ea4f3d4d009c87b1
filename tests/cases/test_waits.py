"""Public faults of waiting: a provider that is silent, a slot that does not come, other event loops, calls without an end."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolHarness,
)
from retinue.testing import Recorded, StrictProvider, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
BOUND = 30


def child(name: str = "helper", **fields: Any) -> SubAgent:
    """A child on the roster."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.", **fields)


def spawn(name: str = "helper", **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A call of `agent_spawn`."""
    return "agent_spawn", {"agent_id": name, "task": "x", **arguments}


def told(request: Recorded) -> list[str]:
    """The tool results of a request."""
    return [message["content"] for message in request.messages if message["role"] == "tool"]


# B210


@pytest.mark.case("B210")
async def test_a_child_whose_first_request_is_never_answered_ends_and_the_others_do_not_notice(tmp_path: Path) -> None:
    names, clock = ("one", "two", "three", "four"), VirtualClock()
    script = {"parent": [calls(*(spawn(name) for name in names)), "ok"], "*": ["Done."]}
    async with StrictProvider(script) as provider:
        gate = provider.hold(agent="two")
        runtime = Runtime(ledger=tmp_path / "l.sqlite3")
        async with (
            runtime,
            Agent(
                "parent",
                model=provider.model(clock=clock, idle_timeout=30, retries=0),
                subagents=[child(name) for name in names],
                permissions=ALL,
                runtime=runtime,
            ) as agent,
        ):
            ended, three = list[str](), asyncio.Event()

            async def follow() -> str:
                last = ""
                async for event in agent.stream("Go.", context=HERE):
                    if event.TYPE == "SUBAGENT_INVOCATION_COMPLETED":
                        ended.append(event.TYPE)
                        if len(ended) == 3:
                            three.set()
                    if event.TYPE == "RUN_FINISHED":
                        last = getattr(event, "status", "")
                return last

            following = asyncio.create_task(follow())
            await asyncio.gather(three.wait(), gate.arrived.wait())
            await clock.advance(31)
            assert await following == "completed"
            rows = await runtime.ledger.invocations()
        results = told(provider.asked("parent")[-1])
        assert provider.refused == []
    assert {row.name: row.state.value for row in rows} == {
        "one": "completed",
        "two": "failed",
        "three": "completed",
        "four": "completed",
    }
    assert ["reply:\nDone." in text for text in results] == [True, False, True, True]
    assert "not a byte in 30 s" in results[1]


# B211


@pytest.mark.case("B211")
async def test_a_child_that_waits_for_a_slot_ends_at_its_time_limit_and_is_never_asked(tmp_path: Path) -> None:
    clock = VirtualClock()
    script = {"parent": [calls(spawn(), spawn(), spawn(timeout_seconds=1)), "ok"], "helper": ["Done."]}
    async with StrictProvider(script) as provider:
        gates = [provider.hold(agent="helper") for _ in range(2)]
        runtime = Runtime(ledger=tmp_path / "l.sqlite3", clock=clock, limits=Limits(max_children=2))
        async with (
            runtime,
            Agent("parent", model=provider.model(), subagents=[child()], permissions=ALL, runtime=runtime) as agent,
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
        results = told(provider.asked("parent")[-1])
        assert len(provider.asked("helper")) == 2
    assert ["Done." in text for text in results] == [True, True, False]
    assert "status: timeout" in results[2]


# B213


@pytest.mark.case("B213")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_model_that_a_parent_shares_with_runs_in_other_loops_serves_them_all(tmp_path: Path) -> None:
    def answer(request: Recorded) -> Any:
        if request.agent != "parent":
            return "Done."
        return calls(*(("elsewhere", {"place": place}) for place in range(3))) if request.step == 1 else "ok"

    async with StrictProvider(answer) as provider:
        model = provider.model(max_connections=1)

        def elsewhere(place: int) -> str:
            """Ask the same model in a loop of this thread's own."""

            async def ask() -> str:
                async with Agent(f"child{place}", model=model, ledger=tmp_path / f"{place}.sqlite3") as inner:
                    return (await inner.run("Go.")).text

            return asyncio.run(ask())  # which ends with the model's pool open

        async with Agent("parent", model=model, tools=[elsewhere], permissions=ALL, ledger=tmp_path / "parent.sqlite3") as agent:
            async with asyncio.timeout(BOUND):
                assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert told(provider.asked("parent")[-1]) == ["Done."] * 3
        assert provider.refused == []
    gc.collect()  # what the other loops left open is gone before the next test


# B215


@pytest.mark.case("B215")
async def test_a_child_that_repeats_a_call_without_an_answer_comes_to_an_end_with_a_reason(tmp_path: Path) -> None:
    async def nothing() -> str:
        """Nothing."""
        return ""

    harness = ToolHarness()
    harness.add_tool(nothing)

    def answer(request: Recorded) -> Any:
        if request.agent == "parent":
            return calls(spawn()) if request.step == 1 else "ok"
        return calls(("nothing", {}))

    async with (
        StrictProvider(answer) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[child(max_iters=4, tool_harnesses=[harness])],
            permissions=ALL,
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        async with asyncio.timeout(BOUND):
            assert (await agent.run("Go.", context=HERE)).text == "ok"
        (row,) = await agent.runtime.ledger.invocations()
        assert provider.refused == []
        assert told(provider.asked("helper")[-1]) == ["(no output)"] * 4
        assert len(provider.asked("helper")) == 5
    assert (row.state.value, row.reason) == ("failed", "limit:max_iters")
