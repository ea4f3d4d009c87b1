"""The normal loop keeps nothing that its journal does not say (M4): with the projection rebuilt from the stored rows before
every step, every scenario gives the same journals as without."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    Limits,
    Middleware,
    PermissionRequest,
    PermissionRules,
    RunStartedEvent,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolHarness,
    tool,
)
from retinue.agent.middleware import Fork, Reasoning, ToolInvocation
from retinue.agent.ports import CallOutcome, RunEnd
from retinue.agent.projection import Projection, project
from retinue.agent.run import Run
from retinue.events import Event
from retinue.models.port import ModelRequest
from retinue.ops import Record
from retinue.testing import RecordingModel, VirtualClock, calls, results_of
from retinue.testing.audit import audit
from retinue.testing.transcripts import assert_same_journal

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
ASK = PermissionRules(allow=["c1", "c2", "c3", "look", "slow"], ask=["write"])
PLACE: dict[str, Any] = {"path": (), "invocations": (), "key": None, "run_id": "", "seq": 0, "at": 0}


class Tools(ToolHarness):
    """A look, an effect, a slow one, one that fails, one that hangs."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.here = asyncio.Event()

    @tool(read_only=True)
    async def look(self) -> str:
        """Look."""
        return "seen"

    @tool
    async def write(self, text: str) -> str:
        """Write."""
        return f"wrote {text}"

    @tool
    async def slow(self, seconds: float = 3) -> str:
        """Take time."""
        await self.clock.sleep(seconds)
        return f"slow for {seconds:g}"

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise ValueError("no")

    @tool
    async def hang(self) -> str:
        """Never end."""
        self.here.set()
        await asyncio.Event().wait()
        return "never"


class Bench:
    """An agent on a clock of its own, and what a scenario does with it."""

    def __init__(self, turns: Any, *, permissions: PermissionRules = ALL, limits: Limits | None = None, **options: Any) -> None:
        self.clock = VirtualClock(auto=True)
        self.tools = Tools(self.clock)
        self.runtime = Runtime(clock=self.clock, limits=limits)
        self.agent = Agent(
            "root",
            model=RecordingModel(turns),
            tool_harnesses=[self.tools],
            subagents=[self.child("c1", self.child("c2", self.child("c3"))), SubAgent("helper", "Helps.", instructions="Help.")],
            runtime=self.runtime,
            permissions=permissions,
            **options,
        )

    def child(self, name: str, below: SubAgent | None = None) -> SubAgent:
        """A child with the same tools, and one more below it."""
        harness = ToolHarness()
        if below is not None:
            harness.add_subagent(below)
        policies: dict[str, Any] = {"c1": "fork", "c2": "fresh", "c3": "isolated"}
        return SubAgent(
            name,
            f"The subagent {name}.",
            instructions=f"You are {name}.",
            surface="tool",
            context_policy=policies[name],
            tool_harnesses=[harness, self.tools],
            availability=SubAgentAvailability.ANY_ALLOWED_DEPTH,
            timeout_seconds=60 if name == "c3" else 10_000,
        )

    async def run(self, text: str = "go") -> None:
        """Run to the end, whatever it is."""
        await self.agent.run(text, context=HERE, check=False)

    async def answering(self, *, allow: bool = True) -> None:
        """Run, wait on disk, be answered, until it ends."""
        result = await self.agent.run("go", context=HERE, check=False)
        while result.requests:
            answered = await self.agent.answer(result.requests[0], allow=allow, note="as you like")
            assert answered is not None
            result = answered

    async def journals(self) -> list[Record]:
        """Every record of every thread, tree by tree."""
        found: list[Record] = []
        for root in reversed(await self.runtime.ledger.runs(roots_only=True)):
            assert await audit(self.runtime.ledger, root.run_id) == []
            for row in await self.runtime.ledger.tree(root.run_id):
                stored = await self.runtime.ledger.journal(row.key)
                assert stored is not None
                found += [record for record in stored.own if record.run in (row.run_id, "")]
        return found


