"""The fence at the moments that the stateful tests found: a take-over between two reads, and commits that are on their way.

Whoever was taken over from writes nothing, wherever the head of the journal happens to be (M3).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec
import pytest

from retinue import (
    Agent,
    Event,
    LeaseLost,
    LedgerConflict,
    LedgerUnavailable,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ThreadBusy,
)
from retinue.agent.journal import RunJournal
from retinue.agent.projection import Projection
from retinue.events import CancelSeenEvent, RunStartedEvent, ThreadCreatedEvent
from retinue.harness.takeover import take_over
from retinue.ledger import MemoryLedger
from retinue.ledger.port import Journal
from retinue.ops import Append, Draft, NewEvent, Op, PutDraft, PutRun
from retinue.rows import InvocationRow, RunRow, ThreadKey, ThreadRow
from retinue.states import RunState
from retinue.testing import MortalProcess, RecordingModel, ScriptedAgent, SharedStore, VirtualClock
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

KEY = ThreadKey("", "s", "main")


class Interrupted(MemoryLedger):
    """A ledger in which something happens just before a thread's journal, or an invocation, is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[ThreadKey | str, Callable[[], Awaitable[object]]] = {}

    async def _reading(self, what: ThreadKey | str) -> None:
        happens = self.before.pop(what, None)
        if happens is not None:
            await happens()

    async def journal(self, key: ThreadKey) -> Journal | None:
        await self._reading(key)
        return await super().journal(key)

    async def invocation(self, invocation_id: str) -> InvocationRow | None:
        await self._reading(invocation_id)
        return await super().invocation(invocation_id)


TREE = ScriptedAgent("lead", ScriptedAgent("reader", says="It is blue."), says="Done.")


def lead(process: MortalProcess, model: ScriptedModel | None = None) -> Agent:
    reader = SubAgent("reader", "Reads.", instructions="Read.")
    allow = PermissionRules(allow=["*"])
    runtime = Runtime(ledger=process.ledger)
    return Agent("lead", model=model or ScriptedModel(TREE.script()), subagents=[reader], runtime=runtime, permissions=allow)


async def stopped(ledger: MemoryLedger, commits: int) -> tuple[SharedStore, RunRow]:
    """A tree whose process died at a commit."""
    await ledger.open()
    store = SharedStore(ledger)
    process = store.process()
    process.kill_at(commits)
    with pytest.raises(LedgerUnavailable):
        await lead(process).run("Begin.", context=RuntimeContext(session_id="s"))
    (root,) = await ledger.runs(roots_only=True)
    return store, root


async def taken(store: SharedStore, root: RunRow) -> Runtime:
    """Another process takes the tree over."""
    runtime = await Runtime(ledger=store.process().ledger).open()
    row = await store.ledger.run(root.run_id)
    assert row is not None
    await take_over(runtime, row, force=True)
    return runtime


@pytest.mark.parametrize(
    ("what", "commits"),
    [("root", 4), ("child", 3), ("invocation", 3)],
    ids=["the journal of a root that would ask its model", "a child's journal", "a child's invocation"],
)
async def test_a_journal_that_is_read_after_a_take_over_is_not_written_to(what: str, commits: int) -> None:
    """A process has taken a tree over; while it reads what there is, it is taken over from."""
    ledger = Interrupted()
    store, root = await stopped(ledger, commits)
    child = (await ledger.tree(root.run_id))[1]
    place = {"root": root.key, "child": child.key, "invocation": child.invocation_id or ""}[what]
    runtimes: list[Runtime] = []

    async def happens() -> None:
        runtimes.append(await taken(store, root))

    def committed(_ops: Sequence[Op]) -> None:
        if not runtimes:
            ledger.before[place] = happens

    model = RecordingModel(TREE.script())
    process = store.process()
    late = lead(process, model)
    await late.build()
    ledger.before.clear()
    process.on_commit = committed
    with pytest.raises(LeaseLost):
        await late.resume(root.run_id)
    assert len(runtimes) == 1
    assert model.requests == []
    assert await audit(ledger, root.run_id) == []
    unfinished = [row for row in await ledger.tree(root.run_id) if not row.state.terminal]
    assert {(row.attempt, row.owner) for row in unfinished} == {(3, runtimes[0]._owner_id)}
    for row in unfinished:
        journal = await ledger.journal(row.key)
        assert journal is not None
        assert (journal.own[-1].type, journal.own[-1].attempt) == ("RUN_STARTED", 3)
    await late.close()


async def test_after_a_conflict_nothing_is_written_to_what_was_taken_over_meanwhile() -> None:
    """The end comes after a cancel from elsewhere: the run reads its journal again, and just then it is taken over."""
    ledger = Interrupted()
    await ledger.open()
    store = SharedStore(ledger)
    process, entered, go = store.process(), asyncio.Event(), asyncio.Event()

    async def slowly(_request: object) -> str:
        entered.set()
        await go.wait()
        return "Done."

    agent = Agent("desk", model=ScriptedModel(slowly), runtime=Runtime(ledger=process.ledger))
    events = agent.stream("Begin.", context=RuntimeContext(session_id="s"))
    streaming = asyncio.create_task(anext(events))
    await streaming
    waiting = asyncio.create_task(_rest(events))
    await entered.wait()
    (root,) = await ledger.runs(roots_only=True)

    async def happens() -> None:
        await taken(store, root)

    other = lead(store.process())
    await other.build()
    await other.runtime._cancel(root.run_id, "from elsewhere", by="ann")
    ledger.before[root.key] = happens
    go.set()
    with pytest.raises(LeaseLost):
        await waiting
    assert await audit(ledger, root.run_id) == []
    journal = await ledger.journal(root.key)
    assert journal is not None
    assert [record.attempt for record in journal.own][-1] == 2


