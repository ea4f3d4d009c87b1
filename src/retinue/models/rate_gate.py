"""One gate before all calls of a model in a process: when a provider says how long to wait, everybody does.

After that time the calls go on one by one, and faster with each that is let in, so that those who have waited do not run into
the same limit together. The deepest run goes first, then who has waited longest (M9): its slot is not held meanwhile.
"""

import asyncio
import heapq
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from retinue.clock import Clock

__all__ = ["RateGate"]

Pause = Callable[[], AbstractAsyncContextManager[None]]


class RateGate:
    """Open, until a call finds the limit. Belongs to one event loop at a time: what waits is of that."""

    __slots__ = ("_changed", "_clock", "_room", "_ticket", "_until", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0
        self._room: int | None = None
        """How many may go in now; None: all, the gate is open."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not future.done() for *_, future in self._waiting)

    async def enter(self, depth: int, pause: Pause) -> bool:
        """Wait until a call may be made; whether it went in through a gate that is not open, which `passed`, `limited` or `left`
        has to be told with its end.

        Raises:
            CancelledError: it waits no more.
        """
        if self._room is None:
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ticket += 1
        heapq.heappush(self._waiting, (-depth, self._ticket, future))
        self._hand_out()
        if future.done():
            return True
        try:
            async with pause():
                await self._let_in(future)
        except BaseException:  # also while it waits for its slot, with room that it has been given
            if future.done() and not future.cancelled():
                self.left(True)
            future.cancel()
            raise
        return True

    async def _let_in(self, future: "asyncio.Future[None]") -> None:
        while not future.done():
            left = self._until - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
                self._hand_out()
                continue
            if self._changed is None or self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.wait({future, self._changed}, return_when=asyncio.FIRST_COMPLETED)

    def limited(self, seconds: float) -> None:
        """A call found the limit: for so long nobody goes in, and then one."""
        self._until = max(self._until, self._clock.monotonic() + seconds)
        self._room = 1
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def passed(self, let_in: bool) -> None:
        """A call is being answered: the limit is over for it, and so for two more."""
        if self._room is not None and let_in:
            self._room += 2
            self._hand_out()
            if not self.waiting:
                self._room = None

    def left(self, let_in: bool) -> None:
        """A call ended for another reason: the next one has its room."""
        if self._room is not None and let_in:
            self._room += 1
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
        if self._room is None or self._clock.monotonic() < self._until:
            return
        while self._waiting and self._room > 0:
            *_, future = heapq.heappop(self._waiting)
            if not future.done():
                self._room -= 1
                future.set_result(None)
