"""`delegate`: everything that matters of a delegation, decided once, for both surfaces.

A surface parses arguments and formats answers. Here are depth, limits, context policy, ids, the commit that makes the child,
the child's run in this process, its end, its stopping and its time limit, and how an interrupted parent finds it again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from retinue.agent.conflicts import still_ours
from retinue.agent.definition import AgentDefinition, envelope_from_blob
from retinue.agent.journal import Batch
from retinue.agent.middleware import Fork, overriding
from retinue.agent.ports import CallOutcome, Prepared
from retinue.agent.projection import Projection, inherited_history, project
from retinue.agent.recovery import recover
from retinue.agent.results import named_in
from retinue.agent.run import Run, RunEnd
from retinue.agent.stopping import until_stopped
from retinue.agent.texts import bounded
from retinue.config import SubAgentContextPolicy
from retinue.errors import ConfigurationError, LedgerError
from retinue.events import (
    MessageEvent,
    RunStartedEvent,
    StateSetEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ThreadCreatedEvent,
    ToolCallResultEvent,
    encode,
)
from retinue.ids import new_id, new_sub_session, tool_child_thread
from retinue.messages import CallRef, Entry, ToolCall, ToolResult, UserMessage
from retinue.models.text import dumps
from retinue.ops import Append, CreateThread, NewEvent, PutBlob, PutInvocation
from retinue.rows import ForkPoint, InvocationRow, RunRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, ResultStatus, RunState

__all__ = [
    "ChildEnd",
    "Delegation",
    "child_thread",
    "create_idle_child",
    "delegate",
    "fork_projection",
    "limit_refusal",
    "reattach",
    "stage_run",
]

SUMMARY_CHARACTERS: Final = 2_000
TIMEOUT: Final = "timeout"
TIME_LIMIT: Final = "limit:timeout_seconds"
"""Why a child was stopped that reached its time limit; its parent is told `timeout`."""


@dataclass(slots=True, kw_only=True)
class Delegation:
    """What a surface asks for. `definition` is the child as it will run; `existing` a child thread to go on with."""

    definition: AgentDefinition
    name: str
    source: str
    surface: str
    text: str
    context_policy: SubAgentContextPolicy
    timeout_seconds: float | None = None
    inherits_output: bool = False
    existing: ThreadRow | None = None
    agent_key: str | None = None
    label: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class ChildEnd:
    """How a delegation ended, for a surface to put into words. `status` is completed, failed, timeout or cancelled."""

    status: str
    text: str
    reason: str | None
    message: str
    remedy: str | None
    row: InvocationRow


class Format:
    """How a surface words a child's end."""

    def content(self, end: ChildEnd) -> str:
        """The tool result's text."""
        raise NotImplementedError


def limit_refusal(run: Run, ceiling: int) -> CallOutcome | None:
    """Why this run may not make another child: too deep, or too many in the tree (D-03, D-30). Names the setting."""
    if run.row.depth + 1 > ceiling:
        text = (
            f"Not run: delegating from depth {run.row.depth} would make a child at depth {run.row.depth + 1}, and "
            f"`max_subagent_depth` is {ceiling}. Do this part yourself."
        )
        return CallOutcome(content=text, status=ResultStatus.LIMIT)
    return count_refusal(run)


def count_refusal(run: Run) -> CallOutcome | None:
    """Why the tree may not have another child (D-30)."""
    limits = run.tree.limits
    if run.tree.children >= limits.max_tree_children:
        text = (
            f"Not run: this tree has made {run.tree.children} children, and `Limits(max_tree_children=…)` is "
            f"{limits.max_tree_children}. Finish with the results you have."
        )
        return CallOutcome(content=text, status=ResultStatus.LIMIT)
    return None


