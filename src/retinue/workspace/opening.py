"""Opening paths below a directory so that nothing can lead out of it, not even a folder swapped for a link meanwhile.

Linux: `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)`, the kernel itself checks each step. Elsewhere: one component at a
time with `O_NOFOLLOW`, which refuses every symbolic link.
"""

import errno
import os
import stat
from typing import Any, Final, Protocol

from retinue.workspace.names import to_system, to_text

__all__ = ["PATH_ONLY", "Openat2Opener", "Opener", "StepwiseOpener", "default_opener", "real_path"]

_OPENAT2: Final = 437  # the same number on every architecture that Python supports
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_TRIES: Final = 64
"""The kernel answers EAGAIN where a rename elsewhere made its check of `..` uncertain."""


PATH_ONLY: Final = getattr(os, "O_PATH", 0)
"""Opens a place without the right to read it; 0 where the system has no such flag."""


def _complete(flags: int) -> int:
    """The flags with those that every opening has. `O_PATH` bears no others, and opens no terminal anyway."""
    return flags | os.O_CLOEXEC | (0 if flags & PATH_ONLY else os.O_NOCTTY)


class Opener(Protocol):
    """Opens paths below a directory."""

    follows_links: bool
    """Whether symbolic links that stay inside are followed."""

    def open(self, root: int, path: str, flags: int, *, links: bool = True) -> int:
        """A descriptor of `path` (relative, normalised) below the directory `root`. `links` False refuses every link.

        Raises:
            OSError: as `open` does; EXDEV where the path leaves the root, ELOOP where a link is refused.
        """
        ...


class Openat2Opener:
    """The kernel resolves the path and refuses to leave the root: free of races. Linux 5.6 and later."""

    follows_links = True

    def __init__(self) -> None:
        import ctypes  # only here: it is slow to import

        class OpenHow(ctypes.Structure):
            _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

        self._ctypes = ctypes
        self._how: Any = OpenHow
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
        )

    def open(self, root: int, path: str, flags: int, *, links: bool = True) -> int:
        """See `Opener`."""
        ctypes = self._ctypes
        resolve = _BENEATH | _NO_MAGICLINKS | (0 if links else _NO_SYMLINKS)
        how = self._how(flags=_complete(flags), mode=0, resolve=resolve)
        code = errno.EAGAIN
        for _ in range(_TRIES):
            fd = self._syscall(_OPENAT2, root, to_system(path), ctypes.byref(how), ctypes.sizeof(how))
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code), path)


class StepwiseOpener:
    """One component at a time, following no link at all."""

    follows_links = False

    def open(self, root: int, path: str, flags: int, *, links: bool = True) -> int:
        """See `Opener`. `links` makes no difference."""
        *folders, last = path.split("/")
        if ".." in folders or last == ".." or path.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        current = os.dup(root)
        try:
            for name in folders:
                step = _open_folder(name, current, path)
                os.close(current)
                current = step
            fd = os.open(to_system(last), _complete(flags) | os.O_NOFOLLOW, dir_fd=current)
            if flags & PATH_ONLY and stat.S_ISLNK(os.fstat(fd).st_mode):  # O_PATH opens the link itself
                os.close(fd)
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            return fd
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK) and _is_link(last, current):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
            raise
        finally:
            os.close(current)


def _open_folder(name: str, parent: int, path: str) -> int:
    try:
        return os.open(to_system(name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ENOTDIR and _is_link(name, parent):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
        raise


def _is_link(name: str, parent: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(to_system(name), dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


def default_opener() -> Opener:
    """`Openat2Opener` where the kernel has it (and `/proc`, which tells where a link led), else `StepwiseOpener`."""
    try:
        opener = Openat2Opener()
        here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, AttributeError, ImportError):
        return StepwiseOpener()
    try:
        os.close(opener.open(here, ".", os.O_RDONLY | os.O_DIRECTORY))
        return opener if real_path(here) == "/" else StepwiseOpener()
    except OSError:  # ENOSYS: an old kernel; EPERM: forbidden by a sandbox
        return StepwiseOpener()
    finally:
        os.close(here)


def real_path(fd: int) -> str | None:
    """Where an open descriptor really is, or None where the system does not tell."""
    try:
        return to_text(os.readlink(f"/proc/self/fd/{fd}".encode()))
    except OSError:
        return None
