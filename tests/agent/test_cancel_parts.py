"""Stopping parts of a tree, stopping twice, stopping what waits on disk, and stopping under other people's scopes and loops."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    RunCancelled,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    ToolCallResultEvent,
    ToolHarness,
    tool,
)
from retinue.events import MessageEvent, RunFinishedEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.messages import AssistantMessage
from retinue.models.port import ModelRequest
from retinue.ops import RequestCancel
from retinue.rows import RunRow
from retinue.states import RequestState, RunState
from retinue.testing import RecordingModel, StrictProvider, VirtualClock, calls
from retinue.testing.audit import audit, spent, told
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
GRACE = 5.0
ALL = PermissionRules(allow=["*"])


class Slow(ToolHarness):
    """Tools that wait."""

    def __init__(self) -> None:
        self.begun = 0
        self.arrived = asyncio.Event()
        self.leave = threading.Event()
        self.loop = asyncio.get_running_loop()

    @tool
    async def wait(self) -> str:
        """Wait for ever."""
        self._here()
        await asyncio.Event().wait()
        return "never"

    @tool
    def block(self) -> str:
        """Wait in a thread."""
        self.loop.call_soon_threadsafe(self._here)
        self.leave.wait(20)
        return "back"

    def _here(self) -> None:
        self.begun += 1
        self.arrived.set()


def child(name: str, *harnesses: ToolHarness, below: SubAgent | None = None) -> SubAgent:
    """A child on the tool surface, with a child of its own perhaps."""
    if below is not None:
        harness = ToolHarness()
        harness.add_subagent(below)
        harnesses = (*harnesses, harness)
    return SubAgent(
        name,
        f"The subagent {name}.",
        instructions=f"You are {name}.",
        surface="tool",
        tool_harnesses=harnesses,
        availability=SubAgentAvailability.ANY_ALLOWED_DEPTH,
    )


async def root_of(ledger: Any) -> RunRow:
    """The one root run."""
    return (await ledger.runs(roots_only=True))[0]


async def states(ledger: Any) -> dict[str, str]:
    """Each agent's state."""
    root = await root_of(ledger)
    assert await audit(ledger, root.run_id) == []
    return {row.agent_id: row.state.value for row in await ledger.tree(root.run_id)}


def chain_script(last: str) -> dict[str, list[Any]]:
    """Root, c1, c2: each calls the next, the last one a tool."""
    return {
        "root": [calls(("c1", {"input": "a"})), "root is done"],
        "c1": [calls(("c2", {"input": "b"})), "c1 is done"],
        "c2": [calls((last, {})), "c2 is done"],
    }


@pytest.mark.parametrize("target", ["root", "c1", "c2"])
@pytest.mark.contract("D-07", "D-10", "D-28")
async def test_a_run_that_waits_on_disk_is_cancelled_where_it_is(target: str) -> None:
    slow, ledger = Slow(), MemoryLedger()
    model = RecordingModel(chain_script("wait"))
    rules = PermissionRules(allow=["c1", "c2"], ask=["wait"])
    runtime = Runtime(ledger=ledger, clock=VirtualClock(auto=True))
    children = [child("c1", below=child("c2", slow))]
    agent = Agent("root", model=model, subagents=children, runtime=runtime, permissions=rules)
    waiting = await agent.run("go", context=HERE)
    assert (waiting.status, len(waiting.requests)) == ("waiting", 1)
    root = await root_of(ledger)
    run = {row.agent_id: row.run_id for row in await ledger.tree(root.run_id)}[target]
    asked = len(model.requests)
    await agent.cancel(run, reason="enough")
    expected = {
        "root": ["cancelled"] * 3,
        "c1": ["completed", "cancelled", "cancelled"],
        "c2": ["completed", "completed", "cancelled"],
    }
    assert await states(ledger) == dict(zip(["root", "c1", "c2"], expected[target], strict=True))
    assert len(model.requests) == asked + expected[target].count("completed")  # those above go on, and nobody else
    request = (await ledger.requests(root_run=root.run_id))[0]
    assert request.state is RequestState.CANCELLED
    assert slow.begun == 0
    await agent.cancel(root.run_id)  # nothing is left to stop
    await runtime.close()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.case("B012")
