"""Each op as SQL. A function here carries out one op inside the open transaction, or raises before it has written anything.

The common case is one conditional statement; only where it found nothing is the row read, so that the rule can say why.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, Never

import msgspec

from retinue.errors import ConfigurationError, LedgerConflict
from retinue.ids import check_scope_id
from retinue.json_text import mend, mend_all
from retinue.ledger import rules
from retinue.ledger.sqlite.locks import OwnerLocks
from retinue.ops import (
    Append,
    CreateThread,
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
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = ["Writes", "intent_of"]

_json: Final = msgspec.json.Encoder().encode
_THREAD_ID: Final = "(SELECT id FROM thread WHERE user = ? AND session = ? AND thread = ?)"
_EVENT: Final = "INSERT INTO event(thread_id, generation, seq, type, run, attempt, at, body) VALUES "
_CHUNK: Final = 16
_IDS: Final = 5_000
"""How many threads' ids are remembered."""
_DISAGREE: Final = "the statement refused what the rules allow"
"""Never a receipt for what was not written."""
_EVENTS: Final = tuple(_EVENT + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * count) for count in range(_CHUNK + 1))
_SUPERSEDED: Final = "EXISTS (SELECT 1 FROM run WHERE run_id = ? AND attempt > ?)"
_ADVANCE: Final = (
    "UPDATE thread SET head = ?, updated_at = ? WHERE user = ? AND session = ? AND thread = ? AND generation = ? AND head = ?"
    f" AND deleted < 2 AND NOT {_SUPERSEDED} RETURNING id"
)
_ADVANCE_KNOWN: Final = (
    "UPDATE thread SET head = ?, updated_at = ? WHERE id = ? AND generation = ? AND head = ?"
    f" AND deleted < 2 AND NOT {_SUPERSEDED}"
)
_CREATE: Final = (
    "INSERT INTO thread(user, session, thread, generation, head, updated_at, hidden,"
    " parent_user, parent_session, parent_thread, agent_key, label, body)"
    f" SELECT ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE NOT {_SUPERSEDED} ON CONFLICT DO NOTHING"
)
_LABELLED: Final = (
    "SELECT coalesce(agent_key, '') FROM thread WHERE parent_user = ? AND parent_session = ? AND label = ? AND deleted = 0"
)
_INSERT_RUN: Final = (
    "INSERT INTO run(run_id, user, session, thread, root, state, attempt, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
_UPDATE_RUN: Final = "UPDATE run SET state = ?, attempt = ?, body = ? WHERE run_id = ? AND state = ? AND attempt = ?"
_INSERT_INVOCATION: Final = (
    "INSERT INTO invocation(invocation_id, parent_run, root_run, child_user, child_session, child_thread, state, attempt, body,"
    " task_id, task_user, task_session) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_UPDATE_INVOCATION: Final = (
    "UPDATE invocation SET state = ?, attempt = ?, body = ?, task_id = ?, task_user = ?, task_session = ?"
    " WHERE invocation_id = ? AND state = ? AND attempt = ?"
)
_INSERT_REQUEST: Final = (
    "INSERT INTO request(request_id, root_run, root_user, root_session, root_thread, state, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class Writes:
    """The ops, bound to the writer's connection and the lock files of owners."""

    def __init__(self, connection: sqlite3.Connection, locks: OwnerLocks) -> None:
        self._execute = connection.execute
        self._locks = locks
        self._events: list[tuple[Any, ...]] = []
        """Of the commit that is being carried out: they are written together, after its other ops."""
        self._ids: dict[ThreadKey, int] = {}
        """Threads that were written to: an id is never used again, unless what gave it to a thread was taken back."""
        self._cancels: bool | None = None
        """Whether there is a cancel intent at all; None until it was looked for in this transaction."""
        self.registered: list[str] = []
        """Owners whose lock was taken in this transaction; the writer gives it back if the transaction fails."""
        self.dropped: list[str] = []
        """Owners to let go of when this transaction is committed."""
        self._apply: Final[dict[type, Callable[[Any], object]]] = {
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

    def begin(self) -> None:
        """A transaction has begun: what was known of the store may have changed."""
        self._cancels = None
        if len(self._ids) > _IDS:
            self._ids.clear()

    def taken_back(self) -> None:
        """Something of the transaction was taken back."""
        self._ids.clear()

    def commit(self, ops: Sequence[Op]) -> Receipt:
        """All ops of one call. If this raises, the caller takes back what was written."""
        heads: dict[ThreadKey, tuple[int, int]] = {}
        self._events.clear()
        begun: Append | None = None
        for op, following in zip_longest(ops, ops[1:]):
            if isinstance(op, Append):
                if op is not begun:
                    self._append(op)
                begun = None
                heads[op.key] = (op.generation, op.head + len(op.events))
            elif isinstance(op, CreateThread) and isinstance(following, Append) and self._begin(op, following):
                begun = following
            else:
                self._apply[type(op)](op)
        if self._events:
            self._write_events()
        return Receipt(heads)

    # ------------------------------------------------------------------ threads

    def _append(self, op: Append) -> None:
        events = op.events
        if not events:
            rules.check_append(op, self._place(op.key), None)
            return
        first, moved = events[0], (op.head + len(events), events[-1].at)
        place = (op.generation, op.head, first.run, first.attempt)
        known = self._ids.get(op.key)
        if known is not None and self._execute(_ADVANCE_KNOWN, (*moved, known, *place)).rowcount == 1:
            self._keep_events(known, op)
            return
        found = self._execute(_ADVANCE, (*moved, *op.key, *place)).fetchone()
        if found is None:
            run = self._execute("SELECT attempt FROM run WHERE run_id = ?", (first.run,)).fetchone()
            rules.check_append(op, self._place(op.key), run and run[0])
            raise AssertionError(_DISAGREE)
        self._keep_events(found[0], op)

    def _keep_events(self, thread_id: int, op: Append) -> None:
        """To be written with all events of the commit."""
        self._ids[op.key] = thread_id
        generation, seq, kept = op.generation, op.head, self._events
        for event in op.events:
            seq += 1
            kept.append((thread_id, generation, seq, event.type, event.run, event.attempt, event.at, event.body))

    def _write_events(self) -> None:
        kept = self._events
        for start in range(0, len(kept), _CHUNK):
            chunk = kept[start : start + _CHUNK]
            self._execute(_EVENTS[len(chunk)], list(chain.from_iterable(chunk)))
        kept.clear()

    def _begin(self, op: CreateThread, first: Append) -> bool:
        """Create a thread with the head that its first events give it; False, and nothing is written, if that is not to be."""
        row, events = op.row, first.events
        if row.base is not None or first.key != row.key or first.generation != 1 or first.head != 0 or not events:
            return False
        cursor = self._insert_thread(row, len(events), events[-1].at, (events[0].run, events[0].attempt))
        if cursor.rowcount != 1:
            return False
        assert cursor.lastrowid is not None
        self._keep_events(cursor.lastrowid, first)
        return True

    def _create(self, op: CreateThread) -> None:
        row = op.row
        base = None if row.base is None else self._find_base(row.base)
        cursor = self._insert_thread(row, 0, row.updated_at or row.created_at, ("", 0))
        if cursor.rowcount != 1:
            there = self._execute("SELECT 1 FROM thread WHERE user = ? AND session = ? AND thread = ?", row.key).fetchone()
            parent, label = row.parent or (None, None, None), rules.label_key(row.label)
            labelled = self._execute(_LABELLED, (*parent[:2], label)).fetchone()
            rules.check_create(op, there is not None, labelled and labelled[0])
            raise AssertionError(_DISAGREE)
        if base is not None and row.base is not None:
            rules.check_base(op, row.base, base[3])
            self._execute("INSERT INTO fork VALUES (?, 1, ?, ?, ?)", (cursor.lastrowid, *base[:3]))

    def _insert_thread(self, row: ThreadRow, head: int, updated_at: int, fence: tuple[str, int]) -> sqlite3.Cursor:
        parent = row.parent or (None, None, None)
        label = rules.label_key(row.label)
        values = (*row.key, head, updated_at, int(row.hidden), *parent, row.agent_key, label, _encode(row), *fence)
        return self._execute(_CREATE, values)

    def _open_generation(self, op: OpenGeneration) -> None:
        rules.check_generation(op, self._place(op.key))
        base = None if op.base is None else self._find_base(op.base)
        if base is not None and op.base is not None:
            rules.check_base(op, op.base, base[3])
        self._execute(
            "UPDATE thread SET generation = ?, head = 0 WHERE user = ? AND session = ? AND thread = ?", (op.generation, *op.key)
        )
        if base is not None:
            self._execute(f"INSERT INTO fork VALUES ({_THREAD_ID}, ?, ?, ?, ?)", (*op.key, op.generation, *base[:3]))

    def _hide(self, op: HideThread) -> None:
        cursor = self._execute(
            "UPDATE thread SET deleted = 1 WHERE user = ? AND session = ? AND thread = ? AND deleted < 2", op.key
        )
        rules.check_thread(op, cursor.rowcount == 1)

    def _find_base(self, base: ForkPoint) -> tuple[int, int, int, int | None]:
        """The thread, generation and sequence number that `base` names, and the last that there is; None: no generation."""
        if self._events:
            self._write_events()
        found = self._execute(
            "SELECT id, generation, head, (SELECT max(seq) FROM event WHERE thread_id = id AND event.generation = ?)"
            " FROM thread WHERE user = ? AND session = ? AND thread = ? AND deleted < 2",
            (base.generation, *base.key),
        ).fetchone()
        thread_id, current, head, last = found or (0, 0, 0, None)
        if base.generation == current:
            last = head
        elif 1 <= base.generation < current:
            last = last or 0
        return thread_id, base.generation, base.seq, last

    def _place(self, key: ThreadKey) -> tuple[int, int] | None:
        sql = "SELECT generation, head FROM thread WHERE user = ? AND session = ? AND thread = ? AND deleted < 2"
        return self._execute(sql, key).fetchone()

    # ------------------------------------------------------------------ runs, invocations, requests

    def _put_run(self, op: PutRun) -> None:
        row, expect = op.row, op.expect
        if not rules.run_step_allowed(op) or (rules.intent_matters(op) and self._intent(row.lineage) is not None):
            self._refuse_run(op)
        if expect is None:
            values = (row.run_id, *row.key, row.root, row.state.value, row.attempt, _encode(row))
            cursor = self._execute(_INSERT_RUN, values)
        else:
            values = (row.state.value, row.attempt, _encode(row), row.run_id, expect[0].value, expect[1])
            cursor = self._execute(_UPDATE_RUN, values)
        if cursor.rowcount != 1:
            self._refuse_run(op)

    def _intent(self, lineage: Sequence[str]) -> str | None:
        """As `intent_of`. Where nothing was ever cancelled, which is known for the whole transaction, nothing is looked for."""
        if self._cancels is None:
            self._cancels = self._execute("SELECT 1 FROM cancel LIMIT 1").fetchone() is not None
        return intent_of(self._execute, lineage) if self._cancels else None

    def _refuse_run(self, op: PutRun) -> Never:
        found = self._execute("SELECT state, attempt FROM run WHERE run_id = ?", (op.row.run_id,)).fetchone()
        stored = found and (RunState(found[0]), found[1])
        rules.check_run(op, stored, self._intent(op.row.lineage))
        raise AssertionError(_DISAGREE)

    def _put_invocation(self, op: PutInvocation) -> None:
        row, expect = op.row, op.expect
        if not rules.invocation_step_allowed(op):
            self._refuse_invocation(op)
        task = (None, None, None) if row.task_id is None else (row.task_id, row.parent.user, row.parent.session)
        if expect is None:
            ids = (row.invocation_id, row.parent_run, row.root_run, *row.child)
            values = (*ids, row.state.value, row.attempt, _encode(row), *task)
            cursor = self._execute(_INSERT_INVOCATION, values)
        else:
            values = (row.state.value, row.attempt, _encode(row), *task, row.invocation_id, expect[0].value, expect[1])
            cursor = self._execute(_UPDATE_INVOCATION, values)
        if cursor.rowcount != 1:
            self._refuse_invocation(op)

    def _refuse_invocation(self, op: PutInvocation) -> Never:
        sql = "SELECT state, attempt FROM invocation WHERE invocation_id = ?"
        found = self._execute(sql, (op.row.invocation_id,)).fetchone()
        rules.check_invocation(op, found and (InvocationState(found[0]), found[1]))
        raise AssertionError(_DISAGREE)

    def _put_request(self, op: PutRequest) -> None:
        row = op.row
        found = self._execute("SELECT state FROM request WHERE request_id = ?", (row.request_id,)).fetchone()
        rules.check_request(op, found and RequestState(found[0]))
        if found is None:
            self._execute(_INSERT_REQUEST, (row.request_id, row.root_run, *row.root, row.state.value, _encode(row)))
        else:
            self._execute(
                "UPDATE request SET state = ?, body = ? WHERE request_id = ?", (row.state.value, _encode(row), row.request_id)
            )

    def _request_cancel(self, op: RequestCancel) -> None:
        cursor = self._execute(
            "INSERT INTO cancel SELECT run_id, ?, ?, ? FROM run WHERE run_id = ? ON CONFLICT DO NOTHING",
            (mend(op.reason), mend(op.by), op.at, op.run_id),
        )
        self._cancels = True
        if cursor.rowcount != 1:
            rules.check_cancel(op, self._execute("SELECT 1 FROM run WHERE run_id = ?", (op.run_id,)).fetchone() is not None)

    # ------------------------------------------------------------------ mail, drafts, blobs, state, owners

    def _put_mail(self, op: PutMail) -> None:
        cursor = self._execute(
            "INSERT INTO mail(thread_id, mail_id, body) SELECT id, ?, ? FROM thread"
            " WHERE user = ? AND session = ? AND thread = ? AND deleted < 2 ON CONFLICT DO NOTHING",
            (op.mail.mail_id, _encode(op.mail), *op.key),
        )
        if cursor.rowcount != 1:
            rules.check_thread(op, self._place(op.key) is not None)

    def _take_mail(self, op: TakeMail) -> None:
        cursor = self._execute(
            f"UPDATE mail SET body = NULL WHERE mail_id = ? AND body IS NOT NULL AND thread_id = {_THREAD_ID}",
            (op.mail_id, *op.key),
        )
        rules.check_taken(op, cursor.rowcount == 1)

    def _put_draft(self, op: PutDraft) -> None:
        draft = op.draft
        cursor = self._execute(
            "INSERT OR REPLACE INTO draft(thread_id, message_id, text, at) SELECT id, ?, ?, ? FROM thread"
            " WHERE user = ? AND session = ? AND thread = ?",
            (draft.message_id, mend(draft.text), draft.at, *op.key),
        )
        rules.check_thread(op, cursor.rowcount == 1)

    def _drop_draft(self, op: DropDraft) -> None:
        self._execute(f"DELETE FROM draft WHERE message_id = ? AND thread_id = {_THREAD_ID}", (op.message_id, *op.key))

    def _put_blob(self, op: PutBlob) -> None:
        cursor = self._execute("INSERT INTO blob VALUES (?, ?) ON CONFLICT DO NOTHING", (op.digest, op.data))
        if cursor.rowcount != 1:  # it is there: somebody is about to refer to it again
            self._execute("DELETE FROM condemned WHERE digest = ?", (op.digest,))

    def _put_state(self, op: PutState) -> None:
        if op.expect is not msgspec.UNSET:
            found = self._execute(
                "SELECT value FROM state WHERE user = ? AND session = ? AND name = ?", (op.user, op.session, op.name)
            ).fetchone()
            rules.check_state(op, None if found is None else found[0])
        self._execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", (op.user, op.session, op.name, bytes(op.value)))

    def _put_spend(self, op: PutSpend) -> None:
        row = op.row
        self._execute("INSERT OR REPLACE INTO spend VALUES (?, ?, ?)", (row.root, row.run_id, _encode(row)))

    def _put_owner(self, op: PutOwner) -> None:
        owner_id = op.row.owner_id
        try:
            check_scope_id(owner_id, where="owner id")  # it names a file
        except ConfigurationError as error:
            raise LedgerConflict(error.message, op=op, code="state", remedy=error.remedy) from error
        new = owner_id not in self._locks.held()
        if not self._locks.take(owner_id):
            raise LedgerConflict(
                f"owner `{owner_id}` is another live process", op=op, code="taken", remedy="make a new owner id for each process"
            )
        if new:
            self.registered.append(owner_id)
        self._execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", (owner_id, _encode(op.row)))

    def _drop_owner(self, op: DropOwner) -> None:
        self._execute("DELETE FROM owner WHERE owner_id = ?", (op.owner_id,))
        self.dropped.append(op.owner_id)


def _encode(row: msgspec.Struct) -> bytes:
    """The JSON of a row. Halves of characters in a person's or a model's words are replaced (B175)."""
    try:
        return _json(row)
    except UnicodeEncodeError:
        return _json(mend_all(msgspec.to_builtins(row)))


def intent_of(execute: Callable[..., sqlite3.Cursor], lineage: Iterable[str]) -> str | None:
    """The reason of the first cancel intent on a lineage, root first."""
    for run_id in lineage:
        found = execute("SELECT reason FROM cancel WHERE run_id = ?", (run_id,)).fetchone()
        if found is not None:
            return found[0]
    return None
