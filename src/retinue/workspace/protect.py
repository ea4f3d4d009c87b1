"""Protected paths: what no tool may touch, and what a person is always asked for. Pure, no I/O.

`.retinue/` and `agents/*/tasks/` are refused, and so is a ledger that lies elsewhere in the workspace, with all that belongs to
it. Writing `subagents/`, every `AGENTS.md` and `tools.json` always asks, because these change what agents are and may do
(ANSWERS, Rights).
"""

import unicodedata
from collections.abc import Sequence
from typing import Final, TypeAlias

from retinue.config import Verdict

__all__ = ["STATE_DIR", "Reserved", "folded", "is_reserved", "is_state", "protection"]

STATE_DIR: Final = ".retinue"
Reserved: TypeAlias = tuple[str, ...]
"""The place of a ledger's file, as folded names from the root (see `folded`)."""

_ASKED_NAMES: Final = frozenset({"agents.md", "tools.json", "subagents"})


def protection(relative_path: str, *, writing: bool, reserved: Sequence[Reserved] = ()) -> Verdict:
    """The most that may be granted for a normalised path relative to the workspace: DENY, ASK or ALLOW.

    `reserved` are the ledgers that lie outside of `.retinue/`.

    Names are compared as the most forgiving file system would: without regard to case, to characters that are not seen,
    or to dots and spaces at the end. So a spelling that such a file system takes for a protected name is protected
    everywhere.
    """
    names = folded(relative_path)
    if is_state(names) or any(is_reserved(names, place) for place in reserved):
        return Verdict.DENY
    if writing and any(name in _ASKED_NAMES for name in names):
        return Verdict.ASK
    return Verdict.ALLOW


def folded(path: str) -> tuple[str, ...]:
    """The names of a relative path in the form in which they are compared."""
    return tuple(_key(name) for name in path.split("/"))


def is_state(names: Sequence[str]) -> bool:
    """Whether these folded names lead into a ledger folder (at any depth) or into an agent's task records."""
    return STATE_DIR in names or (len(names) >= 3 and names[0] == "agents" and names[2] == "tasks")


def is_reserved(names: Sequence[str], place: Reserved) -> bool:
    """Whether these folded names lead to a ledger's file, or to what lies beside it under a name that begins with the
    ledger's: `-wal`, `-shm`, `-journal`, the folder of its owners' locks, a copy like `ledger.db.bak`."""
    *folder, file = place
    if len(names) < len(place) or list(names[: len(folder)]) != folder:
        return False
    name = names[len(folder)]
    return name == file or name.startswith((f"{file}-", f"{file}."))


def _key(name: str) -> str:
    """The folded form of one name. An NTFS stream (`name::$DATA`) is the file itself."""
    seen = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", seen.casefold())
    return folded.partition(":")[0].rstrip(" .") or folded