def chain(last: Any) -> dict[str, list[Any]]:
    """Root to c3; the last one does this, and then all say so."""
    return {
        "root": [calls(("c1", {"input": "a"}), ("look", {})), "root: {result.c1}"],
        "c1": [calls(("look", {})), calls(("c2", {"input": "b"})), "c1: {result.c2}"],
        "c2": [calls(("write", {"text": "two"}), ("c3", {"input": "c"})), "c2: {result.c3}"],
        "c3": [last, "c3 is done"],
    }


class Noting(Middleware):
    """Keeps in the thread's state which tools were called; what a fork began with stands in its tail."""

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        """Note it."""
        call.state("thread").set(call.call.name, True)
        return await next(call)


class Keeping(Middleware):
    """Keeps state, and gives forks the last message only."""

    async def before_reasoning(self, state: Reasoning) -> None:
        """Count by thread and session."""
        for scope in ("thread", "session"):
            handle = state.state(scope)  # type: ignore[arg-type]
            handle.set("n", handle.get("n", 0) + 1)
        state.tail.append(f"{state.state('thread').get('n')}")

    async def before_fork_commit(self, fork: Fork) -> None:
        """Shorten."""
        fork.history = fork.history[:1]


async def _plain(bench: Bench) -> None:
    await bench.run()
    await bench.run("again")


async def _cancelled(bench: Bench) -> None:
    run = asyncio.create_task(bench.run())
    await bench.tools.here.wait()
    await bench.agent.cancel(reason="enough")
    await run
    await bench.run("and now?")


async def _cancelled_below(bench: Bench) -> None:
    run = asyncio.create_task(bench.run())
    await bench.tools.here.wait()
    root = (await bench.runtime.ledger.runs(roots_only=True))[0]
    rows = {row.agent_id: row.run_id for row in await bench.runtime.ledger.tree(root.run_id)}
    await bench.agent.cancel(rows["c2"], reason="enough")
    await run


async def _streamed(bench: Bench) -> None:
    async with aclosing(bench.agent.stream("go", context=HERE)) as events:
        async for event in events:
            if isinstance(event, PermissionRequest):
                await bench.agent.answer(event, allow=True, remember="session")


async def _left(bench: Bench) -> None:
    async with aclosing(bench.agent.stream("go", context=HERE)) as events:
        async for event in events:
            if isinstance(event, RunStartedEvent) and len(event.path) == 3:
                break


async def _answered_late(bench: Bench) -> None:
    """The child is allowed when its sibling has begun."""
    run = asyncio.create_task(bench.run())
    while not (requests := await bench.agent.requests("s")):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await bench.clock.sleep(1)
    await bench.agent.answer(requests[0], allow=True)
    await run


async def _denied(bench: Bench) -> None:
    await bench.answering(allow=False)


async def _yes(_request: PermissionRequest) -> bool:
    return True


def _sends(request: ModelRequest) -> Any:
    if request.agent_id != "root":
        return f"{request.agent_id} at {request.step} with {len(request.history)}"
    if request.step == 1:
        return calls(*[("agent_spawn", {"agent_id": "helper", "task": f"t{n}", "label": f"l{n}"}) for n in range(2)])
    if request.step == 2:
        return calls(("agent_send", {"label": "l1", "message": "more"}), ("agent_list", {}))
    return "/".join(results_of(request)[-2:])


def _looks(_request: ModelRequest) -> Any:
    return calls(("look", {}))


