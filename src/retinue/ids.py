"""Identifiers: how they are made, what they may contain, and which kind a given one is.

Every id that Retinue makes is a prefix and a UUIDv7 in hex (`run_0193…`), so that an error can say which kind was given
and ids sort by time. Ids that people choose (agents, sessions, threads, tools) are checked here (D-31).
"""

import os
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, cast

from retinue.errors import ConfigurationError

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "AGENT_KEY",
    "IdKind",
    "agent_folder",
    "agent_from_folder",
    "check_agent_id",
    "check_scope_id",
    "check_tool_name",
    "kind_of",
    "made_at",
    "new_agent_key",
    "new_id",
    "new_sub_session",
    "sha256_hex",
    "tool_child_thread",
    "uuid7_hex",
]

IdKind = Literal["ses", "thr", "run", "inv", "task", "req", "msg", "own", "mail"]

KIND_NAMES: Final[dict[str, str]] = {
    "ses": "session id",
    "thr": "thread id",
    "run": "run id",
    "inv": "invocation id",
    "task": "task id",
    "req": "request id",
    "msg": "message id",
    "own": "owner id",
    "mail": "mail id",
}

AGENT_KEY: Final = re.compile(r"agent:(?P<agent_id>[A-Za-z0-9._/-]{1,128}):(?P<hash>[0-9a-f]{12})")
_AGENT_ID: Final = re.compile(r"[A-Za-z0-9._/-]{1,128}")
_SCOPE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_TOOL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


_FIXED: Final = (0x7 << 76) | (0x2 << 62)
_FREE: Final = ((1 << 80) - 1) & ~(0xF << 76) & ~(0x3 << 62)


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of some bytes: the name under which they are stored."""
    from hashlib import sha256  # loads OpenSSL: with the first thing that is hashed, not at import

    return sha256(data).hexdigest()


@cache
def _random() -> "Random":
    """Seeded by the system, and again in a forked process: ids name things, they guard nothing."""
    from random import Random

    made = Random()
    os.register_at_fork(after_in_child=made.seed)
    return made


def uuid7_hex() -> str:
    """A UUIDv7 (RFC 9562) as 32 hex digits: 48 bits of milliseconds, then random bits."""
    return f"{((time.time_ns() // 1_000_000) << 80) | (_random().getrandbits(80) & _FREE) | _FIXED:032x}"


def new_id(kind: IdKind) -> str:
    """A new id of the given kind, for example `run_01937c…`."""
    return f"{kind}_{uuid7_hex()}"


def new_agent_key(agent_id: str) -> str:
    """The key of a spawned roster child: `agent:<agent id>:<12 hex>` (A-26)."""
    return f"agent:{agent_id}:{os.urandom(6).hex()}"


def new_sub_session() -> str:
    """The session of a roster or isolated child: `sub-<uuid>` (A-25)."""
    text = uuid7_hex()
    return f"sub-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def tool_child_thread(invocation_id: str) -> str:
    """The thread of a child called as a tool, in its parent's session: `sub-<last 12 hex of the invocation>`."""
    return f"sub-{invocation_id[-12:]}"


def kind_of(text: str) -> str | None:
    """What kind of id `text` looks like, in words a person reads, or None."""
    if AGENT_KEY.fullmatch(text):
        return "agent key"
    if text.startswith("sub-"):
        return "session or thread id of a subagent"
    prefix, separator, rest = text.partition("_")
    if separator and len(rest) == 32:
        return KIND_NAMES.get(prefix)
    return None


def made_at(text: str) -> int | None:
    """When an id of ours was made, in milliseconds since the epoch; None for any other text."""
    prefix, separator, rest = text.partition("_")
    if not separator or prefix not in KIND_NAMES or not _HEX.fullmatch(rest):
        return None
    return int(rest[:12], 16)


def check_agent_id(agent_id: str, *, where: str = "agent id") -> str:
    """Return `agent_id` if D-31 allows it.

    Raises:
        ConfigurationError: naming the value and the rule.
    """
    segments = agent_id.split("/") if isinstance(cast("object", agent_id), str) else [""]
    if "" in segments or not _AGENT_ID.fullmatch(agent_id) or any(part in ("", ".", "..") for part in segments):
        raise ConfigurationError(
            f"{where} `{agent_id}` is not valid",
            code="invalid_agent_id",
            remedy="use 1 to 128 of letters, digits, `.`, `_`, `-` and `/`, without empty segments or `..`",
        )
    return agent_id


def check_scope_id(value: str, *, where: str) -> str:
    """Return a session, thread or user id if D-31 allows it (an agent id without `/`)."""
    if not isinstance(cast("object", value), str) or not _SCOPE_ID.fullmatch(value) or value in (".", ".."):
        raise ConfigurationError(
            f"{where} `{value}` is not valid",
            code="invalid_id",
            remedy="use 1 to 128 of letters, digits, `.`, `_` and `-`",
        )
    return value


def check_tool_name(name: str, *, where: str = "tool name") -> str:
    """Return `name` if a provider would take it as a tool's name (D-31)."""
    if not _TOOL_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where} `{name}` is not valid",
            code="invalid_tool_name",
            remedy="start with a letter or `_`, then letters, digits, `_` or `-`, at most 64 characters",
        )
    return name


def agent_folder(agent_id: str) -> str:
    """One folder name for an agent id, reversible: `/` becomes `%2F`, a leading dot `%2E`."""
    name = agent_id.replace("/", "%2F")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def agent_from_folder(folder: str) -> str:
    """The agent id whose folder this is."""
    return folder.replace("%2F", "/").replace("%2E", ".")
