"""The ledger in memory: everything is kept until the process ends; a commit is applied at once, without suspending.

The reference for other backends: it keeps each promise of `port` in the plainest way.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from retinue.ledger import rules
from retinue.ledger.port import Journal
from retinue.ops import (
    Append,
    CreateThread,
    Draft,
    DropDraft,
    DropOwner,
    HideThread,
    Op,
    OpenGeneration,
    PutBlob,
    PutDraft,
    PutInvocation,
    PutMail,
    PutOwner,
    PutRequest,
    PutRun,
    PutState,
    Receipt,
    Record,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, InvocationRow, Mail, OwnerRow, RequestRow, RunRow, ThreadKey, ThreadRow
from retinue.states import RequestState, RunState

__all__ = ["MemoryLedger"]

_K = TypeVar("_K")
_V = TypeVar("_V")
_Undo = list[Callable[[], object]]
_ABSENT: Final = object()


class _Thread:
    """One thread: its row without what moves, and what moves. `records` is the current one of `segments`."""

    __slots__ = ("bases", "deleted", "drafts", "generation", "mail", "records", "row", "segments", "updated_at")

    def __init__(self, row: ThreadRow) -> None:
        self.row = row
        self.updated_at = row.updated_at or row.created_at
        self.generation = 1
        self.records: list[Record] = []
        self.segments = {1: self.records}
        self.bases: dict[int, ForkPoint] = {} if row.base is None else {1: row.base}
        self.deleted = False
        self.mail: dict[str, Mail | None] = {}  # None: it was here and has been taken
        self.drafts: dict[str, Draft] = {}

    def current(self) -> ThreadRow:
        return msgspec.structs.replace(
            self.row,
            updated_at=self.updated_at,
            generation=self.generation,
            head=len(self.records),
            base=self.bases.get(self.generation),
        )

    def adopt(self, generation: int, base: ForkPoint, gone: "_Thread") -> None:
        """Copy what `base` names of `gone`, which is to be purged, into a generation of our own below 1 (M12)."""
        older = gone.bases.get(base.generation)
        if base.seq:
            copy = min(self.segments) - 1
            self.segments[copy] = [
                msgspec.structs.replace(record, key=self.row.key, generation=copy)
                for record in gone.segments[base.generation][: base.seq]
            ]
            self.bases[generation] = ForkPoint(self.row.key, copy, base.seq)
            generation = copy
        if older is not None:
            self.bases[generation] = older
        elif not base.seq:
            del self.bases[generation]


class MemoryLedger:
    """A `Ledger` (see `port`) that lives in this process only. `close` keeps what is stored: `open` finds it again."""

    def __init__(self) -> None:
        self.url = "memory"
        self._open = False
        self._threads: dict[ThreadKey, _Thread] = {}
        self._runs: dict[str, RunRow] = {}
        self._runs_on: dict[ThreadKey, list[str]] = {}
        self._runs_under: dict[str, list[str]] = {}
        self._cancels: dict[str, str] = {}
        self._invocations: dict[str, InvocationRow] = {}
        self._requests: dict[str, RequestRow] = {}
        self._blobs: dict[str, bytes] = {}
        self._states: dict[tuple[str, str], dict[str, bytes]] = {}
        self._owners: dict[str, OwnerRow] = {}
        self._apply: dict[type, Callable[[Any, _Undo], object]] = {
            Append: self._append,
            CreateThread: self._create,
            OpenGeneration: self._open_generation,
            HideThread: self._hide,
            PutRun: self._put_run,
            PutInvocation: self._put_invocation,
            PutRequest: self._put_request,
            PutMail: self._put_mail,
            TakeMail: self._take_mail,
            RequestCancel: self._request_cancel,
            PutDraft: self._put_draft,
            DropDraft: self._drop_draft,
            PutBlob: self._put_blob,
            PutState: self._put_state,
            PutOwner: self._put_owner,
            DropOwner: self._drop_owner,
        }

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

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[Receipt]:
        """See `Ledger`. The future is done already."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._commit(ops))
        except Exception as error:  # noqa: BLE001 (the future holds it)
            future.set_exception(error)
            future.exception()  # seen: whoever does not await the future does not want it logged
        return future

    def _commit(self, ops: Sequence[Op]) -> Receipt:
        if not self._open:
            raise rules.not_open(self.url)
        undo: _Undo = []
        heads: dict[ThreadKey, tuple[int, int]] = {}
        apply = self._apply
        try:
            for op in ops:
                apply[type(op)](op, undo)
                if type(op) is Append:
                    heads[op.key] = (op.generation, op.head + len(op.events))
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        return Receipt(heads)

    def _append(self, op: Append, undo: _Undo) -> None:
        key, generation, seq = op.key, op.generation, op.head
        thread = self._threads.get(key)
        if thread is None or thread.generation != generation or len(thread.records) != seq:
            rules.check_append(op, _place(thread))
            return
        records = thread.records
        undo.append(partial(_cut, thread, seq, thread.updated_at))
        for event in op.events:
            seq += 1
            records.append(Record(key, generation, seq, event.type, event.run, event.attempt, event.at, event.body))
        if op.events:
            thread.updated_at = op.events[-1].at

    def _create(self, op: CreateThread, undo: _Undo) -> None:
        rules.check_create(op, op.row.key in self._threads)
        if op.row.base is not None:
            rules.check_base(op, op.row.base, self._segment_head(op.row.base))
        _put(self._threads, op.row.key, _Thread(op.row), undo)

    def _open_generation(self, op: OpenGeneration, undo: _Undo) -> None:
        thread = self._threads.get(op.key)
        rules.check_generation(op, _place(thread))
        if op.base is not None:
            rules.check_base(op, op.base, self._segment_head(op.base))
        assert thread is not None  # checked above
        undo.append(partial(_reopen, thread))
        thread.generation = op.generation
        thread.records = thread.segments[op.generation] = []
        if op.base is not None:
            thread.bases[op.generation] = op.base

    def _hide(self, op: HideThread, undo: _Undo) -> None:
        thread = self._existing(op)
        undo.append(partial(setattr, thread, "deleted", thread.deleted))
        thread.deleted = True

    def _put_run(self, op: PutRun, undo: _Undo) -> None:
        row = op.row
        stored = self._runs.get(row.run_id)
        rules.check_run(op, stored and (stored.state, stored.attempt), self._intent(row.lineage))
        _put(self._runs, row.run_id, row, undo)
        if stored is None:
            on_thread = self._runs_on.setdefault(row.key, [])
            under_root = self._runs_under.setdefault(row.root, [])
            on_thread.append(row.run_id)
            under_root.append(row.run_id)
            undo += (on_thread.pop, under_root.pop)

    def _put_invocation(self, op: PutInvocation, undo: _Undo) -> None:
        stored = self._invocations.get(op.row.invocation_id)
        rules.check_invocation(op, stored and (stored.state, stored.attempt))
        _put(self._invocations, op.row.invocation_id, op.row, undo)

    def _put_request(self, op: PutRequest, undo: _Undo) -> None:
        stored = self._requests.get(op.row.request_id)
        rules.check_request(op, stored and stored.state)
        _put(self._requests, op.row.request_id, op.row, undo)

    def _put_mail(self, op: PutMail, undo: _Undo) -> None:
        thread = self._existing(op)
        if op.mail.mail_id not in thread.mail:
            _put(thread.mail, op.mail.mail_id, op.mail, undo)

    def _take_mail(self, op: TakeMail, undo: _Undo) -> None:
        thread = self._threads.get(op.key)
        rules.check_taken(op, thread is not None and thread.mail.get(op.mail_id) is not None)
        assert thread is not None  # checked above
        _put(thread.mail, op.mail_id, None, undo)

    def _request_cancel(self, op: RequestCancel, undo: _Undo) -> None:
        rules.check_cancel(op, op.run_id in self._runs)
        if op.run_id not in self._cancels:
            _put(self._cancels, op.run_id, op.reason, undo)

    def _put_draft(self, op: PutDraft, undo: _Undo) -> None:
        thread = self._existing(op)
        undo.append(partial(setattr, thread, "drafts", dict(thread.drafts)))
        thread.drafts.pop(op.draft.message_id, None)  # so that the newest is the last
        thread.drafts[op.draft.message_id] = op.draft

    def _drop_draft(self, op: DropDraft, undo: _Undo) -> None:
        thread = self._threads.get(op.key)
        if thread is not None and op.message_id in thread.drafts:
            undo.append(partial(setattr, thread, "drafts", dict(thread.drafts)))
            del thread.drafts[op.message_id]

    def _put_blob(self, op: PutBlob, undo: _Undo) -> None:
        if op.digest not in self._blobs:
            _put(self._blobs, op.digest, op.data, undo)

    def _put_state(self, op: PutState, undo: _Undo) -> None:
        _put(self._states.setdefault((op.user, op.session), {}), op.name, bytes(op.value), undo)

    def _put_owner(self, op: PutOwner, undo: _Undo) -> None:
        _put(self._owners, op.row.owner_id, op.row, undo)

    def _drop_owner(self, op: DropOwner, undo: _Undo) -> None:
        row = self._owners.pop(op.owner_id, None)
        if row is not None:
            undo.append(partial(self._owners.__setitem__, op.owner_id, row))

    async def purge(self, key: ThreadKey) -> int:
        """See `Ledger`."""
        self._check_open()
        gone = self._threads.get(key)
        if gone is None:
            return 0
        unfinished = (run_id for run_id in self._runs_on.get(key, ()) if self._runs[run_id].state in rules.UNFINISHED)
        rules.check_purge(key, next(unfinished, None))
        for thread in self._threads.values():
            while thread is not gone and (referring := [item for item in thread.bases.items() if item[1].key == key]):
                for generation, base in referring:
                    thread.adopt(generation, base, gone)
        del self._threads[key]
        return sum(map(len, gone.segments.values()))

    # ------------------------------------------------------------------ reading

    async def thread(self, key: ThreadKey) -> ThreadRow | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._threads.get(key)
        return None if thread is None or thread.deleted else thread.current()

    async def child_thread(
        self, parent: ThreadKey, *, agent_key: str | None = None, label: str | None = None
    ) -> ThreadRow | None:
        """See `Ledger`. The newest, if a label was used twice."""
        self._check_open()
        folded = label and label.casefold()
        for thread in reversed(self._threads.values()):
            row = thread.row
            if thread.deleted or row.parent is None or row.parent[:2] != parent[:2]:
                continue
            if (agent_key and row.agent_key == agent_key) or (folded and row.label and row.label.casefold() == folded):
                return thread.current()
        return None

    async def threads(
        self, *, user: str | None = None, session: str | None = None, hidden: bool = False, limit: int = 100
    ) -> list[ThreadRow]:
        """See `Ledger`."""
        self._check_open()
        found = [
            thread
            for key, thread in self._threads.items()
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
        return [thread.current() for thread in self._threads.values() if thread.row.parent == parent and not thread.deleted]

    async def journal(self, key: ThreadKey) -> Journal | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._threads.get(key)
        if thread is None or thread.deleted:
            return None
        row = thread.current()
        pieces: list[list[Record]] = []
        base = row.base
        while base is not None:
            source = self._threads[base.key]
            pieces.append(source.segments[base.generation][: base.seq])
            base = source.bases.get(base.generation)
        inherited = tuple(record for piece in reversed(pieces) for record in piece)
        return Journal(row, inherited, tuple(thread.records))

    async def records(self, key: ThreadKey, *, generation: int, after: int = 0, limit: int | None = None) -> list[Record]:
        """See `Ledger`."""
        self._check_open()
        thread = self._threads.get(key)
        if thread is None or thread.deleted:
            return []
        after = max(after, 0)
        return thread.segments.get(generation, [])[after : None if limit is None else after + limit]

    async def run(self, run_id: str) -> RunRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._runs.get(run_id)

    async def last_run(self, key: ThreadKey) -> RunRow | None:
        """See `Ledger`."""
        self._check_open()
        ids = self._runs_on.get(key)
        return self._runs[ids[-1]] if ids else None

    async def runs(
        self, *, states: Sequence[RunState] = (), roots_only: bool = False, user: str | None = None, limit: int = 100
    ) -> list[RunRow]:
        """See `Ledger`."""
        self._check_open()
        found: list[RunRow] = []
        for row in reversed(self._runs.values()):
            if len(found) >= limit:
                break
            wanted = (not states or row.state in states) and (user is None or row.key.user == user)
            if wanted and not (roots_only and row.root != row.run_id):
                found.append(row)
        return found

    async def tree(self, root_run: str) -> list[RunRow]:
        """See `Ledger`."""
        self._check_open()
        return [self._runs[run_id] for run_id in self._runs_under.get(root_run, ())]

    async def cancel_intent(self, lineage: Sequence[str]) -> str | None:
        """See `Ledger`."""
        self._check_open()
        return self._intent(lineage)

    async def invocation(self, invocation_id: str) -> InvocationRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._invocations.get(invocation_id)

    async def invocations(
        self, *, parent_run: str | None = None, root_run: str | None = None, child: ThreadKey | None = None
    ) -> list[InvocationRow]:
        """See `Ledger`."""
        self._check_open()
        return [
            row
            for row in self._invocations.values()
            if (parent_run is None or row.parent_run == parent_run)
            and (root_run is None or row.root_run == root_run)
            and (child is None or row.child == child)
        ]

    async def request(self, request_id: str) -> RequestRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._requests.get(request_id)

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
            for row in self._requests.values()
            if (root_run is None or row.root_run == root_run)
            and (root is None or row.root == root)
            and (user is None or row.root.user == user)
            and (session is None or row.root.session == session)
            and (state is None or row.state is state)
        ]

    async def mail(self, key: ThreadKey) -> list[Mail]:
        """See `Ledger`."""
        self._check_open()
        thread = self._threads.get(key)
        return [] if thread is None else [mail for mail in thread.mail.values() if mail is not None]

    async def draft(self, key: ThreadKey) -> Draft | None:
        """See `Ledger`."""
        self._check_open()
        thread = self._threads.get(key)
        return next(reversed(thread.drafts.values()), None) if thread is not None else None

    async def blob(self, digest: str) -> bytes | None:
        """See `Ledger`."""
        self._check_open()
        return self._blobs.get(digest)

    async def state(self, user: str, session: str) -> dict[str, bytes]:
        """See `Ledger`."""
        self._check_open()
        return dict(self._states.get((user, session), {}))

    async def owner(self, owner_id: str) -> OwnerRow | None:
        """See `Ledger`."""
        self._check_open()
        return self._owners.get(owner_id)

    async def owner_alive(self, owner_id: str) -> bool:
        """See `Ledger`. An owner in memory lives as long as its ledger is open."""
        return self._open and owner_id in self._owners

    # ------------------------------------------------------------------ helpers

    def _check_open(self) -> None:
        if not self._open:
            raise rules.not_open(self.url)

    def _existing(self, op: HideThread | PutMail | PutDraft) -> _Thread:
        thread = self._threads.get(op.key)
        rules.check_thread(op, thread is not None)
        assert thread is not None  # checked above
        return thread

    def _segment_head(self, base: ForkPoint) -> int | None:
        source = self._threads.get(base.key)
        segment = source and source.segments.get(base.generation)
        return None if segment is None else len(segment)

    def _intent(self, lineage: Sequence[str]) -> str | None:
        cancels = self._cancels
        if cancels:
            for run_id in lineage:
                if run_id in cancels:
                    return cancels[run_id]
        return None


def _place(thread: _Thread | None) -> tuple[int, int] | None:
    return None if thread is None else (thread.generation, len(thread.records))


def _put(mapping: dict[_K, _V], key: _K, value: _V, undo: _Undo) -> None:
    old: Any = mapping.get(key, _ABSENT)
    undo.append(partial(mapping.pop, key) if old is _ABSENT else partial(mapping.__setitem__, key, old))
    mapping[key] = value


def _cut(thread: _Thread, head: int, updated_at: int) -> None:
    del thread.records[head:]
    thread.updated_at = updated_at


def _reopen(thread: _Thread) -> None:
    thread.segments.pop(thread.generation)
    thread.bases.pop(thread.generation, None)
    thread.generation -= 1
    thread.records = thread.segments[thread.generation]
