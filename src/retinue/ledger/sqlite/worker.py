"""A thread that works off what is queued in batches, and tells the event loop once per batch.

Both threads of the ledger are one of these: the writer turns a batch into one transaction, the reader just reads.
"""

import asyncio
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, Protocol, TypeVar

from retinue.ledger.port import Outcome

__all__ = ["Batches", "Job", "Role", "failed"]

_T = TypeVar("_T")

BATCH_LIMIT: Final = 256
"""The most jobs of one batch, so that no batch holds the write lock for long."""


def failed(error: BaseException) -> Outcome[Any]:
    """An outcome that is known already."""
    outcome: Outcome[Any] = Outcome()
    outcome.set_exception(error)
    outcome.exception()  # seen: whoever does not await it does not want it logged
    return outcome


class Job(Generic[_T]):
    """Something to do in the thread, and then its result or its error."""

    __slots__ = ("error", "outcome", "result", "subject", "work")

    def __init__(self, work: Callable[[], _T], outcome: Outcome[_T], subject: Any) -> None:
        self.work = work
        self.outcome = outcome
        self.subject = subject
        self.result: _T | None = None
        self.error: BaseException | None = None


class Role(Protocol):
    """What a `Batches` thread does. All three are called in that thread."""

    def start(self) -> None:
        """Open what is needed; an error ends the thread and is raised to who started it."""
        ...

    def handle(self, jobs: list[Job[Any]]) -> None:
        """Fill in `result` or `error` of each job. Never raises."""
        ...

    def stop(self) -> None:
        """Release everything."""
        ...


class Batches:
    """The thread. `start` and `stop` are awaited on the loop; jobs are carried out in the order of `submit`."""

    def __init__(self, name: str, role: Role) -> None:
        self._role = role
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._main, name=name, daemon=True)
        self._started: Outcome[None] = Outcome()
        self._stopped: Outcome[None] | None = None

    async def start(self) -> None:
        """Start the thread and wait until its role is ready."""
        self._thread.start()
        try:
            await self._started
        except BaseException:
            if not self._started.done() or self._started.exception() is None:
                await self.stop()
            self._thread.join()
            raise

    def submit(self, work: Callable[[], _T], subject: Any = None) -> Outcome[_T]:
        """Queue `work`; its outcome comes with those of its batch. `subject` says what it is about."""
        outcome: Outcome[_T] = Outcome()
        self._queue.put(Job(work, outcome, subject))
        return outcome

    async def stop(self) -> None:
        """Carry out what is queued, release everything, end the thread."""
        self._stopped = Outcome()
        self._queue.put(None)
        try:
            await self._stopped
        finally:
            self._thread.join()

    def _main(self) -> None:
        try:
            self._role.start()
        except BaseException as error:  # noqa: BLE001 (it is raised to who started the thread)
            _tell(self._started, error)
            return
        _tell(self._started, None)
        going = True
        while going:
            jobs, going = self._next()
            if jobs:
                self._role.handle(jobs)
                _deliver(jobs)
                del jobs  # while idle, keep nobody's results alive
        failure: BaseException | None = None
        try:
            self._role.stop()
        except Exception as error:  # noqa: BLE001 (likewise)
            failure = error
        if self._stopped is not None:
            _tell(self._stopped, failure)

    def _next(self) -> tuple[list[Job[Any]], bool]:
        jobs: list[Job[Any]] = []
        job = self._queue.get()
        try:
            while job is not None:
                jobs.append(job)
                if len(jobs) == BATCH_LIMIT:
                    return jobs, True
                job = self._queue.get_nowait()
        except Empty:
            return jobs, True
        return jobs, False


def _deliver(jobs: list[Job[Any]]) -> None:
    loop = jobs[0].outcome.get_loop()
    others = [job for job in jobs if job.outcome.get_loop() is not loop]
    if others:
        jobs = [job for job in jobs if job.outcome.get_loop() is loop]
        _deliver(others)
    _call(loop, _settle, jobs)


def _settle(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        if job.error is None:
            job.outcome.set_result(job.result)
        else:
            job.outcome.set_exception(job.error)
            job.outcome.exception()  # seen: a cancelled caller does not look at it, which is no fault to log


def _tell(outcome: Outcome[None], error: BaseException | None) -> None:
    job: Job[None] = Job(lambda: None, outcome, None)
    job.error = error
    _call(outcome.get_loop(), _settle, [job])


def _call(loop: asyncio.AbstractEventLoop, settle: Callable[[list[Job[Any]]], None], jobs: list[Job[Any]]) -> None:
    try:
        loop.call_soon_threadsafe(settle, jobs)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
