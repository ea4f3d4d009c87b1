"""The projection: valid histories from any order of results, forks, and the same thing from rows as from events."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.projection import Projection, inherited_history, project
from retinue.events import (
    Event,
    MessageEvent,
    ModelCalledEvent,
    RunStartedEvent,
    StateSetEvent,
    SubAgentInvocationCompletedEvent,
    ToolCallResultEvent,
    encode,
)
from retinue.messages import AssistantMessage, CallRef, ToolCall, ToolResult, Usage, UserMessage
from retinue.ops import Record
from retinue.rows import ThreadKey

KEY = ThreadKey("", "s", "main")


def records(*events: Event, attempt: int = 1, run: str = "run_1") -> list[Record]:
    return [Record(KEY, 1, seq, event.TYPE, run, attempt, 0, encode(event)) for seq, event in enumerate(events, start=1)]


def batch(count: int) -> MessageEvent:
    calls = tuple(ToolCall(id=f"c{index}", name="t") for index in range(count))
    return MessageEvent(message=AssistantMessage(id="m1", calls=calls))


def result(index: int) -> ToolCallResultEvent:
    return ToolCallResultEvent(call=CallRef("m1", index), call_id=f"c{index}", name="t", content=str(index))


START = RunStartedEvent(agent_id="a", owner="o", attempt=1)
INPUT = MessageEvent(message=UserMessage(id="m0", text="go"))


@given(st.permutations(range(5)))
def test_results_stand_in_call_order_whatever_the_order_they_ended_in(order: list[int]) -> None:
    projection = project(records(START, INPUT, batch(5), *(result(index) for index in order)))
    contents = [entry.message.content for entry in projection.history if isinstance(entry.message, ToolResult)]
    assert contents == ["0", "1", "2", "3", "4"]
    assert projection.open is None


@given(st.permutations(range(4)), st.integers(0, 3))
def test_a_history_never_shows_a_call_without_its_result(order: list[int], stored: int) -> None:
    projection = project(records(START, INPUT, batch(4), *(result(index) for index in order[:stored])))
    assert [type(entry.message) for entry in projection.history] == [UserMessage]
    assert projection.open is not None
    assert [index for index, _ in projection.open.pending()] == sorted(order[stored:])


@pytest.mark.contract("D-14")
def test_a_fork_has_the_history_without_the_message_in_flight_and_without_bound_reasoning() -> None:
    thinking = AssistantMessage(id="m2", text="first", reasoning="secret", extras={"signature": "x"}, provider="p")
    inherited = records(START, INPUT, MessageEvent(message=thinking), batch(1), result(0), batch(2))
    fork = project([], inherited)
    assert [type(entry.message).__name__ for entry in fork.history] == [
        "UserMessage",
        "AssistantMessage",
        "AssistantMessage",
        "ToolResult",
    ]
    first = fork.history[1].message
    assert isinstance(first, AssistantMessage)
    assert (first.text, first.reasoning, first.extras) == ("first", None, {})
    assert fork.open is None
    assert fork.turns == 0


def test_a_fork_shares_entries_that_hold_nothing_bound_to_a_provider() -> None:
    plain = project(records(START, INPUT, MessageEvent(message=AssistantMessage(id="m1", text="hm"))))
    copied = inherited_history(plain)
    assert copied is not plain.history
    assert all(mine is theirs for mine, theirs in zip(copied, plain.history, strict=True))
    bound = project(records(START, INPUT, MessageEvent(message=AssistantMessage(id="m1", text="hm", reasoning="so"))))
    shared = [mine is theirs for mine, theirs in zip(inherited_history(bound), bound.history, strict=True)]
    assert shared == [True, False]


@pytest.mark.contract("H-27")
def test_a_fork_copies_the_state_of_its_thread() -> None:
    fork = project([], records(START, StateSetEvent(name="mode", value={"plan": True})))
    assert fork.state == {"mode": {"plan": True}}


def test_events_of_unknown_types_change_nothing() -> None:
    known = records(START, INPUT, batch(1), result(0))
    strange = Record(KEY, 1, 99, "FROM_THE_FUTURE", "run_1", 1, 0, b'{"a":1}')
    mixed = [item for record in known for item in (record, strange)]
    assert [entry.message for entry in project(mixed).history] == [entry.message for entry in project(known).history]


def test_usage_and_cost_are_those_of_the_tree_and_of_the_run() -> None:
    own = ModelCalledEvent(provider="p", model="m", usage=Usage(input_tokens=5, calls=1), cost=Decimal("0.5"))
    child = SubAgentInvocationCompletedEvent(
        invocation_id="inv_1",
        call=CallRef("m1", 0),
        parent_tool_call_id="c0",
        child_agent_id="k",
        child_session_id="s",
        child_thread_id="t",
        context_policy="fresh",
        usage=Usage(input_tokens=7, calls=2),
        cost=Decimal("0.25"),
    )
    projection = project(records(START, INPUT, own, batch(1), child))
    assert projection.own_usage == Usage(input_tokens=5, calls=1)
    assert projection.tree_usage == Usage(input_tokens=12, calls=3)
    assert (projection.own_cost, projection.cost) == (Decimal("0.5"), Decimal("0.75"))


def test_a_price_that_is_not_known_makes_the_cost_unknown() -> None:
    unknown = ModelCalledEvent(provider="p", model="m", usage=Usage(calls=1), cost=None)
    assert project(records(START, INPUT, unknown)).cost is None


def test_a_new_run_on_the_thread_keeps_the_history_and_starts_counting_anew() -> None:
    called = ModelCalledEvent(provider="p", model="m", usage=Usage(calls=1))
    first = records(START, INPUT, called)
    again = Record(KEY, 1, 4, START.TYPE, "run_2", 1, 0, encode(START))
    projection = project([*first, again])
    assert (projection.run_id, projection.turns, len(projection.history)) == ("run_2", 0, 1)


def test_a_take_over_keeps_what_was_counted() -> None:
    called = ModelCalledEvent(provider="p", model="m", usage=Usage(calls=1))
    taken = RunStartedEvent(agent_id="a", owner="other", attempt=2)
    projection = project([*records(START, INPUT, called), *records(taken, attempt=2)])
    assert (projection.turns, projection.attempt) == (1, 2)


def test_staging_and_rebuilding_give_the_same_projection() -> None:
    events = [START, INPUT, batch(3), result(2), result(0), result(1), MessageEvent(message=AssistantMessage(id="m2", text="x"))]
    staged = Projection()
    for seq, event in enumerate(events, start=1):
        staged.apply(event, seq, 1)
    rebuilt = project(records(*events))
    assert [entry.message for entry in staged.history] == [entry.message for entry in rebuilt.history]
    assert staged.call_ids == rebuilt.call_ids
