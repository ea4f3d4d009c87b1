"""Time as a port, so that tests run on virtual time (M15)."""

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the time is, and how to wait."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)
