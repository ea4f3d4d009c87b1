"""The files of one workspace: read, write, list, search, without a way out of its root.

Errors are `FileError`s whose text a model can act on. All methods block; tools call them in a thread.
"""

import errno
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from retinue.config import Verdict
from retinue.workspace.content import (
    MAX_BYTES,
    ChangedMeanwhile,
    FileInfo,
    decoded,
    encoded,
    kind_of,
    read_opened,
    replace_file,
    scan,
    size_of,
)
from retinue.workspace.errors import FileError
from retinue.workspace.opening import Opener
from retinue.workspace.paths import shown
from retinue.workspace.refusals import explain, protected_error
from retinue.workspace.root import Opened, Root

__all__ = ["WorkspaceFiles", "Written"]

_EDIT_TRIES: Final = 5
_LEADS_NOWHERE: Final = frozenset((errno.ENOTDIR, errno.ELOOP, errno.EMLINK, errno.EXDEV, errno.EACCES, errno.EPERM))


class Written(msgspec.Struct, frozen=True):
    """What a write did: the real relative path, whether the file is new, its size in bytes."""

    path: str
    created: bool
    size: int


class WorkspaceFiles:
    """Files below `root`. Links are followed where they stay inside (Linux), never out of it; see `protect` for the rest.

    Holds no descriptor between calls and may be used from several threads. `opener` is how paths are opened; by default the
    safest that the system has.

    Raises:
        ConfigurationError: `root` is no folder that can be opened.
    """

    def __init__(self, root: str | Path, *, opener: Opener | None = None) -> None:
        self.tree = Root(root, opener=opener)
        self._editing = threading.Lock()

    @property
    def root(self) -> Path:
        """The real path of the root."""
        return self.tree.path

    def reserve(self, files: Iterable[str | Path]) -> None:
        """Close ledger files that may lie in this folder, and what belongs to them, to every operation: see `Root.reserve`.

        Raises:
            ConfigurationError: the folder itself belongs to such a ledger.
        """
        self.tree.reserve(files)

    def verdict(self, path: str, *, writing: bool) -> Verdict:
        """The most that may be granted for this path now: DENY where the operation would be refused for the path's sake
        (outside, protected, or leading to a more protected place under another name)."""
        verdict = Verdict.DENY
        try:
            relative = self.tree.relative(path)
            verdict = self.tree.protection(relative, writing=writing)
            with self.tree.directory() as root:
                if writing:
                    self.tree.target(root, relative)
                else:
                    with self.tree.opened(root, relative):
                        pass
        except FileError:
            return Verdict.DENY
        except OSError as error:
            return Verdict.DENY if explain(error, path).code == "outside" else verdict
        return verdict

    def places(self, path: str) -> tuple[str, ...]:
        """What permission rules see of a path: its normal form from the root, and where that leads now through links.

        A place that does not exist yet counts from its deepest folder that does. Empty for a path that is refused anyway.

        Raises:
            FileError: where it leads cannot be found out now (no descriptors left, say), though it could be later.
        """
        try:
            relative = self.tree.relative(path)
        except FileError:
            return ()
        try:
            with self.tree.directory() as root:
                return tuple(dict.fromkeys((relative, self.tree.resolved(root, relative))))
        except OSError as error:
            if error.errno not in _LEADS_NOWHERE:
                raise explain(error, path) from error
            return (relative,)  # nothing can be opened there, so no tool can do anything there

    def stat(self, path: str) -> FileInfo:
        """What is at this path.

        Raises:
            FileError: it is missing, protected or outside.
        """
        with self.opening(path) as opened:
            return FileInfo(opened.path, kind_of(opened.info.st_mode), size_of(opened.info))

    def read_bytes(self, path: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        """The whole file.

        Raises:
            FileError: it is missing, no regular file, protected, outside, or larger than `max_bytes`.
        """
        with self.opening(path) as opened:
            return read_opened(opened, path, max_bytes)

    def read_text(self, path: str, *, max_bytes: int = MAX_BYTES) -> str:
        """The whole file as text: UTF-8, line ends as they are, invalid bytes replaced.

        Raises:
            FileError: as `read_bytes`, or `binary`.
        """
        return decoded(self.read_bytes(path, max_bytes=max_bytes), path, errors="replace")

    def write_text(self, path: str, text: str) -> Written:
        """Create or replace a file, at once and whole: nobody ever reads half of it. Missing folders are made.

        The file's mode is kept. It is synced before it takes its name. Another hard link keeps the old content.

        Raises:
            FileError: it is protected, outside, no regular file, too large, or cannot be written.
        """
        return self._write(path, encoded(text, path), None)

    def edit_text(self, path: str, change: Callable[[str], str]) -> Written:
        """Replace a file's text by `change` of it. If the file changes meanwhile, the change is made again on the new text.

        Raises:
            FileError: as `read_text` and `write_text`; what `change` raises; `changed`, if it never stands still.
        """
        with self._editing:
            for _ in range(_EDIT_TRIES):
                with self.opening(path) as opened:
                    before = opened.info
                    text = decoded(read_opened(opened, path, MAX_BYTES), path, errors="strict")
                try:
                    return self._write(path, encoded(change(text), path), before)
                except ChangedMeanwhile:
                    continue
        raise FileError(f"{shown(path)} keeps changing", code="changed", remedy="read it again later and retry")

    def children(self, path: str = ".") -> list[FileInfo]:
        """What is directly in a folder, by name, without protected places. A link is listed, not followed.

        Raises:
            FileError: it is missing, no folder, protected or outside.
        """
        with self.opening(path, folder=True) as opened:
            return scan(self.tree, opened)

    @contextmanager
    def opening(self, path: str, *, folder: bool = False, links: bool = True) -> Generator[Opened, None, None]:
        """Open what is at `path` for reading, with errors in words. `links` False refuses links on the way.

        Raises:
            FileError: it is missing, protected or outside.
        """
        relative = self.tree.relative(path)
        if self.tree.protection(relative, writing=False) is Verdict.DENY:
            raise protected_error(path, "a place of the harness itself")
        try:
            with self.tree.directory() as root, self.tree.opened(root, relative, folder=folder, links=links) as opened:
                yield opened
        except OSError as error:
            raise explain(error, path) from error

    def _write(self, path: str, data: bytes, before: os.stat_result | None) -> Written:
        relative = self.tree.relative(path)
        if relative == ".":
            raise FileError(f"{shown(path)} is the workspace itself", code="not_a_file", remedy="name a file in it")
        if self.tree.protection(relative, writing=True) is Verdict.DENY:
            raise protected_error(path, "a place of the harness itself")
        try:
            with self.tree.directory() as root:
                target = self.tree.target(root, relative)
                parent, _, name = target.rpartition("/")
                with self.tree.folder(root, parent) as folder:
                    created = replace_file(folder, name, data, before, path)
        except OSError as error:
            raise explain(error, path) from error
        return Written(target, created, len(data))
