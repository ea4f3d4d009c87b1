"""Time limits of delegations: at the limit the child is stopped, its parent gets what there is, nothing is taken for one."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from retinue import (
    Agent,
    ConfigurationError,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationFailedEvent,
    ToolCallResultEvent,
    ToolHarness,
    tool,
)
from retinue.events import RunFinishedEvent
from retinue.ledger.memory import MemoryLedger
from retinue.models.port import Delta, ModelAnswer, ModelRequest, TextDelta
from retinue.models.scripted import ScriptedModel
from retinue.states import InvocationState, ResultStatus
from retinue.testing import RecordingModel, VirtualClock, calls, results_of
from retinue.testing.audit import Told, audit, told
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

ALL = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")
GRACE = 5.0


class Slow(ToolHarness):
    """Tools that wait."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self.begun = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    @tool
    async def wait(self) -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    @tool
    def block(self) -> str:
        """Wait in a thread."""
        self.loop.call_soon_threadsafe(self.begun.set)
        self.leave.wait(20)
        return "back"


class Hesitant(RecordingModel):
    """Says a little, and then nothing for a long time, where its script says `hang`."""

    async def answer(self, request: ModelRequest, emit: Any) -> ModelAnswer:
        answer = await super().answer(request, emit)
        if answer.text == "hang":
            await asyncio.Event().wait()
        return answer


class Partial(ScriptedModel):
    """A child's model that streams one word a second."""

    def __init__(self, clock: VirtualClock, words: int = 1_000) -> None:
        super().__init__([])
        self.clock = clock
        self.words = words

    async def answer(self, request: ModelRequest, emit: Any) -> ModelAnswer:
        for number in range(self.words):
            await self.clock.sleep(1)
            delta: Delta = TextDelta(f"w{number} ")
            emit(delta)
        return ModelAnswer(text="".join(f"w{number} " for number in range(self.words)))


def spawning(**arguments: Any) -> RecordingModel:
    """A parent that spawns once and then says what it was told; children take what the model of the test says."""
    return RecordingModel({"root": [calls(("agent_spawn", {"agent_id": "helper", "task": "t", **arguments})), "{result}"]})


def helper(**fields: Any) -> SubAgent:
    """A child that is stopped at its limit, not promoted."""
    stops: dict[str, Any] = {} if fields.get("surface") == "tool" else {"on_timeout": "cancel"}
    return SubAgent("helper", "Helps.", instructions="Help.", **{**stops, **fields})


async def finished(clock: VirtualClock, run: "asyncio.Task[Any]", *, by: float) -> Any:
    """The result, and that it came when this time had passed and no earlier."""
    await clock.advance(by - 1 - clock.monotonic())
    assert not run.done()
    await clock.advance(1)
    return await asyncio.wait_for(run, 5)


async def runs_of(runtime: Runtime, root: str) -> dict[str, Told]:
    """What the journals of a sound tree say, by agent."""
    assert await audit(runtime.ledger, root) == []
    return {one.row.agent_id: one for one in await told(runtime.ledger, root)}


async def was_timeout(runtime: Runtime, root: str, agent_id: str = "helper", parent: str = "root") -> ToolCallResultEvent:
    """Row, lifecycle event, metadata and result of a delegation that reached its limit."""
    runs = await runs_of(runtime, root)
    row = next(row for row in await runtime.ledger.invocations(root_run=root) if row.child_agent_id == agent_id)
    assert (row.ends_as or row.state, row.reason) == (InvocationState.FAILED, "timeout")
    failed = [event for event in runs[parent].of(SubAgentInvocationFailedEvent) if event.child_agent_id == agent_id]
    assert [event.error_type for event in failed] == ["timeout"]
    result = next(
        event for event in runs[parent].of(ToolCallResultEvent) if event.metadata.get("invocationId") == row.invocation_id
    )
    assert result.status is ResultStatus.ERROR
    assert (result.metadata["subAgentStatus"], result.metadata["reason"]) == ("failed", "timeout")
    assert runs[agent_id].row.state.value == "cancelled"
    return result


