"""The writer: a batch of commits becomes one transaction, and one caller's conflict never fails another's (M1)."""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from retinue.errors import ConfigurationError, LedgerError, LedgerUnavailable
from retinue.ledger.sqlite import removal
from retinue.ledger.sqlite.faults import is_busy, unavailable
from retinue.ledger.sqlite.filesystem import refuse_network
from retinue.ledger.sqlite.locks import OwnerLocks, Turn
from retinue.ledger.sqlite.schema import migrate
from retinue.ledger.sqlite.worker import Job
from retinue.ledger.sqlite.writes import Writes
from retinue.ops import Op, Receipt

__all__ = ["CommitHooks", "Durability", "Writer"]

_T = TypeVar("_T")

Durability = Literal["full", "process"]
"""`full`: a receipt is given after fsync, so it survives power loss. `process`: it survives the end of the process."""

_SYNCHRONOUS: Final[dict[str, str]] = {"full": "FULL", "process": "NORMAL"}
_BUSY_POLL_SECONDS: Final = 0.0003
_CHECKPOINT_PAGES: Final = 4000
"""The log is moved into the file at this size (16 MB): each checkpoint costs the writer an fsync of the file."""

_OWN_FAULTS: Final = (
    LedgerError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    TypeError,
    ValueError,
    OverflowError,
    KeyError,
)
"""Errors that come from one commit's own data; anything else is a fault of the store and fails the batch."""


class CommitHooks(Protocol):
    """For crash tests: called in the writer thread around the COMMIT of batch `n`, counted from 1 since `open`."""

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """The ops of each call in batch `n`, conflicts excepted. Before `before_commit`."""
        ...

    def before_commit(self, n: int) -> None:
        """What is raised here takes the place of the COMMIT."""
        ...

    def after_commit(self, n: int) -> None:
        """The batch is durable; nobody has a receipt yet."""
        ...


