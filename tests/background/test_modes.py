"""Who decides whether a call is for the background: the author, or where they leave it open, the model (H-11)."""

from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
INPUT = {"input": "x"}


def tool(policy: Any) -> SubAgent:
    """A subagent on the tool surface."""
    return SubAgent("kid", "Helps.", instructions="Help.", surface="tool", invocation_mode_policy=policy)


async def ran(runtime: Runtime, kid: SubAgent, *call: tuple[str, Any]) -> tuple[RecordingModel, list[str], int]:
    """The model, what these calls of one turn gave, and how many tasks they made."""
    model = RecordingModel({"root": [calls(*call), "ok"], "kid": ["done"]})
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime, permissions=ALL)
    result = await agent.run("go", context=HERE)
    for task in result.tasks:
        await task.wait(10)
    return model, results_of(model.asked("root")[1]), len(result.tasks)


@pytest.mark.contract("H-11", "H-02")
@pytest.mark.parametrize(("policy", "offered"), [("synchronous_only", False), ("background_only", False), ("model_choice", True)])
async def test_the_argument_is_offered_only_where_the_model_chooses(runtime: Runtime, policy: str, offered: bool) -> None:
    model, _, _ = await ran(runtime, tool(policy), ("kid", INPUT))
    properties = model.requests[0].envelope.tools[0].parameters["properties"]
    assert ("invocationMode" in properties) is offered
    if offered:
        assert properties["invocationMode"]["enum"] == ["synchronous", "background"]


@pytest.mark.contract("H-11", "D-25")
@pytest.mark.parametrize(
    ("policy", "arguments", "background"),
    [
        ("synchronous_only", {}, False),
        ("synchronous_only", {"invocationMode": "synchronous"}, False),
        ("background_only", {}, True),
        ("background_only", {"invocationMode": "background"}, True),
        ("model_choice", {}, False),
        ("model_choice", {"invocationMode": "synchronous"}, False),
        ("model_choice", {"invocationMode": "background"}, True),
        ("model_choice", {"invocationMode": " Background "}, True),
        ("model_choice", {"invocation_mode": "background"}, True),
    ],
)
async def test_the_mode_of_a_call(runtime: Runtime, policy: str, arguments: dict[str, Any], background: bool) -> None:
    _, results, tasks = await ran(runtime, tool(policy), ("kid", {**INPUT, **arguments}))
    assert tasks == int(background)
    assert ('"status":"accepted"' in results[0].replace(" ", "")) is background
    assert (results[0] == "done") is not background


@pytest.mark.contract("H-11")
@pytest.mark.parametrize(
    ("policy", "mode", "told"),
    [
        ("synchronous_only", "background", ["synchronously only", "invalid_invocation_mode"]),
        ("background_only", "synchronous", ["in the background only", "invalid_invocation_mode"]),
        ("model_choice", "later", ["`invocationMode` was `later`", "`synchronous` or `background`"]),
    ],
)
async def test_a_mode_that_cannot_be_makes_no_child(runtime: Runtime, policy: str, mode: str, told: list[str]) -> None:
    model, results, tasks = await ran(runtime, tool(policy), ("kid", {**INPUT, "invocationMode": mode}))
    assert all(text in results[0] for text in told)
    assert (tasks, model.asked("kid")) == (0, [])
    assert await runtime.ledger.children((await runtime.ledger.runs())[0].key) == []


@pytest.mark.contract("H-11", "A-26")
async def test_on_the_roster_the_background_only_subagent_is_never_waited_for(runtime: Runtime) -> None:
    kid = SubAgent("kid", "Helps.", instructions="Help.", invocation_mode_policy="background_only")
    spawn = {"agent_id": "kid", "task": "x", "timeout_seconds": 60}
    _, results, tasks = await ran(runtime, kid, ("agent_spawn", spawn), ("agent_spawn", {**spawn, "timeout_seconds": 0}))
    assert tasks == 2
    assert all("status: accepted" in result for result in results)


@pytest.mark.contract("H-11", "A-26")
async def test_on_the_roster_the_synchronous_only_subagent_has_no_background(runtime: Runtime) -> None:
    kid = SubAgent("kid", "Helps.", instructions="Help.", invocation_mode_policy="synchronous_only")
    spawn = {"agent_id": "kid", "task": "x"}
    _, results, tasks = await ran(runtime, kid, ("agent_spawn", {**spawn, "timeout_seconds": 0}), ("agent_spawn", spawn))
    assert tasks == 0
    assert "does not work in the background" in results[0]
    assert "status: ok" in results[1]