@pytest.mark.contract("A-26", "A-27", "D-08")
@pytest.mark.case("B023", "B024")
@pytest.mark.parametrize("surface", ["spawn", "send", "tool"])
async def test_at_the_limit_the_child_is_stopped_and_the_parent_has_the_partial_text(surface: str) -> None:
    clock = VirtualClock()
    children = Partial(clock)

    def answer(request: ModelRequest) -> Any:
        if request.step == 1 and surface == "spawn":
            return calls(("agent_spawn", {"agent_id": "helper", "task": "t", "timeout_seconds": 30}))
        if request.step == 1 and surface == "send":
            return calls(("agent_spawn", {"agent_id": "helper", "label": "it"}))
        if request.step == 2 and surface == "send":
            return calls(("agent_send", {"label": "it", "message": "t", "timeout_seconds": 30}))
        return calls(("helper", {"input": "t"})) if request.step == 1 else results_of(request)[-1]

    runtime = Runtime(clock=clock, models={"slow": children})
    child = helper(model="slow", **({"surface": "tool", "timeout_seconds": 30} if surface == "tool" else {}))
    agent = Agent("root", model=RecordingModel(answer), subagents=[child], runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go"))
    result = await finished(clock, run, by=30)
    event = await was_timeout(runtime, result.run_id)
    assert result.status == "completed"
    assert result.text == event.content
    if surface == "tool":
        assert event.content.startswith(
            "The subagent `helper` was stopped: the time limit of 30 s was reached.\nPartial text:\nw0 w1 "
        )
    else:
        assert "\nstatus: timeout\nerror: the time limit of 30 s was reached\npartial_reply:\nw0 w1 " in event.content
    assert "w28" in event.content
    assert "w31" not in event.content
    await runtime.close()


@pytest.mark.parametrize("state", ["model", "wait", "block", "asks", "below"])
@pytest.mark.case("B023", "B024")
async def test_the_limit_holds_whatever_the_child_is_doing(state: str) -> None:
    clock, slow = VirtualClock(), Slow()
    low = SubAgent("low", "Low.", instructions="Low.", surface="tool", availability=SubAgentAvailability.ANY_ALLOWED_DEPTH)
    below = ToolHarness()
    below.add_subagent(low)
    does = {
        "model": "hang",
        "below": calls(("low", {"input": "x"})),
        "asks": calls(("wait", {})),
        "wait": calls(("wait", {})),
        "block": calls(("block", {})),
    }
    script: dict[str, Any] = {
        "root": [calls(("helper", {"input": "t"})), "{result}"],
        "helper": [does[state]],
        "low": ["hang"],
    }
    asked = asyncio.Event()

    async def on_request(_request: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    rules = PermissionRules(allow=["helper"], ask=["wait"]) if state == "asks" else ALL
    model = Hesitant(script)
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=GRACE))
    agent = Agent(
        "root",
        model=model,
        subagents=[helper(surface="tool", timeout_seconds=60, tool_harnesses=[slow, below])],
        runtime=runtime,
        permissions=rules,
        on_request=on_request,
    )
    run = asyncio.create_task(agent.run("go"))
    if state == "block":
        await slow.begun.wait()
    result = await finished(clock, run, by=60 + (GRACE if state == "block" else 0))
    event = await was_timeout(runtime, result.run_id)
    asked_for = len(model.requests)
    assert asked.is_set() is (state == "asks")
    assert ("still stopping: `block`" in event.content) is (state == "block")
    if state == "below":
        runs = await runs_of(runtime, result.run_id)
        cancelled = runs["helper"].of(SubAgentInvocationCancelledEvent)
        assert [one.reason for one in cancelled] == ["the time limit of a run above was reached"]
        assert runs["low"].of(RunFinishedEvent)[0].status == "cancelled"
    slow.leave.set()
    await clock.advance(1_000)
    assert len(model.requests) == asked_for
    await runtime.close()


@pytest.mark.contract("A-26")
@pytest.mark.parametrize("seconds", [0, -1, -0.5])
async def test_no_limit_of_zero_or_less(seconds: float) -> None:
    model = spawning(timeout_seconds=seconds)
    only = helper(invocation_mode_policy="synchronous_only")
    agent = Agent("root", model=model, subagents=[only])
    result = await agent.run("go")
    assert f"`timeout_seconds` was {seconds:g}" in result.text
    assert "1 to 600" in result.text
    assert [row.agent_id for row in await agent.runtime.ledger.tree(result.run_id)] == ["root"]
    with pytest.raises(ConfigurationError, match="timeout_seconds"):
        helper(timeout_seconds=seconds)
    await agent.close()


