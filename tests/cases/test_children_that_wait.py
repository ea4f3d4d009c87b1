"""Public faults of children that wait: for a provider that is silent, or only in their words."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.events import SubAgentInvocationCompletedEvent
from retinue.testing import StrictProvider, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
ALL = PermissionRules(allow=["*"])


def spawn(name: str = "helper", **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A call of `agent_spawn`."""
    return "agent_spawn", {"agent_id": name, "task": "x", **arguments}


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
                subagents=[SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.") for name in names],
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
        texts = provider.asked("parent")[-1].results
        assert provider.refused == []
    assert {row.name: row.state.value for row in rows} == {
        "one": "completed",
        "two": "failed",
        "three": "completed",
        "four": "completed",
    }
    assert ["reply:\nDone." in text for text in texts] == [True, False, True, True]
    assert "not a byte in 30 s" in texts[1]


@pytest.mark.case("B216")
async def test_a_child_that_says_it_waits_has_answered_and_nothing_stays_open(parent: Parent) -> None:
    words = "I am waiting for the background agents to finish."
    script = {"parent": [calls(spawn()), "ok"], "helper": [words]}
    async with (
        StrictProvider(script) as provider,
        parent(provider, subagents=[SubAgent("helper", "Helps.", instructions="Help.")]) as agent,
    ):
        result = await agent.run("Go.", context=HERE)
        told = provider.asked("parent")[-1].messages[-1]["content"]
        assert result.thread is not None
        ended = [one for one in await result.thread.events() if isinstance(one, SubAgentInvocationCompletedEvent)]
    assert (result.status, result.requests, result.tasks) == ("completed", (), ())
    assert "status: ok" in told
    assert words in told
    assert [one.summary for one in ended] == [words]
