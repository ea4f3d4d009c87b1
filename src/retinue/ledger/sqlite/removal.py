"""Removing for good: a thread with all that belongs to it, or piece by piece what a collection found.

Each function is the work of one job of the writer, inside its open transaction. A collection makes many of them, so that
nobody waits long for the write lock; a thread that is being removed is marked (`deleted = 2`) first, so that no new fork
comes to need it.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from retinue.damage import UNREADABLE, damaged
from retinue.ids import made_at
from retinue.ledger import rules
from retinue.ledger.sqlite.locks import OwnerLocks
from retinue.ledger.sqlite.schema import IS_UNFINISHED
from retinue.rows import RequestRow, RunRow, ThreadKey

__all__ = [
    "condemn",
    "drop_drafts",
    "drop_mail",
    "drop_owners",
    "mark",
    "purge",
    "remove_some",
    "spare",
    "sweep",
]

Execute: TypeAlias = Callable[..., sqlite3.Cursor]

SOME: Final = 200
"""How many records, blobs or rows one job removes at most."""

_request_row: Final = msgspec.json.Decoder(RequestRow).decode
_run_row: Final = msgspec.json.Decoder(RunRow).decode
_KEY: Final = "user = ? AND session = ? AND thread = ?"
_IDLE: Final = (
    " AND NOT EXISTS (SELECT 1 FROM thread t JOIN run r ON r.user = t.user AND r.session = t.session AND r.thread = t.thread"
    f" WHERE t.id = {{table}}.thread_id AND r.{IS_UNFINISHED})"
)


def purge(execute: Execute, key: ThreadKey) -> int:
    """Remove a thread after copying what others refer to into them; how many records it had (M12)."""
    found = execute(f"SELECT id FROM thread WHERE {_KEY}", key).fetchone()
    if found is None:
        return 0
    rules.check_purge(key, _unfinished(execute, key))
    (gone,) = found
    referring = "SELECT thread_id, generation, base_generation, base_seq FROM fork WHERE base_id = ? AND thread_id <> ?"
    while rows := execute(referring, (gone, gone)).fetchall():
        for row in rows:
            _adopt(execute, gone, *row)
    removed = execute("DELETE FROM event WHERE thread_id = ?", (gone,)).rowcount
    _remove_rows(execute, gone, key)
    return removed


def mark(execute: Execute, candidates: Sequence[int]) -> list[int]:
    """Mark deleted threads as being removed, but for those that a thread needs or whose tree has an unfinished run.

    Gives back all that are marked, those included that an earlier collection did not come to the end of.
    """
    execute("CREATE TEMP TABLE IF NOT EXISTS marked(id INTEGER PRIMARY KEY)")
    execute("DELETE FROM marked")
    for candidate in candidates:
        execute("INSERT INTO marked SELECT id FROM thread WHERE id = ? AND deleted = 1", (candidate,))
    for thread_id, *key in execute("SELECT id, user, session, thread FROM thread WHERE id IN (SELECT id FROM marked)").fetchall():
        if _unfinished(execute, ThreadKey(*key)) is not None:
            execute("DELETE FROM marked WHERE id = ?", (thread_id,))
    needed = (
        "DELETE FROM marked WHERE id IN (SELECT f.base_id FROM fork f JOIN thread t ON t.id = f.thread_id"
        " WHERE t.deleted < 2 AND f.thread_id NOT IN (SELECT id FROM marked))"
    )
    while execute(needed).rowcount:
        pass
    execute("UPDATE thread SET deleted = 2 WHERE id IN (SELECT id FROM marked)")
    return [found for (found,) in execute("SELECT id FROM thread WHERE deleted = 2").fetchall()]


def remove_some(execute: Execute, thread_id: int) -> tuple[bool, int]:
    """Remove some records of a marked thread, at last the thread; whether it is gone, and how many records went."""
    last = execute(
        "SELECT generation, seq FROM event WHERE thread_id = ? ORDER BY generation, seq LIMIT 1 OFFSET ?", (thread_id, SOME - 1)
    ).fetchone()
    if last is not None:
        sql = "DELETE FROM event WHERE thread_id = ? AND (generation, seq) <= (?, ?)"
        return False, execute(sql, (thread_id, *last)).rowcount
    removed = execute("DELETE FROM event WHERE thread_id = ?", (thread_id,)).rowcount
    key = execute("SELECT user, session, thread FROM thread WHERE id = ? AND deleted = 2", (thread_id,)).fetchone()
    if key is not None:
        _remove_rows(execute, thread_id, ThreadKey(*key))
    return True, removed


def _unfinished(execute: Execute, key: ThreadKey) -> str | None:
    """The first unfinished run of any tree that the thread takes part in."""
    found = execute(
        f"SELECT run_id FROM run WHERE {IS_UNFINISHED} AND root IN (SELECT root FROM run WHERE {_KEY}) ORDER BY pos LIMIT 1",
        key,
    ).fetchone()
    return found and found[0]


def _remove_rows(execute: Execute, gone: int, key: ThreadKey) -> None:
    """The thread's row, and every row that is about it."""
    runs = execute(f"SELECT run_id, root FROM run WHERE {_KEY}", key).fetchall()
    for run_id, _ in runs:
        execute("DELETE FROM cancel WHERE run_id = ?", (run_id,))
        execute("DELETE FROM invocation WHERE parent_run = ?", (run_id,))
    for run_id, root in runs:
        execute("DELETE FROM spend WHERE root = ? AND run_id = ?", (root, run_id))
    execute("DELETE FROM invocation WHERE child_user = ? AND child_session = ? AND child_thread = ?", key)
    for root in {root for _, root in runs}:
        for request_id, body in execute("SELECT request_id, body FROM request WHERE root_run = ?", (root,)).fetchall():
            if _asked_in(request_id, body) == key:
                execute("DELETE FROM request WHERE request_id = ?", (request_id,))
    execute(f"DELETE FROM run WHERE {_KEY}", key)
    for table in ("fork", "mail", "draft"):
        execute(f"DELETE FROM {table} WHERE thread_id = ?", (gone,))
    execute("DELETE FROM thread WHERE id = ?", (gone,))
    execute(
        "DELETE FROM state WHERE user = ? AND session = ?"
        " AND NOT EXISTS (SELECT 1 FROM thread t WHERE t.user = state.user AND t.session = state.session)",
        key[:2],
    )


