"""One root directory, and the only way to open something below it: contained, and checked where it really is.

`..` is resolved by name, the kernel keeps the path below the root, and the place of the opened descriptor is compared with
the protected paths: a link, another case or a hard link does not get around them (a hard link: see `Root._state_files`).
"""

import errno
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.workspace.errors import FileError
from retinue.workspace.names import as_text, to_system
from retinue.workspace.opening import PATH_ONLY, Opener, default_opener, real_path
from retinue.workspace.paths import normalise, shown
from retinue.workspace.protect import STATE_DIR, Reserved, folded, is_reserved, protection
from retinue.workspace.refusals import protected_error, root_changed

__all__ = ["Opened", "Root"]

_ROOT_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_DIRECTORY | (PATH_ONLY or os.O_RDONLY)
_READ: Final = os.O_RDONLY | os.O_NONBLOCK  # a named pipe must not make the open wait
_STRICTNESS: Final = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)
_MAX_STATE_FILES: Final = 20_000


class Opened(msgspec.Struct, frozen=True):
    """An open descriptor, where it really is (relative to the root), and what it is."""

    fd: int
    path: str
    info: os.stat_result


class Root:
    """A directory that paths are relative to. Holds no descriptor between operations.

    What `reserve` has been told of is refused from then on, beside what `protect` says.

    Raises:
        ConfigurationError: it is missing, not a directory, or inside a ledger folder.
    """

    def __init__(self, path: str | Path, *, opener: Opener | None = None) -> None:
        self.path = Path(os.path.realpath(path))
        self.opener = opener or default_opener()
        if STATE_DIR in (part.casefold() for part in self.path.parts):
            raise ConfigurationError(
                f"`{self.path}` is inside of a `{STATE_DIR}` folder", code="invalid_workspace", remedy="choose another folder"
            )
        self._files: frozenset[str] = frozenset()
        self._reserved: tuple[Reserved, ...] = ()
        self._spellings: Sequence[str] = tuple(dict.fromkeys(as_text(one) for one in (str(self.path), os.path.abspath(path))))
        try:
            fd = os.open(self.path, _ROOT_FLAGS)
        except OSError as error:
            raise ConfigurationError(
                f"workspace `{path}` cannot be opened ({error.strerror})",
                code="invalid_workspace",
                remedy="name a folder that exists and can be read",
            ) from error
        self._identity = _identity(os.fstat(fd))
        os.close(fd)

    def reserve(self, files: Iterable[str | Path]) -> None:
        """Close these ledger files, and what lies beside them, to every operation. Nothing opens them again.

        Each is closed where it is and, if it is a link or below one, where it is written, so no spelling leads around it.

        Raises:
            ConfigurationError: the root itself lies in such a place.
        """
        new = {place for file in files for place in _spelled(file)} - self._files
        if not new:
            return
        mine = folded(str(self.path))
        inside: list[Reserved] = []
        for place in sorted(new):
            if is_reserved(mine, folded(f"{place}.owners")):
                raise ConfigurationError(
                    f"`{self.path}` belongs to the ledger `{place}`", code="invalid_workspace", remedy="choose another folder"
                )
            relative = as_text(os.path.relpath(place, self.path))
            if relative.partition("/")[0] != "..":
                inside.append(folded(relative))
        self._files |= new
        self._reserved += tuple(inside)

    def protection(self, path: str, *, writing: bool) -> Verdict:
        """`protect.protection` of a normalised path, what was reserved included."""
        return protection(path, writing=writing, reserved=self._reserved)

    def relative(self, path: str) -> str:
        """The normalised path relative to the root.

        Raises:
            FileError: it cannot be one, or is outside by its name.
        """
        return normalise(path, self._spellings)

    @contextmanager
    def directory(self) -> Generator[int, None, None]:
        """The root's descriptor. Refused if another folder has been put in its place since.

        Raises:
            FileError: `changed`.
        """
        try:
            fd = os.open(self.path, _ROOT_FLAGS)
        except OSError as error:
            raise root_changed(f"cannot be opened any more ({error.strerror})") from error
        try:
            if _identity(os.fstat(fd)) != self._identity:
                raise root_changed("has been replaced by another one")
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def opened(self, root: int, path: str, *, folder: bool = False, links: bool = True) -> Generator[Opened, None, None]:
        """Open a normalised path for reading and check where it really is.

        Raises:
            FileError: `protected`.
            OSError: it cannot be opened.
        """
        fd = self.opener.open(root, path, _READ | (os.O_DIRECTORY if folder else 0), links=links)
        try:
            opened = Opened(fd, self._place(root, fd, path), os.fstat(fd))
            self._check_place(path, opened.path, writing=False)
            self._check_hard_link(root, path, opened.info)
            yield opened
        finally:
            os.close(fd)

    def target(self, root: int, path: str) -> str:
        """The real relative path that writing to `path` would create or replace, checked against the protected paths.

        Raises:
            FileError: it is protected, or leads to a protected place under another name.
            OSError: a part of it cannot be opened.
        """
        place = self.resolved(root, path)
        self._check_place(path, place, writing=True)
        return place

    def resolved(self, root: int, path: str) -> str:
        """Where a normalised path really is, or would be: from its deepest part that exists. Nothing is checked.

        Raises:
            OSError: a part of it cannot be opened.
        """
        missing: list[str] = []
        existing = path
        while True:
            try:
                fd = self.opener.open(root, existing, PATH_ONLY or _READ)
                break
            except FileNotFoundError:
                existing, _, name = existing.rpartition("/")
                missing.insert(0, name)
                existing = existing or "."
        try:
            place = self._place(root, fd, existing)
        finally:
            os.close(fd)
        if missing:
            place = "/".join(missing) if place == "." else "/".join((place, *missing))
        return place

    @contextmanager
    def folder(self, root: int, path: str) -> Generator[int, None, None]:
        """A directory to write in, by its real path: no link is followed, missing folders are made.

        Raises:
            OSError: a part is not a directory, or cannot be made.
        """
        current = os.dup(root)
        try:
            for name in [] if path in ("", ".") else path.split("/"):
                try:
                    step = self.opener.open(current, name, _FOLDER, links=False)
                except FileNotFoundError:
                    try:
                        os.mkdir(to_system(name), dir_fd=current)
                    except FileExistsError:  # somebody else was faster
                        pass
                    step = self.opener.open(current, name, _FOLDER, links=False)
                os.close(current)
                current = step
            yield current
        finally:
            os.close(current)

    def _place(self, root: int, fd: int, path: str) -> str:
        """Where an open descriptor is, relative to the root."""
        base, place = real_path(root), real_path(fd)
        if base is None or place is None:
            if self.opener.follows_links:
                raise OSError(errno.ENOSYS, "the system does not tell where a path leads", path)
            return path  # no link was followed, so the name is the place
        if place == base:
            return "."
        prefix = f"{base.rstrip('/')}/"
        if not place.startswith(prefix):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        return place[len(prefix) :]

    def _check_place(self, path: str, place: str, *, writing: bool) -> None:
        """Refuse a place that is protected, or protected more than its name says (a permission was asked for the name).

        Raises:
            FileError: `protected`.
        """
        by_name, by_place = (_STRICTNESS.index(self.protection(one, writing=writing)) for one in (path, place))
        if Verdict.DENY in (_STRICTNESS[by_name], _STRICTNESS[by_place]):
            raise protected_error(path, "a place of the harness itself")
        if by_place > by_name:
            raise FileError(
                f"{shown(path)} is really {shown(place)}, which is protected",
                code="protected",
                remedy=f"use the path {shown(place)}, and the user will be asked",
            )

    def _check_hard_link(self, root: int, path: str, info: os.stat_result) -> None:
        """Refuse a file that is a second name of one in a protected folder."""
        if info.st_nlink < 2 or not stat.S_ISREG(info.st_mode):
            return
        wanted = _identity(info)
        if any(_identity(other) == wanted for other in (*_beside(self._files), *self._state_files(root))):
            raise protected_error(path, "another name of a file of the harness")

    def _state_files(self, root: int) -> Iterator[os.stat_result]:
        """What lies in the root's ledger folder and in the agents' task records.

        Not what lies in other ledger folders further down: that would take a walk over the whole workspace for every file with a
        second name. So a hard link to a file of a nested workspace's ledger is read like any file; no file tool makes one.
        """
        folders = [STATE_DIR, *(f"agents/{name}/tasks" for name in self._names(root, "agents"))]
        count = 0
        while folders and count < _MAX_STATE_FILES:
            current = folders.pop()
            for name in self._names(root, current):
                count += 1
                path = f"{current}/{name}"
                try:
                    fd = self.opener.open(root, path, PATH_ONLY or _READ, links=False)
                except OSError:
                    continue
                try:
                    info = os.fstat(fd)
                finally:
                    os.close(fd)
                if stat.S_ISDIR(info.st_mode):
                    folders.append(path)
                else:
                    yield info

    def _names(self, root: int, path: str) -> list[str]:
        try:
            fd = self.opener.open(root, path, os.O_RDONLY | os.O_DIRECTORY, links=False)
        except OSError:
            return []
        try:
            return [as_text(name) for name in os.listdir(fd)]
        finally:
            os.close(fd)


def _spelled(file: str | Path) -> tuple[str, str]:
    """Where a file is, and where it is written to be (its folder without links): these differ if the file is a link."""
    absolute = os.path.abspath(file)
    folder, name = os.path.split(absolute)
    return os.path.realpath(absolute), os.path.join(os.path.realpath(folder), name)


def _beside(files: Iterable[str]) -> Iterator[os.stat_result]:
    """The ledgers' files that are there, by their absolute names: another name for one may be anywhere."""
    for file in files:
        place = folded(os.path.basename(file))
        try:
            with os.scandir(os.path.dirname(file)) as entries:
                found = [entry.path for entry in entries if is_reserved(folded(entry.name), place)]
        except OSError:
            continue
        for path in found:
            try:
                yield os.stat(path)
            except OSError:  # gone meanwhile
                continue


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
