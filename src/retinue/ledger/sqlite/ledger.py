"""`SqliteLedger`: what callers see of the writer and the reader thread.

Reads have a thread of their own: a disk that hangs must not stop the event loop, or no wait would end when it says.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from retinue.errors import ConfigurationError
from retinue.ledger import rules
from retinue.ledger.port import COLLECT_GRACE_MS, Collected, Journal, News, Outcome
from retinue.ledger.sqlite import reads, removal
from retinue.ledger.sqlite.collecting import Collection, Looker
from retinue.ledger.sqlite.faults import unavailable
from retinue.ledger.sqlite.filesystem import filesystem_type
from retinue.ledger.sqlite.locks import OwnerLocks
from retinue.ledger.sqlite.segments import Segments
from retinue.ledger.sqlite.worker import Batches, Job, failed
from retinue.ledger.sqlite.writer import CommitHooks, Durability, Writer
from retinue.ops import Draft, Op, Receipt, Record
from retinue.rows import InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = ["SqliteLedger"]

_T = TypeVar("_T")


class SqliteLedger:
    """A `Ledger` (see `port`) in one SQLite file, which several processes of one machine may use.

    `durability` "full" gives a receipt after fsync; "process" leaves the fsync to the system. `busy_timeout` is how many
    seconds to wait for another process that keeps the file locked. `hooks` and `filesystem` are for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        hooks: CommitHooks | None = None,
        busy_timeout: float = 30.0,
        filesystem: Callable[[str], str] = filesystem_type,
    ) -> None:
        if durability not in ("full", "process"):
            raise ConfigurationError(f"durability `{durability}` is unknown", remedy="use `full` or `process`")
        self.path = Path(os.path.abspath(path))
        self.url = f"sqlite:///{self.path}"
        self.immediate = False
        self.shared = True
        self.durability: Durability = durability
        self._hooks = hooks
        self._busy_timeout = busy_timeout
        self._filesystem = filesystem
        self._lifecycle = asyncio.Lock()
        self._locks = OwnerLocks(self.path.with_name(self.path.name + ".owners"))
        self._writer: Writer | None = None
        self._writing: Batches | None = None
        self._reader: _Reader | None = None
        self._reading: Batches | None = None

    async def open(self) -> None:
        """See `Ledger`."""
        async with self._lifecycle:
            if self._reading is not None:
                return
            writer = Writer(
                self.path,
                locks=self._locks,
                durability=self.durability,
                busy_timeout=self._busy_timeout,
                hooks=self._hooks,
                filesystem=self._filesystem,
            )
            writing = Batches("retinue-ledger-writer", writer)
            await writing.start()
            reader = _Reader(self.path, self._busy_timeout)
            reading = Batches("retinue-ledger-reader", reader)
            try:
                await reading.start()
            except BaseException:
                await writing.stop()
                raise
            self._writer, self._writing, self._reader, self._reading = writer, writing, reader, reading

    async def close(self) -> None:
        """See `Ledger`. The write-ahead log is moved into the file."""
        async with self._lifecycle:
            writing, reading = self._writing, self._reading
            self._writer = self._writing = self._reader = self._reading = None
            if writing is None or reading is None:
                return
            try:
                await reading.stop()
            finally:
                await writing.stop()

    # ------------------------------------------------------------------ writing

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """See `Ledger`."""
        return await _settled(self.submit(ops))

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger`."""
        if self._writing is None or self._writer is None:
            return failed(rules.not_open(self.url))
        ops = tuple(ops)  # the writer reads them later, in its thread
        return self._writing.submit(partial(self._writer.commit, ops), ops)

    async def purge(self, key: ThreadKey) -> int:
        """See `Ledger`."""
        if self._writing is None or self._writer is None:
            raise rules.not_open(self.url)
        removed = await _settled(self._writing.submit(partial(self._writer.remove, removal.purge, key)))
        await self._read(self._forget)
        return removed

    async def collect(
        self,
        *,
        now: int,
        grace_ms: int = COLLECT_GRACE_MS,
        dry_run: bool = False,
        progress: Callable[[Collected], None] | None = None,
    ) -> Collected:
        """See `Ledger`."""
        if self._writing is None or self._writer is None:
            raise rules.not_open(self.url)
        looker = Looker(self.path)
        looking = Batches("retinue-ledger-collector", looker)
        await looking.start()
        collection = Collection(
            self._writer,
            looker,
            look=looking.submit,
            write=self._writing.submit,
            now=now,
            grace_ms=grace_ms,
            progress=progress,
        )
        try:
            if dry_run:
                return await collection.count()
            return await collection.collect()
        finally:
            await looking.stop()
            await self._read(self._forget)

    async def pragma(self, name: str) -> Any:
        """The value of a PRAGMA on the connection that writes: `synchronous` is 2 where a receipt means fsync."""
        if self._writing is None or self._writer is None:
            raise rules.not_open(self.url)
        return await _settled(self._writing.submit(partial(self._writer.pragma, name)))

    # ------------------------------------------------------------------ reading

    async def _read(self, work: Callable[..., _T], *values: Any) -> _T:
        if self._reading is None or self._reader is None:
            raise rules.not_open(self.url)
        return await self._reading.submit(partial(self._reader.read, work, values))

    async def thread(self, key: ThreadKey) -> ThreadRow | None:
        """See `Ledger`."""
        return await self._read(reads.thread, key)

    async def child_thread(
        self, parent: ThreadKey, *, agent_key: str | None = None, label: str | None = None
    ) -> ThreadRow | None:
        """See `Ledger`."""
        return await self._read(reads.child_thread, parent, agent_key, label)

    async def threads(
        self, *, user: str | None = None, session: str | None = None, hidden: bool = False, limit: int = 100
    ) -> list[ThreadRow]:
        """See `Ledger`."""
        return await self._read(reads.threads, user, session, hidden, limit)

    async def children(self, parent: ThreadKey) -> list[ThreadRow]:
        """See `Ledger`."""
        return await self._read(reads.children, parent)

    async def journal(self, key: ThreadKey) -> Journal | None:
        """See `Ledger`."""
        if self._reader is None:
            raise rules.not_open(self.url)
        return await self._read(reads.journal, self._reader.segments, key)

    async def records(self, key: ThreadKey, *, generation: int, after: int = 0, limit: int | None = None) -> list[Record]:
        """See `Ledger`."""
        return await self._read(reads.records, key, generation, after, limit)

    async def run(self, run_id: str) -> RunRow | None:
        """See `Ledger`."""
        return await self._read(reads.run, run_id)

    async def last_run(self, key: ThreadKey) -> RunRow | None:
        """See `Ledger`."""
        return await self._read(reads.last_run, key)

    async def runs(
        self, *, states: Sequence[RunState] = (), roots_only: bool = False, user: str | None = None, limit: int = 100
    ) -> list[RunRow]:
        """See `Ledger`."""
        return await self._read(reads.runs, states, roots_only, user, limit)

    async def tree(self, root_run: str) -> list[RunRow]:
        """See `Ledger`."""
        return await self._read(reads.tree, root_run)

    async def cancel_intent(self, lineage: Sequence[str]) -> str | None:
        """See `Ledger`."""
        return await self._read(reads.cancel_intent, lineage)

    async def news(self, runs: Sequence[str], *, since: int | None = None) -> News:
        """See `Ledger`."""
        return await self._read(reads.news, runs, since)

    async def invocation(self, invocation_id: str) -> InvocationRow | None:
        """See `Ledger`."""
        return await self._read(reads.invocation, invocation_id)

    async def invocations(
        self,
        *,
        parent_run: str | None = None,
        root_run: str | None = None,
        child: ThreadKey | None = None,
        state: InvocationState | None = None,
    ) -> list[InvocationRow]:
        """See `Ledger`."""
        return await self._read(reads.invocations, parent_run, root_run, child, state)

    async def task(self, task_id: str) -> InvocationRow | None:
        """See `Ledger`."""
        return await self._read(reads.task, task_id)

    async def tasks(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        root_run: str | None = None,
        unfinished: bool = False,
        limit: int = 100,
    ) -> list[InvocationRow]:
        """See `Ledger`."""
        return await self._read(reads.tasks, user, session, root_run, unfinished, limit)

    async def request(self, request_id: str) -> RequestRow | None:
        """See `Ledger`."""
        return await self._read(reads.request, request_id)

    async def requests(
        self,
        *,
        root_run: str | None = None,
        root: ThreadKey | None = None,
        user: str | None = None,
        session: str | None = None,
        state: RequestState | None = None,
    ) -> list[RequestRow]:
        """See `Ledger`."""
        return await self._read(reads.requests, root_run, root, user, session, state)

    async def mail(self, key: ThreadKey) -> list[Mail]:
        """See `Ledger`."""
        return await self._read(reads.mail, key)

    async def draft(self, key: ThreadKey) -> Draft | None:
        """See `Ledger`."""
        return await self._read(reads.draft, key)

    async def blob(self, digest: str) -> bytes | None:
        """See `Ledger`."""
        return await self._read(reads.blob, digest)

    async def state(self, user: str, session: str) -> dict[str, bytes]:
        """See `Ledger`."""
        return await self._read(reads.state, user, session)

    async def spends(self, root_run: str) -> list[SpendRow]:
        """See `Ledger`."""
        return await self._read(reads.spends, root_run)

    async def owner(self, owner_id: str) -> OwnerRow | None:
        """See `Ledger`."""
        return await self._read(reads.owner, owner_id)

    async def owner_alive(self, owner_id: str) -> bool:
        """See `Ledger`. A stopped process is alive: it holds its lock."""
        return await self._read(self._alive, owner_id)

    def _alive(self, db: sqlite3.Connection, owner_id: str) -> bool:
        return reads.owner(db, owner_id) is not None and self._locks.alive(owner_id)

    def _forget(self, db: sqlite3.Connection) -> None:
        if self._reader is not None:
            self._reader.segments.clear()  # what is gone for good is not kept in memory either


class _Reader:
    """The role of the reader thread (see `worker.Role`)."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self.segments = Segments()
        self._db: sqlite3.Connection | None = None

    def start(self) -> None:
        try:
            # in WAL mode a reader waits only while another process recovers the log or is the last to close the file
            self._db = sqlite3.connect(self._path, timeout=self._busy_timeout, isolation_level=None)
            self._db.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            self.stop()
            raise unavailable(str(self._path), error) from error

    def handle(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            try:
                job.result = job.work()
            except sqlite3.Error as error:
                job.error = unavailable(str(self._path), error)
            except Exception as error:  # noqa: BLE001 (it belongs to who asked)
                job.error = error

    def read(self, work: Callable[..., _T], values: tuple[Any, ...]) -> _T:
        assert self._db is not None
        return work(self._db, *values)

    def stop(self) -> None:
        if self._db is not None:
            self._db.close()


async def _settled(outcome: Outcome[_T]) -> _T:
    """Wait until the outcome is known, whatever happens to the task that waits."""
    try:
        return await outcome
    except asyncio.CancelledError as stop:
        failure = outcome.exception() if outcome.done() else None
        if failure is not None:
            raise stop from failure
        raise
