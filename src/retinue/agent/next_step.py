"""How a run goes on: one pure function from what its journal says to the next step (M4).

It decides each step of a normal run, of a resume after a crash, after an answer and after a cancel. It reads the projection,
the mailbox and what the tools' authors say of them, and nothing else.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from retinue.agent.projection import OpenCalls, Projection
from retinue.damage import UNREADABLE, damaged
from retinue.messages import CallRef, OutputSpec, ToolCall
from retinue.rows import Mail

__all__ = [
    "AUTHOR_FAULTS",
    "LIMIT_SECONDS",
    "ON_REQUEST_RAISED",
    "AnswerMail",
    "AskModel",
    "CallAction",
    "CallStep",
    "CheckOutput",
    "Finish",
    "GiveBack",
    "Kind",
    "RunCalls",
    "Step",
    "TakeAnswer",
    "TakeMessages",
    "TakeTasks",
    "WaitForAnswer",
    "asked_by",
    "next_step",
    "read_answer",
]


class Kind(Protocol):
    """What `next_step` needs to know of a tool."""

    @property
    def repeatable(self) -> bool:
        """A call without a recorded result may be made again."""
        ...

    @property
    def delegates(self) -> bool:
        """The call is a delegation: its child is found again by the call's identity."""
        ...


class CallStep(StrEnum):
    """What one open call needs next."""

    DECIDE = "decide"  # ask the gate, then run it
    RUN = "run"  # a person allowed it
    REATTACH = "reattach"  # its child exists: go on with that
    REFUSE = "refuse"  # a person said no, or nobody will answer
    CLOSE = "close"  # the run is being stopped: it never started
    UNKNOWN = "unknown"  # it started, and how it ended is not known
    WAIT = "wait"  # a person has not answered yet
    LIMIT = "limit"  # asked for in the wrap-up turn, when no call is run any more


class CallAction(msgspec.Struct, frozen=True, gc=False):
    """The next thing to do for one call."""

    ref: CallRef
    call: ToolCall
    step: CallStep


class AskModel(msgspec.Struct, frozen=True, gc=False):
    """Ask the model for turn `turn` (1 is the first). `wrap_up`: the turns are used up, ask for a last text without tools.

    `repair`: only the form of its answer was wrong, so that again there is nothing to call.
    """

    turn: int
    wrap_up: bool = False
    repair: bool = False


class CheckOutput(msgspec.Struct, frozen=True, gc=False):
    """The run asks for a form: see whether its answer has it, and record what was found."""

    message_id: str


class GiveBack(msgspec.Struct, frozen=True, gc=False):
    """The answer has not the form that the run asks for: say so to the model, in a notice."""

    fault: str


class RunCalls(msgspec.Struct, frozen=True, gc=False):
    """Bring the open calls on, each by its own step."""

    actions: tuple[CallAction, ...]


class TakeAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer lies in the mailbox: close its request."""

    mail_id: str
    answer: "AnswerMail"
    ref: CallRef | None


class TakeMessages(msgspec.Struct, frozen=True, gc=False):
    """Somebody has sent the run something while it worked: it is to have it before it goes on, or ends."""

    mail_ids: tuple[str, ...]


class TakeTasks(msgspec.Struct, frozen=True, gc=False):
    """Tasks in the background have ended, or ask something, which lies in the mailbox: tell the run, before its model is asked
    again (D-20)."""

    mail_ids: tuple[str, ...]


class WaitForAnswer(msgspec.Struct, frozen=True, gc=False):
    """Every open call waits for a person."""

    requests: tuple[str, ...]


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The run is over."""

    status: Literal["completed", "failed", "cancelled"]
    reason: str | None = None
    message: str = ""
    remedy: str | None = None


Step: TypeAlias = AskModel | CheckOutput | GiveBack | RunCalls | TakeAnswer | TakeMessages | TakeTasks | WaitForAnswer | Finish


class AnswerMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The body of a mail of kind `answer`."""

    request_id: str
    answer: Literal["allow", "deny"]
    by: str = ""
    remember: str = "once"
    note: str = ""


_answer_decoder: Final = msgspec.json.Decoder(AnswerMail)

_LIMIT_REASONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "length": ("limit:max_tokens", "the answer was cut at the model's output limit", "raise `max_tokens` or ask for less"),
    "content_filter": ("content_filter", "the provider withheld the answer", "rephrase the task"),
}

ON_REQUEST_RAISED: Final = "on_request_raised"
LIMIT_SECONDS: Final = "limit:seconds"
AUTHOR_FAULTS: Final[Mapping[str, tuple[str, str, str]]] = {
    ON_REQUEST_RAISED: (
        "on_request_raised",
        "`on_request` raised an error, so that a request has no answer",
        "mend `on_request`: it is called with one request, and returns True or False; then run again in the same session",
    ),
    LIMIT_SECONDS: (
        LIMIT_SECONDS,
        "the time of the run's budget is used up",
        "raise `Budget(seconds=…)`, or give a smaller task; the text so far is kept",
    ),
}
"""Why a run is stopped as by a cancel, and ends as failed: faults in code of its author that nothing waits for, and limits."""


def read_answer(mail: Mail) -> AnswerMail:
    """The answer in a mail of kind `answer`.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    try:
        return _answer_decoder.decode(mail.body)
    except UNREADABLE as error:
        raise damaged(f"the row `{mail.mail_id}` of table `mail`, an answer,", error) from error


