"""Tasks in the background: who drives them, who is told of their ends, and the handle that a program has of one.

The ledger says what there is and how far it is; here is only what this process does about it. An engine is a hint (M6): a task
that nobody drives is found again by whoever starts next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from retinue.agent.begun import until_done
from retinue.agent.nobody import nobody
from retinue.agent.ports import RunEnd
from retinue.agent.projection import Projection, project
from retinue.agent.tasks import TASK_KINDS
from retinue.clock import Clock
from retinue.config import RuntimeContext
from retinue.errors import ThreadBusy
from retinue.events import PermissionRequest
from retinue.harness.driving import Driver, has_news
from retinue.harness.requests import answer_request, request_view
from retinue.harness.running import Asleep, Started, begin, go_on
from retinue.harness.takeover import find_lead
from retinue.messages import ZERO_USAGE, Usage
from retinue.rows import InvocationRow, RunRow, ThreadKey
from retinue.states import InvocationState, RequestState, RunState
from retinue.subagents.background import BackgroundChild
from retinue.subagents.child import EXECUTOR_LOST, TOO_MANY_ATTEMPTS, answer_text

if TYPE_CHECKING:
    from retinue.harness.agent import Agent

__all__ = [
    "Task",
    "TaskResult",
    "Wakes",
    "answer_task",
    "deliver",
    "drive_task",
    "end_tasks",
    "give_up",
    "go_on_with_task",
    "orphaned",
    "resume_tasks",
]

WAIT_POLL_SECONDS: Final = 0.5
MOST_RESUMED: Final = 10_000
MOST_KNOWN: Final = 10_000

_log: Final = logging.getLogger("retinue")

TaskState = Literal["pending", "running", "waiting", "stopping", "completed", "failed", "cancelled"]


class Wakes(NamedTuple):
    """How often in a row an idle thread was woken here, and for which letters last: it is not woken for them again."""

    letters: frozenset[str]
    times: int


_NEVER: Final = Wakes(frozenset(), 0)


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How far a task is, or how it ended. `text` is its answer, or as far as it came; `reason`, `usage` and `requests` are as in
    `RunResult`."""

    task_id: str
    status: TaskState
    text: str = ""
    reason: str | None = None
    usage: Usage = ZERO_USAGE
    requests: tuple[PermissionRequest, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether it is completed, failed or cancelled."""
        return self.status in ("completed", "failed", "cancelled")


class Task:
    """A delegation that goes on in the background (H-12). What it says is read from the ledger, whoever drives it."""

    task_id: str
    name: str
    agent_id: str

    def __init__(self, agent: "Agent", row: InvocationRow) -> None:
        assert row.task_id is not None
        self._agent = agent
        self._row = row
        self.task_id = row.task_id
        self.name = row.name
        self.agent_id = row.child_agent_id

    async def result(self) -> TaskResult:
        """How far it is now."""
        await self._agent.build()
        ledger = self._agent.runtime.ledger
        row = self._row = await ledger.invocation(self._row.invocation_id) or self._row
        projection = await _projection(self._agent, row)
        requests = await ledger.requests(root_run=row.root_run, state=RequestState.OPEN) if not row.state.terminal else []
        mine = tuple(request_view(one) for one in requests if row.invocation_id in one.invocations)
        return TaskResult(
            task_id=self.task_id,
            status=row.state.value,
            text="" if projection is None else _text(projection, row),
            reason=row.reason,
            usage=ZERO_USAGE if projection is None else projection.tree_usage,
            requests=mine,
        )

    async def wait(self, timeout: float | None = None) -> TaskResult:
        """Wait until it has ended or waits for a person, no longer than `timeout` seconds; then it says how far it is."""
        await self._agent.build()
        runtime = self._agent.runtime
        until = None if timeout is None else runtime.clock.monotonic() + timeout
        while True:
            row = await runtime.ledger.invocation(self._row.invocation_id)
            if row is None or row.state.terminal:
                break
            run = await runtime.ledger.run(row.child_run)
            branch = None if run is None else runtime._branch(run)
            begins = next((one.task for one in runtime._drivers if one.lead == row.child_run and not one.over), None)
            if row.state is InvocationState.WAITING and branch is None and begins is None:
                break
            left = None if until is None else until - runtime.clock.monotonic()
            if left is not None and left <= 0:
                break
            if branch is not None:
                await _first(runtime.clock, branch.over.wait(), left)
            elif begins is not None:
                await _first(runtime.clock, until_done(begins), left)
            else:  # another process drives it, or nobody yet
                await runtime.clock.sleep(WAIT_POLL_SECONDS if left is None else min(left, WAIT_POLL_SECONDS))
        return await self.result()

    async def cancel(self, reason: str = "cancelled") -> None:
        """Stop it and everything below it. The intent is durable when this returns."""
        await self._agent.cancel(self._row.child_run, reason=reason, user_id=self._row.parent.user or None)

    async def send(self, text: str, *, by: str = "user") -> None:
        """Tell it something while it works. See `Agent.send`."""
        await self._agent.send(self._row.child_run, text, by=by, user_id=self._row.parent.user or None)

    def __repr__(self) -> str:
        return f"Task({self.task_id!r}, {self.name!r})"


async def _first(clock: Clock, waited: Coroutine[Any, Any, object], seconds: float | None) -> None:
    """Return when `waited` has come, or `seconds` have passed."""
    waits = [asyncio.ensure_future(waited)]
    if seconds is not None:
        waits.append(asyncio.ensure_future(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _text(projection: Projection, row: InvocationRow) -> str:
    return answer_text(projection) if row.state is InvocationState.COMPLETED else projection.text


async def _projection(agent: "Agent", row: InvocationRow) -> Projection | None:
    """What the child's journal says up to the last event of its run for this delegation."""
    journal = await agent.runtime.ledger.journal(row.child)
    if journal is None:
        return None
    last = max((record.seq for record in journal.own if record.run == row.child_run), default=0)
    return project(journal.own[:last], journal.inherited)


def drive_task(
    agent: "Agent", context: RuntimeContext | None, task: BackgroundChild, drive: "asyncio.Task[RunEnd] | None"
) -> None:
    """Drive a task in this process, beside the run that gave it."""
    tree = task.run.tree
    tree.branches.add(task.branch)
    agent._has_tasks = True
    agent.runtime._trees.setdefault(tree.root_run, tree)

    async def start() -> Started:
        return Started(agent, task.branch, task.run, context, task=task, drive=drive)

    Driver(agent, start, at_once=False, task=True, lead=task.run.row.run_id)


def deliver(agent: "Agent", key: ThreadKey) -> None:
    """There may be mail of tasks for this thread: the run that is driven there takes it at its next step; an idle thread is
    woken where its agent is started (D-20)."""
    run = agent.runtime._driven_on(key)
    if run is not None:
        run.mail_came()
    elif agent._wakes and key not in agent._waking:  # one that has not looked yet sees this as well
        agent._waking.add(key)
        driver = Driver(agent, partial(_woken, agent, key), user=key.user, at_once=False, task=True)
        assert driver.task is not None
        driver.task.add_done_callback(partial(_woke, agent, key))


async def _woken(agent: "Agent", key: ThreadKey) -> Started:
    agent._waking.discard(key)
    ledger = agent.runtime.ledger
    row = await ledger.thread(key)
    if row is None or row.depth or row.default_agent_id != agent.name:
        raise Asleep
    letters = frozenset(letter.mail_id for letter in await ledger.mail(key) if letter.kind in TASK_KINDS)
    wakes = agent._wakes_of.get(key, _NEVER)
    if letters <= wakes.letters:
        raise Asleep  # there are none, or it was woken for them and did not get to take them
    if wakes.times >= agent._limits.max_wakes:
        if wakes.times == agent._limits.max_wakes:
            text = (
                "thread %s of session %s was woken %d times and nobody has said anything: what comes now waits for its next run"
            )
            _log.warning(f"{text} (`Limits(max_wakes=…)`)", key.thread, key.session, wakes.times)
            agent._wakes_of[key] = Wakes(letters, wakes.times + 1)
        raise Asleep
    agent._wakes_of.pop(key, None)
    agent._wakes_of[key] = Wakes(letters, wakes.times + 1)
    if len(agent._wakes_of) > MOST_KNOWN:
        del agent._wakes_of[next(iter(agent._wakes_of))]
    context = RuntimeContext(user_id=key.user or None, session_id=key.session, thread_id=key.thread)
    return await begin(agent, None, context, viewer=None, acknowledged=True)


def _woke(agent: "Agent", key: ThreadKey, done: "asyncio.Task[Any]") -> None:
    agent._waking.discard(key)  # also where it was left before it began
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, Asleep | ThreadBusy):  # busy: that run is told
        _log.warning("thread %s of session %s was not woken: %s", key.thread, key.session, error)


