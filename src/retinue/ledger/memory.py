"""The ledger in memory: everything is kept until the process ends; a commit is applied at once, without suspending.

The reference for other backends: it keeps each promise of `port` in the plainest way.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from retinue.ledger import rules
from retinue.ledger.port import COLLECT_GRACE_MS, Collected, Journal, News, Outcome
from retinue.ledger.tables import Tables
from retinue.ops import Draft, Op, Receipt, Record
from retinue.rows import InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """A `Ledger` (see `port`) that lives in this process only. `close` keeps what is stored: `open` finds it again."""

    def __init__(self) -> None:
        self.url = "memory"
        self.immediate = True
        self.shared = False
        self._open = False
        self._tables = Tables()

    async def open(self) -> None:
        """See `Ledger`."""
        self._open = True

    async def close(self) -> None:
        """See `Ledger`."""
        self._open = False

    # ------------------------------------------------------------------ writing

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """See `Ledger`. Never suspends."""
        return self._commit(ops)

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger`. It is known already."""
        future: Outcome[Receipt] = Outcome()
        try:
            future.set_result(self._commit(ops))
        except Exception as error:  # noqa: BLE001 (the future holds it)
            future.set_exception(error)
            future.exception()  # seen: whoever does not await the future does not want it logged
        return future

    def _commit(self, ops: Sequence[Op]) -> Receipt:
        if not self._open:
            raise rules.not_open(self.url)
        return self._tables.commit(ops)

    async def purge(self, key: ThreadKey) -> int:
        """See `Ledger`."""
        from retinue.ledger import tables_removal  # few processes remove anything

        self._check_open()
        return tables_removal.purge(self._tables, key)

    async def collect(
        self,
        *,
        now: int,
        grace_ms: int = COLLECT_GRACE_MS,
        dry_run: bool = False,
        progress: Callable[[Collected], None] | None = None,
    ) -> Collected:
        """See `Ledger`. Owners live as long as the ledger is open."""
        from retinue.ledger import tables_removal

        self._check_open()
        collected = tables_removal.collect(self._tables, now, grace_ms, dry_run)
        if progress is not None and not dry_run:
            progress(collected)
        return collected

    # ------------------------------------------------------------------ reading

    async def thread(self, key: ThreadKey) -> ThreadRow | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._tables.threads.get(key)
        return None if thread is None or thread.deleted else thread.current()

    async def child_thread(
        self, parent: ThreadKey, *, agent_key: str | None = None, label: str | None = None
    ) -> ThreadRow | None:
        """See `Ledger`."""
        self._check_open()
        folded = rules.label_key(label)
        for thread in reversed(self._tables.threads.values()):
            row = thread.row
            if thread.deleted or row.parent is None or row.parent[:2] != parent[:2]:
                continue
            if (agent_key and row.agent_key == agent_key) or (folded and rules.label_key(row.label) == folded):
                return thread.current()
        return None

    async def threads(
        self, *, user: str | None = None, session: str | None = None, hidden: bool = False, limit: int = 100
    ) -> list[ThreadRow]:
        """See `Ledger`."""
        self._check_open()
        found = [
            thread
            for key, thread in self._tables.threads.items()
            if (user is None or key.user == user)
            and (session is None or key.session == session)
            and not thread.deleted
            and (hidden or not thread.row.hidden)
        ]
        found.reverse()
        found.sort(key=lambda thread: -thread.updated_at)
        return [thread.current() for thread in found[:limit]]

    async def children(self, parent: ThreadKey) -> list[ThreadRow]:
        """See `Ledger`."""
        self._check_open()
        return [
            thread.current() for thread in self._tables.threads.values() if thread.row.parent == parent and not thread.deleted
        ]

    async def journal(self, key: ThreadKey) -> Journal | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._tables.threads.get(key)
        if thread is None or thread.deleted:
            return None
        row = thread.current()
        pieces: list[list[Record]] = []
        base = row.base
        while base is not None:
            source = self._tables.threads[base.key]
            pieces.append(source.segments[base.generation][: base.seq])
            base = source.bases.get(base.generation)
        inherited = tuple(record for piece in reversed(pieces) for record in piece)
        return Journal(row, inherited, tuple(thread.records))

    async def records(self, key: ThreadKey, *, generation: int, after: int = 0, limit: int | None = None) -> list[Record]:
        """See `Ledger`."""
        self._check_open()
        thread = self._tables.threads.get(key)
        if thread is None or thread.deleted:
            return []
        after = max(after, 0)
        return thread.segments.get(generation, [])[after : None if limit is None else after + limit]

    async def run(self, run_id: str) -> RunRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.runs.get(run_id)

    async def last_run(self, key: ThreadKey) -> RunRow | None:
        """See `Ledger`."""
        self._check_open()
        ids = self._tables.runs_on.get(key)
        return self._tables.runs[ids[-1]] if ids else None

    async def runs(
        self, *, states: Sequence[RunState] = (), roots_only: bool = False, user: str | None = None, limit: int = 100
    ) -> list[RunRow]:
        """See `Ledger`."""
        self._check_open()
        found: list[RunRow] = []
        for row in reversed(self._tables.runs.values()):
            if len(found) >= limit:
                break
            wanted = (not states or row.state in states) and (user is None or row.key.user == user)
            if wanted and not (roots_only and row.root != row.run_id):
                found.append(row)
        return found

    async def tree(self, root_run: str) -> list[RunRow]:
        """See `Ledger`."""
        self._check_open()
        return [self._tables.runs[run_id] for run_id in self._tables.runs_under.get(root_run, ())]

    async def cancel_intent(self, lineage: Sequence[str]) -> str | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.intent(lineage)

    async def news(self, runs: Sequence[str], *, since: int | None = None) -> News:
        """See `Ledger`."""
        self._check_open()
        tables = self._tables
        stops = {run_id: tables.cancels[run_id] for run_id in runs if run_id in tables.cancels}
        came = tuple(key for key, thread in tables.threads.items() if any(mail is not None for mail in thread.mail.values()))
        return News(cursor=0, stops=stops, mail=came)

    async def invocation(self, invocation_id: str) -> InvocationRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.invocations.get(invocation_id)

    async def invocations(
        self,
        *,
        parent_run: str | None = None,
        root_run: str | None = None,
        child: ThreadKey | None = None,
        state: InvocationState | None = None,
    ) -> list[InvocationRow]:
        """See `Ledger`."""
        self._check_open()
        return [
            row
            for row in self._tables.invocations.values()
            if (parent_run is None or row.parent_run == parent_run)
            and (root_run is None or row.root_run == root_run)
            and (child is None or row.child == child)
            and (state is None or row.state is state)
        ]

    async def task(self, task_id: str) -> InvocationRow | None:
        """See `Ledger`."""
        self._check_open()
        return next((row for row in self._tables.invocations.values() if row.task_id == task_id), None)

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
        self._check_open()
        found = (
            row
            for row in reversed(self._tables.invocations.values())
            if row.task_id is not None
            and user in (None, row.parent.user)
            and session in (None, row.parent.session)
            and root_run in (None, row.root_run)
            and not (unfinished and row.state.terminal)
        )
        return list(islice(found, limit))

    async def request(self, request_id: str) -> RequestRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.requests.get(request_id)

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
        self._check_open()
        return [
            row
            for row in self._tables.requests.values()
            if (root_run is None or row.root_run == root_run)
            and (root is None or row.root == root)
            and (user is None or row.root.user == user)
            and (session is None or row.root.session == session)
            and (state is None or row.state is state)
        ]

    async def mail(self, key: ThreadKey) -> list[Mail]:
        """See `Ledger`."""
        self._check_open()
        thread = self._tables.threads.get(key)
        return [] if thread is None else [mail for mail in thread.mail.values() if mail is not None]

    async def draft(self, key: ThreadKey) -> Draft | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._tables.threads.get(key)
        return next(reversed(thread.drafts.values()), None) if thread is not None else None

    async def blob(self, digest: str) -> bytes | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.blobs.get(digest)

    async def state(self, user: str, session: str) -> dict[str, bytes]:
        """See `Ledger`."""
        self._check_open()
        return dict(self._tables.states.get((user, session), {}))

    async def spends(self, root_run: str) -> list[SpendRow]:
        """See `Ledger`."""
        self._check_open()
        return sorted(self._tables.spends.get(root_run, {}).values(), key=lambda row: row.run_id)

    async def owner(self, owner_id: str) -> OwnerRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._tables.owners.get(owner_id)

    async def owner_alive(self, owner_id: str) -> bool:
        """See `Ledger`. An owner in memory lives as long as its ledger is open."""
        return self._open and owner_id in self._tables.owners

    def _check_open(self) -> None:
        if not self._open:
            raise rules.not_open(self.url)
