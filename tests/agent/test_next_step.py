"""`next_step`: one pure function, over projections made of events and nothing else."""

from collections.abc import Sequence

import msgspec
import pytest

from retinue.agent.next_step import (
    AnswerMail,
    AskModel,
    CallStep,
    Finish,
    RunCalls,
    Step,
    TakeAnswer,
    WaitForAnswer,
    next_step,
)
from retinue.agent.projection import Projection
from retinue.events import (
    CancelSeenEvent,
    Event,
    MessageEvent,
    ModelCalledEvent,
    PermissionRequest,
    RequestClosedEvent,
    RunStartedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
)
from retinue.messages import AssistantMessage, CallRef, ToolCall, UserMessage
from retinue.rows import Mail


class Kind(msgspec.Struct):
    """What a tool's author says."""

    repeatable: bool = False
    delegates: bool = False


TOOLS = {"plain": Kind(), "reads": Kind(repeatable=True), "child": Kind(delegates=True)}


def started(attempt: int = 1, max_iters: int = 3) -> RunStartedEvent:
    return RunStartedEvent(agent_id="a", owner="own_1", attempt=attempt, max_iters=max_iters)


def asked(*names: str, text: str = "", finish_reason: str = "tool_calls") -> list[Event]:
    calls = tuple(ToolCall(id=f"c{index}", name=name) for index, name in enumerate(names))
    message = AssistantMessage(id="m1", text=text, calls=calls)
    return [MessageEvent(message=message), ModelCalledEvent(provider="p", model="m", finish_reason=finish_reason)]


def result(index: int) -> ToolCallResultEvent:
    return ToolCallResultEvent(call=CallRef("m1", index), call_id=f"c{index}", name="plain", content="ok")


def request(index: int) -> PermissionRequest:
    return PermissionRequest(request_id=f"req_{index}", call=CallRef("m1", index), tool="plain", agent_id="a")


def closed(index: int, answer: str) -> RequestClosedEvent:
    return RequestClosedEvent(request_id=f"req_{index}", call=CallRef("m1", index), answer=answer)  # type: ignore[arg-type]


def child_started(index: int) -> SubAgentInvocationStartedEvent:
    return SubAgentInvocationStartedEvent(
        invocation_id="inv_1",
        call=CallRef("m1", index),
        parent_tool_call_id=f"c{index}",
        name="child",
        child_agent_id="child",
        child_session_id="s",
        child_thread_id="t",
        child_run_id="run_2",
        context_policy="fresh",
    )


INPUT = MessageEvent(message=UserMessage(id="m0", text="go"))


def project(events: Sequence[tuple[int, Event]]) -> Projection:
    projection = Projection()
    for seq, (attempt, event) in enumerate(events, start=1):
        projection.apply(event, seq, attempt)
    return projection


def step_after(*events: Event | tuple[int, Event], mail: Sequence[Mail] = (), max_iters: int = 3) -> Step:
    """The step after RUN_STARTED, an input, and these events (of attempt 1 unless given with one)."""
    placed = [event if isinstance(event, tuple) else (1, event) for event in events]
    return next_step(project([(1, started(max_iters=max_iters)), (1, INPUT), *placed]), mail, TOOLS)


def steps_of(step: Step) -> list[CallStep]:
    assert isinstance(step, RunCalls)
    return [action.step for action in step.actions]


def answer_mail(request_id: str = "req_0") -> Mail:
    body = msgspec.json.encode(AnswerMail(request_id=request_id, answer="allow"))
    return Mail(mail_id="mail_1", kind="answer", body=msgspec.Raw(body), at=0)


def test_an_input_asks_the_model_for_turn_one() -> None:
    assert step_after() == AskModel(1)


def test_fresh_calls_go_to_the_gate_in_call_order() -> None:
    assert steps_of(step_after(*asked("plain", "reads", "child"))) == [CallStep.DECIDE] * 3


def test_a_call_with_a_result_is_done() -> None:
    step = step_after(*asked("plain", "plain"), result(1))
    assert isinstance(step, RunCalls)
    assert [action.ref.index for action in step.actions] == [0]


def test_when_all_calls_have_results_the_model_is_asked_again() -> None:
    assert step_after(*asked("plain", "plain"), result(1), result(0)) == AskModel(2)


@pytest.mark.contract("D-19")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("plain", CallStep.UNKNOWN), ("reads", CallStep.DECIDE), ("child", CallStep.DECIDE), ("missing", CallStep.DECIDE)],
)
def test_a_call_of_an_earlier_attempt_counts_as_started(name: str, expected: CallStep) -> None:
    assert steps_of(step_after(*asked(name), (2, started(2)))) == [expected]


