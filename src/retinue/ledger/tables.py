"""What the memory ledger keeps, and the ops on it. Each op is undone if a later one of its commit does not hold."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from retinue.ledger import rules
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
    PutSpend,
    PutState,
    Receipt,
    Record,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow

__all__ = ["Tables", "Thread"]

_K = TypeVar("_K")
_V = TypeVar("_V")
_Undo = list[Callable[[], object]]
_ABSENT: Final = object()


class Thread:
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

    def adopt(self, generation: int, base: ForkPoint, gone: "Thread") -> None:
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


class Tables:
    """The rows by id, in the order of their creation, and the threads with their journals."""

    def __init__(self) -> None:
        self.threads: dict[ThreadKey, Thread] = {}
        self.labels: dict[tuple[str, str, str], ThreadKey] = {}  # the last thread that took each label in a session
        self.runs: dict[str, RunRow] = {}
        self.runs_on: dict[ThreadKey, list[str]] = {}
        self.runs_under: dict[str, list[str]] = {}
        self.cancels: dict[str, str] = {}
        self.invocations: dict[str, InvocationRow] = {}
        self.requests: dict[str, RequestRow] = {}
        self.blobs: dict[str, bytes] = {}
        self.condemned: dict[str, int] = {}  # since when nothing has referred to a blob
        self.states: dict[tuple[str, str], dict[str, bytes]] = {}
        self.owners: dict[str, OwnerRow] = {}
        self.spends: dict[str, dict[str, SpendRow]] = {}
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
            PutSpend: self._put_spend,
            PutOwner: self._put_owner,
            DropOwner: self._drop_owner,
        }

    def commit(self, ops: Sequence[Op]) -> Receipt:
        """Carry out all ops, or undo those that were carried out and raise."""
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
        thread = self.threads.get(key)
        run = self.runs.get(op.events[0].run) if op.events else None
        fenced = run is not None and rules.superseded(op, run.attempt)
        if thread is None or thread.generation != generation or len(thread.records) != seq or fenced:
            rules.check_append(op, _place(thread), run and run.attempt)
            return
        records = thread.records
        undo.append(partial(_cut, thread, seq, thread.updated_at))
        for event in op.events:
            seq += 1
            records.append(Record(key, generation, seq, event.type, event.run, event.attempt, event.at, event.body))
        if op.events:
            thread.updated_at = op.events[-1].at

    def _create(self, op: CreateThread, undo: _Undo) -> None:
        label = _label(op.row)
        holder = None if label is None else self._holder(label)
        rules.check_create(op, op.row.key in self.threads, None if holder is None else holder.agent_key or "")
        if op.row.base is not None:
            rules.check_base(op, op.row.base, self._segment_head(op.row.base))
        _put(self.threads, op.row.key, Thread(op.row), undo)
        if label is not None:
            _put(self.labels, label, op.row.key, undo)

    def _open_generation(self, op: OpenGeneration, undo: _Undo) -> None:
        thread = self.threads.get(op.key)
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
        stored = self.runs.get(row.run_id)
        rules.check_run(op, stored and (stored.state, stored.attempt), self.intent(row.lineage))
        _put(self.runs, row.run_id, row, undo)
        if stored is None:
            on_thread = self.runs_on.setdefault(row.key, [])
            under_root = self.runs_under.setdefault(row.root, [])
            on_thread.append(row.run_id)
            under_root.append(row.run_id)
            undo += (on_thread.pop, under_root.pop)

    def _put_invocation(self, op: PutInvocation, undo: _Undo) -> None:
        stored = self.invocations.get(op.row.invocation_id)
        rules.check_invocation(op, stored and (stored.state, stored.attempt))
        _put(self.invocations, op.row.invocation_id, op.row, undo)

    def _put_request(self, op: PutRequest, undo: _Undo) -> None:
        stored = self.requests.get(op.row.request_id)
        rules.check_request(op, stored and stored.state)
        _put(self.requests, op.row.request_id, op.row, undo)

    def _put_mail(self, op: PutMail, undo: _Undo) -> None:
        thread = self._existing(op)
        if op.mail.mail_id not in thread.mail:
            _put(thread.mail, op.mail.mail_id, op.mail, undo)

    def _take_mail(self, op: TakeMail, undo: _Undo) -> None:
        thread = self.threads.get(op.key)
        rules.check_taken(op, thread is not None and thread.mail.get(op.mail_id) is not None)
        assert thread is not None  # checked above
        _put(thread.mail, op.mail_id, None, undo)

    def _request_cancel(self, op: RequestCancel, undo: _Undo) -> None:
        rules.check_cancel(op, op.run_id in self.runs)
        if op.run_id not in self.cancels:
            _put(self.cancels, op.run_id, op.reason, undo)

    def _put_draft(self, op: PutDraft, undo: _Undo) -> None:
        thread = self._existing(op)
        undo.append(partial(setattr, thread, "drafts", dict(thread.drafts)))
        thread.drafts.pop(op.draft.message_id, None)  # so that the newest is the last
        thread.drafts[op.draft.message_id] = op.draft

    def _drop_draft(self, op: DropDraft, undo: _Undo) -> None:
        thread = self.threads.get(op.key)
        if thread is not None and op.message_id in thread.drafts:
            undo.append(partial(setattr, thread, "drafts", dict(thread.drafts)))
            del thread.drafts[op.message_id]

    def _put_blob(self, op: PutBlob, undo: _Undo) -> None:
        if op.digest not in self.blobs:
            _put(self.blobs, op.digest, op.data, undo)
        elif op.digest in self.condemned:
            undo.append(partial(self.condemned.__setitem__, op.digest, self.condemned.pop(op.digest)))

    def _put_state(self, op: PutState, undo: _Undo) -> None:
        kept = self.states.setdefault((op.user, op.session), {})
        if op.expect is not msgspec.UNSET:
            rules.check_state(op, kept.get(op.name))
        _put(kept, op.name, bytes(op.value), undo)

    def _put_spend(self, op: PutSpend, undo: _Undo) -> None:
        _put(self.spends.setdefault(op.row.root, {}), op.row.run_id, op.row, undo)

    def _put_owner(self, op: PutOwner, undo: _Undo) -> None:
        _put(self.owners, op.row.owner_id, op.row, undo)

    def _drop_owner(self, op: DropOwner, undo: _Undo) -> None:
        row = self.owners.pop(op.owner_id, None)
        if row is not None:
            undo.append(partial(self.owners.__setitem__, op.owner_id, row))

    def _existing(self, op: HideThread | PutMail | PutDraft) -> Thread:
        thread = self.threads.get(op.key)
        rules.check_thread(op, thread is not None)
        assert thread is not None  # checked above
        return thread

    def _holder(self, label: tuple[str, str, str]) -> ThreadRow | None:
        """The row of the thread that has a label now: who took it may be deleted, or purged and made again without it."""
        key = self.labels.get(label)
        thread = None if key is None else self.threads.get(key)
        return thread.row if thread is not None and not thread.deleted and _label(thread.row) == label else None

    def _segment_head(self, base: ForkPoint) -> int | None:
        source = self.threads.get(base.key)
        segment = source and source.segments.get(base.generation)
        return None if segment is None else len(segment)

    def intent(self, lineage: Sequence[str]) -> str | None:
        """The reason of the first cancel intent on a lineage, root first."""
        cancels = self.cancels
        if cancels:
            for run_id in lineage:
                if run_id in cancels:
                    return cancels[run_id]
        return None


def _label(row: ThreadRow) -> tuple[str, str, str] | None:
    """The label of a thread with the session that it belongs to: that of the thread which made it."""
    label = rules.label_key(row.label)
    return None if label is None or row.parent is None else (row.parent.user, row.parent.session, label)


def _place(thread: Thread | None) -> tuple[int, int] | None:
    return None if thread is None else (thread.generation, len(thread.records))


def _put(mapping: dict[_K, _V], key: _K, value: _V, undo: _Undo) -> None:
    old: Any = mapping.get(key, _ABSENT)
    undo.append(partial(mapping.pop, key) if old is _ABSENT else partial(mapping.__setitem__, key, old))
    mapping[key] = value


def _cut(thread: Thread, head: int, updated_at: int) -> None:
    del thread.records[head:]
    thread.updated_at = updated_at


def _reopen(thread: Thread) -> None:
    thread.segments.pop(thread.generation)
    thread.bases.pop(thread.generation, None)
    thread.generation -= 1
    thread.records = thread.segments[thread.generation]
