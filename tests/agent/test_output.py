"""`output=Type`: the form is asked for, the answer is checked, given back within bounds, and typed for whoever asked."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from retinue import (
    Agent,
    ConfigurationError,
    LedgerError,
    Limits,
    PermissionRules,
    RunFailed,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentRunConfig,
)
from retinue.agent.next_step import AskModel, CheckOutput, Finish, GiveBack, next_step
from retinue.agent.output import OutputType, check_answer
from retinue.agent.projection import Projection
from retinue.events import (
    Event,
    MessageEvent,
    ModelCalledEvent,
    OutputCheckedEvent,
    RunStartedEvent,
    ToolCallResultEvent,
)
from retinue.ledger.memory import MemoryLedger
from retinue.messages import AssistantMessage, OutputSpec, UserMessage
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls, messages_of, results_of
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])


@dataclasses.dataclass
class Report:
    """A dataclass to answer with."""

    title: str
    defects: int


class Finding(pydantic.BaseModel):
    """A pydantic model to answer with."""

    text: str
    n: int = pydantic.Field(default=1, ge=0)


class Place(TypedDict):
    """A TypedDict to answer with."""

    city: str


class Score(msgspec.Struct):
    """A msgspec struct to answer with."""

    value: float


GOOD = '{"title": "ok", "defects": 2}'
BAD = '{"title": "ok", "defects": "many"}'


def events_of(events: Sequence[Event], kind: type[Any]) -> list[Any]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (Report, GOOD, Report("ok", 2)),
        (Finding, '{"text": "x"}', Finding(text="x")),
        (Place, '{"city": "Ulm"}', {"city": "Ulm"}),
        (Score, '{"value": 0.5}', Score(0.5)),
        (int, '{"value": 3}', 3),
        (str, '{"value": "text"}', "text"),
        (Literal["yes", "no"], '{"value": "yes"}', "yes"),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Report | Finding, '{"value": {"text": "x", "n": 2}}', Finding(text="x", n=2)),
        (list[Score], '{"value": [{"value": 1}]}', [Score(1.0)]),
        (bool | None, '{"value": null}', None),
    ],
)
async def test_every_kind_of_type_can_be_asked_for(declared: Any, text: str, value: Any) -> None:
    model = RecordingModel([text])
    result = await Agent("a", model=model).run("Go.", output=declared)
    assert result.status == "completed"
    assert result.output == value
    assert type(result.output) is type(value)
    assert result.text == text
    sent = model.requests[0].output
    assert sent is not None
    assert sent.schema["type"] == "object"  # what every provider takes


@pytest.mark.case("B196")
@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (dict[str, Any], '{"text": "x", "n": 1}', {"text": "x", "n": 1}),
        (Finding, 'Here it is:\n```json\n{"text": "x"}\n```\nAs you wished.', Finding(text="x")),
        (Finding, '```\n{"text": "x"}\n```', Finding(text="x")),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], '{"value": [1]}', [1]),
        (Score, '{"value": 2}', Score(2.0)),
    ],
)
def test_nothing_is_guessed_by_the_name_of_a_field(declared: Any, text: str, value: Any) -> None:
    kind = OutputType(declared)
    assert check_answer(kind.spec, text, kind).value == value


@pytest.mark.parametrize(
    "text",
    ["", "prose", "Sure: " + GOOD, f"```\n{GOOD}\n```\n```\n{GOOD}\n```", "[" * 100_000, '{"title": NaN}', "null", "\ud83d"],
)
def test_what_is_no_answer_is_a_fault_and_never_an_error(text: str) -> None:
    kind = OutputType(Report)
    for checked in (check_answer(kind.spec, text, kind), check_answer(kind.spec, text)):
        assert checked.fault
        checked.fault.encode()


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("declared", "text", "words"),
    [
        (Report, BAD, ("`defects`", '"many"', "integer")),
        (Report, '{"defects": 1}', ("`title`", "string")),
        (list[Finding], '{"value": [{"text": "x"}, {"text": 5}]}', ("`1.text`", "5", "string")),
        (Finding, '{"text": "x", "n": -1}', ("`n`", "-1")),
        (Score, '{"value": "x"}', ("`value`", '"x"', "number")),
        (Literal["yes", "no"], '{"value": "maybe"}', ('"maybe"', "yes", "no")),
    ],
)
def test_a_fault_names_the_field_what_was_given_and_what_is_expected(
    declared: Any, text: str, words: Sequence[str], typed: bool
) -> None:
    kind = OutputType(declared)
    fault = check_answer(kind.spec, text, kind if typed else None).fault
    for word in words:
        assert word in fault


def test_a_check_of_the_authors_own_that_breaks_is_a_fault() -> None:
    class Odd(pydantic.BaseModel):
        n: int

        @pydantic.model_validator(mode="after")
        def broken(self) -> "Odd":
            raise KeyError("nowhere")

    kind = OutputType(Odd)
    assert "KeyError" in check_answer(kind.spec, '{"n": 1}', kind).fault


@pytest.mark.parametrize("declared", [42, "int", object(), [int], lambda: 1])
async def test_what_is_no_type_is_refused_before_anything_is_asked(declared: Any) -> None:
    model = RecordingModel(["never"])
    with pytest.raises(ConfigurationError) as caught:
        await Agent("a", model=model).run("Go.", output=declared)
    assert caught.value.code == "invalid_output_type"
    assert model.requests == []


async def test_a_subagents_type_is_checked_at_build() -> None:
    agent = Agent("a", model=RecordingModel(["x"]), subagents=[SubAgent("c", "D", surface="tool", output=object())])
    with pytest.raises(ConfigurationError, match="subagent `c`"):
        await agent.build()


@pytest.mark.case("B193")
async def test_an_answer_that_does_not_fit_is_given_back_with_what_is_wrong() -> None:
    model = RecordingModel([BAD, GOOD])
    result = await Agent("a", model=model, max_iters=1).run("Go.", output=Report)
    assert result.output == Report("ok", 2)
    notice = messages_of(model.requests[1])[-1]
    assert isinstance(notice, UserMessage)
    assert notice.notice == "output"
    assert "`defects`" in notice.text
    assert '"many"' in notice.text
    assert not model.requests[1].tools_allowed  # only its form was wrong
    assert result.thread is not None
    events = await result.thread.events()
    assert [bool(event.fault) for event in events_of(events, OutputCheckedEvent)] == [True, False]
    assert [event.output.name for event in events_of(events, RunStartedEvent)] == ["Report"]


@pytest.mark.case("B193")
async def test_after_two_repairs_the_run_fails_with_the_fault_and_the_text_is_kept() -> None:
    model = RecordingModel([BAD] * 9)
    result = await Agent("a", model=model, max_iters=1).run("Go.", output=Report, check=False)
    assert (result.status, result.reason, result.text, result.output) == ("failed", "invalid_output", BAD, None)
    assert "`defects`" in result.message
    assert len(model.requests) == 3
    with pytest.raises(RunFailed) as caught:
        await Agent("a", model=RecordingModel([BAD] * 9)).run("Go.", output=Report)
    assert caught.value.code == "invalid_output"


async def test_the_prefix_of_a_thread_does_not_move_for_a_form() -> None:
    """Runs with one form, another one and none send the same envelope, and a history that only grows (M11)."""
    model = RecordingModel(lambda request: "plain" if request.output is None else '{"value": 1}')
    agent = Agent("a", model=model)
    first = await agent.run("One.")
    assert first.thread is not None
    await first.thread.run("Two.", output=int)
    await first.thread.run("Three.")
    digests = {request.envelope.digest for request in model.requests}
    histories = [messages_of(request) for request in model.requests]
    assert len(digests) == 1
    assert histories[1][: len(histories[0])] == histories[0]
    assert histories[2][: len(histories[1])] == histories[1]


async def test_a_run_that_uses_tools_is_asked_for_the_form_in_each_turn() -> None:
    async def look(place: str) -> str:
        """Look somewhere."""
        return f"{place} is tidy."

    model = RecordingModel([calls(("look", {"place": "here"})), GOOD])
    result = await Agent("a", model=model, tools=[look]).run("Go.", output=Report)
    assert result.output == Report("ok", 2)
    assert [request.output is not None and request.tools_allowed for request in model.requests] == [True, True]


async def test_a_stream_ends_with_the_typed_value() -> None:
    events = [event async for event in Agent("a", model=RecordingModel([GOOD])).stream("Go.", output=Report)]
    assert getattr(events[-1], "result").output == Report("ok", 2)  # noqa: B009


async def test_an_agents_own_type_holds_for_every_run_and_a_calls_own_wins() -> None:
    model = RecordingModel([GOOD, GOOD, '{"text": "x"}', "a text", GOOD])
    agent = Agent("a", model=model, output=Report)
    context = RuntimeContext(session_id="s")
    assert (await agent.run("Go.", context=context)).output == Report("ok", 2)
    events = [event async for event in agent.stream("Go.")]
    assert getattr(events[-1], "result").output == Report("ok", 2)  # noqa: B009
    assert (await agent.run("Go.", output=Finding)).output == Finding(text="x")
    plain = await agent.run("Go.", output=None)
    assert (plain.status, plain.output, model.requests[-1].output) == ("completed", None, None)
    thread = await agent.threads.get(session_id="s")
    assert (await thread.run("Once more.")).output == Report("ok", 2)


def test_an_agents_own_type_is_checked_where_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match="`output` cannot be"):
        Agent("a", output=object())


async def test_an_agents_own_type_is_no_form_of_its_children() -> None:
    model = RecordingModel({"a": [calls(("agent_spawn", {"agent_id": "r", "task": "Look."})), GOOD], "r": ["a text"]})
    child = SubAgent("r", "Looks", instructions="Look.")
    result = await Agent("a", model=model, subagents=[child], permissions=ALLOW, output=Report).run("Go.")
    assert result.output == Report("ok", 2)
    assert next(request for request in model.requests if request.agent_id == "r").output is None


@pytest.mark.parametrize(("bound", "asked"), [(0, 1), (1, 2), (3, 4)])
async def test_how_often_an_answer_is_given_back_is_a_setting(bound: int, asked: int) -> None:
    model = RecordingModel([BAD] * 5)
    agent = Agent("a", model=model, limits=Limits(max_output_repairs=bound))
    result = await agent.run("Go.", output=Report, check=False)
    assert (result.status, result.reason, len(model.requests)) == ("failed", "invalid_output", asked)
    told = {0: "is not a `Report`: ", 1: "given back once: ", 3: "given back 3 times: "}
    assert told[bound] in result.message


def test_a_bound_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_output_repairs"):
        Limits(max_output_repairs=-1)


def test_run_sync_takes_a_type_too() -> None:
    agent = Agent("a", model=RecordingModel([GOOD]))
    try:
        assert agent.run_sync("Go.", output=Report).output == Report("ok", 2)
    finally:
        agent.close_sync()


@pytest.mark.case("B195")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_a_declared_type_reaches_the_parents_model_as_json(surface: str) -> None:
    call = ("c", {"input": "x"}) if surface == "tool" else ("agent_spawn", {"agent_id": "c", "task": "x"})
    model = RecordingModel({"p": [calls(call), "done"], "c": [f"Here:\n```json\n{GOOD}\n```"]})
    child = SubAgent("c", "D", instructions="I", surface=surface, output=Report)  # type: ignore[arg-type]
    result = await Agent("p", model=model, subagents=[child], permissions=ALLOW).run("Go.")
    told = results_of(model.asked("p")[-1])[0]
    assert told.endswith('{"title":"ok","defects":2}')
    assert "```" not in told
    assert result.thread is not None
    ended = events_of(await result.thread.events(), ToolCallResultEvent)[0]
    assert ended.metadata["contentType"] == "application/json"
    assert ended.metadata["outputName"] == "Report"


async def test_a_child_whose_answer_never_fits_fails_and_its_text_reaches_the_parent() -> None:
    model = RecordingModel({"p": [calls(("c", {"input": "x"})), "done"], "c": ["prose"] * 5})
    child = SubAgent("c", "D", instructions="I", surface="tool", output=Report)
    await Agent("p", model=model, subagents=[child], permissions=ALLOW).run("Go.")
    told = results_of(model.asked("p")[-1])[0]
    assert "failed" in told
    assert "not valid JSON" in told
    assert "prose" in told
    assert len(model.asked("c")) == 3


@pytest.mark.contract("H-08", "H-09")
@pytest.mark.parametrize("included", [True, False])
async def test_a_child_answers_in_its_parents_form_only_if_its_author_says_so(included: bool) -> None:
    model = RecordingModel({"p": [calls(("c", {"input": "x"})), GOOD], "c": [GOOD]})
    config = SubAgentRunConfig.inherit().include("output") if included else SubAgentRunConfig.inherit()
    child = SubAgent("c", "D", instructions="I", surface="tool", run_config=config)
    result = await Agent("p", model=model, subagents=[child], permissions=ALLOW).run("Go.", output=Report)
    assert result.output == Report("ok", 2)
    assert (model.asked("c")[0].output is not None) is included


@pytest.mark.parametrize("kill_at", range(1, 5))
async def test_another_process_goes_on_with_the_form_that_is_in_the_journal(kill_at: int) -> None:
    """It has not the type: the stored schema decides, and the value is plain JSON. Given the type, it is typed."""

    async def note(text: str) -> str:
        """Write a note."""
        return text

    script = [calls(("note", {"text": "one"})), BAD, GOOD]
    typed = Report("ok", 2)
    for own, output, value in (
        (None, None, {"title": "ok", "defects": 2}),
        (None, Report, typed),
        (Report, None, typed),
        (Finding, None, {"title": "ok", "defects": 2}),
    ):
        store = SharedStore(MemoryLedger())
        await store.ledger.open()
        dying = store.process()
        doomed = Agent("a", model=RecordingModel(script), tools=[note], runtime=Runtime(ledger=dying.ledger))
        await doomed.build()
        dying.kill_at(kill_at)
        key = RuntimeContext(session_id="s")
        try:
            events = [event async for event in doomed.stream("Go.", context=key, output=Report)]
            assert getattr(events[-1], "result").output == Report("ok", 2)  # noqa: B009  # it ended before its death
            continue
        except LedgerError:
            pass
        runtime = Runtime(ledger=store.process().ledger)
        agent = Agent("a", model=RecordingModel(script), tools=[note], runtime=runtime, output=own)
        await agent.build()
        row = await store.ledger.last_run(ThreadKey("", "s", "main"))
        if row is None:
            continue  # it had not begun
        result = await agent.resume(row.run_id, output=output)
        assert result.output == value
        assert result.thread is not None
        faults = [bool(event.fault) for event in events_of(await result.thread.events(), OutputCheckedEvent)]
        assert faults == [True, False]


# What decides


def spec_of(repairs: int = 2) -> OutputSpec:
    """A form."""
    spec = OutputType(Report).spec
    return msgspec.structs.replace(spec, repairs=repairs)


def journal(*events: Event, max_iters: int = 5, output: OutputSpec | None = None) -> Projection:
    """The projection of a run with this form after these events."""
    made = Projection()
    started = RunStartedEvent(agent_id="a", owner="o", attempt=1, max_iters=max_iters, output=output or spec_of())
    for seq, event in enumerate([started, MessageEvent(message=UserMessage(id="u", text="Go.")), *events], 1):
        made.apply(event, seq, 1)
    return made


def answered(name: str, text: str = BAD) -> list[Event]:
    """A model's answer."""
    message = MessageEvent(message=AssistantMessage(id=name, text=text))
    return [message, ModelCalledEvent(provider="p", model="m", message_id=name)]


