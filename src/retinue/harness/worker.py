"""A worker: a process that goes on with whatever its agents can go on with, for as long as it lives (D-19, M5, M6).

Several of them share one ledger: each run has one owner, and who comes second finds it busy. A worker looks at letters that came
(answers, ends of tasks) every half second, and for runs whose process is gone every few seconds; it keeps nothing for a task that
waits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from retinue.errors import ConfigurationError, LedgerError
from retinue.harness.driving import Driver
from retinue.harness.takeover import find_lead
from retinue.harness.tasks import MOST_RESUMED, deliver, end_tasks, give_up, go_on_with_task, orphaned, resume_tasks
from retinue.harness.watching import POLL_SECONDS
from retinue.rows import RunRow, ThreadKey
from retinue.subagents.child import EXECUTOR_LOST

if TYPE_CHECKING:
    from retinue.harness.agent import Agent

__all__ = ["ORPHAN_SECONDS", "Worker"]

ORPHAN_SECONDS: Final = 600.0
SWEEP_SECONDS: Final = 5.0

_log: Final = logging.getLogger("retinue")


def _silent(_line: str) -> None:
    """Nobody listens."""


class Worker:
    """Goes on with runs and tasks of these agents that nobody drives: after a crash, after an answer, after `on_exit="detach"`.

    Args:
        agents: what it has code for, all on one runtime.
        orphan_after: seconds after which a task that no agent here can go on with, and that nobody drives, ends as failed
            (`executor_lost`); only time counts in which this worker lives. None: never.
        tell: is told in a line what begins and ends.

    Raises:
        ConfigurationError: there is no agent, or they are on several runtimes.
    """

    def __init__(
        self,
        agents: "Iterable[Agent]",
        *,
        orphan_after: float | None = ORPHAN_SECONDS,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.agents = tuple(agents)
        runtimes = {id(agent.runtime): agent.runtime for agent in self.agents}
        if len(runtimes) != 1:
            raise ConfigurationError(
                "a worker needs agents on one runtime" if runtimes else "a worker needs an agent",
                code="invalid_argument",
                remedy="make them with `Agent(…, runtime=runtime)`",
            )
        (self.runtime,) = runtimes.values()
        self._orphan_after = orphan_after
        self._tell: Callable[[str], None] = tell or _silent
        self._lost: dict[str, float] = {}
        """Since when tasks are seen that nobody here can go on with."""

    async def run(self, stop: asyncio.Event | None = None, *, once: bool = False) -> None:
        """Work until `stop` is set, then leave what is not done in the ledger. `once`: until nothing is left to be done."""
        stop = stop or asyncio.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.runtime)
            for agent in self.agents:
                stack.push_async_exit(agent)
                await agent._enter()
            try:
                await (self._once(stop) if once else self._work(stop))
            finally:
                for agent in self.agents:
                    await end_tasks(agent, "detach")

    async def _once(self, stop: asyncio.Event) -> None:
        await self._sweep()
        while drivers := [driver for driver in self.runtime._drivers if driver.task is not None and not driver.over]:
            ends = [driver.task for driver in drivers if driver.task is not None]
            await self._first(stop, ends, None)
            if stop.is_set():
                return
            await self._sweep()

    async def _work(self, stop: asyncio.Event) -> None:
        clock, ledger = self.runtime.clock, self.runtime.ledger
        cursor = (await ledger.news([])).cursor
        swept = None
        while not stop.is_set():
            try:
                if swept is None or clock.monotonic() - swept >= SWEEP_SECONDS:
                    swept = clock.monotonic()
                    await self._sweep()
                news = await ledger.news([], since=cursor)
                cursor = news.cursor
                for key in news.mail:
                    await self._letter(key)
            except LedgerError as error:
                _log.warning("the ledger could not be looked at: %s", error)
            await self._first(stop, [], POLL_SECONDS)

    async def _first(self, stop: asyncio.Event, others: "Iterable[asyncio.Task[object]]", seconds: float | None) -> None:
        """Return when it is to stop, one of `others` has ended, or the time has passed."""
        waits: list[asyncio.Task[object]] = [asyncio.create_task(stop.wait(), name="retinue stop of a worker")]
        if seconds is not None:
            waits.append(asyncio.create_task(self.runtime.clock.sleep(seconds), name="retinue timer of a worker"))
        try:
            await asyncio.wait([*waits, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _sweep(self) -> None:
        """Go on with everything that nobody drives."""
        for agent in self.agents:
            for row, driver in await resume_tasks(agent, every_run=True):
                self._begun(row, driver)
        names, now = {agent.name for agent in self.agents}, self.runtime.clock.monotonic()
        seen: set[str] = set()
        for task in await self.runtime.ledger.tasks(unfinished=True, limit=MOST_RESUMED):
            lead = await self.runtime.ledger.run(task.child_run)
            if lead is None or lead.path[0] in names or not await orphaned(self.agents[0], lead):
                continue
            seen.add(lead.run_id)
            if lead.run_id not in self._lost:
                self._lost[lead.run_id] = now
                self._tell(f"{task.task_id} ({task.name}): no_executor, it is a task of `{lead.path[0]}`, whose code is not here")
            elif self._orphan_after is not None and now - self._lost[lead.run_id] >= self._orphan_after:
                self._begun(lead, give_up(self.agents[0], lead, EXECUTOR_LOST))
        self._lost = {run_id: since for run_id, since in self._lost.items() if run_id in seen}

    async def _letter(self, key: ThreadKey) -> None:
        """Something came for a thread: its run may go on with it, or its idle agent is woken."""
        last = await self.runtime.ledger.last_run(key)
        if last is None:
            return
        lead = await find_lead(self.runtime, last.run_id)
        agent = next((agent for agent in self.agents if agent.name == lead.path[0]), None)
        if agent is None:
            return
        if await orphaned(agent, lead):
            self._begun(lead, go_on_with_task(agent, lead))
        elif last.state.terminal:
            agent._has_tasks = True
            deliver(agent, key)

    def _begun(self, row: RunRow, driver: Driver) -> None:
        what = f"{row.run_id} ({'/'.join(row.path)})"
        self._tell(f"{what}: goes on")

        def over(_: object) -> None:
            result = driver.outcome
            if result is not None:
                self._tell(f"{what}: {result.status}" + (f" ({result.reason})" if result.reason else ""))

        if driver.task is not None:
            driver.task.add_done_callback(over)
