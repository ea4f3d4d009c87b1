"""What a call gives at once that is for the background, on both surfaces (H-12, A-26, A-32)."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent, ToolCallResultEvent
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

Events = Callable[[Runtime], Awaitable[list[Any]]]
HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


async def metadata(runtime: Runtime, events: Events) -> dict[str, Any]:
    """What stands beside the one result of the root's calls."""
    (result,) = [event for event in await events(runtime) if isinstance(event, ToolCallResultEvent)]
    return result.metadata


@pytest.mark.contract("A-26", "A-32", "H-12")
@pytest.mark.parametrize("seconds", [0, -1, -0.5])
async def test_a_spawn_gives_lines_with_the_task_and_says_not_to_ask_at_once(
    runtime: Runtime, events: Events, seconds: float
) -> None:
    call = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": seconds})
    model = RecordingModel({"root": [calls(call), "ok", "ok"], "kid": ["done"]})
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime)
    result = await agent.run("go", context=HERE)
    (task,) = result.tasks
    row = await runtime.ledger.task(task.task_id)
    assert row is not None
    key, agent_id, session, status, task_id, told = results_of(model.asked("root")[1])[0].split("\n")
    thread = await runtime.ledger.thread(row.child)
    assert thread is not None
    assert (key, agent_id) == (f"agent_key: {thread.agent_key}", "agent_id: kid")
    assert (session, status) == (f"session_id: {row.child.session}", "status: accepted")
    assert task_id == f"task_id: {task.task_id}"
    assert "do not ask for its result at once" in told
    assert await metadata(runtime, events) == {
        "subAgentStatus": "accepted",
        "subAgentSessionId": row.child.session,
        "subAgentThreadId": "main",
        "subAgentName": "kid",
        "invocationId": row.invocation_id,
        "contextPolicy": "isolated",
        "taskId": task.task_id,
    }
    await task.wait(10)


@pytest.mark.contract("H-12")
async def test_a_call_on_the_tool_surface_gives_the_documented_fields(runtime: Runtime, events: Events) -> None:
    model = RecordingModel({"root": [calls(("kid", {"input": "x"})), "ok", "ok"], "kid": ["done"]})
    kid = SubAgent("kid", "Helps.", instructions="Help.", surface="tool", invocation_mode_policy="background_only")
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime, permissions=ALL)
    result = await agent.run("go", context=HERE)
    (task,) = result.tasks
    row = await runtime.ledger.task(task.task_id)
    assert row is not None
    receipt = msgspec.json.decode(results_of(model.asked("root")[1])[0])
    assert list(receipt) == ["status", "taskId", "subAgentName", "invocationId", "message"]
    assert receipt["status"] == "accepted"
    assert (receipt["taskId"], receipt["subAgentName"], receipt["invocationId"]) == (task.task_id, "kid", row.invocation_id)
    assert "by itself" in receipt["message"]
    told = await metadata(runtime, events)
    assert (told["subAgentStatus"], told["taskId"], told["invocationId"]) == ("accepted", task.task_id, row.invocation_id)
    await task.wait(10)


@pytest.mark.contract("A-27", "H-12")
async def test_a_child_that_is_sent_a_message_goes_on_in_the_background(runtime: Runtime) -> None:
    def answer(request: Any) -> Any:
        if request.agent_id == "kid":
            return f"{request.step} of {len(request.history)}"
        turns = {1: calls(("agent_spawn", {"agent_id": "kid", "task": "x", "label": "k"}))}
        turns[2] = calls(("agent_send", {"label": "k", "message": "more", "timeout_seconds": 0}))
        return turns.get(request.step, "ok")

    model = RecordingModel(answer)
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime)
    result = await agent.run("go", context=HERE)
    (task,) = result.tasks
    sent = results_of(model.asked("root")[2])[-1]
    assert sent.startswith("agent_key: agent:kid:")
    assert f"status: accepted\ntask_id: {task.task_id}\n" in sent
    assert (await task.wait(10)).text == "1 of 3"  # it remembers its first task and its answer
