"""What a ledger promises, in words and types. Backends keep it; `retinue.testing.conformance` proves it for any of them.

Writing is one method, `commit`. Commits handed in by one task in order are carried out in that order. Reading is separate and
sees every commit whose receipt was given. A ledger belongs to one event loop; several processes may use one store.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from retinue.ops import Draft, Op, Receipt, Record
from retinue.rows import InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = ["COLLECT_GRACE_MS", "DAMAGED_MAIL", "Collected", "Journal", "Ledger", "News", "Outcome"]

_T = TypeVar("_T")

COLLECT_GRACE_MS: Final = 24 * 3600 * 1000
"""How long what nobody refers to any more is kept while other processes may be about to refer to it again (24 h)."""

DAMAGED_MAIL: Final = "damaged"
"""The kind of a letter that is there and cannot be read; its body says why."""


class Journal(msgspec.Struct, frozen=True):
    """A thread's whole history in its current generation, forks and generations resolved (M12).

    `inherited` are the records of the base segments, oldest first, as they stand in the threads they come from;
    `own` those of this thread's current generation, seq 1 to `row.head`.
    """

    row: ThreadRow
    inherited: tuple[Record, ...]
    own: tuple[Record, ...]


class Collected(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a collection removed, or would remove. `condemned` blobs are kept until the grace is over."""

    threads: int = 0
    records: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    condemned: int = 0
    drafts: int = 0
    mail: int = 0
    owners: int = 0

    def __add__(self, other: "Collected") -> "Collected":
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Collected(**{name: mine[name] + more[name] for name in mine})


class News(msgspec.Struct, frozen=True):
    """What there is to know of others' commits. `stops` are the reasons of cancel intents by run, `mail` the threads with
    letters that came after the cursor that was given; `cursor` is to be given the next time."""

    cursor: int
    stops: dict[str, str] = {}
    mail: tuple[ThreadKey, ...] = ()


class Outcome(asyncio.Future[_T]):
    """A future that cannot be cancelled. A task that is cancelled while it waits for one goes on waiting until it is
    known, and only then is the cancellation raised: asyncio keeps it for the task's next step.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse."""
        return False


