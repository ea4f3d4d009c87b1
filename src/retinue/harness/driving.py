"""Who drives a run: a task of the runtime's own, so that the end of a caller stops a run in good order and never tears it apart.

A caller that is cancelled stops the run, waits for its end, and only then ends; cancelled again it ends at once, and the
driver brings the run to its end without it. If the process goes away first, whoever resumes the run finishes the cancel.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import msgspec

from retinue.agent.begun import task_of, until_done
from retinue.agent.viewer import Viewer
from retinue.errors import ThreadBusy
from retinue.events import Event, RunFinishedEvent
from retinue.harness.running import Started, go_on
from retinue.harness.takeover import find_lead, unfinished_of_branch
from retinue.ledger.port import DAMAGED_MAIL, Ledger
from retinue.rows import RunRow
from retinue.states import RunState

if TYPE_CHECKING:
    from retinue.harness.agent import Agent
    from retinue.harness.results import RunResult

__all__ = ["Driver", "final_event", "has_news"]

ANSWERS: Final = ("answer", DAMAGED_MAIL)
"""The mail that lets a run go on which waits for a person; other mail waits for its next step."""


class Driver:
    """Drives one root run in this process: from its start, or from where it was, to its end or until it waits on disk."""

    def __init__(
        self,
        agent: "Agent",
        start: Callable[[], Awaitable[Started]],
        viewer: Viewer | None = None,
        *,
        user: str = "",
        at_once: bool = True,
        task: bool = False,
        lead: str | None = None,
    ) -> None:
        self._agent = agent
        self.lead = lead
        """The run that it will drive, where that is known before it begins."""
        self.background = task
        """Whether nobody waits for it here: a task, or a thread that was woken."""
        self._user = user
        self._start = start
        self._viewer = viewer
        self._started: Started | None = None
        self._stop: tuple[str, str] | None = None
        self.task: asyncio.Task[RunResult] | None = None
        """None before the run has to wait for the first time, and where it never has to."""
        self.waits = False
        """Whether its run waits on disk: the end of this process is no reason to stop it any more."""
        self._ended: RunResult | None = None
        self._begin(at_once=at_once and viewer is None and agent.runtime.ledger.immediate)

    def _begin(self, *, at_once: bool) -> None:
        """Begin the run, here if it can be; it gets its own task when it has to wait."""
        work, name, drivers = self._drive(), f"retinue run of {self._agent.name}", self._agent.runtime._drivers
        if at_once:
            context = copy_context()
            try:
                waits_for = context.run(work.send, None)  # as a task would: what is set there is not the caller's
            except StopIteration as end:
                self._ended = end.value
                return
            self.task = task_of(work, waits_for, name, context)
            if self._started is not None:
                self._started.branch.landed(self.task)
        else:
            self.task = asyncio.create_task(work, name=name)
        drivers.add(self)
        self._agent.runtime._watcher.watch()
        self.task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[RunResult]") -> None:
        self._agent.runtime._drivers.discard(self)
        started = self._started
        failed = task.cancelled() or task.exception() is not None  # which is seen: the caller may have left
        if started is not None and started.task is None and not task.cancelled():
            self._agent._run_over(started.run.row.key)
        elif started is not None and started.task is not None and not failed:
            self._agent._task_over(started.task.row.parent)
        for follower in list(self._agent._followers):
            follower.over(self)

    @property
    def started(self) -> Started | None:
        """What it drives, once that has begun."""
        return self._started

    @property
    def outcome(self) -> "RunResult | None":
        """How it ended, if it has, and not with an error."""
        task = self.task
        if task is None or not task.done():
            return self._ended
        return None if task.cancelled() or task.exception() is not None else task.result()

    def belongs_to(self, agent: "Agent") -> bool:
        """Whether it drives a run of this agent."""
        return self._agent is agent

    def leave(self) -> None:
        """Drive it no more, and leave it in the ledger as it is: whoever starts next goes on with it."""
        if self.task is not None and not self.task.done():
            if self._started is not None:
                self._started.branch.given_up = True
            self.task.cancel()

    @property
    def over(self) -> bool:
        """Whether nothing is driven any more: the run has ended, or waits on disk."""
        return self._ended is not None or (self.task is not None and self.task.done())

    def begins_for(self, agent: "Agent", user_id: str | None) -> bool:
        """Whether it drives a run of this agent (and user, if one is named) that has not begun yet."""
        return self._agent is agent and self._started is None and user_id in (None, self._user) and not self.over

    def stop(self, reason: str, *, by: str) -> None:
        """Stop the run, unless it has been driven to its end; the intent travels with its next commit."""
        if self.over:
            return
        self._stop = (reason, by)
        if self._started is not None:
            self._started.run.stopping.ask_with_intent(reason, by=by)

    async def result(self) -> "RunResult":
        """Wait for the end.

        Raises:
            CancelledError: the caller was cancelled. The run has ended then, unless the caller was cancelled twice.
        """
        task = self.task
        if task is None:
            assert self._ended is not None
            return self._ended
        try:
            await until_done(task)
        except asyncio.CancelledError as cancelled:
            self.stop("interrupted", by="caller")
            await until_done(task)
            raise cancelled from (None if task.cancelled() else task.exception())
        return task.result()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Events of the whole tree as they come; the last one carries the result.

        Leaving early stops the run: what nobody follows any more does not go on unseen.
        """
        viewer, task, last = self._viewer, self.task, None
        assert viewer is not None
        assert task is not None
        try:
            while (event := await viewer.get()) is not None:
                if isinstance(event, RunFinishedEvent) and len(event.path) == 1:
                    last = event  # the root's: shown last, with the result
                else:
                    yield event
            result = await self.result()
            assert self._started is not None
            yield final_event(result, last, self._started.run.row, at=self._agent.runtime.clock.now_ms())
        finally:
            if not task.done():
                viewer.close()
                self.stop("the stream was left", by="stream")
                await until_done(task)

    async def _drive(self) -> "RunResult":
        agent = self._agent
        try:
            self._started = await self._start()
            if self.task is None:
                self._started.branch.task_to_come = True
            while True:
                if self._stop is not None:
                    self._started.run.stopping.ask_with_intent(self._stop[0], by=self._stop[1])
                result = await self._started.drive()
                self.waits = result.status == "waiting"
                if not self.waits or not await self._goes_on(result):
                    return result
                self.waits = False
        finally:
            if self._viewer is not None:
                self._viewer.close()
            await agent._rest()

    async def _goes_on(self, result: "RunResult") -> bool:
        """Whether an answer or a stop came while the run was on its way to wait on disk; then it is taken up again."""
        agent, ledger, started = self._agent, self._agent.runtime.ledger, self._started
        assert started is not None
        root = await find_lead(agent.runtime, result.run_id)
        if self._stop is None and not await has_news(ledger, root):
            return False
        definition = await agent._definition_of(root)
        try:
            self._started = await go_on(
                agent, root, viewer=self._viewer, force=False, context=started.context, definition=definition
            )
        except ThreadBusy:
            return False  # somebody else goes on with it
        return True


async def has_news(ledger: Ledger, lead: RunRow) -> bool:
    """Whether a branch that waits can go on: an answer or a stop has come. (Ends of tasks wait for the next step.)"""
    for row in await unfinished_of_branch(ledger, lead):
        if row.state is not RunState.WAITING:
            continue
        if any(letter.kind in ANSWERS for letter in await ledger.mail(row.key)) or await ledger.cancel_intent(row.lineage):
            return True
    return False


def final_event(result: "RunResult", last: RunFinishedEvent | None, row: RunRow, *, at: int) -> RunFinishedEvent:
    """The end of a root run as a stream shows it, with its result. A run that waits has none in its journal: it is made here,
    and dated `at`."""
    if last is None:
        last = RunFinishedEvent(
            status=result.status,
            reason=result.reason,
            message=result.message,
            path=row.path,
            key=row.key,
            run_id=row.run_id,
            at=at,
            usage=result.usage,
            cost=result.cost,
        )
    return msgspec.structs.replace(last, result=result)
