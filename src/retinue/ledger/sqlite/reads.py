"""Reading: each function takes the reader's connection and what to look for, and gives rows or records back."""

import sqlite3
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from retinue.damage import UNREADABLE, damaged
from retinue.errors import LedgerUnavailable
from retinue.ledger import rules
from retinue.ledger.port import DAMAGED_MAIL, Journal, News
from retinue.ledger.sqlite.schema import IS_UNENDED, IS_UNFINISHED
from retinue.ledger.sqlite.segments import Segments
from retinue.ledger.sqlite.writes import intent_of
from retinue.ops import Draft, Record
from retinue.rows import ForkPoint, InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = [
    "blob",
    "cancel_intent",
    "child_thread",
    "children",
    "draft",
    "invocation",
    "invocations",
    "journal",
    "last_run",
    "mail",
    "news",
    "owner",
    "records",
    "request",
    "requests",
    "run",
    "runs",
    "spends",
    "state",
    "task",
    "tasks",
    "thread",
    "threads",
    "tree",
]

_T = TypeVar("_T")

_THREADS: Final = (
    "SELECT t.body, t.user, t.session, t.thread, t.id, t.generation, t.head, t.updated_at,"
    " b.user, b.session, b.thread, f.base_generation, f.base_seq"
    " FROM thread t LEFT JOIN fork f ON f.thread_id = t.id AND f.generation = t.generation"
    " LEFT JOIN thread b ON b.id = f.base_id WHERE t.deleted = 0"
)
_BY_KEY: Final = " AND t.user = ? AND t.session = ? AND t.thread = ?"
_PIECES: Final = (
    "WITH RECURSIVE piece(depth, id, generation, seq) AS ("
    " SELECT 0, base_id, base_generation, base_seq FROM fork WHERE thread_id = ? AND generation = ?"
    " UNION ALL SELECT depth + 1, f.base_id, f.base_generation, f.base_seq"
    " FROM piece JOIN fork f ON f.thread_id = piece.id AND f.generation = piece.generation)"
    " SELECT piece.id, t.user, t.session, t.thread, piece.generation, piece.seq"
    " FROM piece JOIN thread t ON t.id = piece.id ORDER BY piece.depth DESC"
)
_OWN: Final = (
    "SELECT seq, type, run, attempt, at, body FROM event WHERE thread_id = ? AND generation = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def thread(db: sqlite3.Connection, key: ThreadKey) -> ThreadRow | None:
    """See `Ledger.thread`."""
    return _one(db, _THREADS + _BY_KEY, key, _to_thread)


def child_thread(db: sqlite3.Connection, parent: ThreadKey, agent_key: str | None, label: str | None) -> ThreadRow | None:
    """See `Ledger.child_thread`."""
    sql = _THREADS + " AND t.parent_user = ? AND t.parent_session = ? AND (t.agent_key = ? OR t.label = ?) ORDER BY t.id DESC"
    return _one(db, sql, (parent.user, parent.session, agent_key or None, rules.label_key(label)), _to_thread)


def threads(db: sqlite3.Connection, user: str | None, session: str | None, hidden: bool, limit: int) -> list[ThreadRow]:
    """See `Ledger.threads`."""
    sql, values = _where({"t.user": user, "t.session": session, "t.hidden": None if hidden else 0})
    return _all(db, f"{_THREADS}{sql} ORDER BY t.updated_at DESC, t.id DESC LIMIT ?", (*values, limit), _to_thread)


def children(db: sqlite3.Connection, parent: ThreadKey) -> list[ThreadRow]:
    """See `Ledger.children`."""
    sql = _THREADS + " AND t.parent_user = ? AND t.parent_session = ? AND t.parent_thread = ? ORDER BY t.id"
    return _all(db, sql, parent, _to_thread)


def journal(db: sqlite3.Connection, segments: Segments, key: ThreadKey) -> Journal | None:
    """See `Ledger.journal`. Row and records are of one moment."""
    db.execute("BEGIN")
    try:
        found = db.execute(_THREADS + _BY_KEY, key).fetchone()
        if found is None:
            return None
        row, thread_id = _to_thread(found), found[4]
        inherited: list[Record] = []
        if row.base is not None:
            for base_id, user, session, name, generation, seq in db.execute(_PIECES, (thread_id, row.generation)).fetchall():
                inherited += segments.read(db, base_id, ThreadKey(user, session, name), generation, seq)
        own = segments.read(db, thread_id, row.key, row.generation, row.head)
        return Journal(row, tuple(inherited), tuple(own))
    finally:
        db.execute("COMMIT")


def records(db: sqlite3.Connection, key: ThreadKey, generation: int, after: int, limit: int | None) -> list[Record]:
    """See `Ledger.records`."""
    sql = _OWN.replace("thread_id = ?", "thread_id = (SELECT t.id FROM thread t WHERE t.deleted = 0" + _BY_KEY + ")")
    values = (*key, generation, after, -1 if limit is None else limit)
    return _all(db, sql, values, lambda found: Record(key, generation, *found))


def run(db: sqlite3.Connection, run_id: str) -> RunRow | None:
    """See `Ledger.run`."""
    return _one(db, "SELECT body, run_id FROM run WHERE run_id = ?", (run_id,), _to_run)


def last_run(db: sqlite3.Connection, key: ThreadKey) -> RunRow | None:
    """See `Ledger.last_run`."""
    sql = "SELECT body, run_id FROM run WHERE user = ? AND session = ? AND thread = ? ORDER BY pos DESC LIMIT 1"
    return _one(db, sql, key, _to_run)


def runs(db: sqlite3.Connection, states: Sequence[RunState], roots_only: bool, user: str | None, limit: int) -> list[RunRow]:
    """See `Ledger.runs`."""
    sql, values = _where({"user": user})
    if states:
        sql += f" AND state IN ({', '.join('?' * len(states))})"
        values += [state.value for state in states]
        if rules.UNFINISHED.issuperset(states):
            sql += f" AND {IS_UNFINISHED}"
    if roots_only:
        sql += " AND root = run_id"
    return _all(db, f"SELECT body, run_id FROM run WHERE 1{sql} ORDER BY pos DESC LIMIT ?", (*values, limit), _to_run)


def tree(db: sqlite3.Connection, root_run: str) -> list[RunRow]:
    """See `Ledger.tree`."""
    sql = "SELECT body, run_id FROM run WHERE (run_id = ?1 AND root = ?1) OR (root = ?1 AND root <> run_id) ORDER BY pos"
    return _all(db, sql, (root_run,), _to_run)


def cancel_intent(db: sqlite3.Connection, lineage: Sequence[str]) -> str | None:
    """See `Ledger.cancel_intent`."""
    return intent_of(db.execute, lineage)


def news(db: sqlite3.Connection, runs: Sequence[str], since: int | None) -> News:
    """See `Ledger.news`."""
    sql = "SELECT run_id, reason FROM cancel WHERE run_id IN (SELECT value FROM json_each(?))"
    stops = dict(db.execute(sql, (msgspec.json.encode(runs).decode(),)).fetchall()) if runs else {}
    (last,) = db.execute("SELECT coalesce(max(pos), 0) FROM mail").fetchone()
    if since is not None and last < since:  # letters were removed together with their threads
        since = None
    sql = (
        "SELECT DISTINCT t.user, t.session, t.thread FROM mail m JOIN thread t ON t.id = m.thread_id"
        " WHERE m.pos > ? AND m.body IS NOT NULL"
    )
    came = db.execute(sql, (since or 0,)).fetchall() if last > (since or 0) else []
    return News(cursor=last, stops=stops, mail=tuple(ThreadKey(*key) for key in came))


def invocation(db: sqlite3.Connection, invocation_id: str) -> InvocationRow | None:
    """See `Ledger.invocation`."""
    return _one(db, "SELECT body, invocation_id FROM invocation WHERE invocation_id = ?", (invocation_id,), _to_invocation)


def invocations(
    db: sqlite3.Connection,
    parent_run: str | None,
    root_run: str | None,
    child: ThreadKey | None,
    state: InvocationState | None,
) -> list[InvocationRow]:
    """See `Ledger.invocations`."""
    user, session, name = child or (None, None, None)
    names = {"parent_run": parent_run, "child_user": user, "child_session": session, "child_thread": name}
    sql, values = _where({**names, "state": None if state is None else state.value})
    if root_run is not None:  # in these words, so that there is an index for each half
        sql += " AND ((parent_run = ? AND root_run = ?) OR (root_run = ? AND root_run <> parent_run))"
        values += [root_run] * 3
    return _all(db, f"SELECT body, invocation_id FROM invocation WHERE 1{sql} ORDER BY pos", values, _to_invocation)


def task(db: sqlite3.Connection, task_id: str) -> InvocationRow | None:
    """See `Ledger.task`."""
    return _one(db, "SELECT body, invocation_id FROM invocation WHERE task_id = ?", (task_id,), _to_invocation)


def tasks(
    db: sqlite3.Connection, user: str | None, session: str | None, root_run: str | None, unfinished: bool, limit: int
) -> list[InvocationRow]:
    """See `Ledger.tasks`."""
    sql, values = _where({"task_user": user, "task_session": session, "root_run": root_run})
    if unfinished:
        sql += f" AND {IS_UNENDED}"
    select = f"SELECT body, invocation_id FROM invocation WHERE task_id IS NOT NULL{sql} ORDER BY pos DESC LIMIT ?"
    return _all(db, select, [*values, limit], _to_invocation)


def request(db: sqlite3.Connection, request_id: str) -> RequestRow | None:
    """See `Ledger.request`."""
    return _one(db, "SELECT body, request_id FROM request WHERE request_id = ?", (request_id,), _to_request)


def requests(
    db: sqlite3.Connection,
    root_run: str | None,
    root: ThreadKey | None,
    user: str | None,
    session: str | None,
    state: RequestState | None,
) -> list[RequestRow]:
    """See `Ledger.requests`."""
    named = {"root_run": root_run, "root_user": user, "root_session": session, "state": state and state.value}
    sql, values = _where(named)
    if root is not None:
        sql += " AND root_user = ? AND root_session = ? AND root_thread = ?"
        values += root
    return _all(db, f"SELECT body, request_id FROM request WHERE 1{sql} ORDER BY pos", values, _to_request)


def mail(db: sqlite3.Connection, key: ThreadKey) -> list[Mail]:
    """See `Ledger.mail`."""
    sql = (
        "SELECT m.body, m.mail_id FROM mail m JOIN thread t ON t.id = m.thread_id WHERE m.body IS NOT NULL"
        + _BY_KEY
        + " ORDER BY m.pos"
    )
    return _all(db, sql, key, _to_letter)


def draft(db: sqlite3.Connection, key: ThreadKey) -> Draft | None:
    """See `Ledger.draft`."""
    sql = (
        "SELECT d.message_id, d.text, d.at FROM draft d JOIN thread t ON t.id = d.thread_id"
        " WHERE 1" + _BY_KEY + " ORDER BY d.pos DESC LIMIT 1"
    )
    return _one(db, sql, key, lambda found: Draft(*found))


def blob(db: sqlite3.Connection, digest: str) -> bytes | None:
    """See `Ledger.blob`."""
    return _one(db, "SELECT data, digest FROM blob WHERE digest = ?", (digest,), _to_blob)


def state(db: sqlite3.Connection, user: str, session: str) -> dict[str, bytes]:
    """See `Ledger.state`."""
    return dict(db.execute("SELECT name, value FROM state WHERE user = ? AND session = ?", (user, session)).fetchall())


def spends(db: sqlite3.Connection, root: str) -> list[SpendRow]:
    """See `Ledger.spends`."""
    return _all(db, "SELECT body, run_id FROM spend WHERE root = ? ORDER BY run_id", (root,), _to_spend)


def owner(db: sqlite3.Connection, owner_id: str) -> OwnerRow | None:
    """See `Ledger.owner`."""
    return _one(db, "SELECT body, owner_id FROM owner WHERE owner_id = ?", (owner_id,), _to_owner)


def _one(db: sqlite3.Connection, sql: str, values: Sequence[Any], make: Callable[[Any], _T]) -> _T | None:
    cursor = db.execute(sql, values)
    found = cursor.fetchone()
    cursor.close()  # a statement that is not at its end would keep the snapshot
    return None if found is None else make(found)


def _all(db: sqlite3.Connection, sql: str, values: Sequence[Any], make: Callable[[Any], _T]) -> list[_T]:
    return [make(found) for found in db.execute(sql, values).fetchall()]


def _where(wanted: dict[str, Any]) -> tuple[str, list[Any]]:
    given = {name: value for name, value in wanted.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())


def _reader(table: str, kind: type[_T]) -> Callable[[Any], _T]:
    """What makes a row of what was found: its body, then the columns of its key."""
    decode = msgspec.json.Decoder(kind).decode

    def made(found: Any) -> _T:
        try:
            return decode(found[0])
        except UNREADABLE as error:
            key = "/".join(str(part) for part in found[1:4] if part != "")
            raise damaged(f"the row `{key}` of table `{table}`", error) from error

    return made


_to_run: Final = _reader("run", RunRow)
_to_invocation: Final = _reader("invocation", InvocationRow)
_to_request: Final = _reader("request", RequestRow)
_to_mail: Final = _reader("mail", Mail)
_to_spend: Final = _reader("spend", SpendRow)
_to_owner: Final = _reader("owner", OwnerRow)
_stored_thread: Final = _reader("thread", ThreadRow)


def _to_letter(found: Any) -> Mail:
    mail_id = found[1]
    try:
        letter = _to_mail(found)
        if letter.mail_id != mail_id:
            raise damaged(f"the row `{mail_id}` of table `mail`", f"it holds the letter `{letter.mail_id}`")
    except LedgerUnavailable as error:
        return Mail(mail_id=mail_id, kind=DAMAGED_MAIL, body=msgspec.Raw(msgspec.json.encode(error.message)), at=0)
    return letter


def _to_thread(found: Any) -> ThreadRow:
    generation, head, updated_at, user, session, name, base_generation, base_seq = found[5:]
    base = None if user is None else ForkPoint(ThreadKey(user, session, name), base_generation, base_seq)
    row = _stored_thread(found)
    return msgspec.structs.replace(row, generation=generation, head=head, updated_at=updated_at, base=base)


def _to_blob(found: Any) -> bytes:
    data, digest = found
    if not isinstance(data, bytes) or sha256(data).hexdigest() != digest:
        raise damaged(f"the row `{digest}` of table `blob`", "its bytes are not what their hash says")
    return data