class Ledger(Protocol):
    """The store of threads, events, runs, invocations, requests, mail, session state, blobs and owners."""

    url: str
    """Where it is, as `--ledger` takes it: `memory`, `sqlite:///path`."""
    shared: bool
    """Whether other processes can write to it."""
    immediate: bool
    """Whether what it is asked is done without waiting, so that a caller needs no task of its own."""

    async def open(self) -> None:
        """Open the store, creating it if it is not there. Idempotent.

        Raises:
            LedgerUnavailable: not readable, not writable, of a newer version.
        """
        ...

    async def close(self) -> None:
        """Finish the commits in flight and release every file, thread and lock. Idempotent."""
        ...

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """Carry out all ops or none, durably (M1).

        Must not be abandoned: a caller that is cancelled while it waits first learns the commit's fate
        (`commit` shields itself and re-raises the cancellation after the outcome is known).

        Raises:
            LedgerConflict: a condition did not hold; `op` says which.
            LedgerUnavailable: disk full, closed.
        """
        ...

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """Hand a commit in without waiting: its place in the order is taken before this returns.

        The outcome holds what `commit` would return or raise. Nobody needs to await it at once, and nobody can cancel it.
        """
        ...

    async def thread(self, key: ThreadKey) -> ThreadRow | None:
        """The row of a thread that is not deleted, or None."""
        ...

    async def child_thread(
        self, parent: ThreadKey, *, agent_key: str | None = None, label: str | None = None
    ) -> ThreadRow | None:
        """The roster child of any thread in `parent`'s session with this agent key, or with this label (case folded)."""
        ...

    async def threads(
        self, *, user: str | None = None, session: str | None = None, hidden: bool = False, limit: int = 100
    ) -> list[ThreadRow]:
        """Threads, newest `updated_at` first. `user` None: of every user. Hidden ones only if asked for, deleted ones never."""
        ...

    async def children(self, parent: ThreadKey) -> list[ThreadRow]:
        """Threads whose `parent` is this one, oldest first, hidden ones too."""
        ...

    async def journal(self, key: ThreadKey) -> Journal | None:
        """The whole history of a thread, or None if there is no such thread."""
        ...

    async def records(self, key: ThreadKey, *, generation: int, after: int = 0, limit: int | None = None) -> list[Record]:
        """Records of one generation with seq > `after`, in order. A viewer's cursor."""
        ...

    async def run(self, run_id: str) -> RunRow | None:
        """The row of a run."""
        ...

    async def last_run(self, key: ThreadKey) -> RunRow | None:
        """The run that was started last on a thread."""
        ...

    async def runs(
        self, *, states: Sequence[RunState] = (), roots_only: bool = False, user: str | None = None, limit: int = 100
    ) -> list[RunRow]:
        """Runs, newest first, of the given states (none given: all)."""
        ...

    async def tree(self, root_run: str) -> list[RunRow]:
        """All runs whose root is `root_run`, itself included, oldest first."""
        ...

    async def cancel_intent(self, lineage: Sequence[str]) -> str | None:
        """The reason of a cancel intent on any run of a lineage, or None (M8)."""
        ...

    async def news(self, runs: Sequence[str], *, since: int | None = None) -> News:
        """Which of these runs are to be stopped, and to which threads letters came since the cursor (None: ever)."""
        ...

    async def invocation(self, invocation_id: str) -> InvocationRow | None:
        """The row of a delegation."""
        ...

    async def invocations(
        self,
        *,
        parent_run: str | None = None,
        root_run: str | None = None,
        child: ThreadKey | None = None,
        state: InvocationState | None = None,
    ) -> list[InvocationRow]:
        """Delegations by the run that made them, by tree, by the child's thread, or by state, oldest first."""
        ...

    async def task(self, task_id: str) -> InvocationRow | None:
        """The delegation that runs in the background under this id."""
        ...

    async def tasks(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        root_run: str | None = None,
        unfinished: bool = False,
        limit: int = 100,
    ) -> list[InvocationRow]:
        """Delegations in the background, newest first: of a user, of the session that they were given in, of a tree, or only
        those that have not ended. `user` None: of every user."""
        ...

    async def request(self, request_id: str) -> RequestRow | None:
        """The row of a request."""
        ...

    async def requests(
        self,
        *,
        root_run: str | None = None,
        root: ThreadKey | None = None,
        user: str | None = None,
        session: str | None = None,
        state: RequestState | None = None,
    ) -> list[RequestRow]:
        """Requests by tree, by root thread, or by the root thread's user and session, oldest first."""
        ...

    async def mail(self, key: ThreadKey) -> list[Mail]:
        """What lies in a thread's mailbox, oldest first. Of a letter that cannot be read the id is known: it is given with the
        kind `DAMAGED_MAIL` and what is wrong as its body, so that it can be taken out.
        """
        ...

    async def draft(self, key: ThreadKey) -> Draft | None:
        """The newest draft of a thread."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """The bytes with this hash."""
        ...

    async def state(self, user: str, session: str) -> dict[str, bytes]:
        """Session-wide state as raw JSON by name."""
        ...

    async def spends(self, root_run: str) -> list[SpendRow]:
        """What the runs of a tree have used that are under a budget, by run id."""
        ...

    async def owner(self, owner_id: str) -> OwnerRow | None:
        """The row of an owner."""
        ...

    async def owner_alive(self, owner_id: str) -> bool:
        """Whether the process of this owner lives (M7). False for one that is not registered."""
        ...

    async def purge(self, key: ThreadKey) -> int:
        """Remove a thread for good, after copying what live forks refer to into them (M12).

        With it go its journal, drafts and mail, the runs on it with their cancel intents, the delegations from and to it and
        the requests asked in it; with the last thread of a session also the session's state. Returns how many records it had.

        Raises:
            LedgerConflict: `state`, while a run of a tree that the thread takes part in is not finished.
        """
        ...

    async def collect(
        self,
        *,
        now: int,
        grace_ms: int = COLLECT_GRACE_MS,
        dry_run: bool = False,
        progress: Callable[[Collected], None] | None = None,
    ) -> Collected:
        """Remove what nothing refers to, in small commits between which everybody else comes to their turn.

        * Threads that were deleted and that no other thread's history needs, unless a run of theirs is not finished.
        * Blobs whose hash stands in no record and no row. A process remembers which blobs it has put, for at most an hour
          (`Services.blob_due`), and may refer to them again: so while any owner lives, such a blob is condemned first, and
          removed by a collection after `grace_ms` unless it was put again.
        * Drafts and the ids of taken mail that are older than `grace_ms`, of threads without an unfinished run.
        * Owners that are dead and hold no unfinished run.

        `now` is in milliseconds since the epoch. `dry_run` only counts. `progress` is told the sums so far.
        """
        ...
