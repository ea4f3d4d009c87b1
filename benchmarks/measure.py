"""CPU time per operation: warm, the median of many short samples, all threads of the process counted.

Wall time is left out on purpose: machines are shared. A row is measured between two measurements of the floor, so that its
ratio holds even where the machine changes its speed.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable

__all__ = ["Operation", "cpu_us"]

Operation = Callable[[], Awaitable[object]]


async def cpu_us(operation: Operation, *, samples: int = 25, target_ms: float = 8.0) -> float:
    """Median CPU microseconds of one `operation`, over `samples` samples of about `target_ms` each."""
    batch = await _batch_for(operation, target_ms)
    taken: list[float] = []
    gc.collect()
    for _ in range(samples):
        start = time.process_time_ns()
        for _ in range(batch):
            await operation()
        taken.append((time.process_time_ns() - start) / 1_000 / batch)
    return statistics.median(taken)


async def _batch_for(operation: Operation, target_ms: float) -> int:
    """How many operations fill a sample; finding out warms everything up."""
    batch = 1
    while True:
        start = time.process_time_ns()
        for _ in range(batch):
            await operation()
        spent = (time.process_time_ns() - start) / 1_000_000
        if spent >= target_ms or batch >= 4_096:
            return max(int(batch * target_ms / max(spent, 0.001)), 1)
        batch *= 2
