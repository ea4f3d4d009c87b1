"""The middleware around one run, in a task of its own: the run's loop is driven inside of it, and whoever drives the run waits
beside it.

So a stop ends what a middleware does before and after the loop, whatever it makes of its cancellation (M8): it is cancelled,
waited for until the grace is over, cancelled again, and then left behind, which the run's end names.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from retinue.agent.middleware import RunCall, accepted, chain, overriding
from retinue.agent.ports import RunEnd
from retinue.errors import ConfigurationError
from retinue.tools.errors import is_fault

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["AroundRun"]

NAME: Final = "around_run of a middleware"
LAST_TURNS: Final = 3
"""Turns of the event loop in which a middleware can come to its end when it is cancelled for the last time."""


class AroundRun:
    """The middleware around one attempt of a run. `ends` and `faults` hold how its loop ended, at most one of them."""

    def __init__(self, run: "Run", loop: Callable[[], Awaitable[RunEnd]]) -> None:
        self._run = run
        self._loop = loop
        self.ends: list[RunEnd] = []
        self.faults: list[BaseException] = []
        self._call = RunCall(
            agent_id=run.definition.agent_id,
            run_id=run.row.run_id,
            attempt=run.row.attempt,
            depth=run.row.depth,
            state=run.state,
        )
        self._driver = asyncio.current_task()
        self._inside: asyncio.Task[Any] | None = None
        """The task of the loop: the middleware's, or one that it has made for it."""
        self._moved = asyncio.Event()
        self._wanted: asyncio.Future[None] | None = None
        self._looping = False
        self._left_behind = False
        self._patient = False
        self._cancels = 0

    async def over(self) -> BaseException | None:
        """Run it to its end, or until a stop has left it behind; what a middleware raised, if that is not the loop's fault.

        Raises:
            CancelledError: a second cancellation from outside.
        """
        run, stopping = self._run, self._run.stopping
        task = asyncio.create_task(self._work(), name=f"retinue middleware of {self._call.agent_id}")
        task.add_done_callback(lambda _: self._moved.set())
        try:
            while (not task.done() or self._looping) and not self._left_behind:
                try:
                    await self._watch(task)
                except asyncio.CancelledError:
                    self._cancelled(task)
        finally:
            stopping.interruptible = False
            if not task.done() and not self._left_behind:
                task.cancel()
                run.tree.services.keep(task)
        return None if self._left_behind or task.cancelled() else task.result()

    async def _work(self) -> BaseException | None:
        """What `SystemExit` would do in a task of its own is end the loop: it is handed on as a value."""
        middleware = overriding(self._run.definition.middleware, "around_run")
        try:
            await chain(middleware, "around_run", self._next)(self._call)
        except BaseException as error:
            if not is_fault(error):
                raise
            return error
        return None

    # In the task of the middleware

    async def _next(self, passed: RunCall) -> RunEnd:
        accepted(self._call, passed)
        if self._left_behind:
            raise asyncio.CancelledError
        if self.ends or self.faults or self._wanted is not None:
            raise ConfigurationError(
                f"a middleware called `next` twice around the run of `{self._call.agent_id}`",
                code="next_called_twice",
                remedy="call `next` once in `around_run`; a run has one end",
            )
        stopping = self._run.stopping
        self._wanted, self._inside = asyncio.get_running_loop().create_future(), asyncio.current_task()
        self._moved.set()
        try:
            self.ends.append(await self._looped(self._wanted))
        except BaseException as error:
            if self._looping:
                self.faults.append(error)
            raise
        finally:
            self._patient = self._looping and stopping.reason is not None
            self._wanted, self._inside, self._looping, stopping.inside = None, None, False, False
            stopping.task = self._driver
            stopping.interruptible = True
            self._moved.set()
        if stopping.by_middleware:
            raise asyncio.CancelledError  # it is in the journal; now the middleware has what it asked for
        return self.ends[-1]

    async def _looped(self, allowed: "asyncio.Future[None]") -> RunEnd:
        try:
            await allowed
        except asyncio.CancelledError:
            if not self._looping:
                raise
            self._run.stopping.cancelled()
        task = asyncio.current_task()
        while self._cancels and task is not None:  # a middleware has kept these to itself
            self._cancels -= 1
            task.uncancel()
        return await self._loop()

    # In the task that drives the run

    async def _watch(self, task: "asyncio.Task[BaseException | None]") -> None:
        """Wait for the next move; let the loop begin if that was it, or end the middleware's own part if a stop has come."""
        stopping = self._run.stopping
        if self._looping:
            await self._move()
        elif self._wanted is not None:
            stopping.interruptible, stopping.task, self._looping = False, self._inside, True
            stopping.inside = True
            if not self._wanted.done():
                self._wanted.set_result(None)
        elif stopping.reason is None:
            stopping.interruptible = True
            await self._move()
        else:
            await self._end(task)

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _end(self, task: "asyncio.Task[BaseException | None]") -> None:
        """End what the middleware does in its own part: at once, but behind a loop that was stopped when the grace is over."""
        run = self._run
        clock = run.journal.clock
        if not self._patient:
            self._cancel(task)
        left = run.stopping.deadline - clock.monotonic()
        if left > 0 and not task.done():
            timer = asyncio.create_task(clock.sleep(left), name="retinue timer of a stop")
            timer.add_done_callback(lambda _: self._moved.set())
            try:
                await self._move()
            finally:
                timer.cancel()
                await asyncio.gather(timer, return_exceptions=True)
            if run.stopping.deadline > clock.monotonic():
                return
        self._cancel(task)
        for _ in range(LAST_TURNS):
            if task.done() or self._wanted is not None:
                return
            await asyncio.sleep(0)
        self._left_behind = True
        run.stopping.give_up(task, NAME)

    def _cancel(self, task: "asyncio.Task[BaseException | None]") -> None:
        self._cancels += 1
        task.cancel()

    def _cancelled(self, task: "asyncio.Task[BaseException | None]") -> None:
        """Who drives the run was cancelled: the loop takes that in where it is at work, in the middleware's own part a stop."""
        if self._looping and self._inside is not None:
            self._run.stopping.passed_on += 1
            self._inside.cancel()
            if self._driver is not None:
                self._driver.uncancel()
        else:
            self._run.stopping.interruptible = False
            self._run.stopping.cancelled()
