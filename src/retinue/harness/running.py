"""Starting a run, going on with one, and what it gives back. `Agent` is the face; this is how it is done."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.agent.branch import Branch
from retinue.agent.budget import Left, active_seconds, allowance_of, left
from retinue.agent.conflicts import still_ours
from retinue.agent.definition import AgentDefinition, envelope_from_blob
from retinue.agent.output import OutputType
from retinue.agent.ports import RunEnd
from retinue.agent.projection import Projection, project
from retinue.agent.recovery import recover
from retinue.agent.run import Run
from retinue.agent.start import stage_run
from retinue.agent.tasks import TASK_KINDS, news_for_model
from retinue.agent.tree import Tree
from retinue.agent.viewer import Viewer
from retinue.config import UNSET, Budget, RuntimeContext, Unset
from retinue.damage import UNREADABLE
from retinue.errors import ThreadBusy
from retinue.events import PermissionRequest
from retinue.harness.requests import ask_callback, request_view
from retinue.harness.results import RunCancelled, RunFailed, RunResult
from retinue.harness.runtime import Runtime
from retinue.harness.stored import plain_rules
from retinue.harness.takeover import take_over
from retinue.ids import check_scope_id, new_id
from retinue.ledger.port import Ledger
from retinue.media import Media
from retinue.rows import RunRow, ThreadKey, ThreadRow
from retinue.states import RequestState, RunState
from retinue.subagents.background import BackgroundChild

if TYPE_CHECKING:
    from retinue.harness.agent import Agent
    from retinue.harness.tasks import Task

__all__ = ["Asleep", "Started", "begin", "checked", "go_on"]


class Asleep(Exception):
    """There is nothing to wake the thread for, or it is not this agent's to wake."""


class Started:
    """A root run that is ready to be driven in this process."""

    def __init__(
        self,
        agent: "Agent",
        branch: Branch,
        run: Run,
        context: RuntimeContext | None,
        thread: ThreadRow | None = None,
        *,
        task: BackgroundChild | None = None,
        drive: "asyncio.Task[RunEnd] | None" = None,
    ) -> None:
        self._agent = agent
        self._thread = thread
        self.branch = branch
        self.run = run
        self.context = context
        self.task = task
        """What is known of it as a task in the background, if it is one."""
        self._drive = drive

    async def drive(self) -> RunResult:
        """Drive the run to its end or until it waits on disk. The tree is closed with its last branch."""
        runtime, branch, tree = self._agent.runtime, self.branch, self.branch.tree
        limit = None
        if self.task is not None:
            self.task.begin()
            self.run.journal.flush_soon()
            if self.task.row.timeout_seconds is not None:
                limit = tree.help(self.task.limit(), f"time limit {self.task.row.task_id}")
        try:
            end = await (self.run.drive() if self._drive is None else self._adopted(self._drive))
            result = await self._result(end)
            if self._thread is not None:
                journal = self.run.journal
                tree.services.projections.keep(
                    self._thread, generation=journal.generation, head=journal.head, projection=journal.projection
                )
                journal.projection = Projection()  # whoever still holds this run writes nothing into what is kept
            if end.status == "cancelled" and branch.interruptions:
                raise asyncio.CancelledError  # the driver itself was cancelled: the end is recorded, now it learns of it
            return result
        finally:
            if limit is not None:
                limit.cancel()
            tree.branches.discard(branch)
            branch.over.set()
            if not tree.branches:
                runtime._trees.pop(tree.root_run, None)
                await tree.close()

    async def _adopted(self, drive: "asyncio.Task[RunEnd]") -> RunEnd:
        """The end of what a task drives already; that is ended with this one."""
        self._drive = None
        assert self.task is not None
        try:
            end = await drive
            self.task.ending(end)  # what it did before it was promoted did not have it
            await self.run.journal.flush()
            return end
        except asyncio.CancelledError:
            drive.cancel()
            await asyncio.gather(drive, return_exceptions=True)
            raise

    async def _result(self, end: RunEnd) -> RunResult:
        projection = self.run.projection
        requests = []
        if end.status == "waiting":
            requests = await self._open_requests()
        own = RunResult(
            status=end.status,
            reason=end.reason,
            text=projection.text,
            usage=projection.own_usage,
            cost=projection.own_cost if projection.own_cost_known else None,
        )
        return RunResult(
            status=end.status,
            reason=end.reason,
            message=end.message,
            remedy=end.remedy,
            text=projection.text,
            output=self.run.answer().value if end.status == "completed" else None,
            usage=projection.tree_usage,
            cost=projection.cost,
            own=own,
            thread=self._agent._thread_handle(self.run.row.key, self.run.row.agent_id),
            run_id=self.run.row.run_id,
            tasks=await self._tasks(),
            left=await self._left(),
            requests=tuple(requests),
        )

    async def _open_requests(self) -> list[PermissionRequest]:
        """What the run waits for. Of a task that asks itself it is known without a look through its tree, which may be large."""
        row, batch = self.run.row, self.run.projection.open
        if self.task is not None and batch is not None and not batch.invocations:
            open_ones = [one for index, one in batch.requests.items() if index not in batch.closed]
            return [self.run.placed(one, one.seq, one.at) for one in open_ones]
        rows = await self._agent.runtime.ledger.requests(root_run=row.root, state=RequestState.OPEN)
        return [request_view(one) for one in rows if one.invocations[: len(row.invocations)] == row.invocations]

    async def _left(self) -> Left | None:
        """What the run's own budget leaves."""
        row = self.run.row
        allowance = next((one for one in row.allowances if one.run_id == row.run_id), None)
        if allowance is None:
            return None
        return left(allowance, await self._agent.runtime.ledger.spends(row.spend_root))

    async def _tasks(self) -> "tuple[Task, ...]":
        """The tasks that were given in this tree, the oldest first (H-12)."""
        if not self._agent._has_tasks and self.run.row.attempt == 1:
            return ()
        from retinue.harness.tasks import Task  # it drives with what is here

        row, ledger = self.run.row, self._agent.runtime.ledger
        if row.run_id == row.root:
            return tuple(Task(self._agent, one) for one in reversed(await ledger.tasks(root_run=row.root)))
        given = await ledger.invocations(parent_run=row.run_id)  # of a task its own: its tree may have many
        return tuple(Task(self._agent, one) for one in given if one.task_id is not None)