def _asked_in(request_id: str, body: bytes) -> ThreadKey:
    try:
        return _request_row(body).key
    except UNREADABLE as error:
        raise damaged(f"the row `{request_id}` of table `request`", error) from error


def _adopt(execute: Execute, gone: int, heir: int, generation: int, base_generation: int, base_seq: int) -> None:
    """Copy the segment that a generation of `heir` begins with into a generation of its own below 1."""
    older = execute(
        "SELECT base_id, base_generation, base_seq FROM fork WHERE thread_id = ? AND generation = ?", (gone, base_generation)
    ).fetchone()
    execute("DELETE FROM fork WHERE thread_id = ? AND generation = ?", (heir, generation))
    if base_seq:
        lowest = "SELECT coalesce(min(generation), 1) FROM event WHERE thread_id = ?"
        copy = min(execute(lowest, (heir,)).fetchone()[0], 1) - 1
        execute(
            "INSERT INTO event SELECT ?, ?, seq, type, run, attempt, at, body FROM event"
            " WHERE thread_id = ? AND generation = ? AND seq <= ?",
            (heir, copy, gone, base_generation, base_seq),
        )
        execute("INSERT INTO fork VALUES (?, ?, ?, ?, ?)", (heir, generation, heir, copy, base_seq))
        generation = copy
    if older is not None:
        execute("INSERT INTO fork VALUES (?, ?, ?, ?, ?)", (heir, generation, *older))


# ---------------------------------------------------------------------- blobs


def condemn(execute: Execute, locks: OwnerLocks, digests: Sequence[str], now: int, grace_ms: int) -> None:
    """Note since when nothing refers to these blobs. If no owner lives, nobody can remember having put one: at once."""
    alive = any(locks.alive(owner_id) for (owner_id,) in execute("SELECT owner_id FROM owner").fetchall())
    at = now if alive else now - grace_ms
    for digest in digests:
        execute(
            "INSERT INTO condemned SELECT digest, ? FROM blob WHERE digest = ?"
            " ON CONFLICT DO UPDATE SET at = min(at, excluded.at)",
            (at, digest),
        )


def spare(execute: Execute, digests: Sequence[str]) -> None:
    """Take these off the list: something refers to them again."""
    for digest in digests:
        execute("DELETE FROM condemned WHERE digest = ?", (digest,))


def sweep(execute: Execute, digests: Sequence[str], until: int) -> tuple[int, int, int]:
    """Remove those of these blobs that have been condemned until then: how many, of how many bytes; and how many stay."""
    count = size = stay = 0
    for digest in digests:
        found = execute("SELECT at FROM condemned WHERE digest = ?", (digest,)).fetchone()
        if found is None:
            continue  # put again meanwhile
        if found[0] > until:
            stay += 1
            continue
        gone = execute("DELETE FROM blob WHERE digest = ? RETURNING length(data)", (digest,)).fetchone()
        execute("DELETE FROM condemned WHERE digest = ?", (digest,))
        if gone is not None:
            count, size = count + 1, size + gone[0]
    return count, size, stay


# ---------------------------------------------------------------------- what has served its purpose


def drop_drafts(execute: Execute, until: int) -> int:
    """Drafts that are older, where no run goes on."""
    sql = f"DELETE FROM draft WHERE pos IN (SELECT pos FROM draft WHERE at <= ?{_IDLE.format(table='draft')} LIMIT ?)"
    return execute(sql, (until, SOME)).rowcount


def drop_mail(execute: Execute, until: int, after: int) -> tuple[int, int | None]:
    """Ids of taken mail that are older, where no run goes on; how many, and where to look further (None: that was all)."""
    sql = f"SELECT pos, mail_id FROM mail WHERE body IS NULL AND pos > ?{_IDLE.format(table='mail')} ORDER BY pos LIMIT ?"
    found = execute(sql, (after, SOME)).fetchall()
    count = 0
    for pos, mail_id in found:
        made = made_at(mail_id)
        if made is not None and made <= until:
            count += execute("DELETE FROM mail WHERE pos = ?", (pos,)).rowcount
    return count, found[-1][0] if len(found) == SOME else None


def drop_owners(execute: Execute, locks: OwnerLocks) -> int:
    """Owners that are dead, but for those that an unfinished run names: one wants to know who held it.

    A damaged row may name any of them: then all are kept.
    """
    states = execute(f"SELECT body FROM run WHERE {IS_UNFINISHED}")
    try:
        held = {_run_row(body).owner for (body,) in states.fetchall()}
    except UNREADABLE:
        return 0
    dead = [
        (owner_id,)
        for (owner_id,) in execute("SELECT owner_id FROM owner").fetchall()
        if owner_id not in held and not locks.alive(owner_id)
    ]
    for owner_id in dead:
        execute("DELETE FROM owner WHERE owner_id = ?", owner_id)
    return len(dead)
