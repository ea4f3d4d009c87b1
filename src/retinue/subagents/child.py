"""A child that runs in this process, seen from its parent: its time limit, its end, and what the parent is told of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from retinue.agent.journal import Batch
from retinue.agent.output import OutputType, check_answer
from retinue.agent.ports import CallOutcome, Prepared, RunEnd
from retinue.agent.projection import Projection, Terminal
from retinue.agent.results import named_in
from retinue.agent.run import Run
from retinue.agent.stopping import until_stopped
from retinue.agent.texts import bounded
from retinue.events import (
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
)
from retinue.json_text import dumps
from retinue.ops import PutInvocation
from retinue.rows import InvocationRow
from retinue.states import InvocationState, ResultStatus
from retinue.subagents.delegation import ChildEnd, Format

__all__ = [
    "ASK_PARENT",
    "EXECUTOR_LOST",
    "TIMEOUT",
    "TIME_LIMIT",
    "TOO_MANY_ATTEMPTS",
    "Child",
    "answer_text",
    "child_end",
    "lifecycle_event",
    "time_left",
]

SUMMARY_CHARACTERS: Final = 2_000
ASK_PARENT: Final = "ask_parent"
"""The name of the tool by which a child asks its parent."""
TIMEOUT: Final = "timeout"
TIME_LIMIT: Final = "limit:timeout_seconds"
"""Why a child was stopped that reached its time limit; its parent is told `timeout`."""
EXECUTOR_LOST: Final = "executor_lost"
TOO_MANY_ATTEMPTS: Final = "too_many_attempts"
_LOST: Final = {
    EXECUTOR_LOST: "the process that worked on it is gone, and it was not to be resumed",
    TOO_MANY_ATTEMPTS: "each process that worked on it ended before it did; it was not tried again",
}
"""Why a task ended that no process brought to its end (D-19)."""


Promote = Callable[[Run, InvocationRow, "asyncio.Task[RunEnd]", Format], Awaitable[CallOutcome | None]]
"""Lets a child that is driven by this asyncio task go on in the background; what its parent is told, None if it has ended."""


class Child:
    """A child that runs in this process, seen from its parent."""

    __slots__ = ("_child", "_invocation", "_promotes", "_run", "_timeout", "_words")

    def __init__(
        self,
        run: Run,
        child: Run,
        invocation: InvocationRow,
        words: Format,
        timeout: float | None,
        *,
        promote: Promote | None = None,
    ) -> None:
        self._run = run
        self._child = child
        self._invocation = invocation
        self._words = words
        self._timeout = timeout
        self._promotes = promote

    def prepared(self) -> Prepared:
        """The child as a call that may start. Alone in its batch it needs no task of its own."""
        inline = self._timeout is None and not self._may_ask
        return Prepared(execute=self._execute, stop=self._child.stopping.ask, inline=inline)

    @property
    def _may_ask(self) -> bool:
        """Whether the child can ask its parent something, for which it has to be let go on without it."""
        return self._promotes is not None and ASK_PARENT in self._child.definition.tools

    async def _execute(self) -> CallOutcome:
        if self._promotes is not None and (self._timeout is not None or self._may_ask):
            went = await self._waited_for(self._timeout, self._promotes)
            if isinstance(went, CallOutcome):
                return went
            end = went
        elif self._timeout is None:
            end = await self._child.drive()
        else:
            end = await self._within(self._timeout)
        return self.outcome(end, self._child.take())

    async def _waited_for(self, seconds: float | None, promote: "Promote") -> RunEnd | CallOutcome:
        """Drive the child in a task of its own; at the limit, or when it asks its parent something, it goes on without it, and
        the parent gets a receipt (D-08, D-10)."""
        child = self._child
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        child.let_go = lambda: None if asked.done() else asked.set_result(None)
        drive = asyncio.create_task(child.drive(), name=f"retinue child {self._invocation.invocation_id}")
        waits: list[asyncio.Future[Any]] = [drive, asked]
        if seconds is not None:
            name = f"retinue wait {self._invocation.invocation_id}"
            waits.append(asyncio.create_task(child.journal.clock.sleep(seconds), name=name))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            stays = child.projection.finished is not None or child.stop_reason is not None or self._run.stop_reason is not None
            if not drive.done() and not stays:
                told = await promote(child, self._invocation, drive, self._words)
                if told is not None:
                    return told
            return await drive
        except BaseException:
            drive.cancel()
            await asyncio.gather(drive, return_exceptions=True)
            raise
        finally:
            for one in waits[1:]:
                one.cancel()
            await asyncio.gather(*waits[1:], return_exceptions=True)

    async def _within(self, seconds: float) -> RunEnd:
        """Drive the child; at the limit it is stopped like any other stop, and ends with what it has."""

        def reached() -> None:
            self._child.stopping.ask_with_intent(TIME_LIMIT, by="time limit", below="the time limit of a run above was reached")

        async def watch() -> None:
            await self._child.journal.clock.sleep(seconds)
            reached()

        if seconds <= 0:  # it was reached while nobody worked on the run
            reached()
        timer = asyncio.create_task(watch(), name=f"retinue time limit {self._invocation.invocation_id}")
        try:
            return await self._child.drive()
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    def put(self, state: InvocationState, stage: Any, reason: str | None = None) -> None:
        """Move the invocation's row on, with the next commit of whoever `stage` belongs to."""
        before = self._invocation
        self._invocation = msgspec.structs.replace(
            before, state=state, reason=reason, updated_at=self._run.journal.clock.now_ms()
        )
        stage(PutInvocation(self._invocation, (before.state, before.attempt)))

    def outcome(self, end: RunEnd, batch: Batch) -> CallOutcome:
        """The call's outcome: the child's end, the invocation's, and the lifecycle event, for one commit."""
        if end.status == "waiting":
            if self._invocation.state is not InvocationState.WAITING:
                self.put(InvocationState.WAITING, batch.ops.append)
            return CallOutcome(suspended=True, batch=batch)
        self._run.tree.busy.discard(self._invocation.child)
        ended = child_end(self._child, self._invocation, end)
        if end.status == "cancelled" and self._child.stopping.stuck:
            self._stay_stopping(ended.state, batch, ended.reason)
        else:
            self.put(ended.state, batch.ops.append, ended.reason)
        return CallOutcome(
            content=self._words.content(ended),
            status=_RESULT_STATUS[ended.status],
            metadata=self._metadata(ended.status, ended.reason),
            blobs=named_in(ended.text, self._child.projection.history),
            events=[lifecycle_event(self._child, self._invocation, ended)],
            batch=batch,
        )

    def _stay_stopping(self, then: InvocationState, batch: Batch, reason: str | None) -> None:
        """Something of the child still runs, fenced from writing: the parent is told the end, and the row follows (M8)."""
        services, stuck = self._run.tree.services, self._child.stopping.stuck
        self._invocation = msgspec.structs.replace(self._invocation, owner=services.owner_id, ends_as=then)
        self.put(InvocationState.STOPPING, batch.ops.append, reason)
        row = self._invocation
        batch.told.append(lambda: services.watch(until_stopped(services, row, stuck), row.name))

    def _metadata(self, status: str, reason: str | None) -> dict[str, Any]:
        """What H-10 promises on the tool result."""
        row = self._invocation
        made: dict[str, Any] = {
            "subAgentStatus": "failed" if status == TIMEOUT else status,
            "subAgentSessionId": row.child.session,
            "subAgentThreadId": row.child.thread,
            "subAgentName": row.name,
            "invocationId": row.invocation_id,
            "contextPolicy": row.context_policy,
        }
        if reason is not None:
            made["reason"] = reason
        wanted = self._child.projection.output
        if status == "completed" and wanted is not None:
            made |= {"contentType": "application/json", "outputName": wanted.name}
        return made


