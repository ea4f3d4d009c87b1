"""Owners, take-overs, delegations, questions and cancels as ops on every ledger: the reference model says what must happen.

Each commit goes to the model, the memory ledger, and SQLite in either durability: the same receipt or the same conflict, and
afterwards the same reads. Beside the model, what the design promises is checked from what was seen before.
"""

import asyncio
import hashlib
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from retinue.errors import LedgerConflict
from retinue.ledger import Ledger, MemoryLedger
from retinue.ledger.sqlite import Durability, SqliteLedger
from retinue.ops import (
    Append,
    CreateThread,
    Draft,
    DropDraft,
    HideThread,
    NewEvent,
    Op,
    OpenGeneration,
    PutBlob,
    PutDraft,
    PutInvocation,
    PutMail,
    PutRequest,
    PutRun,
    PutState,
    Record,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, InvocationRow, RequestRow, RunRow, ThreadKey
from retinue.states import InvocationState, RequestState, RunState
from retinue.testing.conformance.sample import invocation_row, mail, request_row, run_row, thread_row
from retinue.testing.reference import ReferenceLedger, Refused

EXPLORE = int(os.environ.get("RETINUE_EXPLORE", "1"))
THREADS = [ThreadKey("", "ses", name) for name in ("a", "b", "c")]
NUMBERS = st.integers(0, 30)
T = TypeVar("T")

RUN_ENDS = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
ATTEMPTS = st.integers(1, 3)
CHANGES = (
    st.tuples(st.sampled_from(RunState), st.none() | st.tuples(st.sampled_from(RunState), ATTEMPTS))
    | st.tuples(st.sampled_from(InvocationState), st.none() | st.tuples(st.sampled_from(InvocationState), st.just(1)))
    | st.tuples(st.sampled_from(RequestState), st.none() | st.sampled_from(RequestState))
)
"""A row's new state, and the state that is expected of it."""


@dataclass
class Owner:
    """A process's hold on a run: where it believes the journal and the row to be."""

    row: RunRow
    generation: int
    head: int

    def append(self, *texts: str) -> Append:
        """Append events, and believe that they are there."""
        events = tuple(NewEvent("SAID", text.encode(), self.row.run_id, self.row.attempt, 10) for text in texts)
        op = Append(self.row.key, self.generation, self.head, events)
        self.head += len(texts)
        return op

    def put(self, state: RunState) -> PutRun:
        """Move the row on, and believe that it is so."""
        op = PutRun(msgspec.structs.replace(self.row, state=state), (self.row.state, self.row.attempt))
        self.row = op.row
        return op


class LedgersAndModel(RuleBasedStateMachine):
    """Everything is chosen by number among what there is."""

    @initialize(durability=st.sampled_from(["full", "process"]))
    def open(self, durability: Durability) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.ledgers: list[Ledger] = [MemoryLedger(), SqliteLedger(Path(self.folder.name) / "ledger", durability=durability)]
        for ledger in self.ledgers:
            self.do(ledger.open())
        self.model = ReferenceLedger()
        self.owners: list[Owner] = []
        self.count = self.looks = 0
        self.roots: set[str] = set()
        self.ended: dict[str, RunRow | InvocationRow | RequestRow] = {}
        self.seen: dict[tuple[ThreadKey, int], tuple[Record, ...]] = {}

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for ledger in self.ledgers:
                self.do(self.read(ledger))
                self.do(ledger.close())
            self.loop.close()
            self.folder.cleanup()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def new(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def commit(self, *ops: Op) -> bool:
        """Hand ops to the model and to every ledger: they must agree. Whether they were carried out."""
        before = {**self.model.runs}
        try:
            expected: object = self.model.commit(ops)
        except Refused as refused:
            expected = (refused.code, ops[refused.index])
        for ledger in self.ledgers:
            found: object
            try:
                found = self.do(ledger.commit(ops)).heads
            except LedgerConflict as conflict:
                found = (conflict.code, conflict.op)
            assert found == expected, (ledger.url, ops)
        if isinstance(expected, tuple):
            assert self.model.runs == before
        return not isinstance(expected, tuple)

    # What owners do

    def owner(self, number: int) -> Owner | None:
        return self.owners[number % len(self.owners)] if self.owners else None

    def fenced(self, owner: Owner) -> bool:
        """Whether somebody has taken its run over."""
        row = self.model.runs.get(owner.row.run_id)
        return row is not None and row.attempt > owner.row.attempt

    def own(self, owner: Owner, *ops: Op) -> bool:
        """A commit of an owner: one that was taken over from writes nothing. One that was not reads again after a refusal."""
        fenced = self.fenced(owner)
        done = self.commit(*ops)
        assert not (fenced and done), "a fenced owner has written"
        if not done and not fenced:
            owner.generation, owner.head = self.model.place(owner.row.key) or (1, 0)
        return done

    def begin(self, key: ThreadKey, above: RunRow | None = None) -> tuple[list[Op], Owner]:
        run_id = self.new("run")
        row = run_row(run_id, key, lineage=() if above is None else above.lineage)
        place = self.model.place(key)
        ops: list[Op] = [] if place else [CreateThread(thread_row(key, parent=above and above.key))]
        owner = Owner(row, *(place or (1, 0)))
        return [*ops, owner.append("started"), PutRun(row)], owner

    @rule(thread=NUMBERS)
    def start(self, thread: int) -> None:
        ops, owner = self.begin(THREADS[thread % len(THREADS)])
        if self.commit(*ops):
            self.owners.append(owner)
            self.roots.add(owner.row.run_id)

    @rule(who=NUMBERS, thread=NUMBERS)
    def delegate(self, who: int, thread: int) -> None:
        """Parent's event, child's thread, run and invocation, in one commit; none of it below a cancelled run."""
        parent = self.owner(who)
        if parent is None or THREADS[thread % len(THREADS)] == parent.row.key:
            return
        ops, child = self.begin(THREADS[thread % len(THREADS)], parent.row)
        name = self.new("inv")
        child.row = msgspec.structs.replace(child.row, invocation_id=name)
        invocation = invocation_row(
            name, parent.row.key, child.row.key, parent_run=parent.row.run_id, child_run=child.row.run_id, root_run=child.row.root
        )
        row = PutRun(child.row)
        if self.own(parent, parent.append(f"delegated {name}"), *ops[:-1], row, PutInvocation(invocation)):
            assert self.model.intent(parent.row.lineage) is None, "a child was made after the cancel"
            self.owners.append(child)

    @rule(who=NUMBERS, count=st.integers(1, 3))
    def write(self, who: int, count: int) -> None:
        owner = self.owner(who)
        if owner is not None:
            self.own(owner, owner.append(*["more"] * count))

    @rule(who=NUMBERS)
    def write_on(self, who: int) -> None:
        """Two commits on their way at once: the second does not know how the first one ended."""
        owner = self.owner(who)
        if owner is not None:
            first, second = owner.append("one"), owner.append("two")
            self.own(owner, first)
            self.own(owner, second)

    @rule(who=NUMBERS)
    def take_over(self, who: int) -> None:
        """All unfinished runs of a tree change hands in one commit."""
        owner = self.owner(who)
        if owner is None:
            return
        rows = [row for row in self.model.runs.values() if row.root == owner.row.root and not row.state.terminal]
        ops: list[Op] = []
        taken: list[Owner] = []
        for row in rows:
            place = self.model.place(row.key)
            assert place is not None
            heads = {one.row.key: one.head for one in taken}
            mine = Owner(msgspec.structs.replace(row, state=RunState.RUNNING, attempt=row.attempt + 1), *place)
            mine.head = heads.get(row.key, mine.head)
            ops += [mine.append("taken over"), PutRun(mine.row, (row.state, row.attempt))]
            taken.append(mine)
        if self.commit(*ops):
            self.owners += taken

    @rule(who=NUMBERS, state=st.sampled_from(RunState))
    def end(self, who: int, state: RunState) -> None:
        """The row's next state; a child's end comes with that of its invocation."""
        owner = self.owner(who)
        if owner is None:
            return
        held, name = owner.row, owner.row.invocation_id
        ops: list[Op] = [owner.append(f"is {state}"), owner.put(state)]
        invocation = self.model.invocations.get(name or "")
        if invocation is not None and state is not RunState.RUNNING:
            ended = msgspec.structs.replace(invocation, state=InvocationState(state.value))
            ops.append(PutInvocation(ended, (invocation.state, invocation.attempt)))
        intent = self.model.intent(held.lineage)
        if not self.own(owner, *ops):
            owner.row = held
        elif intent is not None:
            assert state not in (RunState.COMPLETED, RunState.FAILED), "it ended otherwise after a cancel"

    @rule(who=NUMBERS)
    def ask(self, who: int) -> None:
        owner = self.owner(who)
        if owner is not None:
            row = request_row(self.new("req"), owner.row.key, run_id=owner.row.run_id, root_run=owner.row.root)
            self.own(owner, owner.append(f"asked {row.request_id}"), PutRequest(row))

    @rule(number=NUMBERS, state=st.sampled_from(RequestState), twice=st.booleans())
    def answer(self, number: int, state: RequestState, twice: bool) -> None:
        """The first answer wins, and is delivered once."""
        names = list(self.model.requests)
        if names:
            row = self.model.requests[names[number % len(names)]]
            letter = mail(f"mail_{row.request_id}", state)
            answered = PutRequest(msgspec.structs.replace(row, state=state), RequestState.OPEN)
            self.commit(answered, PutMail(row.key, letter))
            if twice:
                self.commit(PutMail(row.key, letter), answered)
                self.commit(PutMail(row.key, letter))

    @rule(who=NUMBERS, number=NUMBERS, again=st.booleans())
    def take_mail(self, who: int, number: int, again: bool) -> None:
        """What was taken does not come back, if it is delivered once more."""
        owner = self.owner(who)
        if owner is not None:
            letters = list(self.model.mail.get(owner.row.key, {})) or ["mail_none"]
            letter = letters[number % len(letters)]
            self.own(owner, TakeMail(owner.row.key, letter), owner.append(f"told {letter}"))
            if again:
                self.commit(PutMail(owner.row.key, mail(letter)))

    @rule(number=NUMBERS)
    def cancel(self, number: int) -> None:
        names = [*self.model.runs, "run_none"]
        self.commit(RequestCancel(names[number % len(names)], f"because {number}", "ann", 1))

    # What anybody may try

    @rule(number=NUMBERS, change=CHANGES, attempt=ATTEMPTS)
    def put_any_row(self, number: int, change: tuple[Any, Any], attempt: int) -> None:
        """A row in any state, whatever is expected of it, in the middle of other ops that must not stay behind."""
        state, expect = change
        op: Op
        if isinstance(state, RunState):
            run = chosen(self.model.runs, number) or run_row("run_new", THREADS[0])
            op = PutRun(msgspec.structs.replace(run, state=state, attempt=max(attempt, run.attempt)), expect)
        elif isinstance(state, InvocationState):
            invocation = chosen(self.model.invocations, number) or invocation_row("inv_new", THREADS[0], THREADS[1])
            op = PutInvocation(msgspec.structs.replace(invocation, state=state), expect)
        else:
            request = chosen(self.model.requests, number) or request_row("req_new", THREADS[0])
            op = PutRequest(msgspec.structs.replace(request, state=state), expect)
        key = THREADS[attempt % len(THREADS)]
        self.commit(PutState("", "ses", "note", msgspec.Raw(b"1")), op, Append(key, *(self.model.place(key) or (1, 0)), ()))

    @rule(source=NUMBERS, thread=NUMBERS, seq=st.integers(0, 6), generation=st.integers(1, 2), new=st.booleans())
    def fork(self, source: int, thread: int, seq: int, generation: int, new: bool) -> None:
        base, key = ForkPoint(THREADS[source % len(THREADS)], generation, seq), THREADS[thread % len(THREADS)]
        place = self.model.place(key) or (0, 0)
        row = thread_row(key, base=base, parent=base.key if seq % 2 else None, label="Ä" if generation == 1 else "ä")
        self.commit(CreateThread(row) if new else OpenGeneration(key, place[0] + 1, place[1], base))

    @rule(thread=NUMBERS, what=st.sampled_from(["draft", "no draft", "blob", "state", "hide", "purge", "open again"]))
    def whatever_else(self, thread: int, what: str) -> None:
        key, number = THREADS[thread % len(THREADS)], str(thread % 4)
        match what:
            case "draft":
                self.commit(PutDraft(key, Draft(number, f"draft {thread}", 1)))
            case "no draft":
                self.commit(DropDraft(key, number))
            case "blob":
                self.commit(PutBlob(hashlib.sha256(number.encode()).hexdigest(), number.encode()))
            case "state":
                expect = None if thread % 3 == 1 else number.encode() if thread % 3 == 2 else msgspec.UNSET
                self.commit(PutState("", "ses", number, msgspec.Raw(number.encode()), expect))
            case "hide":
                self.commit(HideThread(key))
            case "purge":
                self.purge(key)
            case _:
                for ledger in self.ledgers:
                    self.do(ledger.close())
                    self.do(ledger.open())

    def purge(self, key: ThreadKey) -> None:
        runs, purged = {name for name, row in self.model.runs.items() if row.key == key}, self.model.purge(key)
        for ledger in self.ledgers:
            code = ""
            try:
                self.do(ledger.purge(key))
            except LedgerConflict as conflict:
                code = conflict.code
            assert code == ("" if purged else "state"), ledger.url
        if purged:
            self.owners = [owner for owner in self.owners if owner.row.run_id not in runs]
            self.seen = {place: records for place, records in self.seen.items() if place[0] != key}
            there = {*self.model.runs, *self.model.invocations, *self.model.requests}
            self.ended = {name: row for name, row in self.ended.items() if name in there}

    # What must hold

    @invariant()
    def ledgers_read_as_the_model(self) -> None:
        if hasattr(self, "model"):
            self.looks += 1
            self.do(self.read(self.ledgers[0]))
            if self.looks % 5 == 0:  # a read of SQLite goes through a thread: not after each step
                self.do(self.read(self.ledgers[1]))

    async def read(self, ledger: Ledger) -> None:
        model = self.model
        for key in THREADS:
            history, journal = model.history(key), await ledger.journal(key)
            found = None if journal is None else (said(journal.inherited), said(journal.own))
            assert found == history, (ledger.url, key)
            thread = await ledger.thread(key)
            place = None if thread is None else (thread.generation, thread.head)
            assert place == (None if key in model.deleted else model.place(key)), (ledger.url, key)
            letters = {letter.mail_id: bytes(letter.body) for letter in await ledger.mail(key)}
            assert letters == model.mail.get(key, {}), (ledger.url, key)
            draft, drafts = await ledger.draft(key), list(model.drafts.get(key, {}).values())
            assert (draft and draft.text) == (drafts[-1] if drafts else None), (ledger.url, key)
        for run_id, row in model.runs.items():
            assert await ledger.run(run_id) == row, ledger.url
            assert await ledger.cancel_intent(row.lineage) == model.intent(row.lineage), (ledger.url, run_id)
        assert {row.run_id for row in await ledger.runs(limit=1_000)} == set(model.runs), ledger.url
        for root in self.roots:
            tree = [row.run_id for row in await ledger.tree(root)]
            assert tree == [run_id for run_id, row in model.runs.items() if row.root == root], (ledger.url, root)
        for name, row in model.invocations.items():
            assert await ledger.invocation(name) == row, ledger.url
        for name, row in model.requests.items():
            assert await ledger.request(name) == row, ledger.url
        assert await ledger.state("", "ses") == model.states.get(("", "ses"), {}), ledger.url
        for digest, data in model.blobs.items():
            assert await ledger.blob(digest) == data, ledger.url

    @invariant()
    def ends_stay_and_journals_only_grow(self) -> None:
        if not hasattr(self, "model"):
            return
        rows = {**self.model.runs, **self.model.invocations, **self.model.requests}
        for name, row in self.ended.items():
            assert rows[name] == row, "an end was changed"
        for name, row in rows.items():
            if row.state is not RequestState.OPEN if isinstance(row, RequestRow) else row.state.terminal:
                self.ended[name] = row
        for place, before in self.seen.items():
            found = tuple(self.do(self.ledgers[0].records(place[0], generation=place[1])))
            assert place[0] in self.model.deleted or found[: len(before)] == before, "a journal was changed"
        for key in THREADS:
            journal = self.do(self.ledgers[0].journal(key))
            if journal is not None:
                self.seen[key, journal.row.generation] = journal.own
                told = [record.body for record in journal.own if record.body.startswith(b"told ")]
                assert len(told) == len(set(told)), "told twice"
                attempts = [(record.run, record.attempt) for record in journal.own]
                for run in {name for name, _ in attempts}:
                    of_run = [attempt for name, attempt in attempts if name == run]
                    assert of_run == sorted(of_run), "an earlier attempt wrote after a later one"


def chosen(rows: dict[str, T], number: int) -> T | None:
    """One of the rows, or None."""
    return [*rows.values(), None][number % (len(rows) + 1)]


def said(records: Sequence[Record]) -> list[tuple[str, bytes, str, int]]:
    return [(record.type, record.body, record.run, record.attempt) for record in records]


LedgersAndModel.TestCase.settings = settings(
    max_examples=120 * EXPLORE,
    stateful_step_count=30,
    deadline=None,
    derandomize=EXPLORE == 1,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class TestLedgersAndModel(LedgersAndModel.TestCase):
    pass
