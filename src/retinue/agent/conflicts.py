"""What a run does when a condition of its commit did not hold: another process took over, a cancel came first, a request was
answered. The run goes on from what the ledger says, where what had happened is staged again, or is not this process's any more.
"""

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Final

from retinue.agent.projection import TASK_NOTICE, project
from retinue.errors import LeaseLost, LedgerConflict, ThreadBusy, UnknownId
from retinue.events import (
    Event,
    MessageEvent,
    ModelCalledEvent,
    OutputCheckedEvent,
    PermissionRequest,
    RequestClosedEvent,
    StateSetEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
    decode,
)
from retinue.messages import UserMessage
from retinue.ops import Append, CreateThread, DropDraft, Op, PutBlob, PutRun, PutState, Record, RequestCancel
from retinue.rows import RunRow, ThreadKey

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["go_on_from_ledger", "still_ours"]

RETRIES: Final = 3

_HAPPENED: Final = (MessageEvent, ModelCalledEvent, OutputCheckedEvent, ToolCallResultEvent, StateSetEvent)
"""What a run says of itself alone: it stays true when a commit that it was to ride with is refused."""
_VOIDED: Final = (
    SubAgentInvocationStartedEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationCancelledEvent,
    PermissionRequest,
    RequestClosedEvent,
)
"""What is void with such a commit, because rows that rode with it say the same."""


async def go_on_from_ledger(run: "Run", conflict: LedgerConflict, retries: int) -> None:
    """Give the run a new journal at what the ledger holds, with what must not be lost staged again.

    Raises:
        LeaseLost: another process has taken the run over.
        ThreadBusy: the run never began, because its thread was given another one.
        UnknownId: `deleted`, the run never began, because its thread was deleted.
        LedgerConflict: it cannot be resolved.
    """
    old, ledger = run.journal, run.tree.services.ledger
    # A child's thread that another run has written to meanwhile (`agent_send`) says nothing of this run's own.
    foreign = isinstance(conflict.op, Append) and conflict.op.key != run.row.key
    await old.abandon()
    stored = await ledger.journal(run.row.key)
    row = await still_ours(run, conflict)
    if row is None and conflict.code == "exists" and stored is None:
        raise UnknownId(
            f"thread `{run.row.key.thread}` of session `{run.row.key.session}` was deleted",
            code="deleted",
            remedy="use another thread, or remove what is left of it with `retinue purge` first",
        ) from conflict
    if row is None and conflict.code in ("head_moved", "exists", "missing"):
        raise ThreadBusy(
            f"thread `{run.row.key.thread}` of session `{run.row.key.session}` was given another run at the same moment",
            remedy="wait for that one, then try again",
        ) from conflict
    if conflict.code == "head_moved" and not foreign:
        raise _lost(run) from conflict
    if row is None or stored is None or retries > RETRIES:
        raise conflict
    run.begin_anew(row, project(stored.own, stored.inherited), generation=stored.row.generation, head=stored.row.head)
    events, ops = old.lost()
    _keep(run, events, ops)
    await _keep_below(run, ops)
    _forget_unmade(run, ops)
    for op in ops:
        if isinstance(op, RequestCancel):  # a stop is never taken back
            run.journal.stage_op(op)
    intent = await ledger.cancel_intent(row.lineage)
    if intent is not None:
        run.stopping.ask(intent)


async def still_ours(run: "Run", because: LedgerConflict | None = None) -> RunRow | None:
    """The run's row as it is stored. To be asked after reading a journal of the tree that is to be written to: whoever
    takes the tree over later moves the head of each, so that what was read before is fenced (M3).

    Raises:
        LeaseLost: another process has taken the run over already.
    """
    row = await run.tree.services.ledger.run(run.row.run_id)
    if row is not None and row.attempt != run.row.attempt:
        raise _lost(run) from because
    return row


def _lost(run: "Run") -> LeaseLost:
    return LeaseLost(
        f"run `{run.row.run_id}` was taken over by another process",
        remedy="this process writes nothing more to it; look at it with `retinue threads show`",
    )


def _keep(run: "Run", events: Sequence[Event], ops: Sequence[Op]) -> None:
    """Stage again what had happened."""
    for event in compress(events, _stands(run.row.key, events, ops)):
        run.journal.stage(event)
    for op in ops:
        if isinstance(op, PutBlob | PutState | DropDraft):
            run.journal.stage_op(op)


def _stands(key: ThreadKey, events: Sequence[Event], ops: Sequence[Op]) -> list[bool]:
    """Which of a thread's events in a refused commit had happened: not the child that may no longer begin, the end that came
    too late, or the question that is not recorded, nor what these calls gave; but results of other calls, which must not be
    made twice."""
    void = {event.call for event in events if isinstance(event, _VOIDED)}
    unmade = {op.row.metadata.get("parentToolCallId") for op in ops if isinstance(op, CreateThread) and op.row.parent == key}
    stands: list[bool] = []
    follows = False
    for event in events:
        gone = isinstance(event, ToolCallResultEvent) and (event.call in void or event.call_id in unmade)
        follows = follows or gone or _by_mail(event)
        # what a model answered to what is void would stand before what it answers to; that it was asked, and paid, is true
        answers = follows and isinstance(event, MessageEvent)
        stands.append(isinstance(event, _HAPPENED) and not gone and not answers)
    return stands


def _by_mail(event: Event) -> bool:
    """Whether it came by mail, which still lies there and is taken again: a message, or the notice of tasks."""
    message = event.message if isinstance(event, MessageEvent) else None
    return isinstance(message, UserMessage) and message.notice in (None, TASK_NOTICE)


def _forget_unmade(run: "Run", ops: Sequence[Op]) -> None:
    """Children that were to begin with the refused commit do not count (D-30)."""
    born = {op.row.key for op in ops if isinstance(op, PutRun) and op.expect is None} - {run.row.key}
    idle = {op.row.key for op in ops if isinstance(op, CreateThread)} - born - {run.row.key}
    run.tree.children -= len(born) + len(idle)
    run.tree.busy -= born


async def _keep_below(run: "Run", ops: Sequence[Op]) -> None:
    """Stage again what children had said whose ends rode with the refused commit: their answers are paid for. The children
    are found again as they were before they ended, unless somebody else has gone on with them."""
    told: dict[ThreadKey, list[Append]] = {}
    for op in ops:
        if isinstance(op, Append) and op.key != run.row.key:
            told.setdefault(op.key, []).append(op)
    for key, appends in told.items():
        first, new = appends[0], [event for append in appends for event in append.events]
        row = await run.tree.services.ledger.thread(key)
        if row is None or (row.generation, row.head) != (first.generation, first.head):
            continue  # it never began, or is not ours any more
        records = [Record(key, first.generation, 0, one.type, one.run, one.attempt, one.at, one.body) for one in new]
        kept = tuple(compress(new, _stands(key, [decode(record) for record in records], ops)))
        if kept:
            run.journal.stage_op(Append(key, first.generation, first.head, kept))
