"""Records that were read before. A generation of a thread only ever grows, so what was read of it stays true.

A long conversation is read again at each of its runs and by each fork of it, and 2,000 records take 5 ms to read.
"""

import sqlite3
from typing import Final

from retinue.ops import Record
from retinue.rows import ThreadKey

__all__ = ["Segments"]

_LIMIT: Final = 16 * 1024 * 1024
_RECORD_BYTES: Final = 250
"""What a record takes beside its body, about."""

_NEW: Final = (
    "SELECT seq, type, run, attempt, at, body FROM event"
    " WHERE thread_id = ? AND generation = ? AND seq > ? AND seq <= ? ORDER BY seq"
)


class Segments:
    """The beginnings of generations, those used last, up to `limit` bytes. Belongs to the reader thread."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._kept: dict[tuple[int, int], tuple[list[Record], int]] = {}
        self._bytes = 0

    def read(self, db: sqlite3.Connection, thread_id: int, key: ThreadKey, generation: int, upto: int) -> list[Record]:
        """The records 1 to `upto` of a generation. Ids of threads are never used again, so a purge needs no word here."""
        place = thread_id, generation
        records, size = self._kept.get(place) or ([], 0)
        new: list[Record] = []
        if len(records) < upto:
            found = db.execute(_NEW, (thread_id, generation, len(records), upto)).fetchall()
            new = [Record(key, generation, *values) for values in found]
        added = sum(len(record.body) for record in new) + _RECORD_BYTES * (len(new) + (not size))
        records += new
        self._kept.pop(place, None)  # so that what was used last is the last
        self._kept[place] = records, size + added
        self._bytes += added
        while self._bytes > self._limit:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest)[1]
        return records[:upto]

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._bytes = 0
