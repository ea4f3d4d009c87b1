"""From the text that a person gives (`--ledger`, `ledger=`) to a ledger."""

from pathlib import Path
from typing import Final, Literal

from retinue.errors import ConfigurationError
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger

__all__ = ["open_ledger"]

_SUFFIXES: Final = (".sqlite3", ".sqlite", ".db")
_FORMS: Final = (
    "use `memory`, `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path ending in `.sqlite3`, `.sqlite` or `.db`"
)


def open_ledger(where: str | Path, *, durability: Literal["full", "process"] = "full") -> Ledger:
    """The ledger at `where`, not opened yet.

    `memory`, `sqlite:///relative.db`, `sqlite:////absolute.db`, or a plain path ending in `.sqlite3`, `.sqlite` or `.db`.
    `durability` is for SQLite: `full` survives power loss, `process` survives SIGKILL.

    Raises:
        ConfigurationError: `where` is none of these forms.
    """
    text = str(where)
    if text == "memory":
        return MemoryLedger()
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        raise ConfigurationError(f"`{scheme}://` is not in this version of Retinue", code="invalid_ledger", remedy=_FORMS)
    path = rest[1:] if separator and scheme == "sqlite" and rest.startswith("/") else None if separator else text
    if not path or path.endswith("/") or (not separator and not path.endswith(_SUFFIXES)):
        raise ConfigurationError(f"`{text}` names no ledger", code="invalid_ledger", remedy=_FORMS)
    from retinue.ledger.sqlite import SqliteLedger  # only those who use it pay for it

    return SqliteLedger(path, durability=durability)
