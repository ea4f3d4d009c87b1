"""`run_sync`: one async implementation, driven from a loop thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from retinue.errors import ConfigurationError

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread. Work is handed in from any thread; an interrupt stops the work, not just the wait."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="retinue-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop thread and wait for it.

        Raises:
            ConfigurationError: called from async code, which must `await` instead.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise ConfigurationError(
                "`run_sync` was called from async code", remedy="write `await agent.run(…)` instead of `agent.run_sync(…)`"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()  # the run is stopped and its end recorded, then the interrupt goes on
            stopped = asyncio.run_coroutine_threadsafe(_settled(), self._loop)
            try:
                stopped.result(timeout=10)
            finally:
                raise

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settled() -> None:
    """Return when the other tasks of this loop have ended."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        await asyncio.gather(*others, return_exceptions=True)