def test_a_child_of_an_earlier_attempt_is_found_again() -> None:
    assert steps_of(step_after(*asked("child"), child_started(0), (2, started(2)))) == [CallStep.REATTACH]


@pytest.mark.contract("D-28")
def test_all_calls_waiting_for_a_person_wait() -> None:
    assert step_after(*asked("plain"), request(0)) == WaitForAnswer(("req_0",))


def test_siblings_of_a_waiting_call_go_on_first() -> None:
    assert steps_of(step_after(*asked("plain", "plain"), request(0))) == [CallStep.WAIT, CallStep.DECIDE]


def test_an_answer_in_the_mailbox_is_taken_first() -> None:
    step = step_after(*asked("plain"), request(0), mail=[answer_mail()])
    assert isinstance(step, TakeAnswer)
    assert step.ref == CallRef("m1", 0)


@pytest.mark.parametrize("request_id", ["req_9", "req_0"])
def test_an_answer_to_nothing_open_is_taken_and_forgotten(request_id: str) -> None:
    step = step_after(*asked("plain"), request(0), closed(0, "deny"), mail=[answer_mail(request_id)])
    assert isinstance(step, TakeAnswer)
    assert step.ref is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("allow", CallStep.RUN), ("deny", CallStep.REFUSE), ("expired", CallStep.REFUSE), ("cancelled", CallStep.REFUSE)],
)
def test_an_answer_decides_the_call(answer: str, expected: CallStep) -> None:
    assert steps_of(step_after(*asked("plain"), request(0), closed(0, answer))) == [expected]


def test_a_call_that_waited_over_a_restart_has_not_started() -> None:
    step = step_after(*asked("plain"), request(0), (2, started(2)), (2, closed(0, "allow")))
    assert steps_of(step) == [CallStep.RUN]


def test_a_call_that_was_allowed_in_an_earlier_attempt_has_started() -> None:
    step = step_after(*asked("plain"), request(0), closed(0, "allow"), (2, started(2)))
    assert steps_of(step) == [CallStep.UNKNOWN]


def test_after_a_cancel_no_model_is_asked_and_no_call_begins() -> None:
    cancel = CancelSeenEvent(reason="enough")
    assert step_after(cancel) == Finish("cancelled", "enough")
    assert steps_of(step_after(*asked("plain", "reads", "child"), cancel)) == [CallStep.CLOSE] * 3
    assert steps_of(step_after(*asked("plain"), request(0), cancel)) == [CallStep.CLOSE]
    assert steps_of(step_after(*asked("plain"), (2, started(2)), (2, cancel))) == [CallStep.UNKNOWN]
    assert steps_of(step_after(*asked("child"), child_started(0), cancel)) == [CallStep.REATTACH]


def test_the_last_turn_wraps_up() -> None:
    assert step_after(*asked("plain"), result(0), max_iters=1) == AskModel(2, wrap_up=True)


@pytest.mark.case("B018")
def test_a_call_in_the_wrap_up_turn_is_not_run() -> None:
    events = (*asked("plain"), result(0), *asked("plain"))
    assert steps_of(step_after(*events, max_iters=1)) == [CallStep.LIMIT]


def test_used_up_turns_are_a_failure_that_names_the_limit() -> None:
    final = [
        MessageEvent(message=AssistantMessage(id="m2", text="so far")),
        ModelCalledEvent(provider="p", model="m"),
    ]
    step = step_after(*asked("plain"), result(0), *final, max_iters=1)
    assert isinstance(step, Finish)
    assert (step.status, step.reason) == ("failed", "limit:max_iters")


@pytest.mark.contract("D-09")
@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ("done", "stop", ("completed", None)),
        ("", "stop", ("failed", "empty_result")),
        (" \n", "stop", ("failed", "empty_result")),
        ("cut of", "length", ("failed", "limit:max_tokens")),
        ("no", "content_filter", ("failed", "content_filter")),
    ],
)
def test_how_an_answer_ends_a_run(text: str, finish_reason: str, expected: tuple[str, str | None]) -> None:
    step = step_after(*asked(text=text, finish_reason=finish_reason))
    assert isinstance(step, Finish)
    assert (step.status, step.reason) == expected


def test_a_model_error_ends_the_run_with_its_code_and_remedy() -> None:
    error = ModelCalledEvent(provider="p", model="m", error="timeout", message="p: no answer", remedy="try later")
    assert step_after(error) == Finish("failed", "timeout", "p: no answer", "try later")


def test_a_new_run_on_a_thread_begins_anew() -> None:
    step = step_after(*asked(text="done"), started(), INPUT)
    assert step == AskModel(1)
