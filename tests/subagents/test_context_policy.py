"""How a child's conversation begins: fork, fresh, isolated, or the model's choice; and what a fork takes along."""

from typing import Any

import pytest

from retinue import (
    Agent,
    MessageEvent,
    PermissionRules,
    RuntimeContext,
    SubAgent,
    ToolCallResultEvent,
)
from retinue.messages import AssistantMessage, Message, ToolResult, UserMessage
from retinue.rows import ForkPoint
from retinue.testing import RecordingModel, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")


def child(**fields: Any) -> SubAgent:
    """A subagent on the tool surface."""
    return SubAgent("child", "D.", instructions="CHILD_SETUP", surface="tool", **fields)


def parent(model: Any, *children: SubAgent, **options: Any) -> Agent:
    """Its parent."""
    return Agent("parent", model=model, instructions="PARENT_SETUP", subagents=children, permissions=ALLOW, **options)


def short(messages: list[Message]) -> list[str]:
    """A conversation, one word a message."""
    made: list[str] = []
    for message in messages:
        match message:
            case UserMessage():
                made.append(f"user {message.text}")
            case AssistantMessage():
                made.append(f"assistant {message.text or ','.join(call.name for call in message.calls)}")
            case ToolResult():
                made.append(f"tool {message.content}")
    return made


async def echo(text: str) -> str:
    """Say it again."""
    return text


EARLIER = [calls(("echo", {"text": "one"}), text="first"), calls(("child", {"input": "task"})), "ok"]


@pytest.mark.contract("H-03", "D-14", "H-17")
@pytest.mark.case("HPD-19", "B002", "B007", "B015")
async def test_a_fork_begins_with_the_parents_conversation_without_the_message_in_flight() -> None:
    model = RecordingModel({"parent": EARLIER, "child": ["Done."]})
    async with parent(model, child(), tools=[echo]) as agent:
        await agent.run("Go.", context=HERE)
        graph = await agent.threads.graph("s")
        mine = await graph.threads[0].messages()
        theirs = await graph.runtime_children[0].messages()
        row = await agent.runtime.ledger.thread(graph.runtime_children[0].key)
        events = await graph.threads[0].events()
    in_flight = [event for event in events if isinstance(event, MessageEvent)][-2]
    assert row is not None
    assert row.base == ForkPoint(graph.threads[0].key, 1, in_flight.seq - 1)  # a reference, to just before it
    before = ["user Go.", "assistant first", "tool one"]
    request = model.asked("child")[0]
    assert short(messages_of(request)) == [*before, "user task"]
    assert request.envelope.instructions == "CHILD_SETUP"  # set-up is not inherited, only the conversation is
    assert short(list(mine)) == [*before, "assistant child", "tool Done.", "assistant ok"]
    assert short(list(theirs)) == [*before, "user task", "assistant Done."]
    assert graph.runtime_children[0].session_id == "s"
    asked, then = (messages_of(request) for request in model.asked("parent")[1:])
    assert then[: len(asked)] == asked  # the parent's own history is untouched


@pytest.mark.contract("D-14")
@pytest.mark.case("B020")
async def test_reasoning_and_provider_state_stay_with_the_parent() -> None:
    thinking = {**calls(("echo", {"text": "one"})), "reasoning": "hmm", "extras": {"state": "opaque"}}
    model = RecordingModel({"parent": [thinking, calls(("child", {"input": "task"})), "ok"], "child": ["Done."]})
    await parent(model, child(), tools=[echo]).run("Go.")
    inherited = next(message for message in messages_of(model.asked("child")[0]) if isinstance(message, AssistantMessage))
    own = next(message for message in messages_of(model.asked("parent")[1]) if isinstance(message, AssistantMessage))
    assert (inherited.reasoning, inherited.extras) == (None, {})
    assert (own.reasoning, own.extras) == ("hmm", {"state": "opaque"})
    assert inherited.calls == own.calls


@pytest.mark.contract("H-17")
@pytest.mark.case("HPD-21")
async def test_a_fresh_child_lives_in_the_parents_session_and_sees_only_its_task() -> None:
    model = RecordingModel({"parent": EARLIER, "child": ["Done."]})
    async with parent(model, child(context_policy="fresh"), tools=[echo]) as agent:
        await agent.run("Go.", context=HERE)
        one = (await agent.threads.graph("s")).runtime_children[0]
    assert short(messages_of(model.asked("child")[0])) == ["user task"]
    assert (one.session_id, one.metadata["contextPolicy"]) == ("s", "fresh")


@pytest.mark.contract("H-17", "D-16")
@pytest.mark.case("HPD-22")
async def test_an_isolated_child_gets_a_session_of_its_own() -> None:
    model = RecordingModel({"parent": EARLIER, "child": ["Done."]})
    async with parent(model, child(context_policy="isolated"), tools=[echo]) as agent:
        await agent.run("Go.", context=RuntimeContext(session_id="s", user_id="alice"))
        one = (await agent.threads.graph("s", user_id="alice")).runtime_children[0]
        hidden = await agent.threads.list(session_id="s", user_id="alice", hidden=True)
    assert short(messages_of(model.asked("child")[0])) == ["user task"]
    assert one.session_id.startswith("sub-")
    assert one.key.user == "alice"
    assert one.metadata["contextPolicy"] == "isolated"
    assert [thread.thread_id for thread in hidden] == ["main"]  # the parent's session holds no new thread


