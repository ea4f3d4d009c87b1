"""How many children may be at work at once, without deadlock (M9).

A run holds a slot only while it is in a model call or a tool. It gives it back while it waits for a child, a person or a
timer, so a parent never holds what its child needs; a free slot goes to the deepest waiter first, then to the oldest.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Hold", "Slots"]


class Slots:
    """A counting limit with waiters in order (deepest, then oldest)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._ticket = 0

    @property
    def queued(self) -> int:
        """How many wait."""
        return sum(not waiter[3].done() for waiter in self._waiting)

    async def take(self, depth: int, order: int) -> None:
        """Take a slot for a run at `depth`; `order` is when it began, in its tree."""
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        self._ticket += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-depth, order, self._ticket, future))
        self._hand_out()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # given at the same moment: hand it on
                self.give()
            else:
                future.cancel()
            raise

    def give(self) -> None:
        """Give a slot back."""
        self.taken -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (self.taken < self.limit or self._waiting[0][3].done()):
            future = heapq.heappop(self._waiting)[3]
            if not future.done():
                self.taken += 1
                future.set_result(None)

    def hold(self, depth: int, order: int) -> "Hold":
        """A slot for a block: `async with slots.hold(…):`. The root of a tree (depth 0) needs none."""
        return Hold(self, depth, order)


class Hold:
    """A slot that is held while a block runs, or until `release`, if the block does not end; `pause` lends it to others."""

    __slots__ = ("_depth", "_held", "_order", "_over", "_slots", "_taking")

    def __init__(self, slots: Slots, depth: int, order: int) -> None:
        self._slots = slots
        self._depth = depth
        self._order = order
        self._held = False
        self._taking = False
        self._over = False

    async def __aenter__(self) -> None:
        await self._take()

    async def __aexit__(self, *_exc: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the slot back for good: nothing that is still inside the block takes it again. Idempotent."""
        self._over = True
        self._give()

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        """A wait inside the block: the slot is given up, and taken again when the wait is over; not when it is cancelled."""
        self._give()
        try:
            yield
        except Exception:
            await self._take()
            raise
        await self._take()

    async def _take(self) -> None:
        if not self._depth or self._held or self._taking or self._over:
            return  # of two waits at once in one block, the first that is over takes it
        self._taking = True
        try:
            await self._slots.take(self._depth, self._order)
        finally:
            self._taking = False
        self._held = True
        if self._over:  # given up meanwhile
            self._give()

    def _give(self) -> None:
        if self._held:
            self._held = False
            self._slots.give()
