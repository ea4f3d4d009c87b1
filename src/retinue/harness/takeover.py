"""Taking a run over: an append at the head that was read, for the whole synchronous subtree in one commit (M3)."""

import msgspec

from retinue.errors import LedgerConflict, ThreadBusy, UnknownId
from retinue.events import RunStartedEvent, decode
from retinue.events import encode as encode_event
from retinue.harness.runtime import Runtime
from retinue.ledger.port import Journal, Ledger
from retinue.ops import Append, NewEvent, Op, PutRun
from retinue.rows import RunRow
from retinue.states import RunState

__all__ = ["find_lead", "take_over", "unfinished_of_branch"]


async def find_lead(runtime: Runtime, run_id: str, *, user: str | None = None) -> RunRow:
    """The run that leads the branch which `run_id` belongs to: the tree's root, or a background task's; with `user`, only if
    it is that user's.

    Raises:
        UnknownId: there is no such run.
    """
    row = await runtime.ledger.run(run_id) if run_id.isascii() else None  # ids are: no other text reaches the store
    lead = row if row is None or row.lead == run_id else await runtime.ledger.run(row.lead)
    if lead is None or user not in (None, lead.key.user):
        raise UnknownId(f"there is no run `{run_id}` in this ledger", remedy="`retinue threads list` shows what there is")
    return lead


async def unfinished_of_branch(ledger: Ledger, lead: RunRow) -> list[RunRow]:
    """What is not finished of a branch: its lead, and the synchronous children that it waits for. From the lead down, for a tree
    may have many branches."""
    found: list[RunRow] = []
    looked = [lead.run_id]
    while looked:
        row = await ledger.run(looked.pop())
        if row is None or row.state.terminal or row.lead != lead.run_id:
            continue
        found.append(row)
        below = await ledger.invocations(parent_run=row.run_id)
        looked += [one.child_run for one in below if not one.state.terminal and one.task_id is None]
    return found


async def take_over(runtime: Runtime, root: RunRow, *, force: bool = False) -> RunRow:
    """Make this process the owner of a run that leads a branch, and of everything below it that waits for it. Returns its new
    row.

    Raises:
        ThreadBusy: its owner is another process, which is alive, and `force` is not given.
        LedgerConflict: another process was faster.
    """
    rows = await unfinished_of_branch(runtime.ledger, root)
    if all(row.run_id != root.run_id for row in rows):
        raise ThreadBusy(
            f"run `{root.run_id}` was brought to its end by another process at the same moment",
            remedy="nothing needs to be done; `retinue threads show` has it",
        )
    for row in rows:
        await _check_owner(runtime, row, force)
    ops: list[Op] = []
    taken = root
    for row in rows:
        journal = await runtime.ledger.journal(row.key)
        if journal is None:
            raise UnknownId(f"the thread of run `{row.run_id}` is gone", remedy="restore the ledger from a copy")
        mine = msgspec.structs.replace(
            row,
            state=RunState.RUNNING,
            attempt=row.attempt + 1,
            owner=runtime._owner_id,
            updated_at=runtime.clock.now_ms(),
        )
        ops.append(Append(row.key, journal.row.generation, journal.row.head, (_attempt_event(runtime, journal, mine),)))
        ops.append(PutRun(mine, (row.state, row.attempt)))
        if row.run_id == root.run_id:
            taken = mine
    try:
        await runtime.ledger.commit(ops)
    except LedgerConflict as conflict:
        raise ThreadBusy(
            f"run `{root.run_id}` was taken over by another process at the same moment",
            remedy="look again with `retinue threads list`",
        ) from conflict
    return taken


async def _check_owner(runtime: Runtime, row: RunRow, force: bool) -> None:
    if row.state is not RunState.RUNNING or row.owner is None:
        return
    if force or row.owner == runtime._owner_id or not await runtime.ledger.owner_alive(row.owner):
        return
    owner = await runtime.ledger.owner(row.owner)
    who = f"process {owner.pid} on {owner.host}" if owner is not None else f"owner `{row.owner}`"
    raise ThreadBusy(
        f"run `{row.run_id}` belongs to {who}, which is alive",
        remedy=f"wait for it, or stop it: `retinue cancel {row.root}`; if that process is stuck, "
        f"`retinue resume {row.root} --take-over` takes the run away from it",
    )


def _attempt_event(runtime: Runtime, journal: Journal, row: RunRow) -> NewEvent:
    """RUN_STARTED for the next attempt: what held for the run still holds (limits, envelope, depth)."""
    first = next(
        event
        for event in (decode(record) for record in reversed(journal.own) if record.run == row.run_id)
        if isinstance(event, RunStartedEvent)
    )
    event = RunStartedEvent(
        agent_id=first.agent_id,
        owner=runtime._owner_id,
        attempt=row.attempt,
        definition_hash=first.definition_hash,
        envelope_hash=first.envelope_hash,
        model=first.model,
        depth=first.depth,
        max_iters=first.max_iters,
        invocation_id=first.invocation_id,
        output=first.output,
        rules=first.rules,
    )
    return NewEvent(event.TYPE, encode_event(event), row.run_id, row.attempt, runtime.clock.now_ms())
