"""What bounds children on the roster: time, depth, number, rules."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from retinue import (
    Agent,
    HarnessAgent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationFailedEvent,
    ToolCallResultEvent,
)
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, VirtualClock, calls, results_of

pytestmark = pytest.mark.anyio

Last = Callable[[RecordingModel, int], str]
ToolsOf = Callable[[ModelRequest], list[str]]

KEY = re.compile(r"^agent_key: (agent:helper:[0-9a-f]{12})$", re.MULTILINE)
HERE = RuntimeContext(session_id="s")


class Sends(Protocol):
    """See the fixture `sends`."""

    def __call__(self, first: dict[str, Any], *then: Callable[[str], dict[str, Any]]) -> RecordingModel: ...


def helper(name: str = "helper", **fields: Any) -> SubAgent:
    """A child on the roster."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.", **fields)


def parent(model: RecordingModel, *children: SubAgent, **options: Any) -> Agent:
    """An agent with these children on its roster."""
    return Agent("parent", model=model, subagents=children or (helper(),), **options)


def spawn(agent_id: str = "helper", **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A call of `agent_spawn`."""
    return "agent_spawn", {"agent_id": agent_id, **arguments}


@pytest.mark.contract("D-26", "D-29", "H-05")
@pytest.mark.parametrize("agent_id", ["code-reviewer", "code_reviewer", " Code Reviewer"])
async def test_rules_see_the_agent_that_is_meant_however_it_is_spelled(agent_id: str) -> None:
    turns = [calls(spawn(agent_id, task="x"), spawn("helper", task="x")), "ok"]
    model = RecordingModel({"parent": turns, "*": ["Done."]})
    rules = PermissionRules(deny=["agent_spawn(code-reviewer)"])
    await parent(model, helper("code-reviewer"), helper(), permissions=rules).run("Go.")
    denied, fine = results_of(model.asked("parent")[1])
    assert "`agent_spawn` was denied" in denied
    assert "reply:\nDone." in fine
    assert model.asked("code-reviewer") == []


@pytest.mark.contract("D-26", "D-29", "D-28")
@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (PermissionRules(deny=["agent_send(helper)"]), "`agent_send` was denied"),
        (PermissionRules(deny=["agent_send(other)"]), "2: Again."),
    ],
)
async def test_a_label_hides_nobody_from_the_rules(rules: PermissionRules, told: str, last: Last, sends: Sends) -> None:
    model = sends({"task": "First.", "label": "one"}, lambda _key: {"label": "one", "message": "Again."})
    result = await parent(model, permissions=rules).run("Go.")
    assert result.status == "completed"
    assert told in last(model, 3)


@pytest.mark.contract("D-26", "D-28")
async def test_a_send_by_label_is_asked_for_and_goes_on_with_the_answer(last: Last, sends: Sends) -> None:
    model = sends({"task": "First.", "label": "one"}, lambda _key: {"label": " ONE", "message": "Again."})
    async with parent(model, permissions=PermissionRules(ask=["agent_send(helper)"])) as agent:
        result = await agent.run("Go.")
        assert result.status == "waiting"
        assert [(request.tool, request.agent_id) for request in result.requests] == [("agent_send", "helper")]
        done = await agent.answer(result.requests[0], allow=True)
    assert done is not None
    assert done.status == "completed"
    assert "2: Again." in last(model, 3)


@pytest.mark.contract("D-28", "A-27")
async def test_nobody_is_asked_for_a_send_that_cannot_be(last: Last, sends: Sends) -> None:
    model = sends({"task": "First.", "label": "one"}, lambda _key: {"label": "nobody", "message": "x"})
    result = await parent(model, permissions=PermissionRules(ask=["agent_send"])).run("Go.")
    assert result.status == "completed"
    assert "no subagent with label `nobody`" in last(model, 3)


@pytest.mark.contract("D-26", "D-28", "H-05")
async def test_a_roster_child_that_needs_a_permission_is_asked_for_and_others_are_not() -> None:
    model = RecordingModel({"parent": [calls(spawn("careful", task="x"), spawn(task="x")), "ok"], "*": ["Done."]})
    async with parent(model, helper(), helper("careful", requires_permission=True)) as agent:
        result = await agent.run("Go.")
        assert result.status == "waiting"
        assert [(request.tool, request.agent_id) for request in result.requests] == [("agent_spawn", "careful")]
        assert model.asked("careful") == []
        done = await agent.answer(result.requests[0], allow=True)
    assert done is not None
    assert done.status == "completed"
    assert len(model.asked("careful")) == 1


@pytest.mark.contract("D-28", "A-26")
async def test_nobody_is_asked_for_a_spawn_that_cannot_be() -> None:
    model = RecordingModel({"parent": [calls(spawn("nobody", task="x"), spawn(task="x", timeout_seconds="soon")), "ok"]})
    result = await parent(model, permissions=PermissionRules(ask=["agent_spawn"])).run("Go.")
    assert result.status == "completed"
    assert "no subagent `nobody`" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("D-08", "A-26")
@pytest.mark.case("AS-66", "B040")
async def test_at_its_time_limit_a_child_is_stopped_and_its_partial_text_comes_back(last: Last) -> None:
    clock = VirtualClock(auto=True)
    model = RecordingModel(
        {
            "parent": [calls(spawn(task="x", timeout_seconds=5)), "I go on."],
            "helper": [{"text": "I have found this and that.", "chunk": 6, "chunk_delay": 2}],
        },
        clock=clock,
    )
    async with Runtime(clock=clock) as runtime:
        agent = parent(model, helper(on_timeout="cancel"), runtime=runtime)
        result = await agent.run("Go.", context=HERE)
        events = await (await agent.threads.graph("s")).threads[0].events()
    assert clock.monotonic() == 5
    text = last(model, 2)
    assert "status: timeout\nerror: the time limit of 5 s was reached" in text
    assert text.strip().endswith("partial_reply:\nI have found this")
    failed = next(event for event in events if isinstance(event, SubAgentInvocationFailedEvent))
    told = next(event for event in events if isinstance(event, ToolCallResultEvent))
    assert failed.error_type == "timeout"
    assert told.metadata["subAgentStatus"] == "failed"
    assert result.text == "I go on."
    assert len(model.asked("helper")) == 1  # nothing is restarted


@pytest.mark.contract("A-26", "A-27")
async def test_an_authors_time_limit_holds_where_the_model_gives_none(last: Last) -> None:
    clock = VirtualClock(auto=True)
    model = RecordingModel({"parent": [calls(spawn(task="x")), "ok"], "helper": [{"text": "late", "delay": 3_000}]}, clock=clock)
    async with Runtime(clock=clock) as runtime:
        await parent(model, helper(timeout_seconds=7, on_timeout="cancel"), runtime=runtime).run("Go.")
    assert clock.monotonic() == 7
    assert "time limit of 7 s" in last(model, 2)


@pytest.mark.contract("A-26")
@pytest.mark.case("AS-64")
async def test_a_time_limit_of_more_than_600_seconds_becomes_600(last: Last) -> None:
    clock = VirtualClock(auto=True)
    model = RecordingModel(
        {"parent": [calls(spawn(task="x", timeout_seconds=99_999)), "ok"], "helper": [{"text": "late", "delay": 3_000}]},
        clock=clock,
    )
    async with Runtime(clock=clock) as runtime:
        await parent(model, helper(on_timeout="cancel"), runtime=runtime).run("Go.")
    assert clock.monotonic() == 600
    assert "time limit of 600 s" in last(model, 2)


@pytest.mark.contract("A-24", "D-03", "D-30", "D-11")
async def test_children_exist_at_depths_1_to_3_along_the_real_chain_and_factories_count(tools_of: ToolsOf) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.step > 1 or "agent_spawn" not in tools_of(request):
            return f"{request.agent_id} at {request.depth}: {'/'.join(results_of(request))}"
        return calls(spawn("boss" if request.agent_id != "boss" else "made", task="go"))

    def make(_context: RuntimeContext) -> Agent:
        return Agent("made", leaf=False, subagents=[helper("boss", leaf=False)])

    model = RecordingModel(answer)
    made = SubAgent.from_factory("made", make)
    agent = parent(model, helper("boss", leaf=False), made)
    await agent.run("Go.")
    depths = [
        (request.agent_id, request.depth, "agent_spawn" in tools_of(request)) for request in model.requests if request.step == 1
    ]
    assert depths == [("parent", 0, True), ("boss", 1, True), ("made", 2, True), ("boss", 3, False)]
    deepest = next(request for request in model.requests if request.depth == 3)
    assert "## Subagents\n" not in deepest.envelope.instructions


@pytest.mark.contract("D-03", "H-06", "A-24")
@pytest.mark.case("HPD-28", "HPD-30", "B058", "B079")
async def test_a_forged_call_of_a_hidden_tool_is_refused_without_a_child() -> None:
    model = RecordingModel(
        {"parent": [calls(spawn(task="x")), "ok"], "helper": [calls(spawn(task="y"), ("agent_list", {})), "ok"]}
    )
    async with parent(model) as agent:
        await agent.run("Go.", context=HERE)
        children = (await agent.threads.graph("s")).runtime_children
    assert len(children) == 1
    assert [text.split(".")[0] for text in results_of(model.asked("helper")[1])] == [
        "There is no tool `agent_spawn`",
        "There is no tool `agent_list`",
    ]


@pytest.mark.contract("D-30")
async def test_children_without_a_task_count_too() -> None:
    model = RecordingModel({"parent": [calls(*(spawn() for _ in range(5))), "ok"]})
    async with parent(model, limits=Limits(max_tree_children=3)) as agent:
        await agent.run("Go.", context=HERE)
        assert len((await agent.threads.graph("s")).runtime_children) == 3
    results = results_of(model.asked("parent")[1])
    assert ["status: accepted" in text for text in results] == [True, True, True, False, False]
    assert "`Limits(max_tree_children=…)` is 3" in results[-1]


@pytest.mark.contract("D-30")
async def test_more_than_so_many_children_at_once_queue() -> None:
    at_work = most = 0

    async def answer(request: ModelRequest) -> Any:
        nonlocal at_work, most
        if request.agent_id == "parent":
            return "ok" if request.step > 1 else calls(*(spawn(task="x") for _ in range(7)))
        at_work += 1
        most = max(most, at_work)
        await clock.sleep(1)
        at_work -= 1
        return "Done."

    clock = VirtualClock(auto=True)
    model = RecordingModel(answer)
    async with Runtime(clock=clock, limits=Limits(max_children=2)) as runtime:
        await parent(model, runtime=runtime).run("Go.")
    assert most == 2
    assert clock.monotonic() == 4
    assert len(model.asked("helper")) == 7


@pytest.mark.contract("A-01")
@pytest.mark.case("AS-43")
async def test_an_agent_with_subagents_switched_off_or_a_leaf_has_none_of_the_tools(tmp_path: Path, tools_of: ToolsOf) -> None:
    for options in ({"disable_subagents": True}, {"leaf": True}):
        model = RecordingModel({"parent": ["ok"]})
        declared = [helper(), helper("as_tool", surface="tool")]
        async with HarnessAgent("parent", model=model, workspace=tmp_path, subagents=declared, **options) as agent:  # type: ignore[arg-type]
            await agent.run("Go.")
        names = tools_of(model.requests[0])
        assert not {"agent_spawn", "agent_send", "agent_list", "as_tool"} & set(names)
        assert "read_file" in names
        assert "## Subagents" not in model.requests[0].envelope.instructions


@pytest.mark.contract("D-13", "A-04", "A-07")
async def test_general_purpose_exists_by_default_and_can_be_switched_off(tmp_path: Path, tools_of: ToolsOf) -> None:
    for wanted in (True, False):
        model = RecordingModel({"parent": ["ok"]})
        async with HarnessAgent("parent", model=model, workspace=tmp_path, general_purpose=wanted) as agent:
            await agent.run("Go.")
        assert ("general-purpose" in model.requests[0].envelope.instructions) is wanted
        assert ("agent_spawn" in tools_of(model.requests[0])) is wanted
