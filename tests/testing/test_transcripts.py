"""Assertions about conversations: what a provider would refuse, and journals that say the same but for ids and times."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from retinue import Agent, Event, PermissionRules, ScriptedModel, SubAgent
from retinue.events import MessageEvent, RunStartedEvent
from retinue.ids import new_agent_key, new_id, new_sub_session
from retinue.messages import AssistantMessage, CallRef, Message, ToolCall, ToolResult, UserMessage
from retinue.ops import Record
from retinue.rows import ThreadKey
from retinue.testing import ScriptedAgent, assert_same_journal, assert_valid_transcript, faults_of, normalise
from retinue.testing.provider_rules import MISTRAL_RULES, RULES
from retinue.testing.transcripts import Names

pytestmark = pytest.mark.anyio

ASKED = UserMessage(id="msg_0", text="Add.")
CALLING = AssistantMessage(id="msg_1", calls=(ToolCall(id="a", name="add"), ToolCall(id="b", name="add")))
ANSWER = AssistantMessage(id="msg_2", text="Three.")


def result(index: int, call_id: str = "", message_id: str = "msg_1") -> ToolResult:
    return ToolResult(call=CallRef(message_id, index), call_id=call_id or "ab"[index], name="add", content="3")


GOOD: list[Message] = [ASKED, CALLING, result(0), result(1), ANSWER]


def test_a_good_transcript() -> None:
    assert_valid_transcript(GOOD)
    assert_valid_transcript([])
    assert faults_of(GOOD[:-1], sent=True) == []


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([ASKED, CALLING, result(0), ANSWER], "unanswered_call"),
        ([ASKED, CALLING, result(0), ASKED, result(1)], "result_not_adjacent"),
        ([ASKED, result(0)], "orphan_result"),
        ([ASKED, CALLING, result(0), result(0), result(1)], "second_result"),
        ([ASKED, CALLING, result(0), result(1), CALLING, result(0), result(1)], "ids_repeat_in_transcript"),
        ([ASKED, CALLING, result(1), result(0)], "message 2 is the result of"),
        ([ASKED, CALLING, result(0, message_id="msg_9"), result(1)], "message 2 is the result of"),
    ],
)
def test_what_is_wrong_is_named(messages: Sequence[Message], fault: str) -> None:
    with pytest.raises(AssertionError, match="the transcript is not valid") as failed:
        assert_valid_transcript(messages)
    assert fault in str(failed.value)
    assert "0: UserMessage" in str(failed.value)


def test_only_what_is_sent_must_not_end_with_the_models_words() -> None:
    assert faults_of(GOOD) == []
    assert faults_of(GOOD, sent=True)[0].startswith("last_assistant")


def test_more_rules_can_be_asked_for() -> None:
    assert faults_of(GOOD[:-1], rules=(*RULES, *MISTRAL_RULES))[0].startswith("nine_character_ids")


def test_names_are_the_same_for_the_same_id() -> None:
    names = Names()
    run, other, session = new_id("run"), new_id("run"), new_sub_session()
    key = new_agent_key("reviewer")
    text = f"{other} {run} {other} in {session} by {key}, call_{'0' * 24}, run_short"
    plain = names.plain(text)
    assert plain == "<run 1> <run 2> <run 1> in <sub 1> by agent:reviewer:<key 1>, <call 1>, run_short"
    assert names.filled(plain) == text


def test_many_names_lead_back() -> None:
    names = Names()
    text = " ".join(new_id("run") for _ in range(12))
    assert names.filled(names.plain(text)) == text


def test_types_of_a_newer_version_are_kept() -> None:
    record = Record(ThreadKey("", "s", "t"), 1, 1, "FROM_TOMORROW", new_id("run"), 1, 5, b'{"what":1,"durationMs":7}')
    assert normalise([record]) == [{"type": "FROM_TOMORROW", "run": "<run 1>", "what": 1}]


async def events_of(answer: str) -> Sequence[Event]:
    tree = ScriptedAgent("lead", ScriptedAgent("reader", says=answer), says="ok")
    children = [SubAgent("reader", "Reads.", instructions="Read.")]
    agent = Agent("lead", model=ScriptedModel(tree.script()), subagents=children, permissions=PermissionRules(allow=["*"]))
    async with agent:
        result = await agent.run("Begin.")
        assert result.thread is not None
        return await result.thread.events()


async def test_journals_of_two_runs_say_the_same() -> None:
    first, second = await events_of("It is blue."), await events_of("It is blue.")
    assert msgspec.to_builtins(first) != msgspec.to_builtins(second)
    assert_same_journal(second, first)
    plain = normalise(first)
    assert plain[0]["type"] == "THREAD_CREATED"
    assert {"seq", "at", "path"} & set(plain[1]) == set()


async def test_what_differs_is_shown() -> None:
    first, second = await events_of("It is blue."), await events_of("It is green.")
    with pytest.raises(AssertionError) as failed:
        assert_same_journal(second, first)
    message = str(failed.value)
    assert '-    summary: "It is blue."' in message
    assert '+    summary: "It is green."' in message


async def test_live_events_are_left_out() -> None:
    agent = Agent("lead", model=ScriptedModel(["A long answer."]))
    async with agent:
        streamed = [event async for event in agent.stream("Begin.")]
        thread = (await agent.threads.list())[0]
        stored = await thread.events()
    kinds: list[Any] = [event["type"] for event in normalise(streamed)]
    assert kinds == [event.TYPE for event in stored]
    assert not {"TEXT_DELTA"} & set(kinds)
    assert [type(event) for event in stored][1:3] == [RunStartedEvent, MessageEvent]
