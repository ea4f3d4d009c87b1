"""A run's hand on its journal: what is staged, what is on its way into the ledger, and who is told when it is there.

Events are staged; staged events and ops ride with the next commit (M2). The projection follows what is staged: if the commit
fails, both are given up together (decision 0002). Viewers are told only what is committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from retinue.agent.projection import Projection
from retinue.agent.redacting import clean_op
from retinue.clock import Clock
from retinue.events import Event, encode
from retinue.json_text import mend_all
from retinue.ledger.port import Ledger, Outcome
from retinue.ops import Append, CreateThread, NewEvent, Op, PutRun, Receipt
from retinue.rows import RunRow, ThreadKey, ThreadRow
from retinue.secrets import Redactor
from retinue.states import RunState

__all__ = ["Batch", "RunJournal", "settle"]

Told = Callable[[], None]


class Batch:
    """Ops on their way, and what to do once they are committed."""

    __slots__ = ("ops", "told")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.told: list[Told] = []

    def include(self, other: "Batch") -> None:
        """Let another run's ops ride along, after these."""
        self.ops.extend(other.ops)
        self.told.extend(other.told)


async def settle(outcome: Outcome[Receipt]) -> None:
    """Wait until a commit's fate is known; the outcome holds it. The cancellation of a caller is raised after that (M1)."""
    if not outcome.done():
        try:
            await outcome
        except Exception:  # noqa: BLE001 (whoever asks the outcome is told)
            return


class _InFlight(NamedTuple):
    """A commit on its way: its future, and what would be lost if it failed."""

    future: Outcome[Receipt]
    events: list[Event]
    ops: list[Op]