class Writer:
    """The role of the writer thread (see `worker.Role`)."""

    def __init__(
        self,
        path: Path,
        *,
        locks: OwnerLocks,
        durability: Durability,
        busy_timeout: float,
        hooks: CommitHooks | None,
        filesystem: Callable[[str], str],
    ) -> None:
        self._path = path
        self._name = str(path)  # looked up at each commit
        self.locks = self._locks = locks
        self._durability: Durability = durability
        self._busy_timeout = busy_timeout
        self._hooks = hooks
        self._filesystem = filesystem
        self._committed = 0
        self._turn: Turn | None = None
        self._connection: sqlite3.Connection | None = None
        self._writes: Writes | None = None
        self._file: tuple[int, int] | None = None

    # ------------------------------------------------------------------ the role

    def start(self) -> None:
        """Check, create, migrate and sweep."""
        text = str(self._path)
        refuse_network(text, self._filesystem(text))
        folder = self._path.with_name(self._path.name + ".owners")
        if not self._path.parent.is_dir():
            raise _no_folder(self._path)
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # conversations are nobody else's business
            self._file = _identity(text)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._turn = Turn(folder / "turn")
            self._connect()
            self._transaction(self._prepare)
        except BaseException as error:
            self._release()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise _cannot_open(text, error) from error
            raise

    def handle(self, jobs: list[Job[Any]]) -> None:
        """One transaction for the batch. A fault of the store fails all of it, and nothing of it is written."""
        try:
            writes = self._begin()
            if not self._all_whole(jobs, writes):
                self._rollback()
                writes = self._begin()
                for job in jobs:
                    self._attempt(job, writes, savepoint=True)
            if all(job.error is not None for job in jobs):
                self._rollback()
            else:
                self._commit([job.subject for job in jobs if job.error is None and job.subject is not None])
                self._let_go(writes)
        except Exception as error:  # noqa: BLE001 (the thread serves others: whatever it is, it is told to these callers)
            self._rollback()
            for job in jobs:
                job.error = error if isinstance(error, LedgerUnavailable) else unavailable(str(self._path), error)

    def stop(self) -> None:
        """Move the write-ahead log into the file, and let go of everything."""
        try:
            if self._connection is not None:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            pass  # the log stays beside the file: the next process that opens it goes on from there
        finally:
            self._release()

    # ------------------------------------------------------------------ work

    def commit(self, ops: Sequence[Op]) -> Receipt:
        """The work of a commit job."""
        return self._ready().commit(ops)

    def remove(self, work: Callable[..., _T], *values: Any) -> _T:
        """The work of a job that removes: `work` is a function of `removal`. What is removed is overwritten in the file."""
        self._ready()
        assert self._connection is not None
        execute = self._connection.execute
        (before,) = execute("PRAGMA secure_delete").fetchone()
        execute("PRAGMA secure_delete = ON")
        try:
            return work(execute, *values)
        finally:
            execute(f"PRAGMA secure_delete = {before}")

    def pragma(self, name: str) -> Any:
        """The value of a PRAGMA on the writer's connection."""
        self._ready()
        assert self._connection is not None
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    def _all_whole(self, jobs: list[Job[Any]], writes: Writes) -> bool:
        """Carry the batch out without savepoints, which cost a copy of each page. False if a job was refused when it had
        written something: that can only be taken back with everything, unless there was no other."""
        assert self._connection is not None
        for job in jobs:
            before = self._connection.total_changes
            self._attempt(job, writes, savepoint=False)
            if job.error is not None and len(jobs) > 1 and self._connection.total_changes != before:
                return False
        return True

    def _attempt(self, job: Job[Any], writes: Writes, *, savepoint: bool) -> None:
        assert self._connection is not None
        execute = self._connection.execute
        locked = len(writes.registered), len(writes.dropped)
        job.result = job.error = None  # of an attempt that was taken back
        if savepoint:
            execute("SAVEPOINT job")
        try:
            job.result = job.work()
        except _OWN_FAULTS as error:
            job.error = error
            writes.taken_back()
            for owner_id in writes.registered[locked[0] :]:
                self._locks.release(owner_id)
            del writes.registered[locked[0] :], writes.dropped[locked[1] :]
            if savepoint:
                execute("ROLLBACK TO job")
        if savepoint:
            execute("RELEASE job")

    def _begin(self) -> Writes:
        """Wait for the write lock, fairly and not for ever."""
        if self._connection is None:
            self._check_file()  # a new connection would make an empty file in its place
            self._connect()
        assert self._turn is not None
        assert self._connection is not None
        deadline = time.monotonic() + self._busy_timeout
        self._turn.take(deadline)
        try:
            _patiently(partial(self._connection.execute, "BEGIN IMMEDIATE"), deadline)
        finally:
            self._turn.give()
        writes = self._ready()
        writes.begin()
        return writes

    def _commit(self, commits: list[Sequence[Op]]) -> None:
        assert self._connection is not None
        number = self._committed + 1
        if self._hooks is not None:
            self._hooks.batch(number, commits)
            self._hooks.before_commit(number)
        self._check_file()
        self._connection.execute("COMMIT")
        self._committed = number
        if self._hooks is not None:
            self._hooks.after_commit(number)

    def _rollback(self) -> None:
        if self._writes is not None:
            self._writes.taken_back()
            for owner_id in self._writes.registered:
                self._locks.release(owner_id)
            self._writes.registered.clear()
            self._writes.dropped.clear()
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._disconnect()  # the next batch begins with a new connection

    def _let_go(self, writes: Writes) -> None:
        for owner_id in writes.dropped:
            self._locks.release(owner_id)
        writes.registered.clear()
        writes.dropped.clear()

    def _check_file(self) -> None:
        """An open file that was removed or replaced takes writes as before, and nobody would ever find them."""
        if _identity(self._name) != self._file:
            raise LedgerUnavailable(
                f"the ledger `{self._path}` was removed or replaced while it was open: what is written now would be lost",
                code="file_gone",
                remedy="close the agent and start again; leave the file and its `-wal` in place while a process uses them "
                "(docs/reliability.md says how to copy a ledger in use)",
            )

    # ------------------------------------------------------------------ the connection

    def _connect(self) -> None:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, cached_statements=256)
        self._connection = connection
        deadline = time.monotonic() + self._busy_timeout
        _patiently(partial(connection.execute, "PRAGMA journal_mode = WAL"), deadline)
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk there
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        self._writes = Writes(connection, self._locks)

    def _disconnect(self) -> None:
        connection, self._connection, self._writes = self._connection, None, None
        if connection is not None:
            connection.close()

    def _transaction(self, work: Callable[[], _T]) -> _T:
        self._begin()
        try:
            result = work()
            assert self._connection is not None
            self._connection.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise
        return result

    def _prepare(self) -> None:
        assert self._connection is not None
        migrate(self._connection, str(self._path))
        self._locks.sweep()
        removal.drop_owners(self._connection.execute, self._locks)

    def _release(self) -> None:
        try:
            self._disconnect()
        finally:
            self._locks.release_all()
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.close()

    def _ready(self) -> Writes:
        assert self._writes is not None
        return self._writes


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at this path; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _patiently(work: Callable[[], object], deadline: float) -> None:
    """Call `work` until no other process is in the way; after `deadline` raise what it raises."""
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_POLL_SECONDS)


def _no_folder(path: Path) -> ConfigurationError:
    """A slip in a path must not begin a new ledger somewhere else."""
    return ConfigurationError(
        f"the ledger `{path}` cannot be made: there is no folder `{path.parent}`",
        code="invalid_ledger",
        remedy="correct the path, or make the folder first",
    )


def _cannot_open(path: str, error: sqlite3.Error | OSError) -> LedgerUnavailable:
    if isinstance(error, (sqlite3.Error, TimeoutError)):
        return unavailable(path, error)
    return LedgerUnavailable(
        f"the ledger `{path}` cannot be opened: {error.strerror or error}",
        code="cannot_open",
        remedy="check that this user may write in its folder",
    )
