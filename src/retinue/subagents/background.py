"""A task: a child that its parent does not wait for. It leads a branch of its own, and its end goes to the parent as mail.

The row of the delegation is the task's state; the commit of the child's end moves it and writes the mail (invariant 2).
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from retinue.agent.branch import Branch
from retinue.agent.ports import CallOutcome, RunEnd
from retinue.agent.results import cut, named_in
from retinue.agent.run import Run
from retinue.agent.task_questions import QuestionMail, question_to
from retinue.agent.tasks import TASK_MAIL, TaskMail
from retinue.events import PermissionRequest, encode
from retinue.ids import new_id
from retinue.ledger.port import Ledger
from retinue.messages import BlobRef
from retinue.ops import PutInvocation, PutMail, PutRun
from retinue.rows import InvocationRow, Mail, RunRow
from retinue.states import InvocationState, RunState
from retinue.subagents.child import TIME_LIMIT, child_end, lifecycle_event, time_left
from retinue.subagents.delegation import ChildEnd, Format
from retinue.subagents.notifications import TaskEnding, is_told

__all__ = ["BackgroundChild", "promoted", "receipt"]

ACCEPTED: Final = "accepted"
TIMEOUT_PROMOTED: Final = "timeout_promoted"
WAITING: Final = "waiting"


class BackgroundChild:
    """A child that leads a branch in this process, seen from whoever drives it: its delegation's row, and what its parent is
    told of its end."""

    def __init__(self, child: Run, row: InvocationRow) -> None:
        self.run = child
        self.row = row
        """As the ledger has it."""
        self._staged = row
        child.is_lead = True
        child.ending = self.ending
        child.asks, child.let_go = self.asking, None
        child.begun_anew = self._begin_anew

    @property
    def branch(self) -> Branch:
        """The branch that it leads."""
        return self.run.branch

    def begin(self) -> None:
        """It is being driven: that is told with its next commit (A-33)."""
        if self._staged.state is not InvocationState.RUNNING:
            self._put(InvocationState.RUNNING)

    async def limit(self) -> None:
        """Return when its time limit is reached, after which it is stopped, and ends with what it has."""
        assert self.row.timeout_seconds is not None
        clock = self.run.journal.clock
        left = time_left(self.row, clock.now_ms())
        if left > 0:
            await clock.sleep(left)
        self.run.stopping.ask_with_intent(TIME_LIMIT, by="time limit", below="the time limit of a run above was reached")

    def stage(self, row: InvocationRow) -> None:
        """Move its row on with the next commit of the child."""
        before, self._staged = self._staged, row
        self.run.journal.stage_op(PutInvocation(row, (before.state, before.attempt)))
        self.run.journal.then(lambda: self._committed(row))

    def ending(self, end: RunEnd) -> None:
        """Stage what belongs to an end, or to a wait, of the child: for one commit with it."""
        if self._staged.state.terminal:
            return
        if end.status == "waiting":
            self._put(InvocationState.WAITING)
            return
        run = self.run
        run.tree.busy.discard(self.row.child)
        row = self._staged
        ended = child_end(run, row, end)
        told = self._is_told(ended)
        self._staged = row = msgspec.structs.replace(row, notify=(ended.state.value,) if told else ())
        self._put(ended.state, ended.reason)
        text, blobs = self._text(ended)
        event = lifecycle_event(run, row, ended)
        assert row.task_id is not None
        mail = TaskMail(
            task_id=row.task_id,
            name=row.name,
            status=ended.status,
            type=event.TYPE,
            event=msgspec.Raw(encode(event)),
            text=text,
            blobs=blobs,
            notify=told,
        )
        now = run.journal.clock.now_ms()
        letter = Mail(mail_id=new_id("mail"), kind=TASK_MAIL, body=msgspec.Raw(msgspec.json.encode(mail)), at=now)
        run.journal.stage_op(PutMail(row.parent, letter))

    def _is_told(self, end: ChildEnd) -> bool:
        """Whether its parent's model is told of this end (H-13)."""
        row, services = self._staged, self.run.tree.services
        assert row.task_id is not None
        status: Any = end.state.value
        ending = TaskEnding(task_id=row.task_id, name=row.name, status=status, text=end.text, reason=end.reason)
        return is_told(row.strategy, services.strategies, ending, row.notify)

    def asking(self, request: PermissionRequest) -> None:
        """Stage the mail to its parent that belongs to a question of the child."""
        run, row = self.run, self._staged
        assert row.task_id is not None
        asked = QuestionMail(task_id=row.task_id, name=row.name, request_id=request.request_id, question=request.description)
        run.journal.stage_op(question_to(row.parent, asked, at=run.journal.clock.now_ms()))
        run.journal.then(lambda: run.tree.mail_sent(row.parent))

    def _text(self, end: ChildEnd) -> tuple[str, tuple[BlobRef, ...]]:
        """What the notice says, no longer than a tool's result; the rest is a blob, as there."""
        run = self.run
        text = end.text
        if end.status != "completed":
            why = end.message or end.reason or end.status
            told = f"{why} ({end.remedy})" if end.remedy else why
            text = f"{told}\nPartial text:\n{text}" if text.strip() else told
        text = run.tree.services.redactor.text(text)  # before it is cut, so that no half of a secret is left
        blobs = named_in(text, run.projection.history)
        if len(text) > run.tree.limits.max_result_characters:
            text, whole, put = cut(text, run.tree.limits.max_result_characters)
            run.journal.stage_op(put)
            blobs = (whole, *blobs)
        return text, blobs

    def _put(self, state: InvocationState, reason: str | None = None) -> None:
        now = self.run.journal.clock.now_ms()
        self.stage(msgspec.structs.replace(self._staged, state=state, reason=reason, updated_at=now))

    def _committed(self, row: InvocationRow) -> None:
        self.row = row
        if row.state.terminal:
            self.run.tree.services.task_ended()

    def _begin_anew(self) -> None:
        """The run goes on from what the ledger holds, and so does its row."""
        self._staged = self.row


