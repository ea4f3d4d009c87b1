"""Work that begins at once in the task of whoever asks for it, and gets a task of its own only if it has to wait; waiting for it.

A run of a model that answers at once, on a ledger in memory, needs no task at all. Python 3.12 knows this as eager tasks. What
asks for the current task must not do so before it waits: `landing` says when that is.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["landing", "task_of", "until_done"]

T = TypeVar("T")


def task_of(work: Coroutine[Any, Any, T], waits_for: Any, name: str, context: Context | None = None) -> "asyncio.Task[T]":
    """A task that goes on with work that has been begun and waits for something."""
    return asyncio.create_task(_Begun(work, waits_for), name=name, context=context)


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine that has been begun, as a task takes it; otherwise (name, frame) it looks like the coroutine itself.

    Not a coroutine that awaits the work: one that is cancelled before its first step would leave the work where it is.
    """

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work: Coroutine[Any, Any, T] = work
        self._first: tuple[Any] | None = (waits_for,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def send(self, value: Any) -> Any:
        """First give what the work waits for, then go on with it."""
        if self._first is not None:
            (waits_for,), self._first = self._first, None
            return waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`."""
        self._first = None
        return self._work.throw(*error)

    def close(self) -> None:
        """See `Coroutine`."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("it is for a task")


async def until_done(task: "asyncio.Task[Any]") -> None:
    """Wait until a task is done, whatever comes of it; a cancellation of the waiter leaves it alone. `asyncio.wait` for one."""
    if task.done():
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_task: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


@types.coroutine
def landing() -> Generator[None, None, None]:
    """Wait until the loop's next turn: the work is in a task of its own then."""
    yield