async def _rest(events: AsyncGenerator[Event, None]) -> None:
    async for _ in events:
        pass


def journal_of(ledger: MortalProcess, row: RunRow, *, head: int, stored: bool) -> RunJournal:
    return RunJournal(
        ledger.ledger, VirtualClock(), row, Projection(), generation=1, head=head, stored=stored, tell=lambda _events: None
    )


def row_of(run_id: str) -> RunRow:
    return RunRow(
        run_id=run_id,
        key=KEY,
        agent_id="lead",
        state=RunState.RUNNING,
        attempt=1,
        lineage=(run_id,),
        path=("lead",),
        started_at=1,
        updated_at=1,
    )


def begun(process: MortalProcess, run_id: str) -> RunJournal:
    """A run at its beginning: its first commit is on its way."""
    journal = journal_of(process, row_of(run_id), head=0, stored=False)
    journal.create(ThreadRow(key=KEY, default_agent_id="lead", created_at=1))
    journal.stage(ThreadCreatedEvent(default_agent_id="lead"))
    journal.stage(RunStartedEvent(agent_id="lead", owner="own_1", attempt=1))
    journal.flush_soon()
    return journal


async def texts(store: SharedStore) -> Sequence[tuple[str, str, int]]:
    journal = await store.ledger.journal(KEY)
    assert journal is not None
    return [(record.type, record.run, record.attempt) for record in journal.own]


@pytest.mark.parametrize("without_events", [False, True], ids=["an event", "a draft"])
async def test_a_commit_behind_a_refused_one_is_refused(without_events: bool) -> None:
    """Two runs begin on one thread at once; the second commit of the loser finds the head where it expects it."""
    ledger = MemoryLedger()
    await ledger.open()
    store = SharedStore(ledger)
    winner, loser = begun(store.process(), "run_1"), begun(store.process(), "run_2")
    if without_events:
        loser.stage_op(PutDraft(KEY, Draft("msg_1", "half", 1)))
    else:
        loser.stage(CancelSeenEvent(reason="late"))
    loser.flush_soon()
    await winner.flush()
    with pytest.raises(LedgerConflict):
        await loser.flush()
    await loser.abandon()
    assert {run for _, run, _ in await texts(store)} == {"run_1"}
    assert await ledger.draft(KEY) is None


@pytest.mark.parametrize("without_events", [False, True], ids=["an event", "a draft"])
async def test_a_take_over_as_long_as_the_refused_commit_does_not_let_the_next_one_in(without_events: bool) -> None:
    """One event was refused because one event took the run over: the next commit finds the head where it expects it."""
    ledger = MemoryLedger()
    await ledger.open()
    store = SharedStore(ledger)
    old = begun(store.process(), "run_1")
    await old.flush()
    event = NewEvent("RUN_STARTED", b"{}", "run_1", 2, 1)
    async with store.still():
        old.stage(CancelSeenEvent(reason="one"))
        old.flush_soon()
        if without_events:
            old.stage_op(PutDraft(KEY, Draft("msg_1", "half", 1)))
        else:
            old.stage(CancelSeenEvent(reason="two"))
        old.flush_soon()
        row = PutRun(msgspec.structs.replace(row_of("run_1"), attempt=2), (RunState.RUNNING, 1))
        await ledger.commit([Append(KEY, 1, 2, (event,)), row])
    with pytest.raises(LedgerConflict):
        await old.flush()
    await old.abandon()
    assert [attempt for _, _, attempt in await texts(store)] == [1, 1, 2]
    assert await ledger.draft(KEY) is None


async def test_of_two_first_messages_one_is_told_that_the_thread_is_busy() -> None:
    ledger = MemoryLedger()
    await ledger.open()
    store = SharedStore(ledger)
    agents = [lead(store.process()) for _ in range(2)]
    work = [agent.run("Begin.", context=RuntimeContext(session_id="s"), check=False) for agent in agents]
    ended = await asyncio.gather(*work, return_exceptions=True)
    assert sorted(type(one).__name__ for one in ended) == ["RunResult", "ThreadBusy"], ended
    assert any(isinstance(one, ThreadBusy) for one in ended)
    for root in await ledger.runs(roots_only=True):
        assert await audit(ledger, root.run_id) == []
    for agent in agents:
        await agent.close()


class Stale(MemoryLedger):
    """A ledger in which something happens after a cancel intent was looked for, and before the answer is there."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def cancel_intent(self, lineage: Sequence[str]) -> str | None:
        found = await super().cancel_intent(lineage)
        happens, self.happens = self.happens, None
        if happens is not None:
            await happens()
        return found


async def test_a_cancel_while_a_run_is_taken_up_stops_it_before_it_asks() -> None:
    """The intent was looked for just before it was there, and the run is not driven yet: it is told all the same (M8)."""
    ledger = Stale()
    store, root = await stopped(ledger, 4)
    model = RecordingModel(TREE.script())
    late = lead(store.process(), model)
    await late.build()
    ledger.happens = lambda: late.cancel(root.run_id)
    result = await late.resume(root.run_id, check=False)
    assert (result.status, model.requests) == ("cancelled", [])
    assert await audit(ledger, root.run_id) == []
    await late.close()
