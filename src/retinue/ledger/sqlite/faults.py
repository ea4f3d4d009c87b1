"""What SQLite's errors mean to a person, and which of them pass by themselves."""

import sqlite3
from typing import Final

from retinue.errors import LedgerUnavailable

__all__ = ["is_busy", "unavailable"]

_MEANINGS: Final[dict[int, tuple[str, str, str]]] = {
    sqlite3.SQLITE_FULL: ("disk_full", "the disk is full", "free some space and try again: nothing of this commit was written"),
    sqlite3.SQLITE_IOERR: ("io_error", "reading or writing failed", "check the disk, then try again"),
    sqlite3.SQLITE_READONLY: ("read_only", "it cannot be written", "give this user write permission for the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: ("cannot_open", "it cannot be opened", "check that the folder exists and that this user may use it"),
    sqlite3.SQLITE_PERM: ("cannot_open", "it cannot be opened", "give this user permission for the file and its folder"),
    sqlite3.SQLITE_NOTADB: ("not_a_ledger", "it is not an SQLite database", "name another file for the ledger"),
    sqlite3.SQLITE_CORRUPT: (
        "damaged",
        "it is damaged",
        "`retinue doctor` says more; restore it from a copy; `sqlite3 FILE .recover` may save what is left",
    ),
    sqlite3.SQLITE_BUSY: (
        "busy",
        "another process keeps it locked",
        "end or continue that process (it may be stopped), then try again",
    ),
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether the same statement may succeed in a moment, because another process had the file."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def unavailable(path: str, error: BaseException) -> LedgerUnavailable:
    """The error to raise to a caller for a fault of the store."""
    code = _primary(error) if isinstance(error, sqlite3.Error) else -1
    if isinstance(error, TimeoutError):
        code = sqlite3.SQLITE_BUSY
    elif code == -1 and "full" in str(error):
        code = sqlite3.SQLITE_FULL
    elif "decode to UTF-8" in str(error):  # Python's own: a column of text holds something else
        code = sqlite3.SQLITE_CORRUPT
    name, meaning, remedy = _MEANINGS.get(
        sqlite3.SQLITE_BUSY if code in (sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL) else code,
        ("ledger_unavailable", "it cannot be used", "check the file and its disk"),
    )
    failure = LedgerUnavailable(f"the ledger `{path}` is not available: {meaning} ({error})", code=name, remedy=remedy)
    failure.__cause__ = error
    return failure


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", -1)  # absent where Python itself made the error
    return code & 0xFF if code >= 0 else -1