@pytest.mark.contract("A-26")
async def test_more_than_600_seconds_are_600() -> None:
    clock = VirtualClock()
    runtime = Runtime(clock=clock, models={"slow": Partial(clock, words=5_000)})
    agent = Agent("root", model=spawning(timeout_seconds=3_600), subagents=[helper(model="slow")], runtime=runtime)
    run = asyncio.create_task(agent.run("go"))
    result = await finished(clock, run, by=600)
    assert "the time limit of 600 s was reached" in result.text
    await runtime.close()


@pytest.mark.contract("D-08")
async def test_without_a_limit_a_child_has_all_the_time_it_takes() -> None:
    clock = VirtualClock(auto=True)
    runtime = Runtime(clock=clock, models={"slow": Partial(clock, words=20_000)})
    model = RecordingModel({"root": [calls(("helper", {"input": "t"})), "{result}"]})
    agent = Agent("root", model=model, subagents=[helper(model="slow", surface="tool")], runtime=runtime, permissions=ALL)
    result = await agent.run("go")
    assert "w19999" in result.text
    assert clock.monotonic() >= 20_000
    await runtime.close()


@pytest.mark.contract("D-07")
async def test_a_cancel_that_calls_itself_timeout_is_a_cancel() -> None:
    clock = VirtualClock()
    model = Hesitant({"root": [calls(("helper", {"input": "t"}), ("helper", {"input": "u"})), "done"], "helper": ["hang"]})
    runtime = Runtime(clock=clock)
    agent = Agent("root", model=model, subagents=[helper(surface="tool", timeout_seconds=60)], runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go", check=False))
    await clock.settle()
    await agent.cancel(reason="timeout")
    result = await run
    assert (result.status, result.reason) == ("cancelled", "timeout")
    rows = await runtime.ledger.invocations(root_run=result.run_id)
    assert [row.state for row in rows] == [InvocationState.CANCELLED] * 2
    assert await audit(runtime.ledger, result.run_id) == []
    await runtime.close()


async def test_parallel_children_have_their_own_limits() -> None:
    clock = VirtualClock()
    runtime = Runtime(clock=clock, models={"slow": Partial(clock, words=100)})
    wanted: Sequence[float] = (10, 20, 400)
    model = RecordingModel(
        {
            "root": [
                calls(*(("agent_spawn", {"agent_id": "helper", "task": "t", "timeout_seconds": one}) for one in wanted)),
                "done",
            ]
        }
    )
    agent = Agent("root", model=model, subagents=[helper(model="slow")], runtime=runtime)
    run = asyncio.create_task(agent.run("go"))
    result = await finished(clock, run, by=100)
    states = [row.state for row in await runtime.ledger.invocations(root_run=result.run_id)]
    assert states == [InvocationState.FAILED, InvocationState.FAILED, InvocationState.COMPLETED]
    ended = [event.reason for one in await told(runtime.ledger, result.run_id) for event in one.of(RunFinishedEvent)]
    assert ended.count("limit:timeout_seconds") == 2
    assert await audit(runtime.ledger, result.run_id) == []
    await runtime.close()


@pytest.mark.contract("D-08")
async def test_a_child_that_had_reached_its_limit_is_not_begun_anew_by_a_resume() -> None:
    clock, store, slow = VirtualClock(), SharedStore(MemoryLedger()), Slow()
    await store.ledger.open()
    model = Hesitant({"root": [calls(("helper", {"input": "t"})), "{result}"], "helper": [calls(("block", {})), "never asked"]})

    def agent(ledger: Any) -> Agent:
        runtime = Runtime(ledger=ledger, clock=clock, limits=Limits(stop_grace=GRACE))
        child = helper(surface="tool", timeout_seconds=60, tool_harnesses=[slow])
        return Agent("root", model=model, subagents=[child], runtime=runtime, permissions=ALL)

    process = store.process()
    first = agent(process.ledger)
    run = asyncio.create_task(first.run("go", context=HERE))
    await slow.begun.wait()
    await clock.advance(62)  # it is being stopped, and its thread is in the way
    process.kill()
    run.cancel()
    await clock.advance(GRACE)
    await asyncio.wait((run,))
    slow.leave.set()
    root = (await store.ledger.runs(roots_only=True))[0]
    second = agent(store.process().ledger)
    result = await second.resume(root.run_id)
    assert result.text.startswith("The subagent `helper` was stopped: the time limit of 60 s was reached")
    await was_timeout(second.runtime, root.run_id)
    assert len(model.asked("helper")) == 1
    await second.runtime.close()