async def resume_tasks(agent: "Agent", *, every_run: bool = False) -> list[tuple[RunRow, Driver]]:
    """Go on with the tasks of this agent that nobody drives any more, or end them if it does not resume (D-19); and with the runs
    that ends of tasks have begun, which nobody else waits for. `every_run`: also with those that somebody has begun."""
    ledger, begun = agent.runtime.ledger, list[tuple[RunRow, Driver]]()
    for root in await ledger.runs(states=(RunState.RUNNING, RunState.WAITING), roots_only=True, limit=MOST_RESUMED):
        if (root.woken or every_run) and root.path[0] == agent.name and await orphaned(agent, root):
            begun.append((root, _go_on_in_background(agent, root, partial(_resumed, agent, root))))
    for row in await ledger.tasks(unfinished=True, limit=MOST_RESUMED):
        lead = await ledger.run(row.child_run)
        if lead is not None and lead.path[0] == agent.name and await orphaned(agent, lead):
            begun.append((lead, go_on_with_task(agent, lead)))
    return begun


def go_on_with_task(agent: "Agent", lead: RunRow) -> Driver:
    """Go on with an orphaned task of this agent in the background, or end it if there is no hope."""
    why = _hopeless(agent, lead)
    return give_up(agent, lead, why) if why else _go_on_in_background(agent, lead, partial(_resumed, agent, lead))


