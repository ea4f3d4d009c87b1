"""The tables: key and index columns beside one JSON body, and the numbered migrations that make them."""

import sqlite3
from typing import Final

from retinue.errors import LedgerUnavailable

__all__ = ["APPLICATION_ID", "IS_UNENDED", "IS_UNFINISHED", "MIGRATIONS", "migrate"]

APPLICATION_ID: Final = 0x52455449
"""`RETI`, in the header of the file: it tells a ledger from any other SQLite database."""

IS_UNFINISHED: Final = "state IN ('running', 'waiting')"
"""The condition on runs that the index `run_unfinished` is made for: SQLite uses it where a query says it in these words."""

IS_UNENDED: Final = "state IN ('pending', 'running', 'waiting', 'stopping')"
"""The same on delegations, for the index `invocation_unended`."""

_V1: Final = (
    # `head`, `generation`, `updated_at` and `deleted` move; the rest of a thread's row is its body.
    # deleted: 1 hidden from everybody but forks, 2 being removed
    """CREATE TABLE thread(
        id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, session TEXT NOT NULL, thread TEXT NOT NULL,
        generation INTEGER NOT NULL, head INTEGER NOT NULL, updated_at INTEGER NOT NULL,
        hidden INTEGER NOT NULL, deleted INTEGER NOT NULL DEFAULT 0,
        parent_user TEXT, parent_session TEXT, parent_thread TEXT, agent_key TEXT, label TEXT, body BLOB NOT NULL,
        UNIQUE(user, session, thread))""",
    """CREATE INDEX thread_parent ON thread(parent_user, parent_session, parent_thread)
        WHERE parent_session IS NOT NULL""",
    # a generation below 1 holds what was copied from a purged thread
    """CREATE TABLE event(
        thread_id INTEGER NOT NULL, generation INTEGER NOT NULL, seq INTEGER NOT NULL,
        type TEXT NOT NULL, run TEXT NOT NULL, attempt INTEGER NOT NULL, at INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY(thread_id, generation, seq)) WITHOUT ROWID""",
    # what a generation's history begins with
    """CREATE TABLE fork(
        thread_id INTEGER NOT NULL, generation INTEGER NOT NULL,
        base_id INTEGER NOT NULL, base_generation INTEGER NOT NULL, base_seq INTEGER NOT NULL,
        PRIMARY KEY(thread_id, generation)) WITHOUT ROWID""",
    "CREATE INDEX fork_base ON fork(base_id)",
    """CREATE TABLE run(
        pos INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE,
        user TEXT NOT NULL, session TEXT NOT NULL, thread TEXT NOT NULL,
        root TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL)""",
    "CREATE INDEX run_thread ON run(user, session, thread)",
    "CREATE INDEX run_root ON run(root)",
    "CREATE INDEX run_state ON run(state)",
    "CREATE TABLE cancel(run_id TEXT PRIMARY KEY, reason TEXT NOT NULL, by TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE invocation(
        pos INTEGER PRIMARY KEY, invocation_id TEXT NOT NULL UNIQUE, parent_run TEXT NOT NULL, root_run TEXT NOT NULL,
        child_user TEXT NOT NULL, child_session TEXT NOT NULL, child_thread TEXT NOT NULL,
        state TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL)""",
    "CREATE INDEX invocation_parent ON invocation(parent_run)",
    "CREATE INDEX invocation_root ON invocation(root_run)",
    "CREATE INDEX invocation_child ON invocation(child_session, child_thread)",
    """CREATE TABLE request(
        pos INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, root_run TEXT NOT NULL,
        root_user TEXT NOT NULL, root_session TEXT NOT NULL, root_thread TEXT NOT NULL,
        state TEXT NOT NULL, body BLOB NOT NULL)""",
    "CREATE INDEX request_run ON request(root_run)",
    "CREATE INDEX request_root ON request(root_session, root_thread)",
    # a mail that has been taken keeps its id, without a body: delivery is told once
    """CREATE TABLE mail(
        pos INTEGER PRIMARY KEY, thread_id INTEGER NOT NULL, mail_id TEXT NOT NULL, body BLOB,
        UNIQUE(thread_id, mail_id))""",
    """CREATE TABLE draft(
        pos INTEGER PRIMARY KEY, thread_id INTEGER NOT NULL, message_id TEXT NOT NULL,
        text TEXT NOT NULL, at INTEGER NOT NULL, UNIQUE(thread_id, message_id))""",
    "CREATE TABLE blob(digest TEXT PRIMARY KEY, data BLOB NOT NULL)",
    """CREATE TABLE state(
        user TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY(user, session, name)) WITHOUT ROWID""",
    "CREATE TABLE owner(owner_id TEXT PRIMARY KEY, body BLOB NOT NULL)",
)

_V2: Final = (
    # blobs that nothing referred to when they were last looked for; putting one again takes it off
    "CREATE TABLE condemned(digest TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX thread_deleted ON thread(deleted) WHERE deleted > 0",
)

_V3: Final = ("CREATE INDEX invocation_stopping ON invocation(state) WHERE state = 'stopping'",)

_V4: Final = (
    # a label belongs to one child of a session: of several that took it at once, the newest was the one that was found by it
    """UPDATE thread SET label = NULL, body = CAST(json_remove(CAST(body AS TEXT), '$.label') AS BLOB)
        WHERE label = '' OR (label IS NOT NULL AND deleted = 0 AND EXISTS (SELECT 1 FROM thread newer WHERE newer.id > thread.id
        AND newer.deleted = 0 AND newer.label = thread.label AND newer.parent_user = thread.parent_user
        AND newer.parent_session = thread.parent_session))""",
    """CREATE UNIQUE INDEX thread_label ON thread(parent_user, parent_session, label)
        WHERE label IS NOT NULL AND deleted = 0""",
    # each index costs a commit a page: what a root's own id finds, and what has ended, needs no entry
    "DROP INDEX run_root",
    "CREATE INDEX run_below ON run(root) WHERE root <> run_id",
    "DROP INDEX run_state",
    "CREATE INDEX run_unfinished ON run(state) WHERE state IN ('running', 'waiting')",
    "DROP INDEX invocation_root",
    "CREATE INDEX invocation_below ON invocation(root_run) WHERE root_run <> parent_run",
)

_V5: Final = (
    # of a delegation in the background only
    "ALTER TABLE invocation ADD COLUMN task_id TEXT",
    "ALTER TABLE invocation ADD COLUMN task_user TEXT",
    "ALTER TABLE invocation ADD COLUMN task_session TEXT",
    "CREATE UNIQUE INDEX invocation_task ON invocation(task_id) WHERE task_id IS NOT NULL",
    "CREATE INDEX invocation_tasks ON invocation(task_session) WHERE task_id IS NOT NULL",
    f"CREATE INDEX invocation_unended ON invocation(state) WHERE task_id IS NOT NULL AND {IS_UNENDED}",
)

_V6: Final = (
    # what runs under a budget have used
    "CREATE TABLE spend(root TEXT NOT NULL, run_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY(root, run_id)) WITHOUT ROWID",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_V1, _V2, _V3, _V4, _V5, _V6)
"""Statements by version: entry 0 makes version 1 of an empty file, entry n takes version n to n + 1. Only ever appended to."""


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to this version. The caller holds the write transaction.

    Raises:
        LedgerUnavailable: it is another program's database, or of a newer Retinue.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise LedgerUnavailable(
            f"`{path}` is a database of another program",
            code="not_a_ledger",
            remedy="name another file for the ledger",
        )
    if version > len(MIGRATIONS):
        raise LedgerUnavailable(
            f"`{path}` has ledger version {version}; this Retinue knows versions up to {len(MIGRATIONS)}",
            code="newer_version",
            remedy="upgrade Retinue (`pip install -U retinue`), or name another file for the ledger",
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    if application != APPLICATION_ID:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
