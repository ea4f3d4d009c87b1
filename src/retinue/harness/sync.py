"""`run_sync`: one async implementation, driven from a loop thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from retinue.errors import ConfigurationError
from retinue.tools.pool import lent_thread

__all__ = ["LoopThread"]

T = TypeVar("T")

END_SECONDS: Final = 10.0
"""How long an interrupt or a close waits for a cancelled piece of work to end."""


class LoopThread:
    """An event loop in a daemon thread, there from the first work to `close`.

    Work is handed in from any thread and runs side by side. An interrupt stops the work, not just the wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by a close to its end: work that comes meanwhile gets a new loop afterwards
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._works: set[asyncio.Task[Any]] = set()  # touched in the loop only
        self._waiting: set[Future[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop thread and wait for it.

        Raises:
            ConfigurationError: called from async code, which must `await` instead.
            CancelledError: of `concurrent.futures`: the loop was closed before the work had ended.
        """
        try:
            _refuse_async("run_sync", "run(…)")
        except ConfigurationError:
            work.close()
            raise
        ended = threading.Event()
        with self._lock:
            future = asyncio.run_coroutine_threadsafe(self._work(work, ended), self._started())
            self._waiting.add(future)
        try:
            with lent_thread():  # a synchronous tool that starts a run holds no thread that the run's tools need
                return future.result()
        except KeyboardInterrupt:
            future.cancel()  # the run is stopped and its end recorded, then the interrupt goes on
            ended.wait(END_SECONDS)
            raise
        finally:
            self._waiting.discard(future)

    def close(self, finish: Callable[[], Awaitable[object]]) -> None:
        """Await `finish()` in the loop, end what still runs there, then the loop and its thread. Idempotent, from any thread.

        Raises:
            ConfigurationError: called from async code.
        """
        _refuse_async("close_sync", "close()")
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            try:
                asyncio.run_coroutine_threadsafe(self._end(finish), loop).result()
            finally:
                self._loop = self._thread = None
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()
                for future in list(self._waiting):
                    future.cancel()  # whoever waits for work that heeds no cancellation waits no longer

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="retinue-sync", daemon=True)
            self._thread.start()
        return self._loop

    async def _work(self, work: Coroutine[Any, Any, T], ended: threading.Event) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._works.add(task)
        try:
            return await work
        finally:
            self._works.discard(task)
            ended.set()

    async def _end(self, finish: Callable[[], Awaitable[object]]) -> None:
        await finish()
        if self._works:  # handed in just before: what they opened meanwhile is released as well
            for task in self._works:
                task.cancel()
            await asyncio.wait(set(self._works), timeout=END_SECONDS)
            await finish()
        self._works.clear()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _refuse_async(called: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"`{called}` was called from async code", remedy=f"write `await agent.{instead}` instead of `agent.{called}(…)`"
    )
