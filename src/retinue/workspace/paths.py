"""Paths as models write them: brought to one form relative to the root, or refused. Pure functions, no I/O."""

import posixpath
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from retinue.tools.results import bounded, clean_text
from retinue.workspace.errors import FileError
from retinue.workspace.names import to_system

__all__ = ["glob_matches", "normalise", "shown"]

MAX_PATH: Final = 4_000
"""Bytes of a whole path (Linux refuses more than 4,096)."""

MAX_NAME: Final = 255
"""Bytes of one name."""

_MAX_ALTERNATIVES: Final = 64


def shown(path: str) -> str:
    """A path for a message: bounded, one line, valid UTF-8, in backticks."""
    text = clean_text(bounded(path, 200))
    return f"`{''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)}`"


def normalise(path: str, roots: Sequence[str] = ()) -> str:
    """`path` relative to the root, without `.`, `..` and doubled slashes; `.` is the root itself.

    An absolute path is accepted if it lies inside one of `roots` (the spellings of the root). `..` is resolved by name,
    before anything is opened, so what is checked is what is opened.

    Raises:
        FileError: `invalid_path` or `outside`.
    """
    _check_text(path)
    absolute = path.startswith("/")
    clean = posixpath.normpath(path).lstrip("/") if absolute else posixpath.normpath(path)
    if absolute:
        inside = _inside(f"/{clean}", roots)
        if inside is None:
            raise FileError(
                f"{shown(path)} is outside of the workspace", code="outside", remedy="use a path relative to the workspace"
            )
        clean = inside
    parts = clean.split("/")
    if parts[0] == "..":
        raise FileError(
            f"{shown(path)} leaves the workspace", code="outside", remedy="use a path below the workspace; `.` is its root"
        )
    if parts[0] == "~":
        raise FileError(f"{shown(path)}: `~` is not expanded", code="outside", remedy="use a path relative to the workspace")
    for part in parts:
        if len(to_system(part)) > MAX_NAME:
            raise FileError(
                f"the name {shown(part)} is too long", code="invalid_path", remedy=f"use at most {MAX_NAME} bytes a name"
            )
    return clean


def _check_text(path: str) -> None:
    if not path.strip():
        raise FileError("the path is empty", code="invalid_path", remedy="name a file, or `.` for the workspace itself")
    if "\0" in path:
        raise FileError(f"{shown(path)} contains a NUL character", code="invalid_path", remedy="leave it out")
    try:
        length = len(to_system(path))
    except UnicodeEncodeError:
        raise FileError(f"{shown(path)} is not valid Unicode", code="invalid_path", remedy="use valid characters") from None
    if length > MAX_PATH:
        raise FileError(f"the path {shown(path)} is too long", code="invalid_path", remedy=f"use at most {MAX_PATH} bytes")


def _inside(absolute: str, roots: Sequence[str]) -> str | None:
    for root in roots:
        if absolute == root:
            return "."
        if absolute.startswith(f"{root.rstrip('/')}/"):
            return absolute[len(root.rstrip("/")) + 1 :]
    return None


def glob_matches(path: str, pattern: str) -> bool:
    """Whether a normalised relative path fits a glob.

    A pattern without `/` is matched against the name alone; with `/` against the whole path, where `**` stands for any
    number of folders. `{a,b}` are alternatives.
    """
    return any(_matches_one(path, one) for one in _alternatives(pattern))


def _matches_one(path: str, pattern: str) -> bool:
    parts = path.split("/")
    if "/" not in pattern:
        return pattern == "**" or fnmatchcase(parts[-1], pattern)
    reachable = {0}  # how many names may have been used up by the patterns so far
    for wanted in pattern.strip("/").removeprefix("./").split("/"):
        if wanted == "**":
            reachable = set(range(min(reachable), len(parts) + 1))
        else:
            reachable = {i + 1 for i in reachable if i < len(parts) and fnmatchcase(parts[i], wanted)}
        if not reachable:
            return False
    return len(parts) in reachable


def _alternatives(pattern: str) -> list[str]:
    """The patterns that `{a,b}` stands for, bounded; braces that do not fit are literal."""
    done: list[str] = []
    todo = [pattern]
    while todo and len(done) + len(todo) <= _MAX_ALTERNATIVES:
        current = todo.pop()
        close = current.find("}")
        start = current.rfind("{", 0, close) if close > 0 else -1
        if start < 0:
            done.append(current)
        else:
            todo.extend(current[:start] + option + current[close + 1 :] for option in current[start + 1 : close].split(","))
    return done or [pattern]
