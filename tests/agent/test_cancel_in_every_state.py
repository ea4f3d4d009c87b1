"""Stop means stop: a tree is stopped in every state it can be in, at every depth, in every way, and nothing happens after."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRequest,
    PermissionRules,
    RunCancelled,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolCallResultEvent,
    ToolHarness,
    tool,
)
from retinue.events import RunFinishedEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ops import Append, NewEvent, Op, RequestCancel
from retinue.states import RunState
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.audit import audit, told
from retinue.testing.transcripts import assert_valid_transcript

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
GRACE = 5.0
STATES = (
    "queued",
    "model",
    "async_tool",
    "swallowing_tool",
    "thread_in_grace",
    "thread_stuck",
    "on_request",
    "patient",
    "between",
)
STUCK = ("swallowing_tool", "thread_stuck")


class WatchedLedger(MemoryLedger):
    """Keeps what was committed, commit by commit."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Sequence[Op]] = []

    def _commit(self, ops: Sequence[Op]) -> Any:
        receipt = super()._commit(ops)
        self.commits.append(tuple(ops))
        return receipt

    def place(self, fits: Callable[[Op], bool]) -> int:
        """The number of the first commit that has an op like this."""
        return next(number for number, ops in enumerate(self.commits) if any(fits(op) for op in ops))


