"""Walking and searching a workspace, bounded: how much is looked at, and how much is given back.

`.git`, protected places and unfinished writes are left out; links are listed, never followed.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from retinue.near import near_names
from retinue.workspace.content import MAX_BYTES, FileInfo, kind_of, looks_binary, read_opened, scan
from retinue.workspace.errors import FileError
from retinue.workspace.files import WorkspaceFiles
from retinue.workspace.matching import matcher_for
from retinue.workspace.paths import glob_matches

__all__ = ["Found", "Hidden", "Match", "grep", "near_paths", "walk"]

MAX_VISITED: Final = 100_000
"""Entries that one walk looks at."""

_SKIPPED: Final = ".git"
_NEAR: Final = 3
_NEAR_VISITED: Final = 5_000


class Match(msgspec.Struct, frozen=True):
    """A line that matches: the file, the line's number from 1, its text."""

    path: str
    line: int
    text: str


class Hidden:
    """Paths that are left out of a walk, and how many there were: a folder that is left out counts as one."""

    def __init__(self, denies: Callable[[str], bool]) -> None:
        self._denies = denies
        self.count = 0

    def __call__(self, path: str) -> bool:
        """Whether this path is left out; it is counted then."""
        hidden = self._denies(path)
        self.count += hidden
        return hidden


class Found(msgspec.Struct, frozen=True):
    """The matches of a search. `complete` is False if there are more; `skipped` counts files too large to search."""

    matches: list[Match]
    complete: bool
    skipped: int


def walk(
    files: WorkspaceFiles, path: str = ".", *, most: int = MAX_VISITED, hidden: Callable[[str], bool] | None = None
) -> Iterator[FileInfo]:
    """Everything below a folder, depth first and by name, at most `most` entries. A folder that cannot be read is passed over.
    What is `hidden` is left out, with all that is below it.

    Raises:
        FileError: `path` is missing, no folder, protected or outside.
    """
    with files.opening(path, folder=True) as opened:
        stack = scan(files.tree, opened)[::-1]
    seen = 0
    while stack and seen < most:
        entry = stack.pop()
        seen += 1
        if os.path.basename(entry.path) == _SKIPPED:
            continue
        if hidden is not None and hidden(entry.path):
            continue
        yield entry
        if entry.kind == "directory":
            try:
                with files.opening(entry.path, folder=True, links=False) as opened:
                    stack.extend(scan(files.tree, opened)[::-1])
            except FileError:
                pass


def grep(
    files: WorkspaceFiles,
    pattern: str,
    path: str = ".",
    *,
    glob: str | None = None,
    most: int = 200,
    hidden: Callable[[str], bool] | None = None,
) -> Found:
    """Lines that match a regular expression, in one file or in all text files below a folder.

    Raises:
        FileError: the path is refused or missing, the pattern is none, or it takes too long.
    """
    start = files.stat(path)
    if start.kind == "directory":
        entries = walk(files, path, hidden=hidden)
    else:
        entries = iter([start] if hidden is None or not hidden(start.path) else [])
    matches: list[Match] = []
    skipped = 0
    with matcher_for(pattern) as matcher:
        for entry in entries:
            if entry.kind != "file" or (glob is not None and not _fits(entry.path, start.path, glob)):
                continue
            try:
                with files.opening(entry.path, links=False) as opened:
                    data = read_opened(opened, entry.path, MAX_BYTES) if kind_of(opened.info.st_mode) == "file" else b""
            except FileError as error:
                skipped += error.code == "too_large"
                continue
            if looks_binary(data):
                continue
            text = data.decode("utf-8", "replace")
            lines = text.split("\n")
            for index in matcher.lines(text, most + 1 - len(matches)):
                matches.append(Match(entry.path, index + 1, lines[index].rstrip("\r")))
            if len(matches) > most:
                return Found(matches[:most], False, skipped)
    return Found(matches, True, skipped)


def near_paths(files: WorkspaceFiles, path: str, hidden: Callable[[str], bool] | None = None) -> list[str]:
    """Paths that somebody who wrote `path` may have meant: like names in the same folder, then the same name elsewhere."""
    try:
        folder, _, name = files.tree.relative(path).rpartition("/")
        entries = [entry for entry in files.children(folder or ".") if hidden is None or not hidden(entry.path)]
        siblings = {os.path.basename(entry.path): entry.path for entry in entries}
    except FileError:
        siblings, name = {}, os.path.basename(path)
    folded = {sibling.casefold(): sibling for sibling in siblings}
    like = near_names(name.casefold(), list(folded)[:_NEAR_VISITED], count=_NEAR)
    found = [siblings[folded[one]] for one in like]
    for entry in walk(files, most=_NEAR_VISITED, hidden=hidden):
        if len(found) >= _NEAR:
            break
        if os.path.basename(entry.path) == name and entry.path not in found:
            found.append(entry.path)
    return found


def _fits(path: str, start: str, glob: str) -> bool:
    """Whether a file fits a glob, given relative to where the search began or to the root."""
    return glob_matches(path, glob) or (start != "." and glob_matches(path.removeprefix(f"{start}/"), glob))
