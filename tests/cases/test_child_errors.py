"""Public faults of errors that nobody hears of: a child that was stopped by a limit has not reached its goal."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RunResult, RuntimeContext, SubAgent, ToolHarness
from retinue.events import SubAgentInvocationFailedEvent, ToolCallResultEvent
from retinue.testing import StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
ECHO = calls(("echo", {"text": "x"}))
CALL = {
    "tool": calls(("helper", {"input": "x"})),
    "roster": calls(("agent_spawn", {"agent_id": "helper", "task": "x"})),
}


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
async def test_a_wrap_up_that_worked_does_not_make_a_limit_a_success(surface: str, tmp_path: Path) -> None:
    script = {"parent": [CALL[surface], "ok"], "helper": [ECHO, "I was interrupted, and found half of it."]}
    async with (
        StrictProvider(script) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[helper(surface, 1)],
            permissions=ALL,
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        told, failed = await ended(await agent.run("Go.", context=HERE))
        assert provider.refused == []
        assert provider.asked("parent")[-1].messages[-1]["content"] == told.content
    assert told.status == "error"
    assert (told.metadata["subAgentStatus"], told.metadata["reason"]) == ("failed", "limit:max_iters")
    assert "1 turns" in told.content
    assert "found half of it" in told.content
    assert (failed.error_type, failed.partial_text) == ("limit:max_iters", "I was interrupted, and found half of it.")


@pytest.mark.case("B208")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_turns_that_are_used_up_without_an_answer_are_never_ok(surface: str, tmp_path: Path) -> None:
    endless: dict[str, Any] = {"turns": [], "fallback": ECHO}
    async with (
        StrictProvider({"parent": [CALL[surface], "ok"], "helper": endless}) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[helper(surface, 15)],
            permissions=ALL,
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        told, failed = await ended(await agent.run("Go.", context=HERE))
        assert provider.refused == []
        assert len(provider.asked("helper")) == 16
        assert "status: ok" not in provider.asked("parent")[-1].messages[-1]["content"]
    assert (told.status, told.metadata["reason"]) == ("error", "limit:max_iters")
    assert "15 turns" in told.content
    assert failed.error_type == "limit:max_iters"


@pytest.mark.case("B208")
async def test_a_run_of_ones_own_that_never_answers_says_which_limit_it_reached() -> None:
    async with (
        StrictProvider({"parent": {"turns": [], "fallback": ECHO}}) as provider,
        Agent("parent", model=provider.model(), tools=[echo], max_iters=3) as agent,
    ):
        result = await agent.run("Go.", context=HERE, check=False)
    assert (result.status, result.reason) == ("failed", "limit:max_iters")
    assert result.remedy