def time_left(row: InvocationRow, now: int) -> float:
    """Seconds that are left of a delegation's time limit at `now` (ms), never more than the whole: the clock of the machine may
    have been set back."""
    assert row.timeout_seconds is not None
    return min(row.timeout_seconds, max(0.0, row.timeout_seconds - (now - row.started_at) / 1_000))


def child_end(child: Run, row: InvocationRow, end: RunEnd) -> ChildEnd:
    """How a delegation ended whose child came to this end."""
    text = answer_text(child.projection, child.output) if end.status == "completed" else child.projection.text
    status, reason, message = end.status, end.reason, end.message
    if end.status == "cancelled" and end.reason == TIME_LIMIT:
        limit = "" if row.timeout_seconds is None else f" of {row.timeout_seconds:g} s"
        told = f"the time limit{limit} was reached"
        status, reason, message = TIMEOUT, TIMEOUT, f"{told}; {message}" if message else told
    elif end.status == "cancelled" and end.reason in _LOST:
        status, message = "failed", _LOST[end.reason]
    return ChildEnd(status=status, text=text, reason=reason, message=message, remedy=end.remedy, row=row)


def answer_text(projection: Projection, output: OutputType | None = None) -> str:
    """The answer of a run that is completed: of one that asked for a form the value alone, whatever stood around it."""
    wanted = projection.output
    return projection.text if wanted is None else dumps(check_answer(wanted, projection.text, output).plain).decode()


def lifecycle_event(child: Run, row: InvocationRow, end: ChildEnd) -> Terminal:
    """The one event in the parent's journal that says how a delegation ended (H-20)."""
    common: dict[str, Any] = {
        "invocation_id": row.invocation_id,
        "call": row.call,
        "parent_tool_call_id": row.call_id,
        "child_agent_id": row.child_agent_id,
        "child_session_id": row.child.session,
        "child_thread_id": row.child.thread,
        "context_policy": row.context_policy,
        "mode": row.mode,
        "depth": row.depth,
        "usage": child.projection.tree_usage,
        "cost": child.projection.cost,
    }
    text = bounded(end.text, SUMMARY_CHARACTERS)
    if end.status == "completed":
        return SubAgentInvocationCompletedEvent(summary=text, **common)
    if end.status == "cancelled":
        return SubAgentInvocationCancelledEvent(reason=end.reason or "", partial_text=text, **common)
    return SubAgentInvocationFailedEvent(error_type=end.reason or "failed", message=end.message, partial_text=text, **common)


_RESULT_STATUS: Final = {
    "completed": ResultStatus.OK,
    "failed": ResultStatus.ERROR,
    TIMEOUT: ResultStatus.ERROR,
    "cancelled": ResultStatus.CANCELLED,
}
