"""Random histories: the memory ledger and SQLite give the same receipts, the same conflicts, and the same reads."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.errors import LedgerConflict
from retinue.ledger import Ledger, MemoryLedger
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import (
    Append,
    CreateThread,
    Draft,
    DropDraft,
    HideThread,
    Op,
    OpenGeneration,
    PutDraft,
    PutInvocation,
    PutMail,
    PutRequest,
    PutRun,
    PutState,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, ThreadKey
from retinue.states import InvocationState, RequestState, RunState
from retinue.testing.conformance.sample import event, invocation_row, mail, request_row, run_row, thread_row

THREADS = [ThreadKey("", "ses", name) for name in ("a", "b", "c")]
NAMES = ("1", "2", "3")

CURRENT = -1
"""A generation in an op of a history: put the thread's own generation and head there, so that the op may hold."""


def make_append(key: ThreadKey, generation: int, head: int, count: int, at: int) -> Append:
    return Append(key, generation, head, tuple(event(str(number), at=at) for number in range(count)))


def make_thread(key: ThreadKey, base: ForkPoint | None, parent: ThreadKey | None, label: str | None, hidden: bool) -> Op:
    return CreateThread(thread_row(key, base=base, parent=parent, label=label, agent_key=label, hidden=hidden))


def make_run(
    run: str, key: ThreadKey, lineage: tuple[str, ...], state: RunState, attempt: int, expect: tuple[RunState, int] | None
) -> Op:
    return PutRun(run_row(run, key, lineage=lineage, state=state, attempt=attempt), expect)


def make_invocation(name: str, state: InvocationState, expect: tuple[InvocationState, int] | None) -> Op:
    place = NAMES.index(name)  # who delegated what to whom never changes
    parent, child = THREADS[place % len(THREADS)], THREADS[(place + 1) % len(THREADS)]
    return PutInvocation(invocation_row(name, parent, child, state=state), expect)


def make_request(name: str, root: ThreadKey, state: RequestState, expect: RequestState | None) -> Op:
    return PutRequest(request_row(name, root, state=state), expect)


def make_mail(key: ThreadKey, name: str) -> Op:
    return PutMail(key, mail(name))


def make_cancel(run: str, reason: str) -> Op:
    return RequestCancel(run, reason, "ann", 1)


def make_draft(key: ThreadKey, name: str, text: str) -> Op:
    return PutDraft(key, Draft(name, text, 1))


def make_state(name: str, value: str) -> Op:
    return PutState("", "ses", name, msgspec.Raw(value.encode()))


keys = st.sampled_from(THREADS)
names = st.sampled_from(NAMES)
small = st.integers(0, 4)
points = st.none() | st.builds(ForkPoint, keys, st.integers(1, 2), st.integers(0, 2))
places = st.sampled_from([CURRENT, CURRENT, CURRENT, 1, 2])
runs = st.sampled_from(RunState)
invocations = st.sampled_from(InvocationState)
requests = st.sampled_from(RequestState)
attempts = st.integers(1, 2)
lineages = st.lists(names, max_size=1).map(tuple)
labels = st.none() | st.sampled_from(["Ä", "ä", "x"])

appends = st.builds(make_append, keys, places, small, st.integers(0, 3), small)
ops: st.SearchStrategy[Op] = st.one_of(
    appends,
    st.builds(make_thread, keys, points, st.none() | keys, labels, st.booleans()),
    st.builds(OpenGeneration, keys, places, small, points),
    st.builds(HideThread, keys),
    st.builds(make_run, names, keys, lineages, runs, attempts, st.none() | st.tuples(runs, attempts)),
    st.builds(make_invocation, names, invocations, st.none() | st.tuples(invocations, st.just(1))),
    st.builds(make_request, names, keys, requests, st.none() | requests),
    st.builds(make_mail, keys, names),
    st.builds(TakeMail, keys, names),
    st.builds(make_cancel, names, names),
    st.builds(make_draft, keys, names, names),
    st.builds(DropDraft, keys, names),
    st.builds(make_state, names, names),
)
journal_ops = st.one_of(
    appends, st.builds(OpenGeneration, keys, st.just(CURRENT), small, points), st.builds(TakeMail, keys, names)
)
commits = st.lists(st.lists(ops, min_size=1, max_size=4) | journal_ops.map(lambda op: [op]), min_size=1, max_size=25)
histories = st.lists(commits.map(tuple) | keys | st.none(), min_size=1, max_size=4)  # a key: purge this thread; None: collect
begun = st.permutations([make_thread(key, None, None, None, False) for key in THREADS])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(begun, histories)
def test_ledgers_agree(first: list[Op], history: Sequence[Sequence[Sequence[Op]] | ThreadKey | None]) -> None:
    asyncio.run(compare(first, history))