def give_up(agent: "Agent", lead: RunRow, why: str) -> Driver:
    """End an orphaned task as failed; for that none of its code is needed."""
    return _go_on_in_background(agent, lead, partial(_given_up, agent, lead, why))


async def answer_task(agent: "Agent", request_id: str, text: str, *, by: str, user: str) -> None:
    """Answer what a task asks, and see to it that it goes on: where it is driven, or here in the background.

    Raises:
        RetinueError: `already_answered`.
    """
    runtime = agent.runtime
    row = await answer_request(runtime, request_id, user=user, given=(True, text), remember="once", by=by)
    lead = await find_lead(runtime, row.run_id)
    branch = runtime._branch(lead)
    if branch is not None:
        branch.tree.answer_came(request_id, row.run_id, row.invocations)
        return
    if await orphaned(agent, lead):
        _go_on_in_background(agent, lead, partial(_resumed, agent, lead))


def _go_on_in_background(agent: "Agent", lead: RunRow, start: Callable[[], Awaitable[Started]]) -> Driver:
    driver = Driver(agent, start, user=lead.key.user, at_once=False, task=True, lead=lead.run_id)
    assert driver.task is not None
    driver.task.add_done_callback(partial(_resumption_over, lead))
    agent._has_tasks = True
    return driver


async def end_tasks(agent: "Agent", how: Literal["wait", "detach", "cancel"]) -> None:
    """Bring what runs in the background of this agent here to an end: wait for it, leave it in the ledger, or stop it."""
    agent._wakes_at_all = agent._wakes_at_all and how == "wait"
    while drivers := [one for one in agent.runtime._drivers if one.background and one.belongs_to(agent) and not one.over]:
        for driver in drivers:
            if how == "detach":
                driver.leave()
            elif how == "cancel":
                driver.stop("the agent was closed", by="agent")
        await asyncio.wait([driver.task for driver in drivers if driver.task is not None])


async def orphaned(agent: "Agent", lead: RunRow) -> bool:
    """Whether nobody drives it, and it is not for a person to go on."""
    runtime = agent.runtime
    if lead.state.terminal or runtime._branch(lead) is not None:
        return False
    if any(driver.lead == lead.run_id and not driver.over for driver in runtime._drivers):
        return False
    if lead.state is RunState.WAITING:
        return await has_news(runtime.ledger, lead)
    return lead.owner is None or lead.owner == runtime._owner_id or not await runtime.ledger.owner_alive(lead.owner)


def _hopeless(agent: "Agent", lead: RunRow) -> str | None:
    if agent._recovery == "fail":
        return EXECUTOR_LOST
    return TOO_MANY_ATTEMPTS if lead.attempt >= agent._limits.max_task_attempts else None


async def _resumed(agent: "Agent", lead: RunRow) -> Started:
    found = await find_lead(agent.runtime, lead.run_id)
    return await go_on(agent, found, viewer=None, force=False, context=None, definition=await agent._definition_of(found))


async def _given_up(agent: "Agent", lead: RunRow, why: str) -> Started:
    found = await find_lead(agent.runtime, lead.run_id)
    started = await go_on(agent, found, viewer=None, force=False, context=None, definition=nobody(found.agent_id))
    started.run.stopping.ask_with_intent(why, by="recovery")
    return started


def _resumption_over(lead: RunRow, done: "asyncio.Task[Any]") -> None:
    error = None if done.cancelled() else done.exception()
    if isinstance(error, ThreadBusy):
        return  # somebody else was faster
    if error is not None:
        _log.warning("run %s of `%s` was not gone on with: %s", lead.run_id, lead.agent_id, error)