def test_an_answer_without_a_verdict_is_checked_and_one_with_it_is_not() -> None:
    assert next_step(journal(*answered("m1")), (), {}) == CheckOutput("m1")
    fits = journal(*answered("m1"), OutputCheckedEvent(message_id="m1"))
    assert next_step(fits, (), {}) == Finish("completed")
    fault = journal(*answered("m1"), OutputCheckedEvent(message_id="m1", fault="no"))
    assert next_step(fault, (), {}) == GiveBack("no")


def test_a_notice_is_followed_by_a_turn_that_does_not_count_and_is_for_text_only() -> None:
    notice = MessageEvent(message=UserMessage(id="n1", text="no", notice="output"))
    begun = [*answered("m1"), OutputCheckedEvent(message_id="m1", fault="no"), notice]
    assert next_step(journal(*begun, max_iters=1), (), {}) == AskModel(2, repair=True)
    assert next_step(journal(*begun, *answered("m2"), max_iters=1), (), {}) == CheckOutput("m2")


def test_repairs_are_bounded_by_what_the_journal_says() -> None:
    given_up = journal(*answered("m1"), OutputCheckedEvent(message_id="m1", fault="no"), output=spec_of(repairs=0))
    step = next_step(given_up, (), {})
    assert isinstance(step, Finish)
    assert step.reason == "invalid_output"


def test_a_cut_or_empty_answer_is_no_matter_of_form() -> None:
    cut = [
        MessageEvent(message=AssistantMessage(id="m1", text="{")),
        ModelCalledEvent(provider="p", model="m", finish_reason="length"),
    ]
    for events, reason in ((cut, "limit:max_tokens"), (answered("m1", "  "), "empty_result")):
        step = next_step(journal(*events), (), {})
        assert isinstance(step, Finish)
        assert step.reason == reason
