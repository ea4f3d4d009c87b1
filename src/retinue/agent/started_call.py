"""A call that runs in this process, and how a delegation ends whatever a middleware makes of it."""

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from retinue.agent.begun import until_done
from retinue.agent.next_step import CallAction
from retinue.agent.ports import CallOutcome, Prepared
from retinue.errors import ConfigurationError
from retinue.states import ResultStatus

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["StartedCall", "called_twice", "no_outcome"]

INTERRUPTED: Final = "interrupted by a middleware"
NOT_RUN: Final = "not_run"
"""Why a child ended that a middleware answered for, or kept from running."""


class StartedCall:
    """A call that runs in this process."""

    __slots__ = ("action", "at_work", "begun", "driving", "ended", "fault", "given_up", "prepared", "task")

    def __init__(self, action: CallAction, prepared: Prepared) -> None:
        self.action = action
        self.prepared = prepared
        self.task: asyncio.Task[CallOutcome] | None = None
        self.driving = False
        """Whether a child is being driven: it heeds `stop`. Else a middleware is at work around it."""
        self.ended: CallOutcome | None = None
        self.fault: BaseException | None = None
        self.given_up = False
        self.begun = False
        """Whether `prepared` has run, so that it must be prepared again to run again (a middleware that repeats a tool)."""
        self.at_work = False

    async def drive(self) -> CallOutcome:
        """Drive the child of a delegation, once: it has one end.

        Raises:
            ConfigurationError: it has been driven already.
        """
        if self.given_up:
            raise asyncio.CancelledError
        if self.driving or self.ended is not None or self.fault is not None:
            raise called_twice(
                f"`{self.action.call.name}`", "around a delegation", "call it at most once there; a child runs once"
            )
        self.driving = True
        try:
            self.ended = await self.prepared.execute()
        except BaseException as error:
            self.fault = error
            raise
        finally:
            self.driving = False
        return self.ended

    async def drive_inside(self, run: "Run") -> CallOutcome:
        """`drive` in the hands of a middleware: if that cancels it, the child is stopped and comes to its end before the
        middleware learns of that, and the run goes on.

        Raises:
            CancelledError: it was cancelled. ConfigurationError: as `drive`.
        """
        work = asyncio.create_task(self.drive(), name=f"retinue child of {self.action.call.name}")
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await until_done(work)
            except asyncio.CancelledError as error:
                cancelled = error
                if run.branch.given_up or self.given_up:
                    work.cancel()
                elif run.stop_reason is None:
                    assert self.prepared.stop is not None
                    self.prepared.stop(INTERRUPTED)
        if cancelled is not None and self.ended is not None:
            raise cancelled
        return work.result()

    async def settled(self, made: object) -> CallOutcome:
        """The call's outcome, if a middleware made `made` of it: a child that it did not let run ends cancelled."""
        if self.fault is not None:
            raise self.fault  # the ledger's or ours: never hidden
        if self.ended is None:
            assert self.prepared.stop is not None
            self.prepared.stop(NOT_RUN)
            await self.drive()
        ended = self.ended
        assert ended is not None
        if ended.suspended:
            return ended  # a person is waited for, whatever the middleware makes of it
        if not isinstance(made, CallOutcome):
            made = no_outcome(self.action.call.name, made)
        return replace(made, events=ended.events, batch=ended.batch, suspended=False)


def called_twice(name: str, when: str, remedy: str) -> ConfigurationError:
    """The error for a middleware that called `next` again where it must not."""
    return ConfigurationError(f"a middleware called `next` twice around {name}, {when}", code="next_called_twice", remedy=remedy)


def no_outcome(name: str, made: object) -> CallOutcome:
    """What is told of a middleware that returned something else than an outcome."""
    text = f"`{name}` failed: a middleware returned {type(made).__name__}, not a `CallOutcome`"
    return CallOutcome(content=text, status=ResultStatus.ERROR)
