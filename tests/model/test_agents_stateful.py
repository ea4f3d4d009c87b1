"""Whole agents under random actions: run a while, answer, cancel, crash, take over, ask again; the invariants of the design hold.

A random tree of agents runs on one store in processes that can be killed at any commit, on a loop whose seed decides the
order of what is ready. After each action, and once everything has been driven to its end, nothing may be broken.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from retinue import (
    Agent,
    AgentConfig,
    LeaseLost,
    Limits,
    ModelError,
    PermissionRules,
    RetinueError,
    RunResult,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ThreadBusy,
    ToolContext,
    ToolError,
    ToolHarness,
    Usage,
    tool,
)
from retinue.agent.projection import project
from retinue.events import ModelCalledEvent
from retinue.ledger import Ledger, MemoryLedger
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import ToolCall
from retinue.models.port import ModelAnswer, ModelRequest
from retinue.ops import Append, Op, PutRun
from retinue.rows import RequestRow, RunRow
from retinue.states import RequestState, RunState
from retinue.testing.audit import audit, spent
from retinue.testing.clock import VirtualClock
from retinue.testing.mortal import MortalProcess, SharedStore
from retinue.testing.scheduler import SeededLoop
from retinue.testing.transcripts import faults_of
from retinue.tools.decorator import function_tool

EXPLORE = int(os.environ.get("RETINUE_EXPLORE", "1"))
"""How many times as many examples as in CI; other than 1: new ones each time."""

SHRINK = "RETINUE_SHRINK" in os.environ
PLAIN_CALLS = ("look", "put", "post", "fail", "slow", "ask", "unheard_of")
End = Literal["text", "empty", "error"]
T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]


# What runs: a random tree


@dataclass(frozen=True)
class Node:
    """An agent of the tree: the calls of each turn (names of tools, or of children), and how it ends."""

    name: str
    turns: tuple[tuple[str, ...], ...]
    end: End
    children: tuple["Node", ...] = ()

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()


@st.composite
def nodes(draw: st.DrawFn, name: str = "root", depth: int = 0) -> Node:
    """A tree no deeper than 3, at most 3 calls to a turn. The name says whether a call of the child is asked for (`q…`), and
    whether it works in the background (`b…`)."""
    children: list[Node] = []
    turns: list[tuple[str, ...]] = []
    for turn in range(draw(st.integers(1 if depth == 0 else 0, 2))):
        calls: list[str] = []
        for place in range(draw(st.integers(1, 3))):
            if depth < 3 and draw(st.integers(0, 2 + depth)) == 0:
                letter = draw(st.sampled_from("ccqbb"))
                children.append(draw(nodes(f"{letter}{depth}{turn}{place}", depth + 1)))
                calls.append(children[-1].name)
            else:
                calls.append(draw(st.sampled_from(PLAIN_CALLS)))
        turns.append(tuple(calls))
    end: End = draw(st.sampled_from(["text", "text", "text", "text", "empty", "error"]))
    return Node(name, tuple(turns), end, tuple(children))


# Where it runs: processes on one store


class World:
    """The store, the clock, and everything that must hold whatever happens."""

    def __init__(self, root: Node, store: SharedStore, clock: VirtualClock, limit: int) -> None:
        self.root = root
        self.store = store
        self.clock = clock
        self.limit = limit
        self.faults: list[str] = []
        self.ended: set[str] = set()
        self.stopped: set[str] = set()
        self.answered: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.lineages: dict[str, tuple[str, ...]] = {}
        self.processes: list[Process] = []

    def committed(self, ops: Sequence[Op]) -> None:
        """A commit was carried out."""
        for op in ops:
            if isinstance(op, PutRun):
                self.lineages[op.row.run_id] = op.row.lineage
                if op.row.state.terminal:
                    self.ended.add(op.row.run_id)
            elif isinstance(op, Append):
                self.answered.update(event.run for event in op.events if event.type == ModelCalledEvent.TYPE)

    def called(self, process: "Process", what: str, run_id: str) -> None:
        """A model or tool call starts."""
        if process.replaced:
            return  # it was taken over from: it may still work, but not write
        if run_id in self.ended:
            self.faults.append(f"{what} after the end of its run")
        if self.stopped & set(self.lineages.get(run_id, (run_id,))):
            self.faults.append(f"{what} after `cancel` had returned")

    def asked(self, process: "Process", request: ModelRequest) -> None:
        """A model call starts."""
        self.called(process, f"model call {request.step} of {request.agent_id}", request.run_id)
        self.faults += [f"{request.agent_id} was sent: {fault}" for fault in faults_of(request.history, sent=True)]
        if not process.replaced and request.step <= self.answered[request.run_id]:
            self.faults.append(f"{request.agent_id} is asked again for turn {request.step}, whose answer is recorded")


class Process:
    """One process: an agent on the shared store, and the tasks that work for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mortal: MortalProcess = world.store.process()
        self.mortal.on_death = self.stop_tasks
        self.mortal.on_commit = world.committed
        self.replaced = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.runtime = Runtime(
            ledger=self.mortal.ledger, clock=world.clock, limits=Limits(max_children=world.limit, stop_grace=2.0)
        )
        self.agent = Agent(
            "root",
            model=ScriptedModel(self.reply),
            runtime=self.runtime,
            tool_harnesses=[harness_of(world.root)],
            permissions=PermissionRules(allow=sorted({f"{node.name[0]}*" for node in world.root.walk()} & {"b*", "c*"})),
        )
        world.processes.append(self)

    # The model and the tools

    async def reply(self, request: ModelRequest) -> ModelAnswer:
        await self.living()
        self.world.asked(self, request)
        node = next(node for node in self.world.root.walk() if node.name == request.agent_id)
        await asyncio.sleep(0)
        await self.living()
        usage = Usage(input_tokens=10 * request.step, output_tokens=len(node.name), calls=1)
        if request.step <= len(node.turns) and request.tools_allowed:
            names = node.turns[request.step - 1]
            calls = tuple(
                ToolCall(id=f"call_{place}", name=name, arguments='{"input": "Go."}' if name[0] in "cqb" else "{}")
                for place, name in enumerate(names)
            )
            return ModelAnswer(text="", calls=calls, usage=usage, finish_reason="tool_calls")
        if node.end == "error":
            raise ModelError("it cannot", provider="scripted", model="m", code="overloaded")
        return ModelAnswer(text="" if node.end == "empty" else f"{node.name} is done", usage=usage)

    async def living(self) -> None:
        """A dead process does nothing more."""
        if not self.mortal.alive:
            await asyncio.get_running_loop().create_future()

    # Working and dying

    def start(self, work: Work) -> None:
        """Let the process do something beside what it does."""
        context = copy_context()
        context.run(_process.set, self)
        asyncio.get_running_loop().create_task(self.guarded(work), context=context)

    async def guarded(self, work: Work) -> None:
        try:
            result = await work()
        except (ThreadBusy, LeaseLost):
            return  # the thread has a run, or this process was taken over from
        except RetinueError as error:
            expected = error.code in ("run_ended", "already_answered") or not self.mortal.alive
            if not expected:
                self.world.faults.append(f"{type(error).__name__}: {error} ({error.code})")
            return
        if isinstance(result, RunResult) and result.status != "waiting":
            await self.compare(result)

    async def compare(self, result: RunResult) -> None:
        """A result says what the ledger says."""
        with self.world.store.held():
            row = await self.world.store.ledger.run(result.run_id)
            used, _ = await spent(self.world.store.ledger, result.run_id)
            tasks = await self.world.store.ledger.tasks(limit=1)
        if row is None or row.state.value != result.status or row.reason != result.reason:
            self.world.faults.append(f"the result says {result.status} {result.reason}, the ledger {row}")
        if used != result.usage and not tasks:  # what a task used counts where its end is told, maybe in a later run
            self.world.faults.append(f"the result used {result.usage}, the ledger has {used}")

    def run(self, text: str) -> Work:
        return partial(self.agent.run, text, context=RuntimeContext(session_id="s"), check=False)

    def resume(self, row: RunRow, *, take_over: bool = False) -> Work:
        return partial(self.agent.resume, row.run_id, take_over=take_over, check=False)

    def answer(self, request: RequestRow, *, allow: bool) -> Work:
        return partial(self.agent.answer, request.request_id, allow=allow)

    def send(self, row: RunRow) -> Work:
        return partial(self.agent.send, row.run_id, "Hurry.")

    def cancel(self, row: RunRow) -> Work:
        """Stop a run; once that has returned, nothing below it starts any more."""

        async def cancelled() -> None:
            await self.agent.cancel(row.run_id)
            self.world.stopped.add(row.run_id)

        return cancelled

    def working(self) -> list["asyncio.Task[Any]"]:
        return [task for task in self.tasks if not task.done() and task.get_name() != "retinue mortal ledger"]

    def stop_tasks(self) -> None:
        for task in self.working():
            task.cancel()

    async def die(self) -> None:
        """SIGKILL: nothing is left of it, whatever it was doing."""
        self.mortal.kill()
        for _ in range(50):
            self.stop_tasks()
            await self.world.clock.settle()
            if not self.working():
                return
        raise AssertionError(f"tasks of a dead process go on: {self.working()}")