def fork_projection(parent: Projection, policy: SubAgentContextPolicy) -> Projection:
    """A child's projection before its first event: the parent's history without the message in flight, or nothing (D-14)."""
    projection = Projection()
    batch = parent.open
    if policy is SubAgentContextPolicy.FORK and batch is not None:
        projection.history = inherited_history(parent)
        projection.call_ids = parent.call_ids - {call.id for call in batch.message.calls}
        projection.state = dict(batch.state)
        projection.cut = parent.cut
    return projection


def _fork_point(run: Run) -> ForkPoint | None:
    batch = run.projection.open
    if batch is None or not run.projection.history:
        return None
    return ForkPoint(run.row.key, run.journal.generation, batch.seq - 1)


def child_thread(run: Run, call: ToolCall, wanted: Delegation, key: ThreadKey, invocation_id: str) -> ThreadRow:
    """A new child thread and its metadata (H-19). What is documented cannot be overwritten by the author's own."""
    now = run.journal.clock.now_ms()
    policy = wanted.context_policy
    base = _fork_point(run) if policy is SubAgentContextPolicy.FORK else None
    if policy is SubAgentContextPolicy.FORK and base is None:
        policy = SubAgentContextPolicy.FRESH  # a fork of an empty thread says what it is (D-14)
    parent = run.row.key
    metadata: dict[str, Any] = {
        **(wanted.metadata or {}),
        "kind": "subagent",
        "defaultAgentId": wanted.definition.agent_id,
        "subAgentName": wanted.name,
        "subAgentSourceKind": wanted.source,
        "parentSessionId": parent.session,
        "parentThreadId": parent.thread,
        "parentToolCallId": call.id,
        "contextPolicy": policy.value,
        "visibility": "hidden",
        "createdBy": "subagent",
    }
    if invocation_id:
        metadata["invocationId"] = invocation_id
    return ThreadRow(
        key=key,
        default_agent_id=wanted.definition.agent_id,
        created_at=now,
        updated_at=now,
        base=base,
        hidden=True,
        parent=parent,
        depth=run.row.depth + 1,
        agent_key=wanted.agent_key,
        label=wanted.label,
        metadata=metadata,
    )


def create_idle_child(run: Run, call: ToolCall, wanted: Delegation, key: ThreadKey) -> None:
    """Stage a child that has nothing to do yet: its thread and the thread's first event (A-26)."""
    row = child_thread(run, call, wanted, key, "")
    event = ThreadCreatedEvent(default_agent_id=row.default_agent_id, base=row.base, metadata=dict(row.metadata))
    run.journal.stage_op(CreateThread(row))
    first = NewEvent(event.TYPE, encode(event), "", 1, row.created_at)
    run.journal.stage_op(Append(key, 1, 0, (first,)))


def child_key(run: Run, wanted: Delegation, invocation_id: str) -> ThreadKey:
    """Where the child's conversation lives: in the parent's session, or in a new one (A-25, H-03, H-17)."""
    parent = run.row.key
    if wanted.surface == "roster" or wanted.context_policy is SubAgentContextPolicy.ISOLATED:
        return ThreadKey(parent.user, new_sub_session(), "main")
    return ThreadKey(parent.user, parent.session, tool_child_thread(invocation_id))


