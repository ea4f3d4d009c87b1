"""A clock for tests: virtual time that goes on only when told to, or when everything else is waiting (M15).

Time does not jump while somebody holds it (`with clock.hold():`, around a commit or a tool in a thread) or while the event
loop has anything else to do, sockets included. One clock to an event loop.
"""

import asyncio
import heapq
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

__all__ = ["VirtualClock"]

_START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class VirtualClock:
    """Implements `retinue.clock.Clock` on virtual time.

    With `auto=True` time jumps to the next sleeper as soon as the loop is idle and nobody holds it; without, only
    `advance` moves it. Sleepers wake in the order of their times, then of their calls.
    """

    def __init__(self, *, auto: bool = False, start_ms: int = _START_MS) -> None:
        self.auto = auto
        self._start_ms = start_ms
        self._now = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._holds = 0
        self._released: list[asyncio.Future[None]] = []
        self._looking = False

    def now_ms(self) -> int:
        """See `Clock`."""
        return self._start_ms + round(self._now * 1000)

    def monotonic(self) -> float:
        """See `Clock`. Starts at 0."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """See `Clock`. A sleep of 0 or less only lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        self._look()
        await future

    @property
    def sleepers(self) -> int:
        """How many sleep right now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    @contextmanager
    def hold(self) -> Generator[None]:
        """Time stands still inside, for work that no event loop sees. Enter and leave it on the loop's thread."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                for future in self._released:
                    if not future.done():
                        future.set_result(None)
                self._released.clear()
                self._look()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Whoever wakes runs until it waits again, at the time it woke, before time goes on."""
        target = self._now + seconds
        await self.settle()
        while (due := self._next()) is not None and due <= target:
            self._jump(due)
            await self.settle()
        self._now = max(self._now, target)
        await self.settle()

    async def settle(self) -> None:
        """Return once nothing can go on without time passing, and nobody holds it."""
        loop = asyncio.get_running_loop()
        quiet = 0
        while quiet < 2:  # twice, because what has just become ready is queued behind us
            if self._holds:
                future = loop.create_future()
                self._released.append(future)
                await future
            await asyncio.sleep(0)
            quiet = quiet + 1 if _idle(loop) else 0

    def _next(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _jump(self, due: float) -> None:
        """Go to `due` and wake whoever sleeps until then."""
        self._now = max(self._now, due)
        while self._sleepers and self._sleepers[0][0] <= due:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def _look(self) -> None:
        """Look soon whether the loop is idle, if time goes by itself."""
        if self.auto and not self._looking and self._sleepers:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._looked, 0)

    def _looked(self, quiet: int) -> None:
        loop = asyncio.get_running_loop()
        if self._holds:
            self._looking = False  # whoever lets go looks again
            return
        quiet = quiet + 1 if _idle(loop) else 0
        if quiet < 2:
            loop.call_soon(self._looked, quiet)
            return
        due = self._next()
        if due is not None:
            self._jump(due)
        self._looking = False
        self._look()


def _idle(loop: Any) -> bool:
    """Whether the loop has nothing to run. Ready sockets count: it asks for them before each round, so it takes two rounds
    to be sure. This reads what asyncio's own loops keep of themselves."""
    return not loop._ready