BOTH = calls(("write", {"text": "x"}), ("slow", {}), ("look", {}), ("slow", {"seconds": 1}), ("write", {"text": "y"}))
SCENARIOS: dict[str, tuple[Callable[[], Bench], Callable[[Bench], Awaitable[None]]]] = {
    "turn": (lambda: Bench({"root": ["one"]}), _plain),
    "tools": (lambda: Bench({"root": [calls(("look", {})), calls(("write", {"text": "x"})), "done"]}), _plain),
    "parallel": (lambda: Bench({"root": [BOTH, "done: {results}"]}), _plain),
    "faults": (lambda: Bench({"root": [calls(("fail", {}), ("nothing", {}), ("write", {"wrong": 1})), "done"]}), _plain),
    "nested": (lambda: Bench(chain(BOTH)), _plain),
    "one slot": (lambda: Bench(chain(BOTH), limits=Limits(max_children=1)), _plain),
    "same again": (
        lambda: Bench({"root": [calls(*[("c1", {"input": str(n)}) for n in range(3)]), "done"], "c1": [BOTH, "c1 is done"]}),
        _plain,
    ),
    "roster": (lambda: Bench(_sends), _plain),
    "allowed": (lambda: Bench(chain(calls(("write", {"text": "x"}), ("look", {}))), permissions=ASK, on_request=_yes), _plain),
    "waiting": (lambda: Bench(chain(calls(("write", {"text": "x"}), ("look", {}))), permissions=ASK), Bench.answering),
    "denied": (lambda: Bench(chain(calls(("write", {"text": "x"}), ("look", {}))), permissions=ASK), _denied),
    "streamed": (lambda: Bench(chain(calls(("write", {"text": "x"}), ("look", {}))), permissions=ASK), _streamed),
    "turns used up": (lambda: Bench(_looks, max_iters=3), _plain),
    "cut": (lambda: Bench({"root": [{"text": "half an", "finish_reason": "length"}]}), _plain),
    "children used up": (lambda: Bench(chain(BOTH), limits=Limits(max_tree_children=2)), _plain),
    "model error": (
        lambda: Bench(chain({"text": "so far", "error": {"code": "bad_request", "message": "no", "retryable": False}})),
        _plain,
    ),
    "empty": (lambda: Bench(chain({"text": ""})), _plain),
    "timeout": (lambda: Bench(chain(calls(("slow", {"seconds": 100})))), _plain),
    "cancelled": (lambda: Bench(chain(calls(("hang", {}), ("look", {})))), _cancelled),
    "cancelled below": (lambda: Bench(chain(calls(("hang", {}), ("look", {})))), _cancelled_below),
    "left": (lambda: Bench(chain(calls(("hang", {}), ("look", {})))), _left),
    "late fork": (
        lambda: Bench(
            {"root": [calls(("look", {})), calls(("slow", {}), ("c1", {"input": "a"})), "done"], "c1": ["c1 is done"]},
            permissions=PermissionRules(allow=["look", "slow"], ask=["c1"]),
            middleware=[Noting()],
        ),
        _answered_late,
    ),
    "middleware": (lambda: Bench(chain(BOTH), middleware=[Keeping()]), _plain),
}

_step = Run._step


def _rebuilt(seen: list[str]) -> Callable[[Run], Awaitable[RunEnd | None]]:
    """`Run._step` with the projection rebuilt from what is stored."""

    async def step(run: Run) -> RunEnd | None:
        await run.journal.flush()
        stored = await run.tree.services.ledger.journal(run.row.key)
        assert stored is not None
        projection = project(stored.own, stored.inherited)
        assert plain(projection) == plain(run.projection)
        run.journal.projection = projection
        seen.append(run.row.agent_id)
        return await _step(run)

    return step


def plain(value: Any) -> Any:
    """A projection as plain data, without what only says where an event stands."""
    if isinstance(value, Event):
        return msgspec.to_builtins(msgspec.structs.replace(value, **PLACE))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Projection) or type(value).__name__ == "OpenCalls":
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    return plain(value.message) if type(value).__name__ == "Entry" else value


async def live(name: str) -> list[Record]:
    """Live a scenario; what the journals say then."""
    make, what = SCENARIOS[name]
    bench = make()
    await asyncio.wait_for(what(bench), 30)
    found = await bench.journals()
    await bench.runtime.close()
    return found


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_loop_replayed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = asyncio.run(live(name))
    seen: list[str] = []
    monkeypatch.setattr(Run, "_step", _rebuilt(seen))
    found = asyncio.run(live(name))
    assert len(seen) >= 2
    assert_same_journal(found, expected)