def next_step(projection: Projection, mail: Sequence[Mail], tools: Mapping[str, Kind]) -> Step:
    """What to do now. Pure: the same journal, mailbox and tools give the same step."""
    if projection.finished is not None:
        ended = projection.finished
        assert ended.status != "waiting"  # never stored: a run that waits has not finished
        return Finish(ended.status, ended.reason, ended.message, ended.remedy)
    for letter in mail:
        if letter.kind == "answer":
            answer = read_answer(letter)
            return TakeAnswer(letter.mail_id, answer, asked_by(projection, answer.request_id))
    batch = projection.open
    if batch is not None:
        return _calls_step(projection, batch, tools)
    if projection.cancel is not None:
        return _stopped(projection.cancel, projection.fault)
    if projection.error is not None:
        error = projection.error
        return Finish("failed", error.error, error.message, error.remedy)
    if projection.turns_used > projection.max_iters:
        return _limit(projection)
    if sent := tuple(letter.mail_id for letter in mail if letter.kind == "message"):
        return TakeMessages(sent)
    if projection.answered is not None and projection.last is not None and not projection.last.calls:
        return _answer_step(projection, projection.answered.finish_reason)
    if ended := tuple(letter.mail_id for letter in mail if letter.kind in ("task", "question")):
        return TakeTasks(ended)
    wrap_up = projection.turns_used >= projection.max_iters
    return AskModel(projection.turns + 1, wrap_up=wrap_up, repair=projection.repairing)


def _stopped(reason: str, fault: str) -> Finish:
    if not fault:
        return Finish("cancelled", reason)
    known = AUTHOR_FAULTS.get(fault)  # a later version may know others
    return Finish("failed", fault, reason, None if known is None else known[2])


def _limit(projection: Projection) -> Finish:
    return Finish(
        "failed",
        "limit:max_iters",
        f"the run used its {projection.max_iters} turns without coming to an end",
        "raise `max_iters` or split the task; the text so far is kept",
    )


def _answer_step(projection: Projection, finish_reason: str) -> Step:
    limit = _LIMIT_REASONS.get(finish_reason)
    if limit is not None:
        return Finish("failed", *limit)
    if not projection.text.strip():
        return Finish("failed", "empty_result", "the model answered with nothing", "ask again, or look at the model's settings")
    return Finish("completed") if projection.output is None else _output_step(projection, projection.output)


def _output_step(projection: Projection, wanted: OutputSpec) -> Step:
    """What an answer needs that is to have a form: a check; after it the end, or another try, within bounds (B193)."""
    checked, last = projection.checked, projection.last
    if last is None or checked is None or checked.message_id != last.id:
        return CheckOutput("" if last is None else last.id)
    if not checked.fault:
        return Finish("completed")
    if projection.repairs < wanted.repairs:
        return GiveBack(checked.fault)
    times = projection.repairs
    tries = f", also after it was given back {'once' if times == 1 else f'{times} times'}" if times else ""
    return Finish(
        "failed",
        "invalid_output",
        f"the answer is not a `{wanted.name}`{tries}: {checked.fault}",
        "make the type or the task simpler, or use a model that keeps to a schema; the text is kept",
    )


def asked_by(projection: Projection, request_id: str) -> CallRef | None:
    """The call that waits for the answer to this request, None if none does."""
    batch = projection.open
    if batch is None:
        return None
    for index, request in batch.requests.items():
        if request.request_id == request_id and index not in batch.closed:
            return CallRef(batch.message.id, index)
    return None


def _calls_step(projection: Projection, batch: OpenCalls, tools: Mapping[str, Kind]) -> Step:
    actions = tuple(
        CallAction(CallRef(batch.message.id, index), call, _call_step(projection, batch, index, tools.get(call.name)))
        for index, call in batch.pending()
    )
    if all(action.step is CallStep.WAIT for action in actions):
        return WaitForAnswer(tuple(batch.requests[action.ref.index].request_id for action in actions))
    return RunCalls(actions)


def _call_step(projection: Projection, batch: OpenCalls, index: int, kind: Kind | None) -> CallStep:
    """One call's next step. A call asked for, or allowed, in an earlier attempt counts as started there."""
    request, closed = batch.requests.get(index), batch.closed.get(index)
    if projection.turns_used > projection.max_iters:
        return CallStep.LIMIT
    if index in batch.invocations:
        return CallStep.REATTACH
    if request is not None and closed is None:
        return CallStep.CLOSE if projection.cancel is not None else CallStep.WAIT
    if closed is not None and closed[0].answer != "allow":
        return CallStep.REFUSE
    since = batch.attempt if closed is None else closed[1]
    started = since < projection.attempt and not (kind is not None and (kind.repeatable or kind.delegates))
    if projection.cancel is not None:
        return CallStep.UNKNOWN if started else CallStep.CLOSE
    if started and kind is not None:
        return CallStep.UNKNOWN
    return CallStep.RUN if closed is not None else CallStep.DECIDE