def checked(result: RunResult, check: bool) -> RunResult:
    """The result, or the error that a failed or cancelled run raises with it.

    Raises:
        RunFailed, RunCancelled: if `check`; each with `.result`.
    """
    if not check or result.status in ("completed", "waiting"):
        return result
    if result.status == "cancelled":
        raise RunCancelled(
            f"the run was cancelled ({result.reason})",
            result=result,
            remedy="the thread is kept: run it again with the same session to go on from there",
        )
    why = result.message or result.reason or "unknown"
    raise RunFailed(f"the run failed: {why}", result=result, code=result.reason or "run_failed", remedy=result.remedy)


def _key(context: RuntimeContext | None) -> tuple[ThreadKey, bool]:
    """The thread of a run, and whether it may exist already."""
    context = context or RuntimeContext()
    user = context.user_id or ""
    if user:
        check_scope_id(user, where="`user_id`")
    known = context.session_id is not None
    session = check_scope_id(context.session_id, where="`session_id`") if context.session_id is not None else new_id("ses")
    thread = check_scope_id(context.thread_id or "main", where="`thread_id`")
    return ThreadKey(user, session, thread), known


async def begin(
    agent: "Agent",
    given: tuple[str, Sequence[Media]] | None,
    context: RuntimeContext | None,
    *,
    viewer: Viewer | None,
    acknowledged: bool,
    definition: AgentDefinition | None = None,
    key: ThreadKey | None = None,
    output: OutputType | Unset | None = UNSET,
    budget: Budget | Unset | None = UNSET,
) -> Started:
    """Start a run on a new thread, or on one that is there, on a text and the media that it has lines for.

    `given` None: nobody has said anything; there is mail for the thread (D-20).
    `output` is the form of the answer; left out, that of the agent.
    `acknowledged`: the input is durable before anything else happens (barrier 1 of M2); else it rides with the run's first
    commit.

    Raises:
        ThreadBusy: the thread has a run that is not finished.
        Asleep: nothing is given, and there is nothing to tell.
    """
    runtime = agent.runtime
    if key is None:
        key, known = _key(context)
    else:
        known = True
    definition = definition or agent._defined(context)
    redactor = runtime._know_secrets(context)
    text, media = ("", ()) if given is None else (redactor.text(given[0]), given[1])
    row = await runtime.ledger.thread(key) if known else None
    projection, generation, head, depth = Projection(), 1, 0, 0
    created: ThreadRow | None = None
    now = runtime.clock.now_ms()
    if row is None:
        created = ThreadRow(
            key=key, default_agent_id=definition.agent_id, created_at=now, updated_at=now, title=text.strip()[:80]
        )
    else:
        kept = runtime._services.projections.take(row)
        stored = None if kept is not None else await runtime.ledger.journal(key)
        last = await _check_idle(runtime, key)  # after the head was read: a run that begins later moves it, and ours is refused
        if kept is not None and kept.run_id != last:  # another thread of this name: purged and made again
            kept, stored = None, await runtime.ledger.journal(key)
        if stored is not None:
            row, kept = stored.row, project(stored.own, stored.inherited)
        assert kept is not None
        projection = kept
        generation, head, depth = row.generation, row.head, row.depth
    # After the head was read: a run that takes the mail meanwhile moves it.
    if given is None and (row is None or not await news_for_model(runtime.ledger, await runtime.ledger.mail(key))):
        raise Asleep
    if given is not None:
        agent._wakes_of.pop(key, None)
    budget = agent._budget if isinstance(budget, Unset) else budget
    above = await _woken_under(runtime.ledger, key) if given is None else None
    run_id = new_id("run")
    run_row = RunRow(
        run_id=run_id,
        key=key,
        agent_id=definition.agent_id,
        state=RunState.RUNNING,
        attempt=1,
        lineage=(run_id,),
        path=(definition.agent_id,),
        started_at=now,
        updated_at=now,
        owner=runtime._owner_id,
        definition_hash=definition.definition_hash,
        depth=depth,
        workspace=definition.workspace,
        model=definition.model_reference,
        woken=given is None,
        allowances=(
            *(() if above is None else above.allowances[:1]),
            *(() if budget is None or not budget.limits_calls else (allowance_of(run_id, budget),)),
        ),
        spends_with=None if above is None else above.spend_root,
        active_seconds=None if budget is None else budget.seconds,
    )
    tree = _tree(agent, run_id, key, context, viewer, children=0)
    form = definition.output if output is UNSET else output
    branch = Branch(tree, run_id)
    tree.branches.add(branch)
    run = Run(branch, definition, run_row, projection, generation=generation, head=head, stored=False, output=form)
    run.is_lead = True
    stage_run(run, None if given is None else text, created=created, media=media, rules=plain_rules(agent.permissions))
    if created is None:
        run.mail_came()  # it may be there for long
    run.acknowledge = acknowledged
    runtime._trees[run_id] = tree
    tree.runs[run_id] = run
    return Started(agent, branch, run, context, created or row)


