"""The content of files and folders that are already open: what they are, reading, decoding, replacing."""

import contextlib
import os
import stat
from typing import Final, Literal, TypeAlias

import msgspec

from retinue.config import Verdict
from retinue.workspace.errors import FileError
from retinue.workspace.names import as_text, to_system
from retinue.workspace.paths import shown
from retinue.workspace.root import Opened, Root

__all__ = [
    "MAX_BYTES",
    "ChangedMeanwhile",
    "FileInfo",
    "FileKind",
    "decoded",
    "encoded",
    "kind_of",
    "looks_binary",
    "read_opened",
    "replace_file",
    "scan",
    "size_of",
]

FileKind: TypeAlias = Literal["file", "directory", "link", "other"]

MAX_BYTES: Final = 10 * 1024 * 1024
"""The largest file that is read or written."""

_SNIFFED: Final = 8_192


class FileInfo(msgspec.Struct, frozen=True):
    """A file or folder: its path relative to the root, what it is, its size in bytes (0 for folders)."""

    path: str
    kind: FileKind
    size: int


class ChangedMeanwhile(Exception):
    """The file is not the one that was read."""


def scan(tree: Root, opened: Opened) -> list[FileInfo]:
    """The entries of an open folder, sorted, without protected places and unfinished writes."""
    found: list[FileInfo] = []
    with os.scandir(opened.fd) as entries:
        for entry in entries:
            name = as_text(entry.name)
            path = name if opened.path == "." else f"{opened.path}/{name}"
            if tree.protection(path, writing=False) is Verdict.DENY or _is_temporary(name):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone meanwhile
                continue
            found.append(FileInfo(path, kind_of(info.st_mode), size_of(info)))
    return sorted(found, key=lambda one: one.path)


def read_opened(opened: Opened, path: str, max_bytes: int) -> bytes:
    """The content of an open regular file.

    Raises:
        FileError: it is something else, or too large.
    """
    if stat.S_ISDIR(opened.info.st_mode):
        raise FileError(f"{shown(path)} is a folder", code="not_a_file", remedy="use `list_files`, or name a file in it")
    if not stat.S_ISREG(opened.info.st_mode):
        raise FileError(f"{shown(path)} is not a regular file", code="not_a_file", remedy="name another file")
    chunks: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (chunk := os.read(opened.fd, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise FileError(
            f"{shown(path)} is larger than {max_bytes:,} bytes ({opened.info.st_size:,})",
            code="too_large",
            remedy="work without its whole content",
        )
    return b"".join(chunks)


def looks_binary(data: bytes) -> bool:
    """Whether this is no text: a NUL byte near the beginning."""
    return b"\0" in data[:_SNIFFED]


def kind_of(mode: int) -> FileKind:
    """What a file of this mode is."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def replace_file(folder: int, name: str, data: bytes, before: os.stat_result | None, path: str) -> bool:
    """Write a temporary file in this folder and give it the name. True if the name was free."""
    temporary = f".retinue-{os.urandom(8).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        try:
            old = _existing(folder, name, path)
            if old is not None and stat.S_ISREG(old.st_mode):
                os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if before is not None and _version(_existing(folder, name, path)) != _version(before):
            raise ChangedMeanwhile
        os.replace(temporary.encode(), to_system(name), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return old is None


def _existing(folder: int, name: str, path: str) -> os.stat_result | None:
    """What has this name now; refused if it is neither a file nor a link."""
    try:
        info = os.stat(to_system(name), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if kind_of(info.st_mode) in ("directory", "other"):
        what = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
        raise FileError(f"{shown(path)} is {what}", code="not_a_file", remedy="choose another name")
    return info


def _version(info: os.stat_result | None) -> tuple[int, ...] | None:
    return None if info is None else (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)


def decoded(data: bytes, path: str, *, errors: str) -> str:
    if looks_binary(data):
        raise FileError(
            f"{shown(path)} is a binary file ({len(data):,} bytes)", code="binary", remedy="it cannot be read as text"
        )
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise FileError(
            f"{shown(path)} is not UTF-8 (byte {error.start:,})", code="binary", remedy="it cannot be edited as text"
        ) from None


def encoded(text: str, path: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise FileError(
            f"the text for {shown(path)} is not valid Unicode (character {error.start:,})", remedy="leave it out"
        ) from None
    if len(data) > MAX_BYTES:
        raise FileError(
            f"the text for {shown(path)} is larger than {MAX_BYTES:,} bytes", code="too_large", remedy="write several files"
        )
    return data


def size_of(info: os.stat_result) -> int:
    return info.st_size if stat.S_ISREG(info.st_mode) else 0


def _is_temporary(name: str) -> bool:
    return name.startswith(".retinue-") and name.endswith(".tmp")