class Tools(ToolHarness):
    """Tools that are slow in every way."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.arrived = asyncio.Event()
        self.leave = threading.Event()
        self.loop = asyncio.get_running_loop()

    @tool
    async def async_tool(self) -> str:
        """Wait for ever."""
        self._here("async_tool")
        await asyncio.Event().wait()
        return "never"

    @tool
    async def swallowing_tool(self) -> str:
        """Wait for ever, and take no notice of being cancelled."""
        self._here("swallowing_tool")
        while not self.leave.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    @tool
    def thread_tool(self) -> str:
        """Wait in a thread."""
        self.loop.call_soon_threadsafe(self._here, "thread_tool")
        self.leave.wait(20)
        return "the thread came back"

    @tool
    async def quick(self) -> str:
        """Be done at once."""
        self._here("quick")
        return "quick"

    def _here(self, name: str) -> None:
        self.started.append(name)
        self.arrived.set()


class Scene:
    """A chain of agents `depth` deep, whose last one gets into a state."""

    def __init__(self, provider: StrictProvider, state: str, depth: int, *, beside: bool) -> None:
        self.provider = provider
        self.state = state
        self.depth = depth
        self.beside = beside
        self.clock = VirtualClock()
        self.ledger = WatchedLedger()
        self.tools = Tools()
        self.names = ["root", "c1", "c2"][: depth + 1]
        self.requests: list[PermissionRequest] = []
        limits = Limits(stop_grace=GRACE, max_children=1)
        self.runtime = Runtime(ledger=self.ledger, clock=self.clock, limits=limits)
        self.agent = self._agent()

    def _agent(self) -> Agent:
        below: ToolHarness = self.tools
        for name in reversed(self.names[1:]):
            harness = ToolHarness()
            harness.add_subagent(_child(name, below))
            below = harness
        harnesses: list[ToolHarness] = [below]
        if self.state == "queued" or self.beside:
            blocker = ToolHarness()
            blocker.add_subagent(_child("blocker"))
            harnesses.append(blocker)
        ask = ["async_tool"] if self.state in ("on_request", "patient", "waiting") else []
        return Agent(
            "root",
            model=self.provider.model(),
            tool_harnesses=harnesses,
            runtime=self.runtime,
            permissions=PermissionRules(allow=[name for name in ALL if name not in ask], ask=ask),
            on_request=self._hang if self.state == "on_request" else None,
        )

    async def _hang(self, request: PermissionRequest) -> bool:
        self.requests.append(request)
        self.tools.arrived.set()
        await asyncio.Event().wait()
        return True

    async def arrive(self) -> None:
        """Return when the last agent is in its state."""
        if self.state == "queued":
            await _until(lambda: any(tree.slots.queued for tree in self.runtime._trees.values()))
            await _until(lambda: bool(self.provider.asked("blocker")))
        elif self.state == "model":
            await _until(lambda: bool(self.provider.asked(self.names[-1])))
        else:
            await self.tools.arrived.wait()

    async def settle(self) -> None:
        """Bring the stop to its end, as far as time has to pass for it; what is in the way goes out of it."""
        if self.state == "thread_in_grace":
            await self.clock.advance(GRACE / 2)
            self.tools.leave.set()
        elif self.state in STUCK:
            await self.clock.advance(GRACE)


async def _until(holds: Callable[[], bool]) -> None:
    """Return when this holds."""
    for _ in range(100_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


def _child(name: str, harness: ToolHarness | None = None) -> SubAgent:
    return SubAgent(
        name,
        f"The subagent {name}.",
        instructions=f"You are {name}.",
        surface="tool",
        tool_harnesses=[harness] if harness else [],
        availability=SubAgentAvailability.ANY_ALLOWED_DEPTH,
    )


ALL = ("c1", "c2", "blocker", "async_tool", "swallowing_tool", "thread_tool", "quick")


def script(state: str, depth: int, *, beside: bool) -> dict[str, list[Any]]:
    """What the agents of a chain say until the last one is in the state."""
    tool_of = {"thread_in_grace": "thread_tool", "thread_stuck": "thread_tool", "between": "quick"}
    last = tool_of.get(state, "async_tool" if state in ("on_request", "patient", "waiting") else state)
    names = ["root", "c1", "c2"][: depth + 1]
    turns: dict[str, list[Any]] = {"blocker": ["blocked"]}
    for above, name in pairwise(names):
        asked = [{"name": name, "arguments": {"input": "go on"}}]
        if state == "queued" and above == "root":
            blocker = {"name": "blocker", "arguments": {"input": "block"}}
            asked = [blocker, *asked] if depth == 1 else [*asked, blocker]
        if beside:
            asked.append({"name": "blocker", "arguments": {"input": "nothing"}})
        turns[above] = [{"text": f"{above} begins", "calls": asked}]
    turns[names[-1]] = [] if state in ("queued", "model") else [{"text": "last begins", "calls": [{"name": last}]}]
    return {name: [*said, f"{name} is done"] for name, said in turns.items()}


async def _run(scene: Scene) -> str:
    with pytest.raises(RunCancelled) as raised:
        await scene.agent.run("go", context=HERE)
    return raised.value.result.status


async def _stream(scene: Scene, leave: asyncio.Event) -> str:
    """Follow a stream until it is to be left, or to its end."""
    status = "left"
    async with aclosing(scene.agent.stream("go", context=HERE, patient=scene.state == "patient")) as events:
        following = asyncio.create_task(_follow(scene, events))
        leaving = asyncio.create_task(leave.wait())
        await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            status = following.result()
        following.cancel()
        leaving.cancel()
        await asyncio.gather(following, leaving, return_exceptions=True)
    assert (await scene.ledger.runs(roots_only=True))[0].state.terminal  # when the stream is closed the run has ended
    return status


async def _follow(scene: Scene, events: Any) -> str:
    last = "none"
    async for event in events:
        if isinstance(event, PermissionRequest):
            scene.requests.append(event)
            scene.tools.arrived.set()
        if isinstance(event, RunFinishedEvent) and event.result is not None:
            last = event.status
    return last


@pytest.mark.parametrize("way", ["cancel", "task", "stream"])
@pytest.mark.parametrize(("depth", "beside"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.contract("D-07", "D-28")
@pytest.mark.case("B012", "B024", "B026", "B029", "B038")
async def test_cancel_in_every_state(state: str, depth: int, beside: bool, way: str) -> None:
    if (state == "queued" and (not depth or beside)) or (state == "patient" and way == "task"):
        pytest.skip("the root needs no slot; a stream is not awaited")
    async with StrictProvider(script(state, depth, beside=beside)) as provider:
        gates = [provider.hold(agent="blocker")] if state == "queued" else []
        if state == "model":
            gates.append(provider.hold(agent=["root", "c1", "c2"][depth]))
        scene = Scene(provider, state, depth, beside=beside)
        leave = asyncio.Event()
        streamed = way == "stream" or state == "patient"
        run = asyncio.create_task(_stream(scene, leave) if streamed else _run(scene))
        await scene.arrive()
        begun = scene.clock.monotonic()
        if way == "cancel":
            await scene.agent.cancel()
        elif way == "task":
            run.cancel()
        else:
            leave.set()
        await asyncio.sleep(0)
        await scene.settle()
        await asyncio.wait((run,), timeout=10)
        assert run.done()
        assert scene.clock.monotonic() - begun <= GRACE
        if way == "task":
            assert run.cancelled()
        else:
            assert run.result() == ("left" if way == "stream" else "cancelled")
        await _nothing_follows(scene, gates)
        await _is_cancelled_everywhere(scene, way)
        await _goes_on(scene)
        await scene.runtime.close()


async def _nothing_follows(scene: Scene, gates: list[Any]) -> None:
    """Whatever comes back now, and however long one waits: no model is asked and no tool starts."""
    asked, started = len(scene.provider.requests), list(scene.tools.started)
    for gate in gates:
        gate.release()
    scene.tools.leave.set()
    await scene.clock.advance(600)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(scene.provider.requests) == asked
    assert scene.tools.started == started


async def _is_cancelled_everywhere(scene: Scene, way: str) -> None:
    root = (await scene.ledger.runs(roots_only=True))[0]
    assert root.state is RunState.CANCELLED
    assert await audit(scene.ledger, root.run_id) == []
    runs = await told(scene.ledger, root.run_id)
    assert {one.row.agent_id for one in runs} >= set(scene.names)
    assert {one.row.state for one in runs if not scene.beside or one.row.agent_id != "blocker"} == {RunState.CANCELLED}
    for one in runs:
        if one.row.state is RunState.COMPLETED:
            continue
        ended = one.of(RunFinishedEvent)[0]
        assert ended.status == "cancelled"
        if scene.state in STUCK:
            tool_name = "thread_tool" if scene.state == "thread_stuck" else scene.state
            assert ended.message == f"still stopping: `{tool_name}`" or one.row.agent_id not in (scene.names[0], scene.names[-1])
        results = one.of(ToolCallResultEvent)
        children = [result for result in results if "subAgentStatus" in result.metadata and result.name != "blocker"]
        assert [result.metadata["subAgentStatus"] for result in children] == ["cancelled"] * len(children)
    intent = scene.ledger.place(lambda op: isinstance(op, RequestCancel))
    end = scene.ledger.place(lambda op: isinstance(op, Append) and any(_is_stopped(event) for event in op.events))
    assert intent < end if way == "cancel" else intent <= end
    assert await scene.ledger.requests(root_run=root.run_id) == [] or scene.requests


def _is_stopped(event: NewEvent) -> bool:
    return event.type == "RUN_FINISHED" and b'"cancelled"' in event.body


async def _goes_on(scene: Scene) -> None:
    """The conversation is one that a strict provider takes."""
    scene.state = "done"
    agent = Agent("root", model=scene.provider.model(), runtime=scene.runtime)
    provider = scene.provider
    provider.script = type(provider.script)(fallback=type(provider.script).turn(provider.script, "blocker", 1))
    result = await agent.run("and now?", context=HERE)
    assert (result.status, result.text) == ("completed", "blocked")
    assert provider.refused == []
    assert result.thread is not None
    assert_valid_transcript(await result.thread.messages())
    decoded = [decode(record) for record in (await scene.ledger.journal(result.thread.key)).own]  # type: ignore[union-attr]
    assert decoded
