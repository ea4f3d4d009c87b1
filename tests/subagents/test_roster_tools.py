"""The roster surface: `agent_spawn`, `agent_send`, `agent_list`, their arguments, result lines and refusals."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from retinue import (
    Agent,
    PermissionRules,
    RuntimeContext,
    SubAgent,
    ToolHarness,
    tool,
)
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of, results_of

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


@pytest.mark.contract("A-02", "A-03", "A-17", "D-26")
@pytest.mark.case("AS-22", "AS-16")
async def test_the_roster_tools_and_the_ids_are_told_to_the_model(tools_of: ToolsOf) -> None:
    model = RecordingModel({"parent": ["ok"]})
    await parent(model, helper(), helper("secret", hidden=True)).run("Go.")
    request = model.requests[0]
    tasks = ["task_output", "task_wait", "task_cancel", "task_list"]
    assert tools_of(request) == ["agent_spawn", "agent_send", "agent_list", *tasks]
    assert "## Subagents" in request.envelope.instructions
    assert "- `helper`: The subagent helper." in request.envelope.instructions
    assert "secret" not in request.envelope.instructions
    assert "task_output" in request.envelope.instructions
    spec = request.envelope.tools[0].parameters
    assert list(spec["properties"]) == ["agent_id", "task", "label", "timeout_seconds"]
    assert spec["required"] == ["agent_id"]
    assert list(request.envelope.tools[1].parameters["properties"]) == ["agent_key", "label", "message", "timeout_seconds"]
    assert request.envelope.tools[2].parameters["properties"] == {}


@pytest.mark.contract("A-26", "A-25", "D-26", "H-10", "H-19")
@pytest.mark.case("AS-58")
async def test_a_spawn_gives_the_documented_lines_and_asks_nobody(last: Last) -> None:
    model = RecordingModel({"parent": [calls(spawn(task="Look around.")), "ok"], "helper": ["All quiet.\nReally."]})
    async with parent(model) as agent:
        result = await agent.run("Go.", context=HERE)
        child = (await agent.threads.graph("s")).runtime_children[0]
    assert result.status == "completed"
    lines = last(model, 2).splitlines()
    assert KEY.match(lines[0])
    assert lines[1:] == ["agent_id: helper", f"session_id: {child.session_id}", "status: ok", "reply:", "All quiet.", "Really."]
    assert re.fullmatch(r"sub-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", child.session_id)
    assert child.thread_id == "main"
    told = messages_of(model.asked("helper")[0])
    assert [getattr(message, "text", None) for message in told] == ["Look around."]
    assert child.metadata["contextPolicy"] == "isolated"
    assert child.metadata["subAgentName"] == "helper"


@pytest.mark.contract("A-13", "A-23", "D-03")
@pytest.mark.case("AS-10")
async def test_a_child_is_told_that_it_is_a_subagent_and_a_leaf_has_no_way_to_delegate(tools_of: ToolsOf) -> None:
    class Own(ToolHarness):
        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

    declared = [helper(), helper("boss", leaf=False), helper("tool_child", surface="both")]
    model = RecordingModel(
        {
            "parent": [calls(spawn(task="x"), spawn("boss", task="x")), "ok"],
            "*": ["Done."],
        }
    )
    await parent(model, *declared, tool_harnesses=[Own], permissions=PermissionRules(allow=["*"])).run("Go.")
    leaf, boss = model.asked("helper")[0], model.asked("boss")[0]
    assert tools_of(leaf) == ["look"]  # none of the delegation tools of either surface, inherited ones included
    assert "## Subagent context" in leaf.envelope.instructions
    assert "cannot start subagents" in leaf.envelope.instructions
    assert leaf.envelope.instructions.startswith("You are helper.")
    assert "## Subagents\n" not in leaf.envelope.instructions
    assert tools_of(boss)[:4] == ["look", "agent_spawn", "agent_send", "agent_list"]
    assert "## Subagent context" in boss.envelope.instructions
    assert "cannot start subagents" not in boss.envelope.instructions


@pytest.mark.contract("A-13", "A-24", "A-04")
async def test_a_factorys_child_is_told_so_too() -> None:
    model = RecordingModel({"parent": [calls(spawn("made", task="x")), "ok"], "made": ["Done."]})
    made = SubAgent.from_factory("made", lambda context: Agent("inner", instructions=f"For {context.user_id}."), "  ")
    assert made.description == "made"
    agent = parent(model, made)
    await agent.run("Go.", context=RuntimeContext(user_id="alice"))
    told = model.asked("made")[0].envelope.instructions
    assert told.startswith("For alice.")
    assert "## Subagent context" in told


def raises(_context: RuntimeContext) -> Agent:
    """A factory that fails."""
    raise ZeroDivisionError


def gives_text(_context: RuntimeContext) -> Any:
    """A factory that makes no agent."""
    return "agent"


def misspells(_context: RuntimeContext) -> Agent:
    """A factory whose agent cannot run."""
    return Agent("inner", model="opnai:x")


@pytest.mark.contract("A-04")
@pytest.mark.case("AS-26")
@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (raises, ["`made`", "ZeroDivisionError", "another subagent"]),
        (gives_text, ["`made`", "returned str", "return an `Agent`"]),
        (misspells, ["`opnai:x`", "openai:x"]),
    ],
)
async def test_a_factory_that_fails_is_told_to_the_model_and_ends_nothing(factory: Any, told: list[str], last: Last) -> None:
    model = RecordingModel({"parent": [calls(spawn("made", task="x")), "I go on."]})
    async with parent(model, SubAgent.from_factory("made", factory)) as agent:
        result = await agent.run("Go.", context=HERE)
        assert (await agent.threads.graph("s")).runtime_children == []
    assert result.text == "I go on."
    for text in told:
        assert text.lower() in last(model, 2).lower()


@pytest.mark.contract("A-26")
async def test_without_a_task_a_child_is_only_created_and_can_be_sent_to(last: Last, sends: Sends) -> None:
    model = sends({}, lambda key: {"agent_key": key, "message": "Now work."})
    async with parent(model) as agent:
        await agent.run("Go.", context=HERE)
        children = (await agent.threads.graph("s")).runtime_children
        kinds = [event.TYPE for event in await children[0].events()]
    assert last(model, 2).splitlines()[-1] == "status: accepted"
    assert "reply:\n1: Now work." in last(model, 3)
    assert len(children) == 1
    assert kinds[:3] == ["THREAD_CREATED", "RUN_STARTED", "MESSAGE"]


@pytest.mark.contract("A-27", "H-18")
@pytest.mark.case("AS-58", "HPD-78")
async def test_a_child_is_continued_by_its_key_or_its_label_and_remembers(last: Last, sends: Sends) -> None:
    model = sends(
        {"task": "First.", "label": "Scout"},
        lambda key: {"agent_key": key, "message": "Second."},
        lambda _key: {"label": "scout", "message": "Third."},
    )
    async with parent(model) as agent:
        await agent.run("Go.", context=HERE)
        children = (await agent.threads.graph("s")).runtime_children
    key = KEY.search(last(model, 2))
    assert key
    assert last(model, 3) == f"agent_key: {key[1]}\nstatus: ok\nreply:\n2: Second."
    assert last(model, 4).endswith("3: Third.")
    assert len(children) == 1


@pytest.mark.contract("A-27")
@pytest.mark.case("AS-59")
async def test_a_child_is_continued_in_a_later_run_of_another_process(tmp_path: Path, last: Last, sends: Sends) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    model = sends({"task": "First."})
    async with parent(model, ledger=url) as agent:
        await agent.run("Go.", context=HERE)
    key = KEY.search(last(model, 2))
    assert key
    again = RecordingModel(
        lambda request: (
            "2nd"
            if request.agent_id == "helper"
            else calls(("agent_send", {"agent_key": key[1], "message": "Second."}))
            if request.step == 1
            else "ok"
        )
    )
    async with parent(again, ledger=url) as agent:
        await agent.run("And again.", context=HERE)
    told = [message.text for message in messages_of(again.asked("helper")[0]) if isinstance(message, UserMessage)]
    assert told == ["First.", "Second."]


@pytest.mark.contract("A-27")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"message": "x"}, ["exactly one", "neither"]),
        ({"message": "x", "agent_key": "{key}", "label": "a"}, ["exactly one", "both"]),
        ({"message": "x", "agent_key": "helper"}, ["`helper`", "agent id or an incomplete key", "agent_key: agent:"]),
        ({"message": "x", "agent_key": "{session}"}, ["session or thread id of a subagent"]),
        ({"message": "x", "agent_key": "inv_01890a5d000070008000000000000000"}, ["an invocation id"]),
        ({"message": "x", "agent_key": "{key}0"}, ["incomplete key"]),
        ({"message": "x", "agent_key": "agent:helper:0123456789ab"}, ["no subagent `agent:helper:0123456789ab`"]),
        ({"message": "x", "label": "nobody"}, ["no subagent with label `nobody`"]),
        ({"message": " ", "agent_key": "{key}"}, ["`message` is blank"]),
        ({"agent_key": "{key}"}, ["missing", "`message`"]),
        ({"message": "x", "key": "{key}"}, ["no argument `key`", "`agent_key`"]),
    ],
)
async def test_a_send_that_does_not_fit_says_what_was_given(arguments: dict[str, Any], told: list[str], last: Last) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return "Done."
        if request.step == 1:
            return calls(spawn(task="x"))
        if request.step == 2:
            key = KEY.search(results_of(request)[0])
            session = re.search(r"session_id: (\S+)", results_of(request)[0])
            assert key
            assert session
            filled = {
                name: value.replace("{key}", key[1]).replace("{session}", session[1]) if isinstance(value, str) else value
                for name, value in arguments.items()
            }
            return calls(("agent_send", filled))
        return "ok"

    model = RecordingModel(answer)
    result = await parent(model).run("Go.")
    assert result.status == "completed"
    for text in told:
        assert text in last(model, 3)
    assert len(model.asked("helper")) == 1


@pytest.mark.contract("A-26", "A-27", "D-08")
@pytest.mark.case("AS-55", "AS-56", "AS-61", "AS-62", "B098")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"agent_id": "nobody", "task": "x"}, ["no subagent `nobody`", "`helper`", "`general`"]),
        ({"agent_id": "helpr", "task": "x"}, ["did you mean `helper`"]),
        ({"agent_id": "people", "task": "x"}, ["`people`", "primary"]),
        ({"agent_id": "helper", "task": "x", "timeout_seconds": "soon"}, ["`timeout_seconds`", '"soon"']),
        ({"task": "x"}, ["missing", "`agent_id`"]),
        ({"agent_id": "helper", "prompt": "x"}, ["no argument `prompt`", "`task`"]),
        ("{", ["JSON"]),
    ],
)
async def test_a_spawn_that_does_not_fit_makes_no_child_and_says_why(arguments: Any, told: list[str], last: Last) -> None:
    model = RecordingModel({"parent": [calls(("agent_spawn", arguments)), "ok"]})
    async with parent(model, helper(), helper("general"), helper("people", mode="primary")) as agent:
        result = await agent.run("Go.", context=HERE)
        assert (await agent.threads.graph("s")).runtime_children == []
    assert result.status == "completed"
    for text in told:
        assert text in last(model, 2)


@pytest.mark.contract("D-25", "A-26")
@pytest.mark.case("B091")
@pytest.mark.parametrize("agent_id", ["code-reviewer", "code_reviewer", "Code Reviewer", "code-reviewer "])
async def test_an_id_is_found_in_the_spellings_that_models_use(agent_id: str, last: Last) -> None:
    model = RecordingModel({"parent": [calls(spawn(agent_id, task="x")), "ok"], "code-reviewer": ["Done."]})
    await parent(model, helper("code-reviewer")).run("Go.")
    assert "reply:\nDone." in last(model, 2)


@pytest.mark.contract("A-28")
async def test_the_list_shows_idle_children_and_then_at_most_ten_finished_ones(last: Last) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return "Done."
        if request.step == 1:
            return calls(*(spawn(task="x") for _ in range(12)), spawn(label="Idle one"))
        return calls(("agent_list", {})) if request.step == 2 else "ok"

    model = RecordingModel(answer)
    await parent(model).run("Go.")
    text = last(model, 3)
    active, finished = text.split("Finished, resumable")
    assert active.startswith("Active subagents (1):\n- agent_key: agent:helper:")
    assert "  label: Idle one\n  status: idle\n  depth: 1" in active
    assert finished.count("- agent_key:") == 10
    assert finished.count("status: completed") == 10
    assert "(12, newest first)" in finished


@pytest.mark.contract("A-28")
async def test_the_list_of_an_agent_without_children_says_so(last: Last) -> None:
    model = RecordingModel({"parent": [calls(("agent_list", {})), "ok"]})
    await parent(model).run("Go.")
    assert last(model, 2) == "No active subagents."


@pytest.mark.contract("A-28", "D-16")
async def test_the_list_shows_children_of_the_session_not_of_other_threads_of_the_process() -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return "Done."
        text = next(message.text for message in messages_of(request) if isinstance(message, UserMessage))
        if request.step == 1:
            return calls(spawn(task="x", label="one")) if text == "spawn" else calls(("agent_list", {}))
        return "ok"

    model = RecordingModel(answer)
    async with parent(model) as agent:
        await agent.run("spawn", context=RuntimeContext(session_id="a"))
        await agent.run("list", context=RuntimeContext(session_id="b"))
        await agent.run("list", context=RuntimeContext(session_id="a", thread_id="second"))
    elsewhere, same_session = (
        results_of(request)[-1] for request in model.asked("parent") if "agent_list" in str(request.history)
    )
    assert elsewhere == "No active subagents."
    assert "label: one" in same_session


@pytest.mark.contract("A-27")
async def test_a_label_is_taken_once() -> None:
    model = RecordingModel(
        {"parent": [calls(spawn(task="x", label="Scout"), spawn(task="x", label="scout ")), "ok"], "helper": ["Done."]}
    )
    await parent(model).run("Go.")
    first, second = results_of(model.asked("parent")[1])
    assert "reply:\nDone." in first
    assert "label `scout` is already in use" in second
    assert len(model.asked("helper")) == 1


@pytest.mark.contract("A-27", "A-04")
async def test_a_label_of_a_spawn_that_failed_is_free_again(last: Last) -> None:
    turns = [calls(spawn("made", task="x", label="one")), calls(spawn(task="x", label="one")), "ok"]
    model = RecordingModel({"parent": turns, "helper": ["Done."]})
    await parent(model, helper(), SubAgent.from_factory("made", raises)).run("Go.")
    assert "ZeroDivisionError" in last(model, 2)
    assert "reply:\nDone." in last(model, 3)


@pytest.mark.contract("A-27")
async def test_of_two_messages_to_one_child_at_once_the_second_reaches_it_at_work() -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return "Done."
        if request.step == 1:
            return calls(spawn(label="one"))
        return calls(*[("agent_send", {"label": "one", "message": "x"})] * 2) if request.step == 2 else "ok"

    model = RecordingModel(answer)
    await parent(model).run("Go.")
    first, second = results_of(model.asked("parent")[2])[-2:]
    assert "reply:\nDone." in first
    assert "status: queued" in second
    assert len(model.asked("helper")) == 1  # which has both
    assert [getattr(entry.message, "text", "") for entry in model.asked("helper")[0].history] == ["x", "x"]


@pytest.mark.contract("D-26", "D-14", "H-17")
@pytest.mark.parametrize(("policy", "count"), [("fork", 2), ("fresh", 1), ("isolated", 1)])
async def test_an_authors_context_policy_holds_on_the_roster_too(policy: Any, count: int) -> None:
    model = RecordingModel({"parent": [calls(spawn(task="x"), spawn(label="later")), "ok"], "helper": ["Done."]})
    async with parent(model, helper(context_policy=policy)) as agent:
        await agent.run("Go.", context=HERE)
        working, idle = (await agent.threads.graph("s")).runtime_children
        assert [len(await one.messages()) for one in (working, idle)] == [count + 1, count - 1]
    assert len(messages_of(model.asked("helper")[0])) == count
    assert (working.metadata["contextPolicy"], idle.metadata["contextPolicy"]) == (policy, policy)
    assert working.session_id.startswith("sub-")