async def _woken_under(ledger: Ledger, key: ThreadKey) -> RunRow | None:
    """The root of the tree whose task wakes the thread, if that is under a budget: what it wakes is so too (M13)."""
    for letter in await ledger.mail(key):
        if letter.kind in TASK_KINDS:
            try:
                sender = msgspec.json.decode(letter.body, type=_Sender)
            except UNREADABLE:
                continue  # the run says so when it takes it out
            task = await ledger.task(sender.task_id)
            root = None if task is None else await ledger.run(task.root_run)
            if root is not None and root.allowances:
                return root
    return None


class _Sender(msgspec.Struct, rename="camel"):
    """What a letter of a task says of it."""

    task_id: str


def _launch(agent: "Agent", context: RuntimeContext | None, task: BackgroundChild, drive: "asyncio.Task[RunEnd] | None") -> None:
    """Drive a task beside the run that gave it, which is in the ledger now."""
    from retinue.harness.tasks import drive_task  # it drives with what is here

    drive_task(agent, context, task, drive)


async def _cancel(agent: "Agent", user_id: str | None, run_id: str, reason: str) -> None:
    await agent.cancel(run_id, reason=reason, user_id=user_id)


async def _answer(agent: "Agent", user: str, request_id: str, text: str, by: str) -> None:
    from retinue.harness.tasks import answer_task  # it drives with what is here

    await answer_task(agent, request_id, text, by=by, user=user)


def _mail_sent(agent: "Agent", key: ThreadKey) -> None:
    from retinue.harness.tasks import deliver  # it drives with what is here

    deliver(agent, key)


async def _check_idle(runtime: Runtime, key: ThreadKey) -> str | None:
    """The thread's last run, which has ended."""
    last = await runtime.ledger.last_run(key)
    if last is None or last.state.terminal:
        return None if last is None else last.run_id
    if last.state is RunState.WAITING:
        asked = await runtime.ledger.requests(root_run=last.root, state=RequestState.OPEN)
        go_on = f"`retinue answer {asked[0].request_id} allow`, or deny" if asked else f"`retinue resume {last.root}`"
        raise ThreadBusy(
            f"thread `{key.thread}` of session `{key.session}` waits for an answer (run `{last.run_id}`)",
            code="waiting_for_answer",
            remedy=f"{go_on}; or stop it: `retinue cancel {last.root}`",
        )
    raise ThreadBusy(
        f"thread `{key.thread}` of session `{key.session}` has a run that is not finished (`{last.run_id}`)",
        remedy=f"wait for it; if its process has died, `retinue resume {last.root}` goes on with it",
    )


