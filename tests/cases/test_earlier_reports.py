"""Public faults of empty results: an answer that points at an earlier message, which can still be reached."""

import re
from collections.abc import Callable

import pytest

from retinue import Agent, RuntimeContext, SubAgent, ToolHarness
from retinue.events import ToolCallResultEvent
from retinue.messages import AssistantMessage
from retinue.testing import Recorded, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
REPORT = "The report: the pump fails below 4 degrees."
SEE_ABOVE = "Done, see my message above."


async def look() -> str:
    """Look."""
    return "looked"


def answer(request: Recorded) -> object:
    """A child that reports beside a call of its third turn, and says it again when it is asked."""
    told = request.messages[-1]["content"]
    if request.agent == "helper":
        if told == "Say it again.":
            return next(one["content"] for one in request.messages if REPORT in (one["content"] or ""))
        return {1: calls(("look", {})), 2: calls(("look", {})), 3: calls(("look", {}), text=REPORT)}.get(request.step, SEE_ABOVE)
    if request.step == 1:
        return calls(("agent_spawn", {"agent_id": "helper", "task": "x"}))
    if request.step == 2:
        key = re.findall(r"^agent_key: (\S+)$", told, re.MULTILINE)[0]
        return calls(("agent_send", {"agent_key": key, "message": "Say it again."}))
    return "ok"


@pytest.mark.case("B199")
async def test_a_report_of_an_earlier_turn_is_reached_by_the_handles_of_the_result(parent: Parent) -> None:
    harness = ToolHarness()
    harness.add_tool(look)
    one = SubAgent("helper", "Helps.", instructions="Help.", tool_harnesses=[harness])
    async with (
        StrictProvider(answer) as provider,  # type: ignore[arg-type]
        parent(provider, subagents=[one]) as agent,
    ):
        result = await agent.run("Go.", context=HERE)
        assert provider.refused == []
        spawned, sent = (request.messages[-1]["content"] for request in provider.asked("parent")[1:])
        assert result.thread is not None
        events = [event for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)]
        place = events[0].metadata
        child = await agent.threads.get(session_id=place["subAgentSessionId"], thread_id=place["subAgentThreadId"])
        said = [message.text for message in await child.messages() if isinstance(message, AssistantMessage)]
    assert SEE_ABOVE in spawned
    assert REPORT not in spawned
    assert REPORT in sent  # the model's way: it asks the same child again
    assert REPORT in said  # the application's way: it reads the child's thread
