"""Processes that die without a process: several views of one ledger, each of which can be killed at any commit.

A killed view writes nothing more and knows nothing more, as after SIGKILL: commits that were not carried out are lost, and of
one that was carried out nobody learns. Crash tests with it take milliseconds and are reproduced by seed; that real processes
behave the same is shown by `retinue.testing.failpoints`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Literal, cast

from retinue.errors import LedgerUnavailable
from retinue.ledger.port import Ledger, Outcome
from retinue.ops import Op, PutOwner, Receipt
from retinue.testing.clock import VirtualClock

__all__ = ["MortalProcess", "SharedStore"]


class SharedStore:
    """A ledger that several `MortalProcess`es share. Open it before, and close it after them all.

    Give it the `clock` of the test, and virtual time stands still while the ledger is at work (M15).
    """

    def __init__(self, ledger: Ledger, clock: VirtualClock | None = None) -> None:
        self.ledger = ledger
        self.clock = clock
        self.dead: set[str] = set()
        self.busy = asyncio.Lock()

    def process(self) -> "MortalProcess":
        """One more process that uses this ledger."""
        return MortalProcess(self)

    def held(self) -> AbstractContextManager[None]:
        """Time stands still inside."""
        return nullcontext() if self.clock is None else self.clock.hold()

    @asynccontextmanager
    async def still(self) -> AsyncGenerator[Ledger]:
        """The ledger itself, while nobody commits: to look at several things of one moment."""
        async with self.busy:
            yield self.ledger


class MortalProcess:
    """One process, as its ledger sees it: hand `ledger` to a `Runtime`, and `kill` it when it is time.

    `commits` counts what was carried out. `on_death` is called once, at the moment of death: cancel its tasks there.

    >>> process = SharedStore(MemoryLedger()).process()
    >>> process.kill_at(3, "after")
    >>> runtime = Runtime(ledger=process.ledger)
    """

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.alive = True
        self.commits = 0
        self.on_death: Callable[[], None] = lambda: None
        self.on_commit: Callable[[Sequence[Op]], None] = lambda _ops: None
        self._owners: set[str] = set()
        self._queue: deque[tuple[tuple[Op, ...], Outcome[Receipt]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._death: tuple[int, Literal["before", "after"]] | None = None
        self.ledger = cast("Ledger", _View(self))

    def kill(self) -> None:
        """It is gone: nothing it has not committed is ever written, and its owner is dead. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self.store.dead |= self._owners
        for _, future in self._queue:
            if not future.done():
                _fail(future, _killed())
        self._queue.clear()
        self.on_death()

    def kill_at(self, n: int, when: Literal["before", "after"] = "before") -> None:
        """Die at its `n`-th commit from now on: before it is carried out, or after it and before anybody has the receipt."""
        self._death = (self.commits + n, when)

    @property
    def committing(self) -> bool:
        """Whether a commit waits or is being carried out."""
        return bool(self._queue)

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger.submit`. Commits are carried out one after the other, in the order of `submit`."""
        future: Outcome[Receipt] = Outcome()
        if not self.alive:
            _fail(future, _killed())
            return future
        self._owners.update(op.row.owner_id for op in ops if isinstance(op, PutOwner))
        self._queue.append((tuple(ops), future))
        if self._pump is None:
            self._pump = asyncio.create_task(self._work(), name="retinue mortal ledger")
        return future

    async def _work(self) -> None:
        with self.store.held():
            while self._queue:
                ops, future = self._queue[0]
                async with self.store.busy:
                    await self._carry_out(ops, future)
                if self._queue and self._queue[0][1] is future:
                    self._queue.popleft()
            self._pump = None

    async def _carry_out(self, ops: tuple[Op, ...], future: Outcome[Receipt]) -> None:
        if self._dies("before"):
            self.kill()
        if not self.alive:
            return
        outcome: Receipt | Exception
        try:
            outcome = await self.store.ledger.commit(ops)
        except Exception as error:  # noqa: BLE001  # whoever handed the commit in is told
            outcome = error
        else:
            self.commits += 1
            self.on_commit(ops)
            if self._death is not None and self._death == (self.commits, "after"):
                self.kill()
        if future.done():
            return
        if isinstance(outcome, Exception):
            _fail(future, outcome)
        else:
            future.set_result(outcome)

    def _dies(self, when: Literal["before", "after"]) -> bool:
        return self._death is not None and self._death == (self.commits + 1, when)

    async def read(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the ledger, if this process lives before and after it."""
        if not self.alive:
            raise _killed()
        with self.store.held():
            found = await getattr(self.store.ledger, name)(*args, **options)
        if not self.alive:
            raise _killed()
        return found


class _View:
    """The `Ledger` that a process has: everything but what is here is handed on to the store."""

    def __init__(self, process: MortalProcess) -> None:
        self._process = process
        self.url = process.store.ledger.url

    async def open(self) -> None:
        if not self._process.alive:
            raise _killed()

    async def close(self) -> None:
        """The store stays open: others use it."""

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        return self._process.submit(ops)

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        future, cancelled = self._process.submit(ops), None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:  # first the commit's fate, then the cancellation (M1)
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return future.result()

    async def owner_alive(self, owner_id: str) -> bool:
        return owner_id not in self._process.store.dead and await self._process.read("owner_alive", owner_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._process.read, name)


def _killed() -> LedgerUnavailable:
    return LedgerUnavailable("this process was killed by the test", code="killed", remedy="open another one on the same store")


def _fail(future: Outcome[Receipt], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # seen: whoever does not await it does not want it logged
