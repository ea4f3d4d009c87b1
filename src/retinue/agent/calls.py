"""Bringing a run's open calls on: gate, prepare, start side by side, record each result as it comes, stop them.

What runs in this process right now, and which child waits for a person, is all that is known here and nowhere else; both
end with the process, and `next_step` finds the calls again.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from retinue.agent.around_call import around_call
from retinue.agent.call_arguments import canonical
from retinue.agent.media import stage_media
from retinue.agent.middleware import overriding
from retinue.agent.next_step import CallAction, CallStep
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.questions import close_request, open_request
from retinue.agent.results import cut, plain_metadata
from retinue.agent.started_call import StartedCall, no_outcome
from retinue.agent.texts import CANCELLED, LIMIT_TURNS, STOPPED, UNKNOWN_OUTCOME, bounded, denied, unanswered, unknown_tool
from retinue.config import Verdict
from retinue.errors import ConfigurationError, LedgerError, UnknownId
from retinue.events import ToolCallResultEvent
from retinue.media import within
from retinue.states import ResultStatus
from retinue.tools.errors import is_fault

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["Calls"]


class Calls:
    """The open calls of one run, as far as this process works on them."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._running: dict[int, StartedCall] = {}
        self._suspended: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a call runs."""
        return bool(self._running)

    async def bring_on(self, actions: tuple[CallAction, ...]) -> bool:
        """Do what each call needs. False if there was nothing to do: all that is left waits for a person."""
        ready: list[StartedCall] = []
        moved = False
        stopping = self._run.stop_reason is not None
        for action in actions:
            index = action.ref.index
            if index in self._running or action.step is CallStep.WAIT or (self._waits(index) and not stopping):
                continue
            moved = True
            prepared = await self._prepare(action)
            if prepared is not None:
                ready.append(StartedCall(action, prepared))
        if ready and stopping is (self._run.stop_reason is not None):
            await self._start(ready, alone=len(actions) == 1)
        if self._running:
            await self._progress()
            return True
        return moved

    def _waits(self, index: int) -> bool:
        """Whether the child of this call waits for a person, and nothing has come for it since."""
        batch = self._run.projection.open
        if index in self._suspended and batch is not None and index in batch.invocations:
            revisit, invocation = self._run.tree.revisit, batch.invocations[index].invocation_id
            if invocation in revisit:
                revisit.discard(invocation)
                self._suspended.discard(index)
        return index in self._suspended

    async def _prepare(self, action: CallAction) -> Prepared | None:
        """Gate and prepare one call; None if it has its result already, or waits."""
        call, step = action.call, action.step
        if step is CallStep.CLOSE:
            await close_request(self._run, action)
            self._record(action, CallOutcome(content=CANCELLED, status=ResultStatus.CANCELLED))
        elif step is CallStep.UNKNOWN:
            self._record(action, CallOutcome(content=UNKNOWN_OUTCOME, status=ResultStatus.UNKNOWN_OUTCOME))
        elif step is CallStep.LIMIT:
            self._record(action, CallOutcome(content=LIMIT_TURNS, status=ResultStatus.LIMIT))
        elif step is CallStep.REFUSE:
            self._record(action, self._refused(action))
        else:
            handler = self._run.definition.tools.get(call.name)
            if step is CallStep.REATTACH:
                return await self._reattach(action, handler)
            if handler is None:
                self._record(action, self._not_offered(call.name))
            else:
                return await self._admitted(action, handler)
        return None

    async def _reattach(self, action: CallAction, handler: CallHandler | None) -> Prepared | None:
        """Find a child of an earlier attempt again. Without its code the run stays as it is, to be resumed where the code is
        (M5); where the run is being stopped, the child is ended from its journal alone.

        Raises:
            ConfigurationError: `no_executor`.
        """
        run, batch = self._run, self._run.projection.open
        assert batch is not None
        started = batch.invocations[action.ref.index]
        try:
            if handler is None:
                raise UnknownId(f"there is no tool `{action.call.name}`")
            prepared = await handler.reattach(run, action.ref, action.call, started)
        except LedgerError:
            raise
        except Exception as error:
            if run.stop_reason is None or run.tree.services.end_child is None:
                raise ConfigurationError(
                    f"run `{run.row.run_id}` waits for subagent `{started.child_agent_id}`, which cannot be run here: {error}",
                    code="no_executor",
                    remedy=f"declare `{started.child_agent_id}` again and resume, or stop it: `retinue cancel {run.row.root}`",
                ) from error
            prepared = await run.tree.services.end_child(run, started)
        if isinstance(prepared, CallOutcome):
            self._record(action, prepared)
            return None
        return prepared

    def _not_offered(self, name: str) -> CallOutcome:
        definition = self._run.definition
        hidden = definition.hidden.get(name)
        if hidden is not None:
            return CallOutcome(content=hidden, status=ResultStatus.LIMIT)
        return CallOutcome(content=unknown_tool(name, definition.tools), status=ResultStatus.ERROR)

    async def _admitted(self, action: CallAction, handler: CallHandler) -> Prepared | None:
        """As `_admit`; what its author's code raises (a factory, a middleware, a check of arguments) is the call's error."""
        try:
            return await self._admit(action, handler)
        except LedgerError:
            raise
        except Exception as error:  # noqa: BLE001
            self._record(action, _raised(action.call.name, error))
            return None

    async def _admit(self, action: CallAction, handler: CallHandler) -> Prepared | None:
        ref, read = action.ref, canonical(action.call)
        if isinstance(read, CallOutcome):
            self._record(action, read)
            return None
        arguments, call = read
        outcome = await handler.refusal(self._run, call)
        if outcome is None:
            outcome = await self._gate(action, handler, arguments)
        if outcome is not None:
            self._record(action, outcome)
            return None
        batch = self._run.projection.open
        if batch is not None and ref.index in batch.requests and ref.index not in batch.closed:
            return None  # asked: a person decides
        prepared = await handler.prepare(self._run, ref, call)
        if isinstance(prepared, CallOutcome):
            self._record(action, prepared)
            return None
        return prepared

    async def _gate(self, action: CallAction, handler: CallHandler, arguments: dict[str, Any]) -> CallOutcome | None:
        """Ask the gate. An answer that allowed the call is not asked for again, but a rule that denies it now still holds."""
        call = action.call
        gated = await handler.gated(self._run, arguments)
        decision = await self._run.definition.gate.decide(gated, self._run.tree.remembered)
        if decision.verdict is Verdict.DENY:
            return CallOutcome(content=denied(call.name, decision.because), status=ResultStatus.DENIED)
        asks = decision.verdict is Verdict.ASK or gated.kind == "question"
        if asks and action.step is CallStep.DECIDE:
            open_request(self._run, action, gated, handler.spec.description)
        return None

    def _refused(self, action: CallAction) -> CallOutcome:
        batch = self._run.projection.open
        assert batch is not None
        closed = batch.closed[action.ref.index][0]
        if batch.requests[action.ref.index].kind == "question":
            return CallOutcome(content=unanswered(closed.note), status=ResultStatus.DENIED)
        if closed.answer == "deny":
            because = f"by {closed.by}" if closed.by else ""
            return CallOutcome(content=denied(action.call.name, because, closed.note), status=ResultStatus.DENIED)
        return CallOutcome(content=denied(action.call.name, f"the request was {closed.answer}"), status=ResultStatus.DENIED)

    async def _start(self, ready: list[StartedCall], *, alone: bool) -> None:
        """Commit the intent where that must come first, then start everything side by side.

        `alone`: the run has no other open call, so that it can do this one in its own task.
        """
        journal, stopping = self._run.journal, self._run.stop_reason is not None
        if any(one.prepared.barrier for one in ready):
            await journal.flush()
            if not stopping and self._run.stop_reason is not None:
                return  # asked to stop meanwhile: nothing has started, `next_step` closes them
        else:
            journal.flush_soon()
        for one in ready:
            self._suspended.discard(one.action.ref.index)
            self._running[one.action.ref.index] = one
        if alone and ready[0].prepared.inline and not self._run.definition.middleware:  # a middleware may have to be stopped
            outcome = await self._execute(ready[0])  # the only call: no task of its own is needed
            del self._running[ready[0].action.ref.index]
            self._record(ready[0].action, outcome, ready[0].prepared)
            return
        for one in ready:
            name = f"retinue call {one.action.call.name} {one.action.ref.message_id}:{one.action.ref.index}"
            one.task = asyncio.create_task(self._execute(one), name=name)
            one.task.add_done_callback(self._run.wake_up)

    async def _execute(self, one: StartedCall) -> CallOutcome:
        run = self._run
        middleware = overriding(run.definition.middleware, "around_tool_call") if run.definition.middleware else ()
        child = one.prepared.stop is not None
        if not middleware and child:
            return await one.drive()
        made: object
        try:
            if not middleware:
                return await one.prepared.execute()
            made = await around_call(run, one, middleware)
        except asyncio.CancelledError:
            if not child or one.driving or one.fault is not None or run.stop_reason is None or one.given_up or one.task is None:
                raise
            one.task.uncancel()  # a middleware around a child was interrupted by a stop: the child still has to end
            made = CallOutcome(content=STOPPED, status=ResultStatus.CANCELLED)
        except BaseException as error:
            if not is_fault(error):
                raise
            made = _raised(one.action.call.name, error)
        if child:
            return await one.settled(made)
        return made if isinstance(made, CallOutcome) else no_outcome(one.action.call.name, made)

    async def _progress(self) -> None:
        """Wait until a call ends, mail comes, or the run is to stop; record what ended."""
        run = self._run
        if run.stop_reason is not None:
            await self._stop_running()
        elif not any(one.task is not None and one.task.done() for one in self._running.values()):
            await run.woken()
        self._collect()

    def _collect(self) -> None:
        for index, one in list(self._running.items()):
            task = one.task
            if task is None or not task.done():
                continue
            del self._running[index]
            if task.cancelled():
                self._record(one.action, self._stopped(one), one.prepared)
            else:
                self._record(one.action, task.result(), one.prepared)

    async def _stop_running(self) -> None:
        """End what runs: tasks are cancelled, children are told, threads are waited for; all no longer than the grace (M8)."""
        run = self._run
        deadline = run.stopping.deadline
        for one in self._running.values():
            if one.prepared.stop is not None:
                one.prepared.stop(run.stop_reason or "cancelled")
                if not one.driving and one.task is not None and run.definition.middleware:
                    one.task.cancel()  # a middleware is at work around the child
            elif one.task is not None and not (one.prepared.blocking and run.tree.services.threads.occupied_by(one.task)):
                one.task.cancel()
        while tasks := [one.task for one in self._running.values() if one.task is not None and not one.task.done()]:
            left = deadline - run.journal.clock.monotonic()
            if left > 0:
                await run.wait_any(tasks, left)
            elif children := [task for task in tasks if self._delegates(task)]:
                await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)  # their grace is over as well
            else:
                break
        self._collect()
        left_over = list(self._running.values())
        self._running.clear()
        for one in left_over:  # all of them, before anything is waited for
            self._give_up(one)
        for one in left_over:
            outcome = self._stopped(one)
            if one.prepared.stop is not None:
                one.given_up = False
                outcome = await one.settled(outcome)
                one.given_up = True
            self._record(one.action, outcome, one.prepared)

    def _give_up(self, one: StartedCall) -> None:
        if one.task is not None:
            self._run.stopping.give_up(one.task, one.action.call.name)
        one.given_up = True
        if one.prepared.abandoned is not None:
            one.prepared.abandoned()

    def _delegates(self, task: "asyncio.Task[CallOutcome]") -> bool:
        """Whether this is a child that will end by itself: no middleware is at work around it."""
        around = bool(self._run.definition.middleware)
        return any(
            one.task is task and one.prepared.stop is not None and (one.driving or not around) for one in self._running.values()
        )

    def _stopped(self, one: StartedCall) -> CallOutcome:
        return CallOutcome(
            content=STOPPED, status=ResultStatus.CANCELLED if one.task and one.task.done() else ResultStatus.UNKNOWN_OUTCOME
        )

    def _record(self, action: CallAction, outcome: CallOutcome, ran: Prepared | None = None) -> None:
        """Stage a call's one result, with what belongs to it. What had an effect is handed to the ledger at once."""
        journal = self._run.journal
        if outcome.batch is not None:
            journal.include(outcome.batch)
        if outcome.suspended:
            self._suspended.add(action.ref.index)
            return
        for event in outcome.events:
            journal.stage(event)
        self._suspended.discard(action.ref.index)
        content, blobs, limit = outcome.content, outcome.blobs, self._run.tree.limits.max_result_characters
        parts = ()
        if outcome.media:
            content, media = within(content, outcome.media, self._run.tree.limits.max_media_bytes)
            parts = stage_media(journal, media)
        if self._run.tree.services.redactor.active:  # before it is cut, so that no half of a secret is left
            content = self._run.tree.services.redactor.text(content)
        if len(content) > limit:
            content, whole, put = cut(content, limit)
            journal.stage_op(put)
            blobs = (whole, *blobs)
        journal.stage(
            ToolCallResultEvent(
                call=action.ref,
                call_id=action.call.id,
                name=action.call.name,
                content=content,
                status=outcome.status,
                metadata=plain_metadata(outcome.metadata),
                blobs=blobs,
                parts=parts,
            )
        )
        handler = self._run.definition.tools.get(action.call.name)
        if handler is None or not handler.repeatable or (ran is not None and ran.barrier):
            journal.flush_soon()

    def stop(self, reason: str) -> None:
        """Tell the children that run; what else runs is ended by the driver."""
        for one in self._running.values():
            if one.prepared.stop is not None:
                one.prepared.stop(reason)

    async def end(self) -> None:
        """Give up whatever still runs (the run itself has failed): nothing is left behind."""
        tasks = [one.task for one in self._running.values() if one.task is not None]
        self._running.clear()
        await self._run.tree.services.end(tasks, self._run.tree.limits.stop_grace)


def _raised(name: str, error: BaseException) -> CallOutcome:
    text = f"`{name}` failed: {type(error).__name__}: {bounded(str(error), 1_000)}"
    return CallOutcome(content=text, status=ResultStatus.ERROR)