class RunJournal:
    """The one writer of a thread, for one run and attempt (M3)."""

    __slots__ = (
        "_base",
        "_batch",
        "_created",
        "_events",
        "_held",
        "_in_flight",
        "_ledger",
        "_moved",
        "_redactor",
        "_row_expect",
        "_tell",
        "_telling",
        "_unsent",
        "_untold",
        "attempt",
        "clock",
        "generation",
        "head",
        "key",
        "projection",
        "row",
        "run_id",
    )

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        row: RunRow,
        projection: Projection,
        *,
        generation: int,
        head: int,
        stored: bool,
        tell: Callable[[list[tuple[Event, int, int]]], None],
        redactor: Redactor | None = None,
    ) -> None:
        self._ledger = ledger
        self._redactor = Redactor() if redactor is None else redactor  # (one that knows nothing yet is false)
        self.clock = clock
        self.row = row
        self.key: ThreadKey = row.key
        self.run_id = row.run_id
        self.attempt = row.attempt
        self.projection = projection
        self.generation = generation
        self.head = head
        self._base = head
        self._created: Op | None = None
        self._events: list[NewEvent] = []
        self._unsent: list[Event] = []
        self._untold: list[tuple[Event, int, int]] = []
        self._batch = Batch()
        self._row_expect: tuple[RunState, int] | None = (row.state, row.attempt) if stored else None
        self._in_flight: deque[_InFlight] = deque()
        self._held = False
        self._moved = False
        self._telling = 0
        self._tell = tell
        projection.run_id = row.run_id

    def stage(self, event: Event) -> None:
        """Take an event in; it rides with the next commit. Halves of characters are replaced, wherever they come from."""
        try:
            body = encode(event)
        except UnicodeEncodeError:
            event = msgspec.convert(mend_all(msgspec.to_builtins(event)), type(event))
            body = encode(event)
        if self._redactor.active:  # secrets stay out of the journal, and so out of what is shown and asked (invariant 10)
            event, body = self._redactor.event(event, body)
        self.head += 1
        now = self.clock.now_ms()
        self._events.append(NewEvent(event.TYPE, body, self.run_id, self.attempt, now))
        self._unsent.append(event)
        self._untold.append((event, self.head, now))
        self.projection.apply(event, self.head, self.attempt)

    def create(self, row: ThreadRow) -> None:
        """Create the thread with the next commit, before its first event."""
        created = CreateThread(row)
        self._created = clean_op(self._redactor, created) if self._redactor.active else created

    def stage_op(self, op: Op) -> None:
        """Let an op ride with the next commit, after this journal's events."""
        self._batch.ops.append(clean_op(self._redactor, op) if self._redactor.active else op)

    def include(self, batch: Batch) -> None:
        """Let another run's batch ride with the next commit. Viewers are told in the order of staging."""
        self._tell_staged()
        self._batch.include(batch)

    def then(self, told: Told) -> None:
        """Call `told` once everything staged so far is committed."""
        self._tell_staged()
        self._batch.told.append(told)

    def _tell_staged(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, []
            self._batch.told.append(lambda: self._tell(untold))

    def move(self, branch: str) -> None:
        """Let the run belong to another branch, with the next commit."""
        self.row = msgspec.structs.replace(self.row, branch=branch)
        self._moved = True

    def put_run(self, row: RunRow) -> None:
        """Replace the run's row with the next commit."""
        if self._redactor.active and row.reason is not None:
            row = msgspec.structs.replace(row, reason=self._redactor.text(row.reason))
        self.row = row

    @property
    def known(self) -> bool:
        """Whether the ledger has been given the run's row."""
        return self._row_expect is not None

    @property
    def staged(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._events or self._batch.ops or self._moved)

    def pending(self) -> Iterator[Op]:
        """The ops that ride along with this journal's commits, as far as their fate is not known yet."""
        for one in self._in_flight:
            if not one.future.done():
                yield from one.ops
        yield from self._batch.ops

    def take(self) -> Batch:
        """Everything staged, to be committed by someone else (a child's end rides with its parent's result)."""
        self._tell_staged()
        batch, self._batch = self._batch, Batch()
        mine: list[Op] = []
        if self._created is not None:
            mine.append(self._created)
            self._created = None
        expect, now = self._row_expect, (self.row.state, self.row.attempt)
        if self._events or batch.ops:  # without events it is a fence: nothing of a run is written without its lease (M3)
            mine.append(Append(self.key, self.generation, self._base, tuple(self._events)))
            self._base = self.head
            self._events = []
            self._unsent = []
        if expect != now or self._moved or (mine and not self._certain()):
            # Where it stays as it is, it is a fence as well: a commit that is handed in before the fate of the one before it
            # is known may find the head where it expects it by chance, after others have written.
            put = PutRun(self.row, expect)
            mine.append(clean_op(self._redactor, put) if self._redactor.active else put)
            self._row_expect, self._moved = now, False
        batch.ops[:0] = mine
        return batch

    def _certain(self) -> bool:
        """Whether everything that was handed in is known to have been carried out."""
        last = self._in_flight[-1].future if self._in_flight else None
        return last is None or (last.done() and last.exception() is None)

    async def flush(self) -> None:
        """Commit what is staged and wait until it and everything before it is durable: a barrier.

        Raises:
            LedgerConflict, LedgerUnavailable: of the first commit that failed. The run must be given up.
        """
        self.flush_soon()
        await self.settle()

    @property
    def in_flight(self) -> bool:
        """Whether a commit is on its way."""
        return bool(self._in_flight)

    @property
    def busy(self) -> bool:
        """Whether the fate of a commit is still open."""
        return bool(self._in_flight) and not self._in_flight[-1].future.done()

    @property
    def held(self) -> bool:
        """Whether a commit of this journal is known to have been carried out."""
        self._forget_held()
        return self._held

    def _forget_held(self) -> None:
        """What is carried out cannot be lost any more: a long answer's drafts need not be kept until its end."""
        while self._in_flight and (first := self._in_flight[0].future).done() and first.exception() is None:
            self._in_flight.popleft()
            self._held = True

    async def settle(self) -> None:
        """Wait for the commits on their way, without committing what is only staged."""
        while self._in_flight:
            first = self._in_flight[0]
            await settle(first.future)  # a caller that is cancelled here finds a failure the next time
            first.future.result()
            self._forget_held()

    def flush_soon(self) -> None:
        """Hand what is staged to the ledger without waiting for it. Viewers are told when it is there."""
        events = self._unsent
        batch = self.take()
        self._forget_held()
        if batch.ops:
            self._in_flight.append(_InFlight(self._ledger.submit(batch.ops), events, batch.ops))
        if not batch.told:
            return
        if not self._in_flight:  # all of it is there
            self._told(batch.told)
        elif (last := self._in_flight[-1].future).done() and not self._telling:
            self._told(batch.told, last)
        else:
            self._telling += 1
            last.add_done_callback(partial(self._told_later, batch.told))

    def _told_later(self, told: list[Told], future: Outcome[Receipt]) -> None:
        self._telling -= 1
        self._told(told, future)

    def _told(self, told: list[Told], future: Outcome[Receipt] | None = None) -> None:
        if future is None or future.exception() is None:
            for tell in told:
                tell()

    async def abandon(self) -> None:
        """Learn the fate of everything on its way, whatever it is: the run goes on from the ledger, or not at all."""
        futures = [one.future for one in self._in_flight]
        if futures:
            await asyncio.gather(*(asyncio.shield(future) for future in futures), return_exceptions=True)

    def lost(self) -> tuple[list[Event], list[Op]]:
        """What this journal staged and the ledger does not hold, after `abandon`: its own events in order, and all ops."""
        failed = [one for one in self._in_flight if one.future.exception() is not None]
        events = [event for one in failed for event in one.events]
        return [*events, *self._unsent], [*(op for one in failed for op in one.ops), *self._batch.ops]
