"""Deleting and purging whole conversations: a thread or a session, with the threads that were made for it."""

from collections.abc import Sequence

from retinue.errors import LedgerConflict, ThreadBusy
from retinue.ledger.port import Ledger
from retinue.ops import HideThread
from retinue.rows import ThreadKey, ThreadRow

__all__ = ["delete_threads", "purge_threads", "with_children"]


async def with_children(ledger: Ledger, rows: Sequence[ThreadRow]) -> list[ThreadRow]:
    """These threads and all below them, what is deepest first: so that a purge copies nothing into what goes next."""
    found: dict[ThreadKey, ThreadRow] = {row.key: row for row in rows}
    queue = list(rows)
    while queue:
        for child in await ledger.children(queue.pop(0).key):
            if child.key not in found:
                found[child.key] = child
                queue.append(child)
    return list(reversed(found.values()))


async def delete_threads(ledger: Ledger, rows: Sequence[ThreadRow]) -> None:
    """Hide threads from every list, in one commit. Forks still read what they refer to; `retinue gc` removes the rest.

    Raises:
        ThreadBusy: one belongs to a run that is not finished, which nobody could go on with any more.
    """
    await _check_idle(ledger, rows)
    await ledger.commit([HideThread(row.key) for row in rows])


async def purge_threads(ledger: Ledger, rows: Sequence[ThreadRow]) -> int:
    """Remove threads for good, one after the other; how many records went. Live forks keep what they begin with.

    Raises:
        ThreadBusy: one belongs to a run that is not finished. Nothing has been removed then.
    """
    await _check_idle(ledger, rows)
    removed = 0
    for row in rows:
        try:
            removed += await ledger.purge(row.key)
        except LedgerConflict as conflict:  # a run began meanwhile
            raise ThreadBusy(conflict.message, remedy=conflict.remedy) from conflict
    return removed


async def _check_idle(ledger: Ledger, rows: Sequence[ThreadRow]) -> None:
    for row in rows:
        last = await ledger.last_run(row.key)
        tree = [] if last is None else await ledger.tree(last.root)
        unfinished = next((run for run in tree if not run.state.terminal), None)
        if unfinished is not None:
            raise _busy(row.key, unfinished.run_id)


def _busy(key: ThreadKey, run_id: str) -> ThreadBusy:
    return ThreadBusy(
        f"thread `{key.session}/{key.thread}` belongs to the unfinished run `{run_id}`",
        remedy=f"bring it to its end (`retinue resume {run_id}`) or cancel it first",
    )