def _tree(
    agent: "Agent",
    run_id: str,
    key: ThreadKey,
    context: RuntimeContext | None,
    viewer: Viewer | None,
    children: int,
) -> Tree:
    on_request: Callable[[Any], Awaitable[Any]] | None = None
    if agent._on_request is not None:
        on_request = partial(ask_callback, agent)
    tree = Tree(
        agent.runtime._services,
        agent._limits,
        root_run=run_id,
        root_key=key,
        attributes=None if context is None else context.attributes,
        on_request=on_request,
        children=children,
    )
    tree.launch = partial(_launch, agent, context)
    tree.cancel = partial(_cancel, agent, key.user or None)
    tree.answer = partial(_answer, agent, key.user)
    tree.mail_sent = partial(_mail_sent, agent)
    agent._own_trees.add(tree)
    if viewer is not None:
        viewer.watch(tree)
    for follower in agent._followers:
        follower.offer(tree)
    return tree


async def go_on(
    agent: "Agent",
    root: RunRow,
    *,
    viewer: Viewer | None,
    force: bool,
    context: RuntimeContext | None,
    definition: AgentDefinition,
) -> Started:
    """Take a run over and get it ready to be driven: the same loop, from what its journal says.

    Raises:
        ThreadBusy: it is being driven, here or by another process that is alive.
    """
    runtime = agent.runtime
    runtime._know_secrets(context)
    if runtime._branch(root) is not None:
        raise ThreadBusy(f"run `{root.run_id}` is running in this process", remedy="wait for it, or cancel it")
    tree = runtime._trees.get(root.root)
    if tree is None:
        top = root if root.root == root.run_id else await runtime.ledger.run(root.root)
        assert top is not None
        tree = runtime._trees.setdefault(root.root, _tree(agent, root.root, top.key, context, viewer, children=0))
    branch = Branch(tree, root.run_id)
    tree.branches.add(branch)
    try:
        run = await _taken(runtime, branch, await take_over(runtime, root, force=force), definition)
        row = None if root.invocation_id is None else await runtime.ledger.invocation(root.invocation_id)
    except BaseException:
        tree.branches.discard(branch)
        if not tree.branches:
            runtime._trees.pop(root.root, None)
        raise
    tree.runs[root.run_id] = run
    task = None if row is None or row.task_id is None else BackgroundChild(run, row)
    return Started(agent, branch, run, context, task=task)


async def _children(ledger: Ledger, root_run: str) -> int:
    """How many children this tree has made: those that have run, and those of its roster that were given no task yet (D-30)."""
    rows = await ledger.tree(root_run)
    root = next(row for row in rows if row.run_id == root_run)
    idle = 0
    for key in {row.key for row in rows}:
        made = await ledger.children(key)
        idle += sum(one.created_at >= root.started_at and "invocationId" not in one.metadata for one in made)
    return len(rows) - 1 + idle


async def _taken(runtime: Runtime, branch: Branch, taken: RunRow, definition: AgentDefinition) -> Run:
    ledger = runtime.ledger
    stored = await ledger.journal(taken.key)
    assert stored is not None
    projection = project(stored.own, stored.inherited)
    blob = await ledger.blob(projection.envelope_hash)
    if len(branch.tree.branches) == 1:  # else it has been counted
        branch.tree.children = await _children(ledger, taken.root)
    run = Run(
        branch,
        definition,
        taken,
        projection,
        generation=stored.row.generation,
        head=stored.row.head,
        stored=True,
        envelope=None if blob is None else envelope_from_blob(blob, projection.envelope_hash),
        output=_known_form(runtime, definition, projection),
    )
    run.is_lead = True
    run.active_before = active_seconds(stored.own, taken.run_id)
    await still_ours(run)
    await recover(run)
    return run


def _known_form(runtime: Runtime, definition: AgentDefinition, projection: Projection) -> OutputType | None:
    """The type behind the form in a stored run's journal, if this process knows it; another type says nothing about that run."""
    wanted = projection.output
    if wanted is None:
        return None
    own = definition.output
    return own if own is not None and own.spec.digest == wanted.digest else runtime._known_output(wanted.digest)