async def compare(first: list[Op], history: Sequence[Sequence[Sequence[Op]] | ThreadKey | None]) -> None:
    with TemporaryDirectory() as folder:
        ledgers: tuple[Ledger, Ledger] = MemoryLedger(), SqliteLedger(Path(folder) / "l.db", durability="process")
        for ledger in ledgers:
            await ledger.open()
            await ledger.commit(first)
        try:
            for step in history:
                step = step if step is None or isinstance(step, ThreadKey) else await placed(ledgers[0], step)
                outcomes = [await carry_out(ledger, step) for ledger in ledgers]
                assert outcomes[0] == outcomes[1]
                reads = [await everything(ledger) for ledger in ledgers]
                assert reads[0] == reads[1]
        finally:
            for ledger in ledgers:
                await ledger.close()


async def placed(ledger: Ledger, commits: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The commits with `CURRENT` replaced by where each thread will be if all of them hold."""
    rows = {key: await ledger.thread(key) for key in THREADS}
    at = {key: (row.generation, row.head) if row else (1, 0) for key, row in rows.items()}
    made: list[list[Op]] = []
    for ops in commits:
        made.append([])
        for op in ops:
            if isinstance(op, (Append, OpenGeneration)) and op.generation == CURRENT:
                generation, head = at[op.key]
                if isinstance(op, Append):
                    at[op.key] = generation, head + len(op.events)
                else:
                    generation += 1
                    at[op.key] = generation, 0
                op = msgspec.structs.replace(op, generation=generation, head=head)
            made[-1].append(op)
    return made


async def carry_out(ledger: Ledger, step: Sequence[Sequence[Op]] | ThreadKey | None) -> object:
    """What happened: receipts and conflicts, or how many records a purge removed and that it changed no other history."""
    if step is None:
        before = [content(await ledger.journal(key)) for key in THREADS]
        collected = await ledger.collect(now=10, grace_ms=0)
        assert [content(await ledger.journal(key)) for key in THREADS] == before
        return collected
    if isinstance(step, ThreadKey):
        others = [key for key in THREADS if key != step]
        before = [content(await ledger.journal(key)) for key in others]
        try:
            removed = await ledger.purge(step)
        except LedgerConflict as conflict:
            return conflict.code, str(conflict)
        assert [content(await ledger.journal(key)) for key in others] == before
        return removed
    results = await asyncio.gather(*[ledger.submit(ops) for ops in step], return_exceptions=True)
    return [(result.code, result.op, str(result)) if isinstance(result, LedgerConflict) else result for result in results]


def content(journal: object) -> object:
    found = msgspec.to_builtins(journal)
    return found and [(record["type"], record["body"]) for record in (*found["inherited"], *found["own"])]


async def everything(ledger: Ledger) -> object:
    """Every read, over all the names there are."""
    threads = [
        (
            await ledger.thread(key),
            await ledger.journal(key),
            [await ledger.records(key, generation=generation, after=1, limit=2) for generation in (-1, 0, 1, 2)],
            await ledger.children(key),
            [await ledger.child_thread(key, agent_key="x", label=label) for label in ("ä", "x")],
            await ledger.last_run(key),
            await ledger.mail(key),
            await ledger.draft(key),
            await ledger.invocations(child=key),
            await ledger.requests(root=key),
        )
        for key in THREADS
    ]
    rows = [
        (
            await ledger.run(name),
            await ledger.tree(name),
            await ledger.cancel_intent((name,)),
            await ledger.invocation(name),
            await ledger.request(name),
        )
        for name in NAMES
    ]
    lists = (
        await ledger.threads(),
        await ledger.threads(hidden=True, limit=2),
        await ledger.runs(),
        await ledger.runs(states=(RunState.RUNNING, RunState.WAITING), roots_only=True, limit=2),
        await ledger.requests(state=RequestState.OPEN),
        await ledger.state("", "ses"),
    )
    return threads, rows, lists
