"""Public faults of turns that are used up: a child that was stopped by its limit has not reached its goal."""

from collections.abc import Callable
from typing import Any

import pytest

from retinue import Agent, RunResult, RuntimeContext, SubAgent, ToolHarness
from retinue.events import SubAgentInvocationFailedEvent, ToolCallResultEvent
from retinue.testing import StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
ECHO = calls(("echo", {"text": "x"}))
CALL = {"tool": calls(("helper", {"input": "x"})), "roster": calls(("agent_spawn", {"agent_id": "helper", "task": "x"}))}


async def echo(text: str) -> str:
    """Say it again."""
    return text


def helper(surface: Any, turns: int) -> SubAgent:
    """A child with a tool and so many turns."""
    harness = ToolHarness()
    harness.add_tool(echo)
    return SubAgent("helper", "Helps.", instructions="Help.", surface=surface, max_iters=turns, tool_harnesses=[harness])


async def ended(result: RunResult) -> tuple[ToolCallResultEvent, SubAgentInvocationFailedEvent]:
    """How the one delegation of a run ended, in its journal: the call's result, and the invocation's failure."""
    assert result.thread is not None
    events = await result.thread.events()
    (told,) = (one for one in events if isinstance(one, ToolCallResultEvent))
    (failed,) = (one for one in events if isinstance(one, SubAgentInvocationFailedEvent))
    return told, failed


@pytest.mark.case("B206")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_a_wrap_up_that_worked_does_not_make_a_limit_a_success(surface: str, parent: Parent) -> None:
    script = {"parent": [CALL[surface], "ok"], "helper": [ECHO, "I was interrupted, and found half of it."]}
    async with StrictProvider(script) as provider, parent(provider, subagents=[helper(surface, 1)]) as agent:
        told, failed = await ended(await agent.run("Go.", context=HERE))
        assert provider.refused == []
        assert provider.asked("parent")[-1].messages[-1]["content"] == told.content
    assert told.status == "error"
    assert (told.metadata["subAgentStatus"], told.metadata["reason"]) == ("failed", "limit:max_iters")
    assert "1 turns" in told.content
    assert "found half of it" in told.content
    assert (failed.error_type, failed.partial_text) == ("limit:max_iters", "I was interrupted, and found half of it.")


@pytest.mark.case("B208", "B215")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_turns_that_are_used_up_without_an_answer_are_never_ok(surface: str, parent: Parent) -> None:
    endless: dict[str, Any] = {"turns": [], "fallback": ECHO}
    async with (
        StrictProvider({"parent": [CALL[surface], "ok"], "helper": endless}) as provider,
        parent(provider, subagents=[helper(surface, 15)]) as agent,
    ):
        told, failed = await ended(await agent.run("Go.", context=HERE))
        assert provider.refused == []
        assert len(provider.asked("helper")) == 16
        assert "status: ok" not in provider.asked("parent")[-1].messages[-1]["content"]
    assert (told.status, told.metadata["reason"]) == ("error", "limit:max_iters")
    assert "15 turns" in told.content
    assert failed.error_type == "limit:max_iters"


@pytest.mark.case("B018")
async def test_what_a_child_calls_on_its_last_turn_is_run_and_its_wrap_up_is_valid(parent: Parent) -> None:
    ran: list[str] = []

    async def note(text: str) -> str:
        """Note it."""
        ran.append(text)
        return "noted"

    harness = ToolHarness()
    harness.add_tool(note)
    one = SubAgent("helper", "Helps.", instructions="Help.", surface="tool", max_iters=2, tool_harnesses=[harness])
    script = {
        "parent": [calls(("helper", {"input": "x"})), "ok"],
        "helper": [calls(("note", {"text": "1"})), calls(("note", {"text": "2"})), "All I have."],
    }
    async with StrictProvider(script) as provider, parent(provider, subagents=[one]) as agent:
        assert (await agent.run("Go.", context=HERE)).status == "completed"
        assert provider.refused == []
        assert provider.asked("helper")[-1].results == ["noted"] * 2
        (told,) = provider.asked("parent")[-1].results
    assert ran == ["1", "2"]
    assert "its 2 turns" in told
    assert "All I have." in told
