"""The run loop: rebuild or keep the projection, ask `next_step`, do it, until the run is over or waits on disk.

There is no other branch point. The loop can be interrupted at any await; it then simply asks `next_step` again, with the
intent to stop in the journal.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from retinue.agent.around_run import AroundRun
from retinue.agent.asking import ask
from retinue.agent.branch import Branch
from retinue.agent.calls import Calls
from retinue.agent.conflicts import go_on_from_ledger
from retinue.agent.definition import AgentDefinition, clean_envelope
from retinue.agent.journal import Batch, RunJournal
from retinue.agent.mailbox import letters
from retinue.agent.messages_sent import take_messages
from retinue.agent.middleware import Scope, StateHandle
from retinue.agent.next_step import (
    LIMIT_SECONDS,
    AskModel,
    CheckOutput,
    Finish,
    GiveBack,
    RunCalls,
    TakeAnswer,
    TakeMessages,
    TakeTasks,
    WaitForAnswer,
    next_step,
)
from retinue.agent.output import Checked, OutputType, check_answer, give_back
from retinue.agent.ports import RunEnd
from retinue.agent.projection import OUTPUT_NOTICE, Projection
from retinue.agent.questions import open_questions, show_request
from retinue.agent.session_state import SessionState, plain
from retinue.agent.stopping import Stopping
from retinue.agent.tasks import TASK_KINDS, take_tasks
from retinue.agent.texts import notice
from retinue.agent.tool_handler import make_context
from retinue.errors import LedgerConflict, LedgerError
from retinue.events import (
    CancelSeenEvent,
    Event,
    MessageEvent,
    OutputCheckedEvent,
    PermissionRequest,
    RequestClosedEvent,
    RunFinishedEvent,
    StateSetEvent,
    derived,
    encode,
)
from retinue.ids import new_id
from retinue.messages import CallRef, UserMessage
from retinue.models.port import Envelope
from retinue.ops import TakeMail
from retinue.rows import Mail, RunRow
from retinue.states import RunState
from retinue.tools.port import ToolContext

__all__ = ["Run"]

_log: Final = logging.getLogger("retinue")


class Run:
    """One attempt of one run in this process."""

    def __init__(
        self,
        branch: Branch,
        definition: AgentDefinition,
        row: RunRow,
        projection: Projection,
        *,
        generation: int,
        head: int,
        stored: bool,
        envelope: Envelope | None = None,
        output: OutputType | None = None,
    ) -> None:
        self.branch = branch
        self.tree = tree = branch.tree
        self.definition = definition.reading(needed=projection.cut)
        self.output = output
        self.envelope, self.envelope_blob = envelope or self.definition.envelope, self.definition.envelope_blob
        redactor = tree.services.redactor
        if redactor.active and envelope is None:
            self.envelope, self.envelope_blob = clean_envelope(redactor, self.envelope, self.envelope_blob)
        self.place = tree.slots.place(row.depth, tree.next_order())
        self.journal = self._journal(row, projection, generation=generation, head=head, stored=stored)
        self.is_lead = False
        self.ending: Callable[[RunEnd], None] | None = None
        """What else belongs to the commit of this run's end, or of its wait."""
        self.begun_anew: Callable[[], None] | None = None
        self.asks: Callable[[PermissionRequest], None] | None = None
        """What else belongs to the commit of a question to the run's parent, which does not wait for the run."""
        self.let_go: Callable[[], None] | None = None
        """Asks the parent, which waits for the run, to let it go on in the background: so it can answer a question of it."""
        self.active_before = 0.0
        """Seconds that earlier attempts were at work."""
        self.idle = 0.0
        """Seconds that this one has waited for a person."""
        self._idle_since: float | None = None
        self.acknowledge = False
        self.stopping = Stopping(self)
        self.calls = Calls(self)
        self._mail: list[Mail] = []
        self._taken: tuple[str, ...] = ()
        self._mail_waits = stored
        self._unasked = stored
        self._wake: asyncio.Future[None] | None = None
        self._look = False
        self._session_state: dict[str, Any] = {}

    def _journal(self, row: RunRow, projection: Projection, *, generation: int, head: int, stored: bool) -> RunJournal:
        services = self.tree.services
        return RunJournal(
            services.ledger,
            services.clock,
            row,
            projection,
            generation=generation,
            head=head,
            stored=stored,
            tell=self._tell,
            redactor=services.redactor,
        )

    def begin_anew(self, row: RunRow, projection: Projection, *, generation: int, head: int) -> None:
        """Go on from what the ledger holds; what was staged is given up."""
        self.journal = self._journal(row, projection, generation=generation, head=head, stored=True)
        self._mail_waits, self._taken = True, ()
        if self.begun_anew is not None:
            self.begun_anew()

    @property
    def stop_reason(self) -> str | None:
        """Why the run is to stop, if it is."""
        return self.stopping.reason

    @property
    def row(self) -> RunRow:
        """The run's row as it will be with the next commit."""
        return self.journal.row

    @property
    def projection(self) -> Projection:
        """What the run's journal says."""
        return self.journal.projection

    # Driving

    async def drive(self) -> RunEnd:
        """Go on with the run until it is over or waits. The end is staged; the root commits it, a child's rides with its
        parent's result (`journal.take()`).

        Raises:
            LeaseLost: another process has taken the run over.
            LedgerError: the ledger failed. The run is as the ledger last knew it, and can be resumed.
        """
        if self.definition.middleware:
            await self.branch.land()
        if not self.branch.task_to_come:
            self.stopping.task = asyncio.current_task()
        self.tree.runs[self.row.run_id] = self
        asked = self.tree.stop_of(self.row.lineage)
        if asked is not None and self.stopping.reason is None:
            self.stopping.ask(asked)
        limit = None if self.row.active_seconds is None else self.tree.help(self._watch_time(), f"time of {self.row.run_id}")
        try:
            return await (self._around() if self.definition.middleware else self._loop())
        except BaseException as error:
            if isinstance(error, LedgerError) and not isinstance(error, LedgerConflict):
                self.branch.fail(error)
            self.branch.given_up = True  # what runs below is ended at once, and can be resumed with this run
            await self.calls.end()
            await self.journal.abandon()
            raise
        finally:
            if limit is not None:
                limit.cancel()
            self.tree.runs.pop(self.row.run_id, None)

    async def _watch_time(self) -> None:
        """End the run as failed when it has been at work as long as its budget lets it; waits for a person do not count."""
        limit, clock = self.row.active_seconds, self.journal.clock
        assert limit is not None
        begun = clock.monotonic()
        while True:
            now = clock.monotonic()
            idle = self.idle + (now - self._idle_since if self._idle_since is not None else 0.0)
            left = limit - (self.active_before + now - begun - idle)
            if left <= 0:
                break
            await clock.sleep(left)
        self.stopping.ask(f"its budget of {limit:g} seconds at work is used up", fault=LIMIT_SECONDS)

    async def _around(self) -> RunEnd:
        """The loop, with the middleware around it. The journal's end stands, whatever the middleware makes of it. A stop ends
        the middleware's own part; nothing of it begins after one (M8)."""
        key = self.row.key
        try:
            self._session_state = await self.tree.session_state(key.user, key.session)
        except asyncio.CancelledError:
            self.stopping.cancelled()
        if self.stopping.reason is not None:
            return await self._loop()
        around = AroundRun(self, self._loop)
        error = await around.over()
        if around.faults:
            raise around.faults[-1]  # a middleware that swallows the loop's fault does not make it undone
        if error is not None:
            self._middleware_raised(error, ended=bool(around.ends))
        if around.ends:
            return around.ends[-1]
        if error is None and self.stopping.reason is None and self.projection.open is None:
            self._author_fault("a middleware did not call `next`")
        return await self._loop()

    def _middleware_raised(self, error: BaseException, *, ended: bool) -> None:
        """End the run as failed because of what a middleware raised outside of the loop, unless it has ended."""
        uncalled = isinstance(error, asyncio.CancelledError)
        said = "CancelledError, and nobody had cancelled the run" if uncalled else f"{type(error).__name__}: {error}"
        if ended:
            _log.warning("run %s had ended when a middleware raised %s", self.row.run_id, said)
        elif self.projection.open is None:
            self._author_fault(f"a middleware raised {said}")
        elif uncalled:
            self.stopping.ask_with_intent("interrupted", by="middleware")
        else:
            raise error  # nothing that can be closed here: the run can be resumed

    def _author_fault(self, message: str) -> None:
        """End the run as failed because of what its author's code did, unless it has ended already."""
        if self.projection.finished is not None:
            _log.warning("run %s had ended when %s", self.row.run_id, message)
            return
        self._stage_end(Finish("failed", "middleware_raised", message, "mend the middleware"))

    async def _loop(self) -> RunEnd:
        retries = 0
        while True:
            try:
                end = await self._step()
                if end is not None:
                    return end
            except asyncio.CancelledError:
                self.stopping.cancelled()
            except LedgerConflict as conflict:
                retries = 1 if self.journal.held else retries + 1  # in a row
                await self._resolve(conflict, retries)

    async def _resolve(self, conflict: LedgerConflict, retries: int) -> None:
        """Go on from the ledger after a conflict; a stop that comes meanwhile is taken in as anywhere else."""
        while True:
            try:
                return await go_on_from_ledger(self, conflict, retries)
            except asyncio.CancelledError:
                self.stopping.cancelled()

    async def _step(self) -> RunEnd | None:
        """One step; the run's end if that was it."""
        if self.branch.failure is not None:
            raise self.branch.failure
        if self.acknowledge:
            self.acknowledge = False
            await self.journal.flush()
        projection = self.projection
        if self._mail_waits:
            self._mail_waits = False
            self._mail = await letters(self, self._taken)
            if self.definition.deliver == "after_turn" and self.projection.turns:
                self._mail = [letter for letter in self._mail if letter.kind not in TASK_KINDS]  # they lie there for its next run
        stop, fault = self.stopping.reason, self.stopping.fault
        unseen = projection.cancel is None or (projection.fault and not fault)
        if stop is not None and unseen and projection.finished is None:
            self.journal.stage(CancelSeenEvent(reason=stop, fault=fault))
        step = next_step(projection, self._mail, self.definition.tools)
        if self._unasked and not isinstance(step, TakeAnswer):
            self._unasked = False
            self._ask_again()
        if isinstance(step, AskModel):
            if self.journal.in_flight:
                await self.journal.settle()
            await ask(self, step)
        elif isinstance(step, RunCalls):
            if not await self.calls.bring_on(step.actions) and not await self._wait():
                return await self._suspend()
        elif isinstance(step, TakeAnswer):
            self._take_answer(step)
        elif isinstance(step, TakeMessages):
            await take_messages(self, self._taking(step.mail_ids))
        elif isinstance(step, TakeTasks):
            await take_tasks(self, self._taking(step.mail_ids))
        elif isinstance(step, WaitForAnswer):
            if self.calls.busy:
                await self.calls.bring_on(())
            elif not await self._wait():
                return await self._suspend()
        elif isinstance(step, CheckOutput):
            self.journal.stage(OutputCheckedEvent(message_id=step.message_id, fault=self.answer().fault))
        elif isinstance(step, GiveBack):
            assert projection.output is not None
            text = notice(OUTPUT_NOTICE, give_back(projection.output, step.fault))
            self.journal.stage(MessageEvent(message=UserMessage(id=new_id("msg"), text=text, notice=OUTPUT_NOTICE)))
        else:
            return await self._finish(step)
        return None

    def answer(self) -> Checked:
        """The last answer by the form that the run asks for; of no value where it asks for none."""
        wanted = self.projection.output
        return Checked() if wanted is None else check_answer(wanted, self.projection.text, self.output)

    def _take_answer(self, step: TakeAnswer) -> None:
        answer = step.answer
        self._taking((step.mail_id,))
        self.journal.stage_op(TakeMail(self.row.key, step.mail_id))
        if step.ref is not None:
            self.journal.stage(
                RequestClosedEvent(
                    request_id=answer.request_id,
                    call=step.ref,
                    answer=answer.answer,
                    by=answer.by,
                    remember=answer.remember,
                    note=answer.note,
                )
            )

    def _taking(self, mail_ids: Sequence[str]) -> list[Mail]:
        """The letters with these ids, which are not seen any more: until their taking is committed, they still lie there."""
        letters = [letter for letter in self._mail if letter.mail_id in mail_ids]
        self._mail = [letter for letter in self._mail if letter.mail_id not in mail_ids]
        self._taken = (*self._taken, *mail_ids)
        return letters

    def _ask_again(self) -> None:
        """Requests that an earlier attempt opened are shown to whoever is there now: nobody else would ask them (D-28)."""
        batch = self.projection.open
        if batch is None or self.projection.cancel is not None:
            return
        for index, request in batch.requests.items():
            if index not in batch.closed and index not in batch.results:
                placed = self.placed(request, request.seq, request.at)
                self.tree.publish(placed)
                show_request(self, placed)

    async def _finish(self, step: Finish) -> RunEnd:
        if self.projection.cancel is not None and self.is_lead:
            await self._tasks_ended()
        if self.projection.finished is None:
            self._stage_end(step)
        ended = self.projection.finished
        assert ended is not None
        return await self._leave(RunEnd(step.status, ended.reason, ended.message, ended.remedy))

    async def _leave(self, end: RunEnd) -> RunEnd:
        """Commit how this attempt ended; a child's end rides with its parent's result."""
        if self.ending is not None:
            self.ending(end)
        if self.is_lead:
            await self.journal.flush()
        elif self.journal.in_flight:
            await self.journal.settle()
        return end

    def _stage_end(self, step: Finish) -> None:
        projection = self.projection
        self.journal.stage(
            RunFinishedEvent(
                status=step.status,
                reason=step.reason,
                message=self.stopping.named(step.message),
                remedy=step.remedy,
                usage=projection.tree_usage,
                cost=projection.cost,
            )
        )
        self.journal.put_run(
            msgspec.structs.replace(
                self.row,
                state=RunState(step.status),
                reason=step.reason,
                owner=None,
                updated_at=self.journal.clock.now_ms(),
            )
        )

    async def _suspend(self) -> RunEnd:
        """Wait on disk: the lease is given back, and any process can go on when the answer is there (D-28).

        What comes while this is committed (an answer, a stop) is looked for by whoever drives the root.
        """
        self.journal.put_run(
            msgspec.structs.replace(self.row, state=RunState.WAITING, owner=None, updated_at=self.journal.clock.now_ms())
        )
        return await self._leave(RunEnd("waiting", "permission"))

    async def _tasks_ended(self) -> None:
        """The end of a run that was stopped waits for the tasks below it in this process, no longer than the grace (M8)."""
        deadline = self.stopping.deadline
        while True:
            below = [one.over for one in self.tree.branches if one is not self.branch and one.is_below(self.row.run_id)]
            left = deadline - self.journal.clock.monotonic()
            if not below or left <= 0:
                return
            waits = [asyncio.create_task(over.wait(), name="retinue wait for a task's end") for over in below]
            try:
                await self.wait_any(waits, left)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    # Waiting and waking

    def wake_up(self, _task: object = None) -> None:
        """Let the driver look again, now or when it next would wait."""
        self._look = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def mail_came(self) -> None:
        """Something lies in the run's mailbox."""
        self._mail_waits = True
        self.wake_up()

    async def woken(self) -> None:
        """Return when `wake_up` is called, or has been since the last time."""
        if not self._look:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        self._look = False

    async def wait_any(self, tasks: Sequence["asyncio.Future[Any]"], seconds: float) -> None:
        """Return when one of `tasks` is done or `seconds` have passed on the run's clock."""
        timer = asyncio.create_task(self.journal.clock.sleep(seconds), name="retinue timer of a stop")
        try:
            await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    @property
    def has_parent_to_ask(self) -> bool:
        """Whether a question is its parent's to answer, rather than a person's."""
        return self.asks is not None or self.let_go is not None

    async def _wait(self) -> bool:
        """Wait in this process for an answer if someone is there to give it; False if nobody is."""
        if self.stopping.reason is not None:
            return True
        if self.let_go is not None and open_questions(self):
            self.let_go()
        elif not self.tree.attended or self._asks_parent_alone():
            return False
        await self.journal.flush()
        self._idle_since = self.journal.clock.monotonic()
        try:
            await self.woken()
        finally:
            self.idle += self.journal.clock.monotonic() - self._idle_since
            self._idle_since = None
        return True

    def _asks_parent_alone(self) -> bool:
        """Whether all that it waits for is its parent's answer, which comes by mail, maybe after long."""
        batch = self.projection.open
        if self.asks is None or batch is None:
            return False
        return len(open_questions(self)) == sum(1 for _ in batch.pending())

    # For tools, middleware and viewers

    def tool_context(self, ref: CallRef) -> ToolContext:
        """The context of one call."""
        return make_context(self, ref)

    def state(self, scope: Scope) -> StateHandle:
        """A middleware's state of this thread or session (H-27)."""
        return SessionState(self, self._session_state).handle if scope == "session" else self._thread_state()

    def _thread_state(self) -> StateHandle:
        def read(name: str) -> Any:
            return plain(self.projection.state.get(name))

        def write(name: str, value: Any) -> None:
            self.journal.stage(StateSetEvent(name=name, value=plain(value)))

        async def change(name: str, made: Callable[[Any], Any]) -> Any:
            write(name, made(read(name)))
            return read(name)

        return StateHandle(read, write, change)

    def placed(self, event: Any, seq: int, at: int) -> Any:
        """The event with its place in the tree filled in, for viewers."""
        row = self.row
        return msgspec.structs.replace(
            event, path=row.path, invocations=row.invocations, key=row.key, run_id=row.run_id, seq=seq, at=at
        )

    def show(self, event: Event) -> None:
        """Show viewers a live event."""
        if self.tree.viewers:
            redactor = self.tree.services.redactor
            if redactor.active:
                event, _ = redactor.event(event, encode(event))
            self.tree.publish(self.placed(event, 0, self.journal.clock.now_ms()))

    def _tell(self, events: list[tuple[Event, int, int]]) -> None:
        """Show viewers what is committed."""
        if not self.tree.viewers:
            return
        for event, seq, at in events:
            placed = self.placed(event, seq, at)
            self.tree.publish(placed)
            if isinstance(event, MessageEvent):
                for call_event in derived(placed):
                    self.tree.publish(call_event)

    def take(self) -> Batch:
        """What the run staged, for a parent to commit with its own."""
        return self.journal.take()