_process: ContextVar[Process | None] = ContextVar("process", default=None)


def owned_task(loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None, **options: Any) -> Any:
    """A task factory: a task works for the process whose task made it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **options)
    process = _process.get() if context is None else context.get(_process)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


# The tools: what they do is done by the process whose task calls them


async def at_work(context: ToolContext) -> None:
    """The beginning of every tool."""
    process = _process.get()
    assert process is not None
    await process.living()
    process.world.called(process, f"a tool of {context.agent_id}", context.run_id)
    await asyncio.sleep(0)
    await process.living()


def done(context: ToolContext) -> None:
    """The effect of a tool that may not be repeated."""
    process = _process.get()
    assert process is not None
    process.world.effects[context.idempotency_key] += 1


@tool(read_only=True)
async def look(context: ToolContext) -> str:
    """Look."""
    await at_work(context)
    return "seen"


@tool(read_only=True)
async def slow(context: ToolContext) -> str:
    """Look for long."""
    await at_work(context)
    process = _process.get()
    assert process is not None
    await process.world.clock.sleep(3)
    return "seen late"


async def put(context: ToolContext) -> str:
    """Change something."""
    await at_work(context)
    done(context)
    await asyncio.sleep(0)
    return "put"


@tool(idempotent=True)
async def post(context: ToolContext) -> str:
    """Change something, once for a key."""
    await at_work(context)
    return "posted"


async def fail(context: ToolContext) -> str:
    """Fail."""
    await at_work(context)
    raise ToolError("no luck")


@tool(requires_permission=True)
async def ask(context: ToolContext) -> str:
    """Do something that is asked for."""
    await at_work(context)
    done(context)
    return "allowed"


TOOLS = [function_tool(made) for made in (look, slow, put, post, fail, ask)]


def harness_of(node: Node) -> ToolHarness:
    """What an agent of the tree has: the tools, and its children."""
    made = ToolHarness()
    for one in TOOLS:
        made.add_tool(one)
    for child in node.children:
        config = AgentConfig(name=child.name, instructions=f"You are {child.name}.")
        mode: Literal["background_only", "synchronous_only"] = "background_only" if child.name[0] == "b" else "synchronous_only"
        harness = harness_of(child)
        made.add_subagent(
            SubAgent.from_config(
                child.name, child.name, "A child.", config, tool_harnesses=[harness], invocation_mode_policy=mode
            )
        )
    return made


# What happens to it: random actions


class AgentsUnderRandomActions(RuleBasedStateMachine):
    """Everything is chosen by number, whatever there is to choose from: the same numbers, the same story."""

    sqlite = False

    @initialize(root=nodes(), seed=st.integers(0, 1_000_000), limit=st.sampled_from([1, 2, 16]))
    def begin(self, root: Node, seed: int, limit: int) -> None:
        self.loop = SeededLoop(seed)
        self.loop.set_task_factory(owned_task)
        self.folder = TemporaryDirectory()
        ledger: Ledger = MemoryLedger()
        if self.sqlite:
            ledger = SqliteLedger(Path(self.folder.name) / "ledger", durability="process")
        clock = VirtualClock()
        self.world = World(root, SharedStore(ledger, clock), clock, limit)
        self.do(ledger.open())
        self.process = Process(self.world)
        self.act(self.process.run("Begin."))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def act(self, work: Work, rounds: int = 0) -> None:
        """Let the process begin something, and everybody go on for some rounds of the loop; then look."""

        async def acted() -> None:
            self.process.start(work)
            await self.rounds(rounds)

        self.do(acted())
        self.check()

    async def rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    def check(self) -> None:
        faults = [*self.world.faults, *self.do(self.broken())]
        faults += [f"a tool ran {times} times for one call" for times in self.world.effects.values() if times > 1]
        assert not faults, "\n".join(faults)

    async def broken(self) -> list[str]:
        """What the ledger says that must not be."""
        faults: list[str] = []
        async with self.world.store.still() as ledger:
            for root in await ledger.runs(roots_only=True):
                faults += await audit(ledger, root.run_id)
                for row in await ledger.tree(root.run_id):
                    journal = await ledger.journal(row.key)
                    assert journal is not None
                    faults += faults_of(project(journal.own, journal.inherited).history)
        return faults

    def revived(self) -> None:
        """If the process has died meanwhile, another one goes on with what it left."""
        if not self.process.mortal.alive:
            self.do(self.restarted())

    async def restarted(self) -> None:
        await self.process.die()
        self.process = Process(self.world)
        for row in await self.unfinished():
            self.process.start(self.process.resume(row))

    async def unfinished(self) -> list[RunRow]:
        """The runs that lead a branch: roots, then tasks."""
        ledger = self.world.store.ledger
        rows = await ledger.runs(states=[RunState.RUNNING, RunState.WAITING], roots_only=True)
        leads = [await ledger.run(task.child_run) for task in await ledger.tasks(unfinished=True)]
        return [*reversed(rows), *(lead for lead in leads if lead is not None and not lead.state.terminal)]

    async def opened(self) -> list[RequestRow]:
        return await self.world.store.ledger.requests(state=RequestState.OPEN)

    @rule(rounds=st.integers(1, 60))
    def go_on(self, rounds: int) -> None:
        self.revived()
        self.do(self.rounds(rounds))
        self.check()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.revived()
        self.do(self.world.clock.advance(seconds))
        self.check()

    @rule(which=st.integers(0, 9), allow=st.booleans(), rounds=st.integers(0, 9))
    def answer(self, which: int, allow: bool, rounds: int) -> None:
        self.revived()
        requests = self.do(self.opened())
        if requests:
            request = requests[which % len(requests)]
            self.act(self.process.answer(request, allow=allow), rounds)

    @rule(which=st.integers(0, 9), rounds=st.integers(0, 9))
    def cancel(self, which: int, rounds: int) -> None:
        self.revived()
        runs = self.do(self.world.store.ledger.runs())
        if runs:
            self.act(self.process.cancel(runs[which % len(runs)]), rounds)

    @rule(which=st.integers(0, 9), rounds=st.integers(0, 9))
    def send(self, which: int, rounds: int) -> None:
        self.revived()
        runs = self.do(self.unfinished())
        if runs:
            self.act(self.process.send(runs[which % len(runs)]), rounds)

    @rule()
    def crash(self) -> None:
        self.do(self.restarted())
        self.check()

    @rule(commits=st.integers(1, 6), when=st.sampled_from(["before", "after"]), rounds=st.integers(0, 60))
    def crash_at_a_commit(self, commits: int, when: Literal["before", "after"], rounds: int) -> None:
        self.revived()
        self.process.mortal.kill_at(commits, when)
        self.do(self.rounds(rounds))
        self.check()

    @rule(rounds=st.integers(0, 20))
    def take_over(self, rounds: int) -> None:
        """Another process takes everything from one that lives, and that goes on as far as it can."""
        self.revived()
        self.process.replaced = True
        self.process = Process(self.world)
        for row in self.do(self.unfinished()):
            self.act(self.process.resume(row, take_over=True), rounds)

    @rule(rounds=st.integers(0, 20))
    def second_message(self, rounds: int) -> None:
        self.revived()
        self.act(self.process.run("More."), rounds)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.revived()
            self.do(self.finished())
            self.check()
        finally:
            self.do(self.closed())
            self.loop.close()
            self.folder.cleanup()

    async def finished(self) -> None:
        """Drive everything to its end, answering what is asked."""
        for turn in range(200):
            await self.world.clock.settle()
            if not self.process.mortal.alive:
                await self.restarted()
            elif self.process.working():
                await self.world.clock.advance(0.5)
            elif requests := await self.opened():
                self.process.start(self.process.answer(requests[0], allow=turn % 2 == 0))
            elif rows := await self.unfinished():
                self.process.start(self.process.resume(rows[0], take_over=True))
            else:
                return
        self.world.faults.append(f"it does not come to an end: {self.process.working()}, {await self.unfinished()}")

    async def closed(self) -> None:
        for process in self.world.processes:
            await process.die()
        await self.world.store.ledger.close()


class AgentsOnSqlite(AgentsUnderRandomActions):
    """The same on SQLite, whose threads the seed does not reach."""

    sqlite = True


def limits(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples * EXPLORE,
        stateful_step_count=steps,
        deadline=None,
        derandomize=EXPLORE == 1,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        phases=[Phase.explicit, Phase.generate] + ([Phase.shrink] if SHRINK else []),
    )


AgentsUnderRandomActions.TestCase.settings = limits(100, 12)
AgentsOnSqlite.TestCase.settings = limits(20, 10)


class TestAgentsInMemory(AgentsUnderRandomActions.TestCase):
    pass


class TestAgentsOnSqlite(AgentsOnSqlite.TestCase):
    pass


@pytest.mark.contract("D-07")
@pytest.mark.parametrize(("seed", "rounds"), [(17_403, 22), (17_406, 28)])
def test_a_child_that_is_about_to_be_found_again_is_stopped(seed: int, rounds: int) -> None:
    """A story that was found at random: a child is cancelled while the run above it is resumed, and has not come to it yet."""
    child = Node("c001", (("fail",), ("look", "post")), "empty")
    story = AgentsUnderRandomActions()
    try:
        story.begin(limit=16, root=Node("root", (("look", "c001"),), "text", (child,)), seed=seed)
        story.go_on(rounds=rounds)
        story.crash()
        story.cancel(rounds=8, which=0)
    finally:
        story.teardown()