def stage_run(
    child: Run,
    text: str,
    *,
    created: ThreadRow | None,
    copied: "Copied | None" = None,
    rules: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Stage the beginning of a run: the thread's first event, RUN_STARTED, its input, and its envelope's blob.

    `copied` is what the thread begins with where that is not a reference to another one, `rules` the set of a root.
    """
    journal, definition, services = child.journal, child.definition, child.tree.services
    if created is not None:
        journal.create(created)
        journal.stage(
            ThreadCreatedEvent(default_agent_id=created.default_agent_id, base=created.base, metadata=dict(created.metadata))
        )
    if copied is not None:
        _stage_copy(child, copied)
    journal.stage(
        RunStartedEvent(
            agent_id=definition.agent_id,
            owner=services.owner_id,
            attempt=journal.attempt,
            definition_hash=child.row.definition_hash or "",
            envelope_hash=child.envelope.digest,
            model=definition.model_reference,
            depth=child.row.depth,
            max_iters=definition.max_iters,
            invocation_id=child.row.invocation_id,
            output=None if child.output is None else child.output.spec,
            rules=dict(rules or {}),
        )
    )
    digest = child.envelope.digest
    if services.blob_due(digest):
        journal.stage_op(PutBlob(digest, child.envelope_blob))
        journal.then(lambda: services.blob_put(digest))
    journal.stage(MessageEvent(message=UserMessage(id=new_id("msg"), text=text)))


@dataclass(frozen=True, slots=True)
class Copied:
    """What a child's thread begins with after a middleware has changed the fork: no reference can stand for that."""

    history: Sequence[Entry]
    state: Mapping[str, Any]


def _stage_copy(child: Run, copied: Copied) -> None:
    for name, value in copied.state.items():
        child.journal.stage(StateSetEvent(name=name, value=value))
    for entry in copied.history:
        message = entry.message
        if isinstance(message, ToolResult):
            event = ToolCallResultEvent(
                call=message.call,
                call_id=message.call_id,
                name=message.name,
                content=message.content,
                status=message.status,
                blobs=message.blobs,
            )
            child.journal.stage(event)
        else:
            child.journal.stage(MessageEvent(message=message))
    if child.projection.open is not None or len(child.projection.history) != len(copied.history):
        raise ConfigurationError(
            "`before_fork_commit` left a history in which a call and its results are not together",
            code="invalid_history",
            remedy="leave out whole turns: an assistant message goes with all its results",
        )


async def delegate(
    run: Run, ref: CallRef, call: ToolCall, wanted: Delegation, words: Format, *, key: ThreadKey | None = None
) -> Prepared | CallOutcome:
    """Stage everything that must be committed with the call's intent, and give back the child ready to run."""
    refused = count_refusal(run)  # again: another run of the tree may have made the last one meanwhile
    if refused is not None:
        return refused
    invocation_id = new_id("inv")
    key = key or child_key(run, wanted, invocation_id)
    run.tree.children += 1
    run.tree.busy.add(key)
    try:
        return await _make_child(run, ref, call, wanted, words, key, invocation_id)
    except BaseException:
        run.tree.children -= 1
        run.tree.busy.discard(key)
        raise


async def _make_child(
    run: Run, ref: CallRef, call: ToolCall, wanted: Delegation, words: Format, key: ThreadKey, invocation_id: str
) -> Prepared:
    child_run = new_id("run")
    now = run.journal.clock.now_ms()
    definition, parent = wanted.definition, run.row
    row = RunRow(
        run_id=child_run,
        key=key,
        agent_id=definition.agent_id,
        state=RunState.RUNNING,
        attempt=1,
        lineage=(*parent.lineage, child_run),
        path=(*parent.path, definition.agent_id),
        invocations=(*parent.invocations, invocation_id),
        invocation_id=invocation_id,
        started_at=now,
        updated_at=now,
        owner=run.tree.services.owner_id,
        definition_hash=definition.definition_hash,
        depth=parent.depth + 1,
        workspace=definition.workspace,
        model=definition.model_reference,
    )
    created: ThreadRow | None = None
    copied: Copied | None = None
    if wanted.existing is None:
        created = child_thread(run, call, wanted, key, invocation_id)
        policy = SubAgentContextPolicy(created.metadata["contextPolicy"])
        projection, generation, head = fork_projection(run.projection, policy), 1, 0
        history = await _before_fork_commit(run, definition, projection, policy)
        if history is not None:
            created = msgspec.structs.replace(created, base=None)
            copied, projection = Copied(history, projection.state), Projection()
            projection.cut = any(isinstance(entry.message, ToolResult) and bool(entry.message.blobs) for entry in history)
    else:
        await run.journal.flush()  # others may write to this thread too: only the child's beginning can be refused for it
        stored = await run.tree.services.ledger.journal(key)
        if stored is None:
            raise LedgerError(f"thread `{key.thread}` of session `{key.session}` is not in the ledger")
        policy = wanted.context_policy
        projection = project(stored.own, stored.inherited)
        generation, head = stored.row.generation, stored.row.head
    output = definition.output or (run.output if wanted.inherits_output else None)
    child = Run(run.tree, definition, row, projection, generation=generation, head=head, stored=False, output=output)
    stage_run(child, wanted.text, created=created, copied=copied)
    invocation = InvocationRow(
        invocation_id=invocation_id,
        parent=parent.key,
        parent_run=parent.run_id,
        call=ref,
        call_id=call.id,
        tool=call.name,
        child=key,
        child_run=child_run,
        child_agent_id=definition.agent_id,
        name=wanted.name,
        surface=wanted.surface,
        state=InvocationState.RUNNING,
        attempt=1,
        depth=row.depth,
        context_policy=policy.value,
        root_run=parent.root,
        started_at=now,
        updated_at=now,
        timeout_seconds=wanted.timeout_seconds,
        metadata={} if wanted.agent_key is None else {"agentKey": wanted.agent_key},
    )
    run.journal.stage(
        SubAgentInvocationStartedEvent(
            invocation_id=invocation_id,
            call=ref,
            parent_tool_call_id=call.id,
            name=wanted.name,
            child_agent_id=definition.agent_id,
            child_session_id=key.session,
            child_thread_id=key.thread,
            child_run_id=child_run,
            context_policy=policy.value,
            depth=row.depth,
        )
    )
    run.journal.include(child.take())
    run.journal.stage_op(PutInvocation(invocation))
    return _Child(run, child, invocation, words, wanted.timeout_seconds).prepared()


async def _before_fork_commit(
    run: Run, definition: AgentDefinition, projection: Projection, policy: SubAgentContextPolicy
) -> list[Entry] | None:
    """Let middleware see a fork before it is committed (H-24). The history that it wants instead, or None."""
    if policy is not SubAgentContextPolicy.FORK or not run.definition.middleware:
        return None
    fork = Fork(parent_run=run.row.run_id, child_agent_id=definition.agent_id, history=list(projection.history))
    for one in overriding(run.definition.middleware, "before_fork_commit"):
        await one.before_fork_commit(fork)
    same = len(fork.history) == len(projection.history) and all(
        mine is theirs for mine, theirs in zip(fork.history, projection.history, strict=True)
    )
    return None if same else list(fork.history)


async def reattach(
    run: Run, started: SubAgentInvocationStartedEvent, definition: AgentDefinition, words: Format
) -> Prepared | CallOutcome:
    """Go on with a child that an earlier attempt made: from its journal, or with the end that is already there.

    Raises:
        LedgerError: the ledger does not hold what the parent's journal names.
    """
    ledger = run.tree.services.ledger
    await run.journal.flush()  # what it did last may only be staged
    invocation = await ledger.invocation(started.invocation_id)
    row = await ledger.run(started.child_run_id)
    stored = await ledger.journal(row.key) if row is not None else None
    await still_ours(run)
    if invocation is None or row is None or stored is None:
        raise LedgerError(
            f"invocation `{started.invocation_id}` of run `{run.row.run_id}` has no child in the ledger",
            code="damaged_ledger",
            remedy="restore the ledger from a copy; the run cannot go on without it",
        )
    projection = project(stored.own, stored.inherited)
    blob = await ledger.blob(projection.envelope_hash)
    child = Run(
        run.tree,
        definition,
        row,
        projection,
        generation=stored.row.generation,
        head=stored.row.head,
        stored=True,
        envelope=None if blob is None else envelope_from_blob(blob, projection.envelope_hash),
        output=definition.output or run.output,
    )
    attached = _Child(run, child, invocation, words, _left(run, invocation))
    if (finished := projection.finished) is not None:
        return attached.outcome(RunEnd(finished.status, finished.reason, finished.message, finished.remedy), Batch())
    await recover(child)
    if row.state is RunState.WAITING:
        child.journal.put_run(msgspec.structs.replace(row, state=RunState.RUNNING, owner=run.tree.services.owner_id))
    if invocation.state is InvocationState.WAITING:
        attached.put(InvocationState.RUNNING, run.journal.stage_op)
    return attached.prepared()


def _left(run: Run, invocation: InvocationRow) -> float | None:
    """What is left of a time limit: a caller's wait counts wall time from when it began, over every attempt."""
    if invocation.timeout_seconds is None:
        return None
    return max(0.0, invocation.timeout_seconds - (run.journal.clock.now_ms() - invocation.started_at) / 1_000)


async def end_child(run: Run, started: SubAgentInvocationStartedEvent) -> Prepared | CallOutcome:
    """End a child whose code is gone, from its journal alone: its run is stopped, so no model and no tool is needed (M8)."""
    parent = run.definition
    nobody = AgentDefinition(
        agent_id=started.child_agent_id,
        model=parent.model,
        model_reference=parent.model_reference,
        instructions="",
        tools={},
        gate=parent.gate,
    )
    return await reattach(run, started, nobody, _Gone())


class _Gone(Format):
    """How the end of a child is worded whose surface is gone."""

    def content(self, end: ChildEnd) -> str:
        """See `Format`."""
        return f"The subagent `{end.row.name}` was stopped ({end.reason or end.status})."


class _Child:
    """A child that runs in this process, seen from its parent."""

    __slots__ = ("_child", "_invocation", "_run", "_timeout", "_words")

    def __init__(self, run: Run, child: Run, invocation: InvocationRow, words: Format, timeout: float | None) -> None:
        self._run = run
        self._child = child
        self._invocation = invocation
        self._words = words
        self._timeout = timeout

    def prepared(self) -> Prepared:
        """The child as a call that may start. Alone in its batch it needs no task of its own."""
        return Prepared(execute=self._execute, stop=self._child.stopping.ask, inline=self._timeout is None)

    async def _execute(self) -> CallOutcome:
        if self._timeout is None:
            end = await self._child.drive()
        else:
            end = await self._within(self._timeout)
        return self.outcome(end, self._child.take())

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
        text, wanted = self._child.projection.text, self._child.projection.output
        if end.status == "completed" and wanted is not None:
            text = dumps(self._child.answer().plain).decode()  # the value alone, whatever stood around it
        status, reason, message = end.status, end.reason, end.message
        if end.status == "cancelled" and end.reason == TIME_LIMIT:
            seconds = self._invocation.timeout_seconds
            limit = "" if seconds is None else f" of {seconds:g} s"
            told = f"the time limit{limit} was reached"
            status, reason, message = TIMEOUT, TIMEOUT, f"{told}; {message}" if message else told
        state = InvocationState.FAILED if status == TIMEOUT else InvocationState(end.status)
        if end.status == "cancelled" and self._child.stopping.stuck:
            self._stay_stopping(state, batch, reason)
        else:
            self.put(state, batch.ops.append, reason)
        child_end = ChildEnd(status=status, text=text, reason=reason, message=message, remedy=end.remedy, row=self._invocation)
        return CallOutcome(
            content=self._words.content(child_end),
            status=_RESULT_STATUS[status],
            metadata=self._metadata(status, reason),
            blobs=named_in(text, self._child.projection.history),
            events=[self._terminal(child_end)],
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

    def _terminal(
        self, end: ChildEnd
    ) -> SubAgentInvocationCompletedEvent | SubAgentInvocationFailedEvent | SubAgentInvocationCancelledEvent:
        row, projection = self._invocation, self._child.projection
        common: dict[str, Any] = {
            "invocation_id": row.invocation_id,
            "call": row.call,
            "parent_tool_call_id": row.call_id,
            "child_agent_id": row.child_agent_id,
            "child_session_id": row.child.session,
            "child_thread_id": row.child.thread,
            "context_policy": row.context_policy,
            "depth": row.depth,
            "usage": projection.tree_usage,
            "cost": projection.cost,
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
