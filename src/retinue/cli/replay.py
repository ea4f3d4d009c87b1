"""The events of a stored tree, read back from its journals in the order in which they happened (H-21)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from retinue.events import Event, RunStartedEvent, decode
from retinue.rows import RunRow, ThreadKey

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger

__all__ = ["replay_tree", "up_to_take_over"]


async def replay_tree(ledger: "Ledger", root_run: str) -> list[Event]:
    """All stored events of the tree whose root is `root_run`, each with its path.

    Journals are appended to by their own runs alone; between them the time decides, and where that is equal, parents
    come before children.
    """
    runs = await ledger.tree(root_run)
    by_id = {run.run_id: run for run in runs}
    placed: list[tuple[int, int, int, Event]] = []
    for key in _keys(runs):
        journal = await ledger.journal(key)
        latest = 0
        for record in journal.own if journal is not None else ():
            run = by_id.get(record.run)
            if run is None:  # an earlier run on the same thread
                continue
            latest = max(latest, record.at)  # clocks may step back, a journal does not
            event = replace(decode(record), path=run.path, invocations=run.invocations)
            placed.append((latest, run.depth, record.seq, event))
    placed.sort(key=lambda entry: entry[:3])
    return [event for *_, event in placed]


def up_to_take_over(events: Sequence[Event], root_run: str) -> list[Event]:
    """What was there when the tree was taken over last, with the RUN_STARTED of that: whoever follows it live gets the rest."""
    taken = {event.run_id: event for event in events if isinstance(event, RunStartedEvent) and event.attempt > 1}
    began = {event.run_id: event for event in reversed(events) if isinstance(event, RunStartedEvent)}
    root = taken.get(root_run)
    if root is None:
        return list(events)
    kept: list[Event] = []
    for event in events:
        last = taken.get(event.run_id)
        if last is not None and last.at >= root.at:
            before = event.seq <= last.seq
        else:  # it had ended by then, or began afterwards
            first = began.get(event.run_id)
            before = first is None or first.at < root.at
        if before:
            kept.append(event)
    return kept


def _keys(runs: Iterable[RunRow]) -> list[ThreadKey]:
    return list(dict.fromkeys(run.key for run in runs))
