"""Threads for synchronous tools: bounded, owned by the runtime, and known by name while they run.

A thread cannot be killed. When the waiting task is cancelled the wait ends at once, the thread goes on, and the pool
still knows what runs in it (M8).
"""

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from retinue.clock import Clock, SystemClock
from retinue.errors import ConfigurationError, RetinueError

__all__ = ["RunningCall", "ToolThreads", "lent_thread"]

T = TypeVar("T")

_JOIN_SECONDS = 1.0
"""How long `close` waits for a worker that has nothing to do; it ends within microseconds."""
_PATIENCE = 10.0
"""Seconds that a call waits for a thread, at least, while stuck calls hold all of them; at most twice that."""


class RunningCall(msgspec.Struct, frozen=True):
    """A call that occupies a thread. `abandoned` means that nobody waits for it any more."""

    id: int
    name: str
    owner: str
    abandoned: bool


class _Outcome(msgspec.Struct, frozen=True):
    value: Any = None
    error: BaseException | None = None


class _Job:
    """One call. Its fields change only under the pool's lock."""

    __slots__ = ("abandoned", "call", "future", "id", "lent", "loop", "name", "owner", "started_at", "task", "thread")

    def __init__(self, job_id: int, name: str, owner: str, call: Callable[[], Any]) -> None:
        self.id = job_id
        self.name = name
        self.owner = owner
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Outcome] = self.loop.create_future()
        self.task = asyncio.current_task()
        self.thread: threading.Thread | None = None
        self.started_at = 0
        self.abandoned = False
        self.lent = False

    def deliver(self, outcome: _Outcome) -> None:
        """Tell the waiting task, from any thread."""
        _call_in(self.loop, functools.partial(_settle, self.future, outcome))

    @property
    def view(self) -> RunningCall:
        return RunningCall(self.id, self.name, self.owner, self.abandoned)


class _Watcher(msgspec.Struct, frozen=True):
    """Somebody who waits until no call that `concerns` them occupies a thread."""

    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[None]"
    concerns: Callable[[_Job], bool]


