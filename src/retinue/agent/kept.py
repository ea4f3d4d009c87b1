"""Projections of threads whose last run ended in this process, so that the next one need not read its journal again.

Only a thread that is exactly as it was left is found again: same creation, generation and head. Everything else is read.
"""

from typing import Final

from retinue.agent.projection import Projection
from retinue.rows import ThreadKey, ThreadRow

__all__ = ["KeptProjections"]

MAX_THREADS: Final = 256
MAX_MESSAGES: Final = 20_000
"""How many threads, and messages over all of them, are kept; those that were used last stay."""
MAX_CHARACTERS: Final = 16_000_000
"""How much text of all of them."""


class KeptProjections:
    """One per runtime. A projection that is taken belongs to the run that takes it."""

    def __init__(
        self, *, max_threads: int = MAX_THREADS, max_messages: int = MAX_MESSAGES, max_characters: int = MAX_CHARACTERS
    ) -> None:
        self._threads = max_threads
        self._max = max_messages
        self._kept: dict[ThreadKey, tuple[int, int, int, Projection]] = {}
        self._messages = 0
        self._characters = 0
        self._most = max_characters

    def keep(self, row: ThreadRow, *, generation: int, head: int, projection: Projection) -> None:
        """Keep what a thread's journal says at `head`, if its run has ended and left nothing open. `row` is as it was read or
        made when the run began."""
        self._drop(row.key)
        if (
            projection.finished is None
            or projection.open is not None
            or len(projection.history) > self._max
            or projection.size > self._most
        ):
            return
        self._kept[row.key] = (row.created_at, generation, head, projection)
        self._messages += len(projection.history)
        self._characters += projection.size
        while self._messages > self._max or self._characters > self._most or len(self._kept) > self._threads:
            self._drop(next(iter(self._kept)))

    def take(self, row: ThreadRow) -> Projection | None:
        """The projection of a thread, if it is as it was left."""
        kept = self._kept.get(row.key)
        if kept is None:
            return None
        self._drop(row.key)
        return kept[3] if kept[:3] == (row.created_at, row.generation, row.head) else None

    def _drop(self, key: ThreadKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._messages -= len(kept[3].history)
            self._characters -= kept[3].size
