"""A run's mailbox as it is read: what is damaged in it is told once, and keeps nothing from going on.

An answer also stands in the row of its request, and the end of a task in that of its delegation, committed with the letter. So
a letter that cannot be read costs little while that row can: what the run waits for is taken from there.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from retinue.agent.messages_sent import MESSAGE_MAIL, read_message
from retinue.agent.next_step import AnswerMail, asked_by, read_answer
from retinue.agent.task_questions import QUESTION_MAIL, read_question
from retinue.agent.tasks import TASK_MAIL, TaskMail, read_task, retold
from retinue.errors import LedgerUnavailable
from retinue.ledger.port import DAMAGED_MAIL
from retinue.rows import InvocationRow, Mail, RequestRow
from retinue.states import RequestState

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["letters"]

MOST_TASKS: Final = 100_000

_log: Final = logging.getLogger("retinue")


async def letters(run: "Run", taken: Sequence[str]) -> list[Mail]:
    """What lies in the mailbox of a run's thread, oldest first, without what was taken and is not committed yet.

    In the place of a damaged letter stands what it must have said, or one that answers nothing: either is taken out.
    """
    sound: list[Mail] = []
    damaged: list[Mail] = []
    for letter in await run.tree.services.ledger.mail(run.row.key):
        if letter.mail_id in taken:
            continue
        fault = _fault(letter)
        if fault:
            _log.warning("run %s goes on without a letter: %s", run.row.run_id, fault)
        (damaged if fault else sound).append(letter)
    return [*sound, *await _restored(run, damaged, sound)] if damaged else sound


def _fault(letter: Mail) -> str:
    if letter.kind == DAMAGED_MAIL:
        return msgspec.json.decode(letter.body, type=str)
    try:
        if letter.kind == "answer":
            read_answer(letter)
        elif letter.kind == MESSAGE_MAIL:
            read_message(letter)
        elif letter.kind == TASK_MAIL:
            read_task(letter)
        elif letter.kind == QUESTION_MAIL:
            read_question(letter)
    except LedgerUnavailable as error:
        return error.message
    return ""


async def _restored(run: "Run", damaged: Sequence[Mail], sound: Iterable[Mail]) -> list[Mail]:
    there = {read_answer(letter).request_id for letter in sound if letter.kind == "answer"}
    told = {read_task(letter).task_id for letter in sound if letter.kind == TASK_MAIL}
    lost: list[tuple[str, AnswerMail | TaskMail]] = []
    lost += [("answer", _said(row)) for row in await _answered(run) if row.request_id not in there]
    lost += [(TASK_MAIL, retold(row)) for row in await _ended(run) if row.task_id not in told]
    lost += [("answer", AnswerMail(request_id="", answer="deny"))] * len(damaged)
    return [
        Mail(mail_id=letter.mail_id, kind=kind, body=msgspec.Raw(msgspec.json.encode(said)), at=letter.at)
        for letter, (kind, said) in zip(damaged, lost, strict=False)
    ]


async def _ended(run: "Run") -> list[InvocationRow]:
    """The tasks given in this thread that have ended, and whose end its journal has not told."""
    key = run.row.key
    rows = await run.tree.services.ledger.tasks(user=key.user, session=key.session, limit=MOST_TASKS)
    return [row for row in rows if row.parent == key and row.state.terminal and row.invocation_id in run.projection.tasks]


async def _answered(run: "Run") -> list[RequestRow]:
    """The run's requests that a person has answered and that it still waits for."""
    try:
        rows = await run.tree.services.ledger.requests(root_run=run.row.lineage[0], state=RequestState.ANSWERED)
    except LedgerUnavailable as error:
        if error.code != "damaged":
            raise
        _log.warning("run %s cannot look up what it was answered: %s", run.row.run_id, error.message)
        return []
    return [row for row in rows if row.run_id == run.row.run_id and asked_by(run.projection, row.request_id) is not None]


def _said(row: RequestRow) -> AnswerMail:
    answer = "allow" if row.answer == "allow" else "deny"
    by, remember, note = row.by or "", row.remember or "once", row.note or ""
    return AnswerMail(request_id=row.request_id, answer=answer, by=by, remember=remember, note=note)
