"""How many children may be at work at once, without deadlock (M9).

A run holds a slot only while it is in a model call or in tools: one, however many of them. It gives it back while it waits for
a child, a person or a timer, so a parent never holds what its child needs; a free slot goes to the deepest waiter first, then
to the oldest.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Hold", "Place", "Slots"]


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

    def place(self, depth: int, order: int) -> "Place":
        """The slot of one run. The root of a tree (depth 0) needs none."""
        return Place(self, depth, order)


class Place:
    """The slot of one run. It is taken by the first of the run's model calls and tools at work, and given back by the last:
    calls of one run that wait for each other cannot shut each other out.
    """

    __slots__ = ("_depth", "_held", "_order", "_slots", "_taking", "_users")

    def __init__(self, slots: Slots, depth: int, order: int) -> None:
        self._slots = slots
        self._depth = depth
        self._order = order
        self._held = False
        self._users = 0
        self._taking: asyncio.Future[None] | None = None

    def hold(self) -> "Hold":
        """The run's slot for a block: `async with place.hold():`."""
        return Hold(self)

    async def enter(self) -> None:
        """Be at work. Waits for a slot unless the run has it."""
        while self._depth and not self._held:
            if self._taking is None:
                await self._take()
            else:
                await asyncio.shield(self._taking)  # who takes it may be cancelled: then it is the next one's to take
        self._users += 1

    async def _take(self) -> None:
        self._taking = asyncio.get_running_loop().create_future()
        try:
            await self._slots.take(self._depth, self._order)
            self._held = True
        finally:
            self._taking.set_result(None)
            self._taking = None

    def leave(self) -> None:
        """Be at work no more."""
        self._users -= 1
        if self._held and not self._users:
            self._held = False
            self._slots.give()


class Hold:
    """A slot that is held while a block runs, or until `release`, if the block does not end; `pause` lends it to others."""

    __slots__ = ("_inside", "_over", "_place")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._inside = False
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
        if self._inside or self._over:
            return
        await self._place.enter()
        if self._inside or self._over:  # of two waits at once in one block, the first that is over took it; or given up meanwhile
            self._place.leave()
        else:
            self._inside = True

    def _give(self) -> None:
        if self._inside:
            self._inside = False
            self._place.leave()
