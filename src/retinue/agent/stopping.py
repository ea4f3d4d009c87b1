"""How one run stops (M8): why and since when, the interruption of its driver's task, and what did not stop within the grace.

A stop is an intent in the ledger first. What is here only makes the driver look at it soon. A run is also stopped for a fault
of its author's own code beside it. That is no intent: the run ends as failed, what is below it as cancelled, and a stop that is
asked for meanwhile overrules it. If the process dies before it is in the journal, whoever goes on with the run meets the fault
again.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from retinue.agent.begun import until_done
from retinue.clock import Clock
from retinue.errors import LedgerConflict, LedgerError
from retinue.events import CancelSeenEvent
from retinue.ledger.port import Ledger
from retinue.ops import PutInvocation, RequestCancel
from retinue.rows import InvocationRow
from retinue.states import InvocationState

if TYPE_CHECKING:
    from retinue.agent.run import Run
    from retinue.agent.tree import Services

__all__ = ["Stopping", "Stuck", "settle_stopped", "until_stopped"]

_log: Final = logging.getLogger("retinue")


class Stuck(NamedTuple):
    """A call that did not end within the grace: a task that does not heed its cancellation, or one whose thread goes on."""

    name: str
    task: "asyncio.Task[Any]"


class Stopping:
    """The stop of one run, asked for or not."""

    __slots__ = (
        "_at",
        "_interrupting",
        "_run",
        "by_middleware",
        "fault",
        "inside",
        "interruptible",
        "passed_on",
        "reason",
        "stuck",
        "task",
    )

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.reason: str | None = None
        self.fault = ""
        """The code of the fault (`AUTHOR_FAULTS` of `next_step`) that the run is stopped for, if it is."""
        self.task: asyncio.Task[Any] | None = None
        """The task that drives the run."""
        self.interruptible = False
        """Whether the driver is in a model call, which is to be interrupted by a stop."""
        self.inside = False
        """Whether the driver is in a middleware's hands (`around_run`), who may cancel it as any task of its own."""
        self.passed_on = 0
        """How many cancellations from outside were passed on to the driver while it was."""
        self.by_middleware = False
        """Whether such a cancellation was the middleware's own."""
        self._interrupting = False
        self._at = 0.0
        self.stuck: list[Stuck] = []

    def ask(self, reason: str, *, below: str | None = None, fault: str = "") -> None:
        """Stop this run and everything below it, which is told `below` if that is another reason.

        The intent must be durable before (M8), or travel with the next commit; a `fault`, a code, has none.
        """
        if self.reason is not None:
            if not fault and self.fault:
                self.reason, self.fault = reason, ""  # after an intent the run may only end as cancelled
            return
        run = self._run
        self.reason, self.fault = reason, fault
        if fault and run.projection.open is not None and run.projection.cancel is None:
            run.journal.stage(CancelSeenEvent(reason=reason, fault=fault))  # before anything below says that it was stopped
            run.journal.flush_soon()
        run.tree.stops.setdefault(run.row.run_id, below or reason)
        self._at = run.journal.clock.monotonic()
        run.calls.stop(below or reason)
        for branch in list(run.tree.branches):  # tasks end with what they were given by
            if branch is not run.branch and branch.is_below(run.row.run_id) and (lead := branch.lead_run) is not None:
                lead.stopping.ask(below or reason)
        if self.interruptible and self.task is not None:
            self.interruptible = False
            self._interrupting = True
            self.task.cancel()
        else:
            run.wake_up()

    def ask_with_intent(self, reason: str, *, by: str, below: str | None = None) -> None:
        """Stop this run. The intent is on its way into the ledger before anything that follows from it."""
        run = self._run
        if self.reason is None and run.projection.finished is None:
            run.journal.stage_op(RequestCancel(run.row.run_id, reason, by, run.journal.clock.now_ms()))
            run.journal.flush_soon()
        self.ask(reason, below=below)

    @property
    def interrupting(self) -> bool:
        """Whether `ask` has cancelled the driver's task, and nothing has taken that in yet."""
        return self._interrupting

    async def absorb(self) -> None:
        """Take in an interruption that a model call or a middleware did not raise, before it reaches somebody else."""
        if self._interrupting:
            await asyncio.sleep(0)  # raises it here, if it is still to come
            self._interrupting = False
            if self.task is not None:
                self.task.uncancel()

    def cancelled(self) -> None:
        """The driver's task was cancelled: by `ask`; by a middleware around the run, which stops that; or from outside, which
        stops the whole branch once its intent is staged.

        Raises:
            CancelledError: a second cancellation from outside, while the first one is being carried out: the run ends at
                once, resumable.
        """
        branch = self._run.branch
        task = asyncio.current_task()
        if self._interrupting:
            self._interrupting = False
        elif self.inside and not self.passed_on and not branch.given_up:
            self.by_middleware = True
            self.ask_with_intent("interrupted by a middleware", by="middleware")
        else:
            self.passed_on = max(0, self.passed_on - 1)
            branch.interruptions += 1
            if branch.interruptions > 1 or branch.given_up:
                raise asyncio.CancelledError
            (branch.lead_run or self._run).stopping.ask_with_intent("interrupted", by="caller")
        if task is not None:
            task.uncancel()

    def give_up(self, task: "asyncio.Task[Any]", name: str) -> None:
        """Leave a call behind that did not end within the grace: it is fenced from writing, and the run's end names it."""
        self.stuck.append(Stuck(name, task))
        self._run.branch.stuck.append(name)
        self._run.tree.abandon(task)

    @property
    def deadline(self) -> float:
        """When the grace is over, on the monotonic clock."""
        return self._at + self._run.tree.limits.stop_grace

    def named(self, message: str) -> str:
        """A terminal names what did not stop within the grace; that of a branch's lead names what is below it too."""
        run = self._run
        names = run.branch.stuck if run.is_lead else [stuck.name for stuck in self.stuck]
        if not names:
            return message
        listed = ", ".join(f"`{name}`" for name in names)
        return f"{message}; still stopping: {listed}" if message else f"still stopping: {listed}"


async def until_stopped(services: "Services", row: InvocationRow, stuck: Sequence[Stuck]) -> None:
    """Give a delegation its last state once what was stuck in its child has returned. If this process ends first, whoever
    opens the ledger next does it (`settle_stopped`)."""
    for one in stuck:
        await until_done(one.task)
        await services.threads.returned(one.task)
    try:
        await services.ledger.commit([_stopped(row, services.clock)])
    except LedgerError as error:
        _log.warning("invocation %s stays `stopping` until the ledger is opened again: %s", row.invocation_id, error)


async def settle_stopped(ledger: Ledger, clock: Clock) -> None:
    """Give every delegation its last state in which something was stuck when its process ended (M8)."""
    for row in await ledger.invocations(state=InvocationState.STOPPING):
        if row.owner is None or not await ledger.owner_alive(row.owner):
            try:
                await ledger.commit([_stopped(row, clock)])
            except LedgerConflict:
                continue  # another process was faster


def _stopped(row: InvocationRow, clock: Clock) -> PutInvocation:
    state = row.ends_as or InvocationState.CANCELLED
    ended = msgspec.structs.replace(row, state=state, owner=None, ends_as=None, updated_at=clock.now_ms())
    return PutInvocation(ended, (row.state, row.attempt))
