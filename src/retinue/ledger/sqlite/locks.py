"""File locks beside the database: who lives (M7), and whose turn it is to write.

`flock` belongs to an open file and is freed by the kernel when its process ends, however it ends; a stopped process keeps it.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["OwnerLocks", "Turn"]

_POLL_SECONDS: Final = 0.0005


class OwnerLocks:
    """The locks of the owners that this ledger registered, and a look at those of others.

    Used in the writer thread, except `alive`, which may be called in any.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def held(self) -> list[str]:
        """The ids of the owners whose lock is held here, oldest first."""
        return list(self._held)

    def take(self, owner_id: str) -> bool:
        """Take the lock of an owner; False if another process has it."""
        if owner_id in self._held:
            return True
        path = self._path(owner_id)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _lock(handle, fcntl.LOCK_EX):
                os.close(handle)
                return False
            if _still_there(handle, path):
                self._held[owner_id] = handle
                return True
            os.close(handle)  # swept between open and lock

    def release(self, owner_id: str) -> None:
        """Give the lock back and remove its file."""
        handle = self._held.pop(owner_id, None)
        if handle is not None:
            self._path(owner_id).unlink(missing_ok=True)
            os.close(handle)

    def release_all(self) -> None:
        """Give every lock back."""
        for owner_id in self.held():
            self.release(owner_id)

    def alive(self, owner_id: str) -> bool:
        """Whether some process holds the lock of this owner. Never waits."""
        if owner_id in self._held:
            return True
        try:
            handle = os.open(self._path(owner_id), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _lock(handle, fcntl.LOCK_SH)  # shared, so that two who look do not see each other
        finally:
            os.close(handle)

    def sweep(self) -> None:
        """Remove the lock files of processes that are gone."""
        for path in self._folder.glob("*.lock"):
            if path.name.removesuffix(".lock") in self._held:
                continue
            try:
                handle = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                if _lock(handle, fcntl.LOCK_EX):
                    path.unlink(missing_ok=True)
            finally:
                os.close(handle)

    def _path(self, owner_id: str) -> Path:
        return self._folder / f"{owner_id}.lock"


class Turn:
    """Whose turn it is to begin a transaction, so that writers at full speed alternate.

    Who waits for the write lock keeps the turn until it has it; who has just written needs the turn again, and so comes
    after. SQLite alone would let the process that is already running win every time.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self, deadline: float) -> None:
        """Wait for the turn until `deadline` (`time.monotonic`), then raise `TimeoutError`."""
        while not _lock(self._handle, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TimeoutError("another process has been about to write all this time")
            time.sleep(_POLL_SECONDS)

    def give(self) -> None:
        """Let the next one have it."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_there(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
