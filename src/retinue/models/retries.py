"""Whether a call that failed is tried again, and when. Pure."""

from collections.abc import Callable
from typing import Final

from retinue.models.faults import Fault

__all__ = ["LONGEST_ASKED_WAIT", "wait_after"]

_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 8.0
LONGEST_ASKED_WAIT: Final = 60.0


def wait_after(fault: Fault, attempt: int, *, retries: int, jitter: Callable[[], float]) -> float | None:
    """Seconds until the next attempt, None if there is none.

    Args:
        attempt: how many there were, from 1.
        retries: how many may follow the first.
        jitter: gives numbers from 0 to 1 that spread the waits.
    """
    if not fault.retryable or attempt > (min(retries, 1) if fault.once else retries):
        return None
    if fault.once:
        return 0.0
    if fault.retry_after is not None:
        return fault.retry_after if fault.retry_after <= LONGEST_ASKED_WAIT else None
    return min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * (0.5 + jitter() / 2)
