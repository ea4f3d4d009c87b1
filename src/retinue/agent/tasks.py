"""How a background result enters its parent's journal: by mail, once, as a lifecycle event and a notice (invariant 2, D-20).

Whoever ends a task writes a mail to the parent's thread with the commit of the end. Whoever holds the parent's lease takes it
at a step boundary; several that lie there are one notice. The mail, the events and the notice are one commit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from retinue.agent.projection import TASK_NOTICE
from retinue.agent.task_questions import QUESTION_MAIL, open_letters, said_of
from retinue.agent.texts import notice
from retinue.damage import UNREADABLE, damaged
from retinue.errors import LedgerUnavailable
from retinue.events import (
    Event,
    MessageEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    decode,
    encode,
)
from retinue.ids import new_id
from retinue.ledger.port import DAMAGED_MAIL, Ledger
from retinue.messages import AssistantMessage, BlobRef, UserMessage
from retinue.ops import Record, TakeMail
from retinue.rows import InvocationRow, Mail
from retinue.states import InvocationState

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["TASK_KINDS", "TASK_MAIL", "TaskMail", "news_for_model", "read_task", "retold", "take_tasks"]

TASK_MAIL: Final = "task"
"""The kind of the mail that tells the end of a task."""
TASK_KINDS: Final = (TASK_MAIL, QUESTION_MAIL)
"""The mail that tasks send their parent."""


class TaskMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The body of a mail of kind `task`. `type` and `event` are the lifecycle event's; `text` is what the notice says of it,
    `blobs` what that names. `notify`: whether the model is told."""

    task_id: str
    name: str
    status: str
    type: str
    event: msgspec.Raw
    text: str = ""
    blobs: tuple[BlobRef, ...] = ()
    notify: bool = True


_decoder: Final = msgspec.json.Decoder(TaskMail)


def read_task(mail: Mail) -> TaskMail:
    """The end of a task in a mail of its kind.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    try:
        return _decoder.decode(mail.body)
    except UNREADABLE as error:
        raise damaged(f"the row `{mail.mail_id}` of table `mail`, the end of a task,", error) from error


def retold(row: InvocationRow) -> TaskMail:
    """What a letter must have said that cannot be read any more, as far as the row of the delegation knows it."""
    assert row.task_id is not None
    common: dict[str, Any] = {
        "invocation_id": row.invocation_id,
        "call": row.call,
        "parent_tool_call_id": row.call_id,
        "child_agent_id": row.child_agent_id,
        "child_session_id": row.child.session,
        "child_thread_id": row.child.thread,
        "context_policy": row.context_policy,
        "mode": row.mode,
        "depth": row.depth,
    }
    event: Event
    if row.state is InvocationState.COMPLETED:
        event = SubAgentInvocationCompletedEvent(summary="", **common)
    elif row.state is InvocationState.CANCELLED:
        event = SubAgentInvocationCancelledEvent(reason=row.reason or "", partial_text="", **common)
    else:
        event = SubAgentInvocationFailedEvent(error_type=row.reason or "failed", message="", partial_text="", **common)
    return TaskMail(
        task_id=row.task_id,
        name=row.name,
        status=row.state.value,
        type=event.TYPE,
        event=msgspec.Raw(encode(event)),
        text=f'Its text is damaged here. Read it with `task_output(task_id="{row.task_id}")`.',
        notify=row.state.value in row.notify,
    )


async def news_for_model(ledger: Ledger, letters: Sequence[Mail]) -> bool:
    """Whether a model is to be told something of what lies in its mailbox. An end that it is not told (H-13) can wait for its
    next run, and so can a question that has its answer. What is damaged counts: the run sees what it must have said.
    """
    try:
        if any(letter.kind == DAMAGED_MAIL or (letter.kind == TASK_MAIL and read_task(letter).notify) for letter in letters):
            return True
        return bool(await open_letters(ledger, letters))
    except LedgerUnavailable as error:
        if error.code != "damaged":
            raise
        return True


async def take_tasks(run: "Run", letters: Sequence[Mail]) -> None:
    """Tell the run the ends and the questions of its tasks. They are in the journal before its model is asked (invariant 2).

    Raises:
        LedgerUnavailable: `damaged`.
        LedgerConflict: somebody else took one of them.
    """
    asked = await open_letters(run.tree.services.ledger, letters)
    shown: list[TaskMail] = []
    for letter in letters:
        if letter.kind == TASK_MAIL:
            end = read_task(letter)
            run.journal.stage(_lifecycle(run, letter, end))
            if end.notify:
                shown.append(end)
        run.journal.stage_op(TakeMail(run.row.key, letter.mail_id))
    said = [*(_said(end) for end in shown), *(said_of(one) for one in asked)]
    if not said and _nothing_to_answer(run):
        said = ["What a background task asked has been answered by somebody else."]  # it was woken for that
    if said:
        text = notice(TASK_NOTICE, "\n\n".join(said))
        blobs = tuple(blob for end in shown for blob in end.blobs)
        run.journal.stage(MessageEvent(message=UserMessage(id=new_id("msg"), text=text, notice=TASK_NOTICE, blobs=blobs)))
    await run.journal.flush()


def _nothing_to_answer(run: "Run") -> bool:
    """Whether the last word is the model's own: a run that was woken, and has not been told anything yet."""
    history = run.projection.history
    return run.projection.turns == 0 and bool(history) and isinstance(history[-1].message, AssistantMessage)


def _lifecycle(run: "Run", letter: Mail, end: TaskMail) -> Event:
    event = decode(Record(run.row.key, 0, 0, end.type, run.row.run_id, run.row.attempt, letter.at, bytes(end.event)))
    return msgspec.structs.replace(event, key=None, run_id="", seq=0, at=0)  # its place is where it is staged


def _said(end: TaskMail) -> str:
    head = f"Background task {end.task_id} (`{end.name}`) {_ENDED.get(end.status, end.status)}"
    return f"{head}:\n{end.text}" if end.text else f"{head}."


_ENDED: Final = {
    "completed": "is completed",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
}
