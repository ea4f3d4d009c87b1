"""What other processes commit to the same store, seen by this one: stops, answers, steering, ended tasks (M8, D-18).

One look for the whole process, every half second while it drives anything: nothing polls for itself.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from retinue.errors import LedgerError
from retinue.rows import ThreadKey

if TYPE_CHECKING:
    from retinue.harness.runtime import Runtime

__all__ = ["POLL_SECONDS", "Watcher"]

POLL_SECONDS: Final = 0.5

_log: Final = logging.getLogger("retinue")


class Watcher:
    """Looks for news while runs are driven here, if other processes can write to the ledger."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._cursor: int | None = None

    def watch(self) -> None:
        """Be looking, as long as something is driven."""
        task = self._task
        idle = task is None or task.done() or task.get_loop() is not asyncio.get_running_loop()
        if self._runtime.ledger.shared and idle:
            self._task = asyncio.create_task(self._watch(), name="retinue watcher of the ledger")

    async def stop(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():  # else its loop ended, and it with that
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        runtime = self._runtime
        while runtime._drivers:
            await runtime.clock.sleep(POLL_SECONDS)
            try:
                await self._look()
            except LedgerError as error:  # whoever writes to it will say so
                _log.debug("the ledger could not be looked at: %s", error)

    async def _look(self) -> None:
        runtime = self._runtime
        runs = [run_id for tree in runtime._trees.values() for run_id in {tree.root_run, *tree.runs}]
        news = await runtime.ledger.news(runs, since=self._cursor)
        self._cursor = news.cursor
        for run_id, reason in news.stops.items():
            runtime._asked_to_stop(run_id, reason)
        if news.mail:
            runtime._services.task_ended()
        for key in news.mail:
            await self._mail_came(key)

    async def _mail_came(self, key: ThreadKey) -> None:
        runtime = self._runtime
        run = runtime._driven_on(key)
        if run is not None:
            run.mail_came()
            return
        last = await runtime.ledger.last_run(key)
        tree = None if last is None else runtime._trees.get(last.root)
        if last is not None and tree is not None:
            tree.look_again(last.invocations)  # it waits for a person, and those above for it