@pytest.mark.contract("H-17", "D-25")
@pytest.mark.case("HPD-13", "HPD-14", "HPD-15")
@pytest.mark.parametrize(
    ("extra", "policy"),
    [({}, "fresh"), ({"context": "FORK"}, "fork"), ({"context": "fresh"}, "fresh"), ({"context": None}, "fresh")],
)
async def test_where_the_model_may_choose_it_gets_what_it_chose_or_fresh(extra: dict[str, Any], policy: str) -> None:
    turns = [calls(("echo", {"text": "one"}), text="first"), calls(("child", {"input": "task", **extra})), "ok"]
    model = RecordingModel({"parent": turns, "child": ["Done."]})
    async with parent(model, child(context_policy="model_choice"), tools=[echo]) as agent:
        await agent.run("Go.", context=HERE)
        one = (await agent.threads.graph("s")).runtime_children[0]
    spec = next(spec for spec in model.requests[0].envelope.tools if spec.name == "child").parameters
    assert list(spec["properties"]) == ["input", "context"]
    assert spec["properties"]["context"]["enum"] == ["fork", "fresh"]
    assert spec["required"] == ["input"]
    assert one.metadata["contextPolicy"] == policy  # the resolved one
    assert len(messages_of(model.asked("child")[0])) == (4 if policy == "fork" else 1)


@pytest.mark.contract("H-17")
@pytest.mark.case("HPD-15", "HPD-16")
@pytest.mark.parametrize(
    ("fields", "context", "told"),
    [
        ({"context_policy": "model_choice"}, "copy", ["`context` was `copy`", "`fork` or `fresh`"]),
        ({"context_policy": "model_choice"}, 3, ["context", "3"]),
        ({}, "fresh", ["`context` was `fresh`", "always `fork`"]),
        ({"context_policy": "fresh"}, "fork", ["`context` was `fork`", "always `fresh`"]),
        ({"context_policy": "isolated"}, "isolated", ["`context` was `isolated`", "leave it out"]),
        ({"context_policy": "isolated"}, "fork", ["`context` was `fork`", "always `isolated`"]),
    ],
)
async def test_a_context_that_cannot_be_is_refused_without_a_child(
    fields: dict[str, Any], context: object, told: list[str]
) -> None:
    model = RecordingModel({"parent": [calls(("child", {"input": "task", "context": context})), "ok"]})
    await parent(model, child(**fields)).run("Go.")
    for text in told:
        assert text in results_of(model.asked("parent")[1])[0]
    assert model.asked("child") == []


@pytest.mark.contract("D-14", "H-28")
@pytest.mark.case("B015")
async def test_siblings_of_one_message_fork_the_same_conversation() -> None:
    turns = [calls(("echo", {"text": "one"})), calls(*(("child", {"input": f"task {place}"}) for place in range(3))), "ok"]
    model = RecordingModel({"parent": turns, "child": ["Done."]})
    await parent(model, child(), tools=[echo]).run("Go.")
    told = [short(messages_of(request)) for request in model.asked("child")]
    assert [one[:-1] for one in told] == [["user Go.", "assistant echo", "tool one"]] * 3
    assert sorted(one[-1] for one in told) == ["user task 0", "user task 1", "user task 2"]


@pytest.mark.contract("D-14")
async def test_a_fork_of_a_later_run_holds_the_whole_thread_and_survives_a_restart(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    for number in (1, 2):
        model = RecordingModel(
            {"parent": [calls(("child", {"input": f"task {number}"})), f"answer {number}"], "child": ["Done."]}
        )
        async with parent(model, child(), ledger=url) as agent:
            await agent.run(f"Go {number}.", context=HERE)
            children = (await agent.threads.graph("s")).runtime_children
            stored = [short(list(await one.messages())) for one in children]
    before = ["user Go 1.", "assistant child", "tool Done.", "assistant answer 1", "user Go 2."]
    assert short(messages_of(model.asked("child")[0])) == [*before, "user task 2"]
    assert stored == [["user Go 1.", "user task 1", "assistant Done."], [*before, "user task 2", "assistant Done."]]


@pytest.mark.contract("H-10", "D-08")
async def test_the_parents_session_is_told_in_the_results_metadata() -> None:
    model = RecordingModel({"parent": [calls(("child", {"input": "task"})), "ok"], "child": ["Done."]})
    async with parent(model, child(context_policy="isolated")) as agent:
        await agent.run("Go.", context=HERE)
        graph = await agent.threads.graph("s")
        result = next(event for event in await graph.threads[0].events() if isinstance(event, ToolCallResultEvent))
    assert result.metadata == {
        "subAgentStatus": "completed",
        "subAgentSessionId": graph.runtime_children[0].session_id,
        "subAgentThreadId": "main",
        "subAgentName": "child",
        "invocationId": graph.runtime_children[0].metadata["invocationId"],
        "contextPolicy": "isolated",
    }


@pytest.mark.contract("D-03")
async def test_the_depth_is_stored_with_the_childs_thread_and_holds_for_a_later_run() -> None:
    model = RecordingModel({"parent": [calls(("child", {"input": "task"})), "ok"], "child": ["Done."]})
    async with parent(model, child()) as agent:
        await agent.run("Go.", context=HERE)
        one = (await agent.threads.graph("s")).runtime_children[0]
        again = await one.run("More.")
        row = await agent.runtime.ledger.run(again.run_id)
    assert row is not None
    assert (row.depth, row.agent_id) == (1, "child")
