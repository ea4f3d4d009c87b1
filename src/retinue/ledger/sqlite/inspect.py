"""A look at a ledger's file from outside: what is wrong with it, and what to do. Only reads, and takes no lock that others need.

Every check is one function from a connection to findings; a file that cannot be read at all ends with the finding that says so.
"""

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from retinue.damage import UNREADABLE
from retinue.errors import LedgerUnavailable
from retinue.events import MessageEvent, RunStartedEvent, ToolCallResultEvent, decode
from retinue.ledger.sqlite.faults import unavailable
from retinue.ledger.sqlite.filesystem import filesystem_type, refuse_network
from retinue.ledger.sqlite.schema import APPLICATION_ID, MIGRATIONS
from retinue.messages import UserMessage
from retinue.ops import Record
from retinue.rows import InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow

__all__ = ["Finding", "Severity", "inspect"]

Severity: TypeAlias = Literal["ok", "info", "warning", "error"]

SHOWN: Final = 20
"""How many findings of one kind are listed; the rest is counted."""
_FROM_A_COPY: Final = "restore the ledger from a copy (docs/reliability.md)"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One thing that was looked at. `code` is stable; `remedy` says what to do about a warning or an error."""

    severity: Severity
    code: str
    text: str
    remedy: str = ""


def inspect(path: Path, *, filesystem: Callable[[str], str] = filesystem_type) -> Iterator[Finding]:
    """Everything that can be said about the file at `path`. After an error nothing that builds upon it is looked at."""
    try:
        kind = filesystem(str(path))
        refuse_network(str(path), kind)
    except LedgerUnavailable as error:
        yield Finding(severity="error", code=error.code, text=error.message, remedy=error.remedy or "")
        return
    where = f"the ledger `{path}` is on a local file system" + (f" ({kind})" if kind else ", as far as can be known here")
    yield Finding(severity="ok", code="filesystem", text=where)
    if not path.exists():
        yield Finding(
            severity="info", code="no_ledger", text=f"there is no ledger at `{path}` yet", remedy="`retinue run` makes one"
        )
        return
    yield from _permissions(path)
    try:
        database = sqlite3.connect(path, timeout=5)
        try:
            database.execute("PRAGMA query_only = ON")
            for check in (_version, _mode, _intact):
                findings = list(check(database, path))
                yield from findings
                if any(finding.severity == "error" or finding.code == "older_version" for finding in findings):
                    return
            for content in (_journals, _forks, _records, _rows, _blobs):
                yield from _bounded(content(database))
        finally:
            database.close()
    except sqlite3.Error as error:
        failure = unavailable(str(path), error)
        yield Finding(severity="error", code=failure.code, text=failure.message, remedy=failure.remedy or "")


def _permissions(path: Path) -> Iterator[Finding]:
    for place in (path, path.parent):
        mode = stat.S_IMODE(os.stat(place).st_mode)
        private = place == path or place.name == ".retinue"
        if private and mode & 0o077:
            right = "700" if place.is_dir() else "600"
            yield Finding(
                severity="warning",
                code="permissions",
                text=f"other users of this machine can get at `{place}` (mode {mode:o})",
                remedy=f"`chmod {right} {place}`",
            )
        if not os.access(place, os.R_OK | os.W_OK):
            remedy = "give this user permission to read and write it"
            yield Finding(
                severity="error", code="cannot_open", text=f"`{place}` cannot be read and written by this user", remedy=remedy
            )


def _version(database: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    application, version = (_value(database, f"PRAGMA {name}") for name in ("application_id", "user_version"))
    if application != APPLICATION_ID:
        remedy = "name another file for the ledger"
        yield Finding(severity="error", code="not_a_ledger", text=f"`{path}` is a database of another program", remedy=remedy)
    elif version > len(MIGRATIONS):
        known = f"this Retinue knows versions up to {len(MIGRATIONS)}"
        remedy = "upgrade Retinue (`pip install -U retinue`)"
        yield Finding(severity="error", code="newer_version", text=f"the ledger has version {version}; {known}", remedy=remedy)
    elif version < len(MIGRATIONS):
        text = f"the ledger has version {version}; its next use brings it to version {len(MIGRATIONS)}"
        yield Finding(
            severity="info", code="older_version", text=text, remedy="copy the file before, if an older Retinue is to read it"
        )
    else:
        yield Finding(severity="ok", code="version", text=f"the ledger has version {version}")


def _mode(database: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    mode = _value(database, "PRAGMA journal_mode")
    if mode != "wal":
        text = f"the ledger is in journal mode `{mode}`, not in WAL mode: it was changed or copied by another program"
        yield Finding(severity="warning", code="journal_mode", text=text, remedy="its next use sets it again")


def _intact(database: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    found = [row[0] for row in database.execute("PRAGMA quick_check(5)")]
    if found == ["ok"]:
        yield Finding(severity="ok", code="integrity", text="the file is intact (`PRAGMA quick_check`)")
        return
    remedy = f"{_FROM_A_COPY}; `sqlite3 FILE .recover` may save what is left"
    for line in found:
        yield Finding(severity="error", code="damaged", text=f"the file is damaged: {line}", remedy=remedy)


def _journals(database: sqlite3.Connection) -> Iterator[Finding]:
    """Sequence numbers without gaps from 1, and heads that fit."""
    gaps = (
        "SELECT t.session, t.thread, e.generation, count(*), min(e.seq), max(e.seq) FROM event e"
        " LEFT JOIN thread t ON t.id = e.thread_id WHERE coalesce(t.deleted, 0) < 2"
        " GROUP BY e.thread_id, e.generation HAVING min(e.seq) <> 1 OR max(e.seq) <> count(*) OR t.id IS NULL"
    )
    for session, thread, generation, count, first, last in database.execute(gaps):
        if thread is None:
            yield _damage("orphan_records", f"{count} records belong to no thread")
        else:
            place = f"`{session}/{thread}` (generation {generation})"
            yield _damage("gaps", f"the journal of {place} has gaps: {count} records, numbered {first} to {last}")
    heads = (
        "SELECT session, thread, generation, head, (SELECT coalesce(max(seq), 0) FROM event"
        " WHERE thread_id = thread.id AND event.generation = thread.generation) AS last"
        " FROM thread WHERE deleted < 2 AND head <> last"
    )
    for session, thread, generation, head, last in database.execute(heads):
        text = f"the head of `{session}/{thread}` (generation {generation}) is {head}, but its journal ends at {last}"
        yield _damage("head", text)


def _forks(database: sqlite3.Connection) -> Iterator[Finding]:
    sql = (
        "SELECT t.session, t.thread, f.base_seq, (SELECT coalesce(max(seq), 0) FROM event"
        " WHERE thread_id = f.base_id AND generation = f.base_generation) AS last"
        " FROM fork f JOIN thread t ON t.id = f.thread_id WHERE t.deleted < 2 AND f.base_seq > last"
    )
    for session, thread, wanted, last in database.execute(sql):
        text = f"the history of `{session}/{thread}` begins with {wanted} records of another journal, which has only {last}"
        yield _damage("fork", text)


def _records(database: sqlite3.Connection) -> Iterator[Finding]:
    """Bodies that their type does not fit, and references to blobs that are not there."""
    blobs = {digest for (digest,) in database.execute("SELECT digest FROM blob")}
    sql = (
        "SELECT t.session, t.thread, e.generation, e.seq, e.type, e.run, e.attempt, e.at, e.body"
        " FROM event e JOIN thread t ON t.id = e.thread_id WHERE t.deleted < 2"
    )
    missing: dict[str, str] = {}
    for session, thread, generation, seq, *rest in database.execute(sql):
        place = f"record {seq} of `{session}/{thread}` (generation {generation})"
        try:
            event = decode(Record(ThreadKey("", session, thread), generation, seq, *rest))
        except LedgerUnavailable as error:
            yield _damage("record", f"{place}, of type `{rest[0]}`, cannot be read: {error.__cause__}")
            continue
        wanted: list[str] = []
        if isinstance(event, RunStartedEvent) and event.envelope_hash:
            wanted = [event.envelope_hash]
        elif isinstance(event, ToolCallResultEvent):
            wanted = [ref.digest for ref in (*event.blobs, *event.parts)]
        elif isinstance(event, MessageEvent) and isinstance(event.message, UserMessage):
            wanted = [ref.digest for ref in event.message.parts]
        missing.update((digest, place) for digest in wanted if digest not in blobs)
    for digest, place in missing.items():
        yield _damage("missing_blob", f"{place} refers to the blob `{digest[:12]}…`, which is not there")


def _rows(database: sqlite3.Connection) -> Iterator[Finding]:
    kinds: tuple[tuple[str, str, type[Any]], ...] = (
        ("thread", "thread", ThreadRow),
        ("run", "run_id", RunRow),
        ("invocation", "invocation_id", InvocationRow),
        ("request", "request_id", RequestRow),
        ("owner", "owner_id", OwnerRow),
        ("spend", "run_id", SpendRow),
        ("mail", "mail_id", Mail),
    )
    for table, name, kind in kinds:
        decoder = msgspec.json.Decoder(kind)
        for row_id, body in database.execute(f"SELECT {name}, body FROM {table} WHERE body IS NOT NULL"):
            try:
                decoder.decode(body)
            except UNREADABLE as error:
                yield _damage("row", f"the row of {table} `{row_id}` cannot be read: {error}")


def _blobs(database: sqlite3.Connection) -> Iterator[Finding]:
    for digest, data in database.execute("SELECT digest, data FROM blob"):
        if hashlib.sha256(data).hexdigest() != digest:
            yield _damage("blob", f"the blob `{digest[:12]}…` is not what its hash says")


def _damage(code: str, text: str) -> Finding:
    return Finding(severity="error", code=code, text=text, remedy=_FROM_A_COPY)


def _bounded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first of each code, and how many more there are."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
        if counts[finding.code] <= SHOWN:
            yield finding
    for code, count in counts.items():
        if count > SHOWN:
            yield Finding(
                severity="error", code=code, text=f"and {count - SHOWN:,} more like these (`{code}`)", remedy=_FROM_A_COPY
            )


def _value(database: sqlite3.Connection, sql: str) -> Any:
    return database.execute(sql).fetchone()[0]
