"""The picture of a run is the same from live events and from journals, bounded, and never goes back."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from retinue.cli.live_tree import TreeView
from retinue.cli.nodes import Node, NodeState
from retinue.events import (
    Event,
    MessageEvent,
    ModelCalledEvent,
    PermissionRequest,
    RequestClosedEvent,
    RunFinishedEvent,
    RunStartedEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    TextDeltaEvent,
    ToolCallResultEvent,
    ToolProgressEvent,
    UnknownEvent,
    derived,
)
from retinue.messages import AssistantMessage, CallRef, ToolCall, Usage, UserMessage
from retinue.rows import ThreadKey
from retinue.states import ResultStatus

ROOT = ThreadKey("", "ses_1", "main")
CHILD = ThreadKey("", "sub-1", "main")
SPAWN = CallRef("msg_1", 0)
READ = CallRef("msg_2", 0)


def at_root(seq: int, at: int) -> dict[str, Any]:
    return {"path": ("lead",), "key": ROOT, "run_id": "run_1", "seq": seq, "at": at}


def in_child(seq: int, at: int) -> dict[str, Any]:
    return {
        "path": ("lead", "reader"),
        "invocations": ("inv_1",),
        "key": CHILD,
        "run_id": "run_2",
        "seq": seq,
        "at": at,
    }


def asked(message_id: str, name: str, arguments: str, place: dict[str, Any]) -> MessageEvent:
    call = ToolCall(id=f"call_{message_id}", name=name, arguments=arguments)
    return MessageEvent(message=AssistantMessage(id=message_id, calls=(call,)), **place)


def lifecycle(seq: int, at: int) -> dict[str, Any]:
    return {
        "invocation_id": "inv_1",
        "call": SPAWN,
        "parent_tool_call_id": "call_msg_1",
        "child_agent_id": "reader",
        "child_session_id": CHILD.session,
        "child_thread_id": CHILD.thread,
        "context_policy": "isolated",
        **at_root(seq, at),
    }


def started(seq: int = 4, at: int = 1_200) -> SubAgentInvocationStartedEvent:
    return SubAgentInvocationStartedEvent(name="reader", child_run_id="run_2", **lifecycle(seq, at))


def stored_run() -> list[Event]:
    """A delegation, as the two journals hold it, in the order in which it happened."""
    usage = Usage(input_tokens=100, output_tokens=20, calls=1)
    return [
        RunStartedEvent(agent_id="lead", owner="own_1", attempt=1, **at_root(1, 1_000)),
        MessageEvent(message=UserMessage(id="msg_0", text="go"), **at_root(2, 1_000)),
        asked("msg_1", "agent_spawn", '{"agent_id": "reader", "task": "read"}', at_root(3, 1_100)),
        ModelCalledEvent(provider="p", model="m", usage=usage, cost=Decimal("0.01"), **at_root(5, 1_100)),
        started(),
        RunStartedEvent(agent_id="reader", owner="own_1", attempt=1, **in_child(1, 1_200)),
        asked("msg_2", "read_file", '{"path": "notes.md"}', in_child(2, 1_300)),
        ToolCallResultEvent(call=READ, call_id="call_msg_2", name="read_file", content="x", **in_child(3, 1_400)),
        MessageEvent(message=AssistantMessage(id="msg_3", text="It says\nx."), **in_child(4, 1_500)),
        ModelCalledEvent(provider="p", model="m", usage=usage, cost=Decimal("0.02"), **in_child(5, 1_500)),
        RunFinishedEvent(status="completed", **in_child(6, 1_600)),
        SubAgentInvocationCompletedEvent(summary="It says\nx.", usage=usage, cost=Decimal("0.02"), **lifecycle(6, 1_600)),
        ToolCallResultEvent(call=SPAWN, call_id="call_msg_1", name="agent_spawn", content="status: ok", **at_root(7, 1_600)),
        MessageEvent(message=AssistantMessage(id="msg_4", text="Done."), **at_root(8, 1_700)),
        RunFinishedEvent(status="completed", **at_root(9, 1_800)),
    ]


def view_of(events: Sequence[Event]) -> TreeView:
    view = TreeView()
    for event in events:
        view.apply(event)
    return view


def picture(view: TreeView) -> list[tuple[int, Node]]:
    return [(depth, node) for node, depth in view.walk()]


def root_of(events: Sequence[Event]) -> Node:
    root = view_of(events).root
    assert root is not None
    return root


def child_of(view: TreeView) -> Node:
    (child,) = [node for node, depth in view.walk() if depth == 1]
    return child


@pytest.mark.contract("H-26")
def test_an_entry_goes_from_preparing_to_completed() -> None:
    view, seen = TreeView(), list[NodeState]()
    for event in stored_run():
        view.apply(event)
        states = [node.state for node, depth in view.walk() if depth == 1]
        assert len(states) <= 1
        if states and (not seen or seen[-1] != states[0]):
            seen.append(states[0])
    assert seen == [NodeState.PREPARING, NodeState.RUNNING, NodeState.COMPLETED]
    assert child_of(view).elapsed(99_999) == 400


@pytest.mark.contract("H-21")
def test_live_and_replayed_events_give_the_same_picture() -> None:
    live: list[Event] = []
    for event in stored_run():
        live.append(event)
        if isinstance(event, MessageEvent):
            live += derived(event)
            if isinstance(event.message, AssistantMessage) and event.message.text:
                place: dict[str, Any] = {"path": event.path, "invocations": event.invocations, "key": event.key, "at": event.at}
                live.insert(-1, TextDeltaEvent(message_id=event.message.id, offset=0, text=event.message.text, **place))
    assert picture(view_of(live)) == picture(view_of(stored_run()))


def test_a_stored_event_counts_once() -> None:
    once, twice = view_of(stored_run()), view_of(stored_run() + stored_run())
    assert picture(once) == picture(twice)
    assert once.totals() == (Usage(input_tokens=200, output_tokens=40, calls=2), Decimal("0.03"))


def test_what_an_agent_does_is_one_line() -> None:
    events = stored_run()
    assert child_of(view_of(events[:7])).activity == "read_file notes.md"
    assert child_of(view_of(events[:9])).activity == "x."
    assert [root_of(events[:n]).activity for n in (2, 3, 7, 12)] == [
        "asks the model",
        "agent_spawn reader: read",
        "waits for a subagent",
        "asks the model",
    ]
    progress = ToolProgressEvent(call=READ, name="read_file", text="half\nway", **in_child(0, 1_350))
    assert child_of(view_of([*events[:7], progress])).activity == "read_file: half way"


def test_a_new_turn_ends_the_calls_of_the_one_before() -> None:
    delta = TextDeltaEvent(message_id="msg_9", offset=0, text="So", **in_child(0, 1_350))
    assert child_of(view_of([*stored_run()[:7], delta])).activity == "So"


def test_an_unknown_price_makes_the_sum_unknown() -> None:
    call = ModelCalledEvent(provider="p", model="m", usage=Usage(calls=1), cost=None, **in_child(9, 1_500))
    view = view_of([*stored_run()[:10], call])
    assert child_of(view).cost is None
    assert view.totals()[1] is None


@pytest.mark.contract("H-29")
@pytest.mark.parametrize(
    ("status", "state"), [(ResultStatus.DENIED, NodeState.FAILED), (ResultStatus.CANCELLED, NodeState.CANCELLED)]
)
def test_a_delegation_that_never_began(status: ResultStatus, state: NodeState) -> None:
    result = ToolCallResultEvent(
        call=SPAWN, call_id="c", name="agent_spawn", content="no: not today", status=status, **at_root(4, 1_300)
    )
    child = child_of(view_of([*stored_run()[:3], result]))
    assert (child.state, child.activity) == (state, f"{status}: no: not today")


def test_a_subagent_of_its_own_name_begins_with_its_lifecycle_event() -> None:
    own = asked("msg_1", "reader", '{"input": "read"}', at_root(3, 1_100))
    events = [*stored_run()[:2], own, started()]
    assert [node.agent for node, _ in view_of(events).walk()] == ["lead", "reader"]
    known = TreeView(frozenset({"reader"}))
    for event in events[:3]:
        known.apply(event)
    assert child_of(known).state is NodeState.PREPARING
    known.apply(events[3])
    assert child_of(known).state is NodeState.RUNNING


def test_failed_and_cancelled_say_why() -> None:
    failed = SubAgentInvocationFailedEvent(error_type="limit:max_iters", message="10 turns", **lifecycle(6, 1_600))
    cancelled = SubAgentInvocationCancelledEvent(reason="interrupted", partial_text="half", **lifecycle(6, 1_600))
    events = stored_run()[:10]
    assert child_of(view_of([*events, failed])).activity == "limit:max_iters: 10 turns"
    stopped = child_of(view_of([*events, cancelled]))
    assert (stopped.state, stopped.note, stopped.text) == (NodeState.CANCELLED, "interrupted", "half")


def test_the_parents_journal_alone_knows_the_childs_cost() -> None:
    usage = Usage(input_tokens=7, calls=1)
    ended = SubAgentInvocationCompletedEvent(summary="s", usage=usage, cost=Decimal(1), **lifecycle(6, 1_600))
    child = child_of(view_of([started(), ended]))
    assert (child.usage, child.cost) == (usage, Decimal(1))


def test_a_question_makes_its_asker_wait() -> None:
    question = PermissionRequest(
        request_id="req_1", call=READ, tool="write_file", agent_id="reader", arguments='{"path": "a"}', **in_child(3, 1_400)
    )
    answer = RequestClosedEvent(request_id="req_1", call=READ, answer="allow", **in_child(4, 1_500))
    view = view_of([*stored_run()[:6], question])
    assert (child_of(view).state, child_of(view).activity) == (NodeState.WAITING, "asks: write_file a")
    view.apply(answer)
    assert child_of(view).state is NodeState.RUNNING


def test_a_run_taken_over_shows_its_attempt() -> None:
    over = RunStartedEvent(agent_id="lead", owner="own_2", attempt=2, **at_root(10, 5_000))
    root = root_of([*stored_run()[:7], over])
    assert (root.attempt, root.started_at) == (2, 1_000)


def test_text_is_bounded() -> None:
    deltas = [TextDeltaEvent(message_id="m", offset=i * 100, text="x" * 100, **at_root(0, 1)) for i in range(1_000)]
    root = root_of(deltas)
    assert len(root.text) == 2_000
    assert len(root.activity) == 200


def test_events_of_a_later_version_and_of_unknown_places_are_kept_out() -> None:
    unknown = UnknownEvent(type="MOON_PHASE", body=b"{}", **in_child(1, 1))  # type: ignore[arg-type]
    view = view_of([unknown])
    assert [node.agent for node, _ in view.walk()] == ["lead", "reader"]


def test_a_child_that_is_told_after_its_end_is_counted_once() -> None:
    """Journals are put together by time: of one millisecond, the parent's events come before the child's."""
    end = [event for event in stored_run() if isinstance(event, SubAgentInvocationCompletedEvent)]
    rest = [event for event in stored_run() if event not in end]
    place = next(index for index, event in enumerate(rest) if isinstance(event, ModelCalledEvent) and event.invocations)
    late = view_of([*rest[:place], *end, *rest[place:]])
    assert late.totals() == view_of(stored_run()).totals()
