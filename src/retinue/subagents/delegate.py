"""`delegate`: everything that matters of a delegation, decided once, for both surfaces.

A surface parses arguments and formats answers. Here are the limits, the commit that makes a child, and how an interrupted
parent finds it again; `births` says where a child comes from, `child` what becomes of it in this process.
"""

import asyncio

import msgspec

from retinue.agent.branch import Branch
from retinue.agent.budget import active_seconds, allowance_of
from retinue.agent.conflicts import still_ours
from retinue.agent.definition import AgentDefinition, envelope_from_blob
from retinue.agent.journal import Batch
from retinue.agent.nobody import nobody
from retinue.agent.ports import CallOutcome, Prepared, RunEnd
from retinue.agent.projection import Projection, project
from retinue.agent.questions import open_questions
from retinue.agent.recovery import recover
from retinue.agent.run import Run
from retinue.agent.start import Copied, stage_run
from retinue.config import SubAgentContextPolicy
from retinue.errors import LedgerError, ThreadBusy
from retinue.events import SubAgentInvocationStartedEvent
from retinue.ids import new_id
from retinue.messages import CallRef, ToolCall, ToolResult
from retinue.ops import PutInvocation
from retinue.rows import InvocationRow, RunRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, ResultStatus, RunState
from retinue.subagents.background import BackgroundChild, promoted, receipt
from retinue.subagents.births import before_fork_commit, child_key, child_thread, fork_projection
from retinue.subagents.child import Child, time_left
from retinue.subagents.delegation import ChildEnd, Delegation, Format

__all__ = ["count_refusal", "delegate", "end_child", "limit_refusal", "reattach"]


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
) -> Prepared | CallOutcome:
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
        branch=child_run if wanted.background else parent.branch,
        allowances=parent.allowances,
        spends_with=parent.spends_with,
    )
    if (budget := wanted.budget) is not None:
        own = (allowance_of(child_run, budget),) if budget.limits_calls else ()
        row = msgspec.structs.replace(row, allowances=(*parent.allowances, *own), active_seconds=budget.seconds)
    created: ThreadRow | None = None
    copied: Copied | None = None
    if wanted.existing is None:
        created = child_thread(run, call, wanted, key, invocation_id)
        policy = SubAgentContextPolicy(created.metadata["contextPolicy"])
        projection, generation, head = fork_projection(run.projection, policy), 1, 0
        history = await before_fork_commit(run, definition, projection, policy)
        if history is not None:
            created = msgspec.structs.replace(created, base=None)
            copied, projection = Copied(history, projection.state), Projection()
            projection.cut = any(isinstance(entry.message, ToolResult) and bool(entry.message.blobs) for entry in history)
    else:
        await run.journal.flush()  # others may write to this thread too: only the child's beginning can be refused for it
        stored = await run.tree.services.ledger.journal(key)
        if stored is None:
            raise LedgerError(f"thread `{key.thread}` of session `{key.session}` is not in the ledger")
        last = await run.tree.services.ledger.last_run(key)  # after the head was read: one that begins later moves it
        if last is not None and not last.state.terminal:
            raise ThreadBusy(
                f"thread `{key.thread}` of session `{key.session}` was given another run at the same moment",
                remedy="wait for that one, then try again",
            )
        policy = wanted.context_policy
        projection = project(stored.own, stored.inherited)
        generation, head = stored.row.generation, stored.row.head
    output = definition.output or (run.output if wanted.inherits_output else None)
    branch = Branch(run.tree, child_run) if wanted.background else run.branch
    child = Run(branch, definition, row, projection, generation=generation, head=head, stored=False, output=output)
    stage_run(child, wanted.text, created=created, copied=copied)
    if created is None:
        child.mail_came()  # it may lie there for long
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
        notify=wanted.notify,
        strategy=wanted.strategy,
        metadata={} if wanted.agent_key is None else {"agentKey": wanted.agent_key},
    )
    if wanted.background:
        invocation = msgspec.structs.replace(invocation, state=InvocationState.PENDING, mode="background", task_id=new_id("task"))
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
            mode=invocation.mode,
            depth=row.depth,
        )
    )
    run.journal.include(child.take())
    run.journal.stage_op(PutInvocation(invocation))
    if wanted.background:
        launch, task = run.tree.launch, BackgroundChild(child, invocation)
        run.journal.then(lambda: launch(task, None))  # when it is there; who dies before that leaves it to whoever starts next
        return receipt(words, invocation)
    return Child(run, child, invocation, words, wanted.timeout_seconds, promote=_promote if wanted.promote else None).prepared()


async def _promote(child: Run, row: InvocationRow, drive: "asyncio.Task[RunEnd]", words: Format) -> CallOutcome | None:
    """Let a child go on as a task, driven as it is."""
    task = await promoted(child, row)
    if task is None:
        return None
    asks = [one.description for one in open_questions(child)]
    child.tree.launch(task, drive)
    return receipt(words, task.row, promoted=True, asks=asks)


async def reattach(
    run: Run,
    started: SubAgentInvocationStartedEvent,
    definition: AgentDefinition,
    words: Format,
    *,
    promote: bool = False,
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
    if invocation.task_id is not None:  # it was promoted, and nobody could tell the parent
        open_now = await ledger.requests(root_run=invocation.root_run, state=RequestState.OPEN)
        asks = [one.description for one in open_now if one.run_id == invocation.child_run and one.kind == "question"]
        return receipt(words, invocation, promoted=True, asks=asks)
    projection = project(stored.own, stored.inherited)
    blob = await ledger.blob(projection.envelope_hash)
    child = Run(
        run.branch,
        definition,
        row,
        projection,
        generation=stored.row.generation,
        head=stored.row.head,
        stored=True,
        envelope=None if blob is None else envelope_from_blob(blob, projection.envelope_hash),
        output=definition.output or run.output,
    )
    child.active_before = active_seconds(stored.own, row.run_id)
    attached = Child(run, child, invocation, words, _left(run, invocation), promote=_promote if promote else None)
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
    return time_left(invocation, run.journal.clock.now_ms())


async def end_child(run: Run, started: SubAgentInvocationStartedEvent) -> Prepared | CallOutcome:
    """End a child whose code is gone, from its journal alone: its run is stopped, so no model and no tool is needed (M8)."""
    return await reattach(run, started, nobody(started.child_agent_id), _Gone())


class _Gone(Format):
    """How the end of a child is worded whose surface is gone."""

    def content(self, end: ChildEnd) -> str:
        """See `Format`."""
        return f"The subagent `{end.row.name}` was stopped ({end.reason or end.status})."
