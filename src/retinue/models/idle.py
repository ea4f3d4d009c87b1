"""An end to silence: what runs inside is cut off once nothing has been heard for a while, by the injected clock."""

import asyncio
from types import TracebackType
from typing import Self

from retinue.clock import Clock

__all__ = ["IdleWatch"]


class IdleWatch:
    """`async with IdleWatch(clock, 60) as watch:` raises `TimeoutError` when `watch.touch()` was not called for 60 s.

    Like `asyncio.timeout`, but on a `Clock`, and a sign of life starts the time anew.
    """

    __slots__ = ("_before", "_clock", "_expired", "_last", "_seconds", "_task", "_watch")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._last = 0.0
        self._expired = False

    def touch(self) -> None:
        """A sign of life."""
        self._last = self._clock.monotonic()

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self.touch()
        self._watch = asyncio.create_task(self._run(), name="retinue-model-idle")
        return self

    async def _run(self) -> None:
        while (left := self._last + self._seconds - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        self._expired = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._expired:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
            return
        if kind is None:  # it ended in the very moment of the cut: take the cancellation back
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        if self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from None