async def test_a_second_cancellation_ends_the_caller_at_once(dies: bool) -> None:
    clock, slow = VirtualClock(), Slow()
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    process = store.process()
    script = chain_script("block")
    script["root"] = [calls(("c1", {"input": "a"}), ("other", {"input": "b"}))]
    script["other"] = [calls(("wait", {}))]
    model = RecordingModel(script)
    children = [child("c1", below=child("c2", slow)), child("other", slow)]
    runtime = Runtime(ledger=process.ledger, clock=clock, limits=Limits(stop_grace=GRACE))
    agent = Agent("root", model=model, subagents=children, runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go", context=HERE))
    await _until(lambda: slow.begun == 2)
    run.cancel()
    await clock.advance(1)
    assert not run.done()
    run.cancel()
    await asyncio.wait((run,))
    assert run.cancelled()
    assert clock.monotonic() == 1
    root = await root_of(store.ledger)
    assert root.state is RunState.RUNNING
    assert await store.ledger.cancel_intent(root.lineage) == "interrupted"
    asked = len(model.requests)
    if dies:
        process.kill()
        await clock.advance(GRACE)
        other = Runtime(ledger=store.process().ledger, clock=clock)
        again = Agent("root", model=model, subagents=children, runtime=other, permissions=ALL)
        assert (await again.resume(root.run_id, check=False)).status == "cancelled"
        await other.close()
    else:
        await clock.advance(GRACE - 1)
    assert set((await states(store.ledger)).values()) == {"cancelled"}
    assert len(model.requests) == asked
    slow.leave.set()
    if not dies:
        await runtime.close()


@pytest.mark.parametrize("state", ["wait", "block", "model", "asks", "suspended"])
@pytest.mark.parametrize("target", ["c1", "c2"])
@pytest.mark.contract("D-07")
@pytest.mark.case("B028", "B029")
async def test_one_childs_subtree_is_stopped_and_the_parent_goes_on(state: str, target: str) -> None:
    clock, slow, ledger = VirtualClock(), Slow(), MemoryLedger()
    asks = state in ("asks", "suspended")
    script = chain_script("wait" if asks else state)
    script["root"] = [calls(("c1", {"input": "a"}), ("other", {"input": "b"})), "root is done"]
    script["other"] = ["other is done"]
    if state == "model":
        script["c2"] = ["c2 is done"]
    rules = PermissionRules(allow=["c1", "c2", "other", "block"], ask=["wait"]) if asks else ALL
    async with StrictProvider(script) as provider:
        gate = provider.hold(agent="other")
        held = provider.hold(agent="c2") if state == "model" else None

        async def on_request(_request: Any) -> bool:
            slow.arrived.set()
            await asyncio.Event().wait()
            return True

        runtime = Runtime(ledger=ledger, clock=clock, limits=Limits(stop_grace=GRACE))
        agent = Agent(
            "root",
            model=provider.model(),
            subagents=[child("c1", below=child("c2", slow)), child("other")],
            runtime=runtime,
            permissions=rules,
            on_request=on_request if state == "asks" else None,
        )
        run = asyncio.create_task(agent.run("go", context=HERE))
        await gate.arrived.wait()
        if state == "suspended":
            await _until_only(agent, "root", "other")
        else:
            await (held.arrived if held is not None else slow.arrived).wait()
        root = await root_of(ledger)
        ids = {row.agent_id: row.run_id for row in await ledger.tree(root.run_id)}
        await agent.cancel(ids[target], reason="enough of that")
        await clock.advance(GRACE)
        assert [(await ledger.run(ids[name])).state for name in ("c2", target)] == [RunState.CANCELLED] * 2  # type: ignore[union-attr]
        gate.release()
        result = await asyncio.wait_for(run, 10)
        assert (result.status, result.text) == ("completed", "root is done")
        c1 = "cancelled" if target == "c1" else "completed"
        assert await states(ledger) == {"root": "completed", "c1": c1, "c2": "cancelled", "other": "completed"}
        assert provider.refused == []
        assert len(provider.asked("c2")) == 1
        assert [row.attempt for row in await ledger.tree(root.run_id)] == [1] * 4
        await _lifecycle_agrees(ledger, root, target)
        slow.leave.set()
        await runtime.close()


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def _until_only(agent: Agent, *names: str) -> None:
    """Return when only these are being driven: the others wait on disk."""
    for _ in range(100_000):
        runs = [run for tree in agent.runtime._trees.values() for run in tree.runs.values()]
        if sorted(run.row.agent_id for run in runs) == sorted(names) and await agent.requests("s"):
            return
        await asyncio.sleep(0)
    raise AssertionError("they did not come to wait")


async def _lifecycle_agrees(ledger: MemoryLedger, root: RunRow, target: str) -> None:
    runs = {one.row.agent_id: one for one in await told(ledger, root.run_id)}
    cancelled = runs["root" if target == "c1" else "c1"].of(SubAgentInvocationCancelledEvent)
    assert [event.reason for event in cancelled] == ["enough of that"]
    completed = [event.child_agent_id for event in runs["root"].of(SubAgentInvocationCompletedEvent)]
    assert sorted(completed) == (["other"] if target == "c1" else ["c1", "other"])


@pytest.mark.parametrize("depth", [0, 1])
async def test_a_sync_tool_that_waits_for_a_thread_does_not_begin_after_the_stop(depth: int) -> None:
    clock, slow, ledger = VirtualClock(), Slow(), MemoryLedger()
    both = calls(("block", {}), ("block", {}))
    script = {"root": [both if depth == 0 else calls(("c1", {"input": "a"}))], "c1": [both]}
    runtime = Runtime(ledger=ledger, clock=clock, limits=Limits(stop_grace=GRACE, tool_threads=1))
    agent = Agent(
        "root",
        model=RecordingModel(script),
        tool_harnesses=[slow],
        subagents=[child("c1", slow)],
        runtime=runtime,
        permissions=ALL,
    )
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await slow.arrived.wait()
    await agent.cancel()
    slow.leave.set()
    assert (await asyncio.wait_for(run, 5)).status == "cancelled"
    one = (await told(ledger, (await root_of(ledger)).run_id))[-1]
    await runtime.close()
    assert slow.begun == 1
    assert sorted(event.status.value for event in one.of(ToolCallResultEvent)) == ["cancelled", "ok"]


async def test_a_cancelled_child_of_a_dead_process_is_not_resumed_and_its_parent_is() -> None:
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    here = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "c1":
            here.set()
            await asyncio.Event().wait()
        return calls(("c1", {"input": "a"})) if request.step == 1 else "root is done"

    model, process = RecordingModel(answer), store.process()
    first = Agent("root", model=model, subagents=[child("c1")], permissions=ALL, runtime=Runtime(ledger=process.ledger))
    run = asyncio.create_task(first.run("go", context=HERE))
    await here.wait()
    root = await root_of(store.ledger)
    c1 = (await store.ledger.tree(root.run_id))[1]
    await store.ledger.commit([RequestCancel(c1.run_id, "enough", "other", 0)])
    process.kill()
    run.cancel()
    await asyncio.wait((run,))
    other = Runtime(ledger=store.process().ledger)
    second = Agent("root", model=model, subagents=[child("c1")], permissions=ALL, runtime=other)
    assert (await second.resume(root.run_id)).text == "root is done"
    assert await states(store.ledger) == {"root": "completed", "c1": "cancelled"}
    assert len(model.asked("c1")) == 1
    await other.close()


@pytest.mark.parametrize("after", range(1, 24))
async def test_a_stream_that_is_left_at_any_event_has_ended_when_it_is_closed(after: int) -> None:
    slow, ledger = Slow(), MemoryLedger()
    runtime = Runtime(ledger=ledger)
    model = RecordingModel(chain_script("wait"))
    agent = Agent("root", model=model, subagents=[child("c1", below=child("c2", slow))], runtime=runtime, permissions=ALL)
    seen = 0
    async with aclosing(agent.stream("go", context=HERE)) as events:
        async for _event in events:
            seen += 1
            if seen == after:
                break
    asked = len(model.requests)
    assert set((await states(ledger)).values()) == {"cancelled"}
    assert runtime._drivers == set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(model.requests) == asked
    await runtime.close()


async def test_a_question_that_is_still_on_its_way_into_the_ledger_is_closed_with_its_run() -> None:
    store, slow = SharedStore(MemoryLedger()), Slow()
    await store.ledger.open()

    async def answer(request: ModelRequest) -> Any:
        await store.busy.acquire()  # from now on commits take as long as it takes
        return calls(("gaze", {}), ("wait", {}))

    class Gazing(ToolHarness):
        @tool(read_only=True)
        async def gaze(self) -> str:
            """Look for ever."""
            slow.arrived.set()
            await asyncio.Event().wait()
            return "never"

    runtime = Runtime(ledger=store.process().ledger)
    rules = PermissionRules(allow=["gaze"], ask=["wait"])
    agent = Agent("root", model=RecordingModel(answer), tool_harnesses=[slow, Gazing()], runtime=runtime, permissions=rules)
    run = asyncio.create_task(agent.run("go", context=HERE))
    await slow.arrived.wait()
    run.cancel()
    for _ in range(50):
        await asyncio.sleep(0)
    store.busy.release()
    await asyncio.wait((run,))
    root = await root_of(store.ledger)
    assert [row.state for row in await store.ledger.requests(root_run=root.run_id)] == [RequestState.CANCELLED]
    assert await states(store.ledger) == {"root": "cancelled"}
    await runtime.close()


async def test_under_an_anyio_scope_that_cancels_again_and_again_the_run_ends_in_good_order() -> None:
    slow, ledger = Slow(), MemoryLedger()
    runtime = Runtime(ledger=ledger)
    agent = Agent(
        "root",
        model=RecordingModel(chain_script("wait")),
        subagents=[child("c1", below=child("c2", slow))],
        runtime=runtime,
        permissions=ALL,
    )

    async def stop_soon(scope: anyio.CancelScope) -> None:
        await slow.arrived.wait()
        scope.cancel()

    scope = anyio.CancelScope()
    stopping = asyncio.create_task(stop_soon(scope))
    with scope:
        await agent.run("go", context=HERE)
    assert scope.cancelled_caught
    await stopping
    await asyncio.wait([driver.task for driver in runtime._drivers if driver.task is not None])
    assert set((await states(ledger)).values()) == {"cancelled"}
    await runtime.close()


async def test_a_timeout_around_a_run_is_a_timeout() -> None:
    slow, ledger = Slow(), MemoryLedger()
    runtime = Runtime(ledger=ledger)
    agent = Agent("root", model=RecordingModel({"root": [calls(("wait", {}))]}), tool_harnesses=[slow], runtime=runtime)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await agent.run("go", context=HERE)
    assert await states(ledger) == {"root": "cancelled"}
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    await runtime.close()


@pytest.mark.case("B038")
async def test_what_had_happened_before_a_late_intent_is_kept() -> None:
    ledger, clock = MemoryLedger(), VirtualClock()
    gate = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.step == 2:
            await gate.wait()
            return {"text": "the whole answer", "usage": {"input": 7, "output": 3}}
        return calls(("look", {}))

    looks: list[str] = []

    class Looking(ToolHarness):
        @tool
        async def look(self) -> str:
            """Look."""
            looks.append("once")
            return "seen"

    runtime = Runtime(ledger=ledger, clock=clock)
    model = RecordingModel(answer)
    agent = Agent("root", model=model, tool_harnesses=[Looking()], runtime=runtime)
    run = asyncio.create_task(agent.run("go", context=HERE))
    await clock.settle()
    root = await root_of(ledger)
    await ledger.commit([RequestCancel(root.run_id, "from elsewhere", "other", 0)])  # another process: nobody is told here
    gate.set()
    with pytest.raises(RunCancelled) as raised:
        await run
    assert raised.value.result.text == "the whole answer"
    assert raised.value.result.reason == "from elsewhere"
    assert await states(ledger) == {"root": "cancelled"}
    assert looks == ["once"]
    usage, _ = await spent(ledger, root.run_id)
    assert (usage.input_tokens, raised.value.result.usage.input_tokens) == (7, 7)
    own = (await ledger.journal(root.key)).own  # type: ignore[union-attr]
    said = [
        event.message.text
        for event in map(decode, own)
        if isinstance(event, MessageEvent) and isinstance(event.message, AssistantMessage)
    ]
    assert said == ["", "the whole answer"]
    await runtime.close()


async def test_a_child_that_may_no_longer_begin_leaves_no_trace() -> None:
    ledger, clock = MemoryLedger(), VirtualClock()
    gate = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            return calls(("look", {}))
        await gate.wait()
        return calls(("c1", {"input": "a"}), ("look", {}))

    class Looking(ToolHarness):
        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

    runtime = Runtime(ledger=ledger, clock=clock)
    model = RecordingModel(answer)
    agent = Agent("root", model=model, tool_harnesses=[Looking()], subagents=[child("c1")], runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await clock.settle()
    root = await root_of(ledger)
    await ledger.commit([RequestCancel(root.run_id, "from elsewhere", "other", 0)])
    gate.set()
    assert (await run).status == "cancelled"
    assert await states(ledger) == {"root": "cancelled"}
    own = (await ledger.journal(root.key)).own  # type: ignore[union-attr]
    assert [event.status for event in map(decode, own) if isinstance(event, RunFinishedEvent)] == ["cancelled"]
    assert await ledger.invocations(root_run=root.run_id) == []
    assert len(await ledger.threads(hidden=True)) == 1
    await runtime.close()


SYNC = """
import os, signal, sys, threading
from retinue import Agent, RuntimeContext
from retinue.testing import ScriptedModel

begun = threading.Event()

def work() -> str:
    "Work."
    begun.set()
    threading.Event().wait(0.5)
    return "worked"

def interrupt() -> None:
    begun.wait(10)
    os.kill(os.getpid(), signal.SIGINT)

agent = Agent("root", model=ScriptedModel([{"calls": [{"name": "work"}]}, "done"]), tools=[work], ledger=sys.argv[1])
threading.Thread(target=interrupt).start()
try:
    agent.run_sync("go", context=RuntimeContext(session_id="s"))
except KeyboardInterrupt:
    print("interrupted")
agent.close_sync()
"""


@pytest.mark.crash
async def test_an_interrupt_stops_a_run_of_run_sync_with_its_end_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "dev", "-W", "error", "-c", SYNC, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]  # what asyncio finds slow
    assert (done.stdout, said) == ("interrupted\n", [])
    async with Runtime(ledger=path) as runtime:
        assert await states(runtime.ledger) == {"root": "cancelled"}
