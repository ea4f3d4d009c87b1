"""An end to silence: an exchange is cut off once nothing has been heard of it for a while, by the injected clock.

Silence is of two kinds: not a byte, and bytes of which nothing of the answer comes (comments, empty events). The second may
last longer, for a server that queues says so by them; but it may not last for ever.
"""

import asyncio
import contextvars
import math
from types import TracebackType
from typing import Self

from retinue.clock import Clock

__all__ = ["IdleWatch", "IdleWatches"]


class IdleWatches:
    """Watches the exchanges of one event loop: one task for all, which is there while there are any.

    It sleeps until the first exchange would be cut off, so that a sign of life costs a look at the clock.

    Args:
        seconds: how long not a byte may come.
        empty_seconds: how long nothing of the answer may come; never less than `seconds`.
    """

    __slots__ = ("_clock", "_task", "_watched", "empty_seconds", "seconds")

    def __init__(self, clock: Clock, seconds: float, empty_seconds: float = math.inf) -> None:
        self._clock = clock
        self.seconds = seconds
        self.empty_seconds = max(seconds, empty_seconds)
        self._watched: dict[IdleWatch, None] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> "IdleWatch":
        """`async with watches.watch() as watch:` raises `TimeoutError` when there was silence for that long."""
        return IdleWatch(self, self._clock)

    async def close(self) -> None:
        """Wait for the end of the task that watched the last exchange."""
        if self._task is not None and not self._watched:
            await asyncio.wait((self._task,))

    def add(self, watch: "IdleWatch") -> None:
        """An exchange begins."""
        if not self._watched:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="retinue-model-idle", context=contextvars.Context()
            )  # it is none of its first caller's
        self._watched[watch] = None

    def drop(self, watch: "IdleWatch") -> None:
        """It is over."""
        self._watched.pop(watch, None)
        if not self._watched and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._watched:
            now = self._clock.monotonic()
            # Always `due - now`: another order of the terms may leave a rest that is too small to move the clock.
            for watch in [watch for watch in self._watched if watch.due - now <= 0]:
                del self._watched[watch]
                watch.cut()
            if self._watched:
                await self._clock.sleep(min(watch.due for watch in self._watched) - now)


class IdleWatch:
    """One exchange. Like `asyncio.timeout`, but on a `Clock`, and a sign of life starts the time anew."""

    __slots__ = ("_before", "_clock", "_expired", "_task", "_watches", "last", "last_said")

    def __init__(self, watches: IdleWatches, clock: Clock) -> None:
        self._watches = watches
        self._clock = clock
        self._expired = False
        self.last = self.last_said = 0.0

    def touch(self, *, said: bool = False) -> None:
        """A sign of life; `said` if something of the answer came."""
        self.last = self._clock.monotonic()
        if said:
            self.last_said = self.last

    @property
    def due(self) -> float:
        """When it is to be cut off, if nothing comes until then."""
        return min(self.last + self._watches.seconds, self.last_said + self._watches.empty_seconds)

    @property
    def silence(self) -> str:
        """The silence that it was cut off for, in words."""
        if self.last + self._watches.seconds <= self.due:
            return f"not a byte in {self._watches.seconds:g} s"
        return f"the connection was kept alive, but nothing of an answer came in {self._watches.empty_seconds:g} s"

    def cut(self) -> None:
        """Cut the exchange off."""
        self._expired = True
        self._task.cancel()

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self.touch(said=True)
        self._watches.add(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._expired:
            self._watches.drop(self)
            return
        if kind is None:  # it ended in the very moment of the cut: take the cancellation back
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        if self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from None