class _Worker(threading.Thread):
    """A thread of a pool, which knows what it belongs to."""

    def __init__(self, pool: "ToolThreads", work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.pool = pool


@contextmanager
def lent_thread() -> Generator[None]:
    """A block in which the calling thread only waits for work that may need a thread itself, such as a run inside a
    synchronous tool. A thread of a pool does not count against its limit meanwhile; for any other nothing happens."""
    worker = threading.current_thread()
    if not isinstance(worker, _Worker):
        yield
        return
    with worker.pool.lent(worker):
        yield


class ToolThreads:
    """At most `limit` synchronous calls at once; the rest wait in order.

    A call whose waiter was cancelled no longer counts, so that stuck tools do not stop the others: there are never more
    than twice `limit` threads for these. Nor does one count that waits for a run of its own (`lent_thread`). Where stuck
    calls hold all threads, a call that waits fails after a while, by `clock`: it says what is stuck. Threads start when
    they are needed and are daemons: they never hold up the end of the process.
    """

    def __init__(self, limit: int, *, name: str = "retinue-tool", clock: Clock | None = None) -> None:
        if limit < 1:
            raise ConfigurationError("`ToolThreads(limit=…)` must be at least 1", remedy="leave at least one thread")
        self._limit = limit
        self._name = name
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._last_id = 0
        self._closed = False
        self._watchers: list[_Watcher] = []
        self._returned = 0
        self._relief: asyncio.Task[None] | None = None

    async def run(self, function: Callable[..., T], /, *args: Any, name: str | None = None, owner: str = "") -> T:
        """Call `function(*args)` in a thread, with the caller's context variables, and return what it returns.

        `name` and `owner` (a run id, say) are what `running` shows. Cancelling the wait raises at once; a call that has not
        started then never does.

        Raises:
            RetinueError: `tool_threads_closed`, the pool is closed; `tool_threads_stuck`, calls that were given up and do
                not end hold all threads.
        """
        call = functools.partial(contextvars.copy_context().run, function, *args)
        with self._changed:
            if self._closed:
                raise _closed_error()
            self._last_id += 1
            job = _Job(self._last_id, name or getattr(function, "__qualname__", "call"), owner, call)
            self._queue.append(job)
            self._grow()
            self._changed.notify()
            self._look_after_queue()
        try:
            outcome = await job.future
        except BaseException:
            self._abandon(job)
            raise
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:  # the traceback holds this frame: without this the pair lives until the next collection
                del outcome
        return outcome.value

    def running(self, owner: str | None = None) -> list[RunningCall]:
        """The calls that occupy a thread now, oldest first; of one owner, or all."""
        with self._changed:
            return [job.view for job in self._running.values() if owner in (None, job.owner)]

    def occupied_by(self, task: "asyncio.Task[Any]") -> bool:
        """Whether a call that this task waits for has a thread: then it can no longer be kept from running."""
        with self._changed:
            return any(job.task is task for job in self._running.values())

    @property
    def threads(self) -> int:
        """How many threads there are."""
        with self._changed:
            return len(self._threads)

    async def idle(self, timeout: float, clock: Clock, *, owner: str | None = None) -> bool:
        """Wait until no call (of `owner`) occupies a thread, at most `timeout` seconds. True if so."""
        free = asyncio.ensure_future(self._free(lambda job: owner in (None, job.owner)))
        timer = asyncio.create_task(_sleep(clock, timeout), name="retinue: wait for tool threads")
        try:
            await asyncio.wait({free, timer}, return_when=asyncio.FIRST_COMPLETED)
            return free.done()
        finally:
            for task in (free, timer):
                task.cancel()
            await asyncio.gather(free, timer, return_exceptions=True)

    async def returned(self, task: "asyncio.Task[Any]") -> None:
        """Wait until no call that this task waited for occupies a thread: it may go on after the task was cancelled."""
        await self._free(lambda job: job.task is task)

    async def _free(self, concerns: Callable[[_Job], bool]) -> None:
        loop = asyncio.get_running_loop()
        watcher = _Watcher(loop, loop.create_future(), concerns)
        with self._changed:
            if not self._busy(concerns):
                return
            self._watchers.append(watcher)
        try:
            await watcher.done
        finally:
            with self._changed:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

    async def close(self, grace: float, clock: Clock) -> list[RunningCall]:
        """End the threads. Calls that have not started are refused, running ones get `grace` seconds.

        Returns those that still run: their threads are abandoned and end when they return. Idempotent.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
            relief, self._relief = self._relief, None
        if relief is not None:
            relief.cancel()
            await asyncio.wait((relief,))
        for job in dropped:
            job.deliver(_Outcome(error=_closed_error()))
        await self.idle(grace, clock)
        with self._changed:
            occupied = {job.thread for job in self._running.values()}
            ending = [thread for thread in self._threads if thread not in occupied]
        for thread in ending:
            thread.join(_JOIN_SECONDS)
        return self.running()

    @contextmanager
    def lent(self, thread: threading.Thread) -> Generator[None]:
        """A block in which this thread's call leaves its place to another one."""
        with self._changed:
            job = next((job for job in self._running.values() if job.thread is thread), None)
            if job is not None:
                job.lent = True
                self._grow()
        try:
            yield
        finally:
            if job is not None:
                with self._changed:
                    job.lent = False

    def _busy(self, concerns: Callable[[_Job], bool]) -> bool:
        return any(concerns(job) for job in self._running.values())

    def _allowed(self) -> int:
        lent = sum(job.lent for job in self._running.values())
        abandoned = sum(job.abandoned and not job.lent for job in self._running.values())
        return self._limit + lent + min(abandoned, self._limit)

    def _grow(self) -> None:
        """Start a thread if one is needed and allowed. Under the lock."""
        free = len(self._threads) - len(self._running)
        if len(self._queue) <= free or len(self._threads) >= self._allowed():
            return
        self._started += 1
        thread = _Worker(self, self._work, f"{self._name}-{self._started}")
        self._threads.add(thread)
        thread.start()

    def _abandon(self, job: _Job) -> None:
        """Nobody waits for this call any more."""
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
            job.abandoned = True
            self._grow()
            self._look_after_queue()

    def _stuck(self) -> bool:
        """Whether there will be no thread until one of the abandoned calls returns."""
        held = [job for job in self._running.values() if not job.lent]
        return len(held) >= 2 * self._limit and all(job.abandoned for job in held)

    def _look_after_queue(self) -> None:
        """See to it that no call waits without end for stuck ones. Under the lock, in a loop's thread."""
        relieving = self._relief is not None and not self._relief.done()
        if self._queue and self._stuck():
            if not relieving:
                work, nobody = self._relieve(), contextvars.Context()  # it is none of its first caller's
                loop = asyncio.get_running_loop()
                self._relief = loop.create_task(work, name="retinue: stuck tool threads", context=nobody)
        elif relieving and self._relief is not None:
            self._relief.cancel()

    async def _relieve(self) -> None:
        while True:
            with self._changed:
                waiting, returned = list(self._queue), self._returned
            await self._clock.sleep(_PATIENCE)
            with self._changed:
                late = [job for job in waiting if job in self._queue] if self._stuck() and returned == self._returned else []
                for job in late:
                    self._queue.remove(job)
                    job.deliver(_Outcome(error=_stuck_error(self._running.values())))
                if not (self._queue and self._stuck()):
                    self._relief = None
                    return

    def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            try:
                outcome = _Outcome(value=job.call())
            except BaseException as error:  # noqa: BLE001 - SystemExit too belongs to the one who waits
                outcome = _Outcome(error=error)
            self._finish(job, outcome)
            del job, outcome  # while this thread waits it keeps nothing alive

    def _next(self) -> _Job | None:
        """The next call for this thread, or None if it should end."""
        me = threading.current_thread()
        with self._changed:
            if len(self._threads) <= self._allowed():  # else: started in place of an abandoned call that has returned
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._queue:
                    job = self._queue.popleft()
                    job.thread = me
                    job.started_at = self._clock.now_ms()
                    self._running[job.id] = job
                    return job
            self._threads.discard(me)
            return None

    def _finish(self, job: _Job, outcome: _Outcome) -> None:
        with self._changed:
            del self._running[job.id]
            self._returned += 1
            ready = [watcher for watcher in self._watchers if not self._busy(watcher.concerns)]
            self._watchers = [watcher for watcher in self._watchers if watcher not in ready]
        job.deliver(outcome)
        for watcher in ready:
            _call_in(watcher.loop, functools.partial(_settle, watcher.done, None))


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop has been closed meanwhile: nobody is left to tell
        pass


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def _closed_error() -> RetinueError:
    return RetinueError("the tool threads are closed", code="tool_threads_closed", remedy="start a new runtime")


def _stuck_error(stuck: Iterable[_Job]) -> RetinueError:
    since: dict[str, list[int]] = {}
    for job in stuck:
        since.setdefault(job.name, []).append(job.started_at)
    held = ", ".join(f"`{name}` since {_time(min(times))}{_count(len(times))}" for name, times in since.items())
    return RetinueError(
        f"no thread for a synchronous tool: calls that were given up and do not end hold all of them, {held}",
        code="tool_threads_stuck",
        remedy="give those tools a time limit of their own, or raise `Limits(tool_threads=…)`",
    )


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _count(calls: int) -> str:
    return f" ({calls} calls)" if calls > 1 else ""
