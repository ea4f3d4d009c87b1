"""Protected paths: what no tool may touch, and what a person is always asked for. Pure, no I/O.

`.retinue/` and `agents/*/tasks/` are refused; writing `subagents/`, every `AGENTS.md` and `tools.json` always asks, because
these change what agents are and may do (ANSWERS, Rights).
"""

import unicodedata
from typing import Final

from retinue.config import Verdict

__all__ = ["is_state", "protection"]

STATE_DIR: Final = ".retinue"
_ASKED_NAMES: Final = frozenset({"agents.md", "tools.json", "subagents"})


def protection(relative_path: str, *, writing: bool) -> Verdict:
    """The most that may be granted for a normalised path relative to the workspace: DENY, ASK or ALLOW.

    Names are compared as the most forgiving file system would: without regard to case, to characters that are not seen,
    or to dots and spaces at the end. So a spelling that such a file system takes for a protected name is protected
    everywhere.
    """
    names = [_key(name) for name in relative_path.split("/")]
    if is_state(names):
        return Verdict.DENY
    if writing and any(name in _ASKED_NAMES for name in names):
        return Verdict.ASK
    return Verdict.ALLOW


def is_state(names: list[str]) -> bool:
    """Whether these folded names lead into a ledger folder (at any depth) or into an agent's task records."""
    return STATE_DIR in names or (len(names) >= 3 and names[0] == "agents" and names[2] == "tasks")


def _key(name: str) -> str:
    """The folded form of one name. An NTFS stream (`name::$DATA`) is the file itself."""
    seen = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", seen.casefold())
    return folded.partition(":")[0].rstrip(" .") or folded
