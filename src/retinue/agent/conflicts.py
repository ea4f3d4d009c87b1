"""What a run does when a condition of its commit did not hold: another process took over, a cancel came first, a request was
answered. What was staged is void; the run goes on from what the ledger says, or is not this process's any more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from retinue.agent.projection import project
from retinue.errors import LeaseLost, LedgerConflict, ThreadBusy
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
)
from retinue.ops import Append, CreateThread, DropDraft, Op, PutBlob, PutState, RequestCancel
from retinue.rows import RunRow

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
        LedgerConflict: it cannot be resolved.
    """
    old, ledger = run.journal, run.tree.services.ledger
    # A child's thread that another run has written to meanwhile (`agent_send`) says nothing of this run's own.
    foreign = isinstance(conflict.op, Append) and conflict.op.key != run.row.key
    await old.abandon()
    stored = await ledger.journal(run.row.key)
    row = await still_ours(run, conflict)
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
    """Stage again what had happened: not the child that may no longer begin, the end that came too late, or the question
    that is not recorded, nor what these calls gave; but results of other calls, which must not be made twice."""
    void = {event.call for event in events if isinstance(event, _VOIDED)}
    unmade = {op.row.metadata.get("parentToolCallId") for op in ops if isinstance(op, CreateThread)}
    for event in events:
        gone = isinstance(event, ToolCallResultEvent) and (event.call in void or event.call_id in unmade)
        if isinstance(event, _HAPPENED) and not gone:
            run.journal.stage(event)
    for op in ops:
        if isinstance(op, PutBlob | PutState | DropDraft):
            run.journal.stage_op(op)