def receipt(words: Format, row: InvocationRow, *, promoted: bool = False, asks: Sequence[str] = ()) -> CallOutcome:
    """What the parent's call gives at once (H-12), at its time limit (D-08), or when the child asks its parent something."""
    metadata: dict[str, Any] = {
        "subAgentStatus": WAITING if asks else TIMEOUT_PROMOTED if promoted else ACCEPTED,
        "subAgentSessionId": row.child.session,
        "subAgentThreadId": row.child.thread,
        "subAgentName": row.name,
        "invocationId": row.invocation_id,
        "contextPolicy": row.context_policy,
        "taskId": row.task_id,
    }
    return CallOutcome(content=words.receipt(row, promoted=promoted, asks=asks), metadata=metadata)


async def _below(ledger: Ledger, row: RunRow) -> list[RunRow]:
    """The unfinished runs below a run that it waits for."""
    found: list[RunRow] = []
    looked = [row.run_id]
    while looked:
        for one in await ledger.invocations(parent_run=looked.pop()):
            if one.state.terminal or one.task_id is not None:
                continue
            child = await ledger.run(one.child_run)
            if child is not None:
                found.append(child)
                looked.append(child.run_id)
    return found


async def promoted(child: Run, row: InvocationRow) -> BackgroundChild | None:
    """Let a synchronous child that is at work lead a branch of its own, with everything below it that is driven with it; None if
    it came to its end meanwhile. When this returns it is a task in the ledger as well: whoever finds it there without a driver
    goes on with it.

    Raises:
        LedgerError: it could not be told; the child must be ended, and is found again as the ledger has it.
    """
    tree, before = child.tree, child.branch
    rows = await _below(tree.services.ledger, child.row)
    if child.projection.finished is not None:
        return None
    branch = Branch(tree, child.row.run_id)
    branch.failure = before.failure
    moved = [run for run in before.runs() if child.row.run_id in run.row.lineage]
    for run in moved:
        run.branch = branch
        run.journal.move(branch.lead)
        if run is not child:
            child.journal.include(run.journal.take())
    live = {run.row.run_id for run in moved}
    for one in rows:  # what waits on disk below it belongs to it as well
        below = child.row.run_id in one.lineage and one.lead == before.lead and one.state is RunState.WAITING
        if below and one.run_id not in live:
            put = PutRun(msgspec.structs.replace(one, branch=branch.lead), (one.state, one.attempt))
            child.journal.stage_op(put)
    tree.branches.add(branch)
    task = BackgroundChild(child, row)
    now = child.journal.clock.now_ms()
    task.stage(msgspec.structs.replace(row, mode="background", task_id=new_id("task"), timeout_seconds=None, updated_at=now))
    try:
        await child.journal.flush()
    except BaseException:
        tree.branches.discard(branch)
        raise
    child.wake_up()  # it may wait for just that
    return task
