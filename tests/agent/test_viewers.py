"""Viewers of a tree: they see all of it in order, hold nobody up, and are the ones who answer (M15, D-28, H-21)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from retinue import (
    Agent,
    EventsDroppedEvent,
    Limits,
    PermissionRequest,
    PermissionRules,
    RetinueError,
    RunFinishedEvent,
    RunStartedEvent,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationStartedEvent,
    TextDeltaEvent,
    ToolCallResultEvent,
    ToolContext,
    ToolHarness,
    ToolProgressEvent,
    tool,
)
from retinue.agent.viewer import VIEWER_DELTAS, VIEWER_PROGRESS
from retinue.events import Event, MessageEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.models.port import Emit, ModelAnswer, ModelRequest, TextDelta
from retinue.models.scripted import ScriptedModel
from retinue.ops import Op, PutDraft, PutRequest
from retinue.states import RequestState
from retinue.testing import RecordingModel, VirtualClock, calls, results_of
from retinue.testing.audit import audit
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ASK = PermissionRules(allow=["c1", "c2", "slow", "other"], ask=["write"])
ALL = PermissionRules(allow=["*"])


class Tools(ToolHarness):
    """One that has to be asked for, and one that takes its time."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.release = asyncio.Event()
        self.slow_began = asyncio.Event()

    @tool
    async def write(self, text: str) -> str:
        """Write."""
        self.written.append(text)
        return f"wrote {text}"

    @tool
    async def slow(self) -> str:
        """Take time."""
        self.slow_began.set()
        await self.release.wait()
        return "slow is done"


def child(name: str, *harnesses: ToolHarness) -> SubAgent:
    """A child on the tool surface."""
    return SubAgent(
        name,
        f"The subagent {name}.",
        instructions=f"You are {name}.",
        surface="tool",
        tool_harnesses=harnesses,
        availability=SubAgentAvailability.ANY_ALLOWED_DEPTH,
    )


def chain(tools: Tools) -> SubAgent:
    """c1 above c2."""
    below = ToolHarness()
    below.add_subagent(child("c2", tools))
    return child("c1", below, tools)


def asking(*texts: str, also: list[tuple[str, dict[str, Any]]] | None = None) -> RecordingModel:
    """Root calls c1, c1 calls c2, c2 wants to write; root has more to do beside it."""
    return RecordingModel(
        {
            "root": [calls(("c1", {"input": "a"}), *(also or [])), "root: {result.c1}"],
            "c1": [calls(("c2", {"input": "b"})), "c1: {result}"],
            "c2": [calls(*(("write", {"text": text}) for text in texts or ("x",))), "c2: {results}"],
        }
    )


async def all_of(events: Any, each: Callable[[Event], Awaitable[None]] | None = None) -> list[Event]:
    """Every event of a stream."""
    found: list[Event] = []
    async with aclosing(events):
        async for event in events:
            found.append(event)
            if each is not None:
                await each(event)
    return found


@pytest.mark.contract("H-21", "H-20")
@pytest.mark.case("B038")
async def test_a_stream_is_the_whole_tree_in_order_and_each_event_has_its_place() -> None:
    tools = Tools()
    agent = Agent("root", model=asking(), subagents=[chain(tools)], permissions=ALL)
    events = await all_of(agent.stream("go", context=HERE))
    ends = [event for event in events if isinstance(event, RunFinishedEvent)]
    assert [event.path for event in ends] == [("root", "c1", "c2"), ("root", "c1"), ("root",)]
    assert events[-1] is ends[-1]
    assert [event.result is not None for event in ends] == [False, False, True]
    assert ends[-1].result.text == "root: c1: c2: wrote x"
    for event in events:
        assert event.path[0] == "root"
        assert len(event.invocations) == len(event.path) - 1
        assert event.key is not None
        assert event.key.session == "s"
        assert event.run_id
        assert event.at
        assert event.live == (event.seq == 0)
    by_run: dict[str, list[int]] = {}
    for event in events:
        if event.seq and event is not events[-1]:
            by_run.setdefault(event.run_id, []).append(event.seq)
    for run_id, seqs in by_run.items():
        assert seqs == list(range(1, len(seqs) + 1)), run_id
    _children_stand_inside(events)
    stored = [decode(record) for record in (await agent.runtime.ledger.journal(ends[-1].key)).own]  # type: ignore[union-attr,arg-type]
    shown = [event for event in events if event.path == ("root",) and event.seq]
    assert [(event.TYPE, event.seq) for event in shown] == [(event.TYPE, event.seq) for event in stored]
    await agent.close()


def _children_stand_inside(events: list[Event]) -> None:
    places = {id(event): place for place, event in enumerate(events)}
    for started in [event for event in events if isinstance(event, SubAgentInvocationStartedEvent)]:
        inside = [event for event in events if event.invocations[len(started.invocations) :][:1] == (started.invocation_id,)]
        completed = next(
            event
            for event in events
            if isinstance(event, SubAgentInvocationCompletedEvent) and event.invocation_id == started.invocation_id
        )
        result = next(event for event in events if isinstance(event, ToolCallResultEvent) and event.call == started.call)
        assert any(isinstance(event, RunStartedEvent) for event in inside)
        assert places[id(started)] < min(places[id(event)] for event in inside)
        assert max(places[id(event)] for event in inside) < places[id(completed)] < places[id(result)]


async def test_results_are_shown_when_they_are_there_and_not_when_the_last_one_is() -> None:
    tools = Tools()
    model = RecordingModel({"root": [calls(("slow", {}), ("write", {"text": "x"})), "done"]})
    agent = Agent("root", model=model, tool_harnesses=[tools], permissions=ALL)
    shown: list[str] = []

    async def each(event: Event) -> None:
        if isinstance(event, ToolCallResultEvent):
            shown.append(event.name)
            tools.release.set()

    await asyncio.wait_for(all_of(agent.stream("go"), each), 5)
    assert shown == ["write", "slow"]
    await agent.close()


async def test_a_slow_viewer_holds_nobody_up_and_loses_deltas_only() -> None:
    words = VIEWER_DELTAS * 3
    text = "ab" * words

    def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            return calls(*[("write", {"text": str(n)}) for n in range(50)])
        return {"text": text, "chunk": 2}

    tools = Tools()
    agent = Agent("root", model=RecordingModel(answer), tool_harnesses=[tools], permissions=ALL)
    events: list[Event] = []
    async with aclosing(agent.stream("go", context=HERE)) as stream:
        events.append(await anext(stream))
        await asyncio.wait(
            [driver.task for driver in agent.runtime._drivers if driver.task is not None]
        )  # nobody looks, and it ends
        root = (await agent.runtime.ledger.runs(roots_only=True))[0]
        assert root.state.value == "completed"
        async for event in stream:
            events.append(event)
    stored = [event for event in events if event.seq]
    assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
    deltas = [event for event in events if isinstance(event, TextDeltaEvent)]
    assert len(deltas) == VIEWER_DELTAS
    assert [delta.offset for delta in deltas] == [2 * n for n in range(VIEWER_DELTAS)]
    assert [event.count for event in events if isinstance(event, EventsDroppedEvent)] == [words - VIEWER_DELTAS]
    last = events[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.result.text == text
    await agent.close()


async def test_a_chatty_tool_does_not_fill_the_queue_of_a_slow_viewer() -> None:
    """The newest reports are kept, how many were dropped is said, and nothing of a journal is missing (M15)."""
    reports = VIEWER_PROGRESS * 3

    @tool
    async def chatty(context: ToolContext) -> str:
        """Report much."""
        for n in range(reports):
            context.progress(str(n))
        return "done"

    model = RecordingModel({"root": [calls(("chatty", {})), "end"]})
    async with Agent("root", model=model, tools=[chatty], permissions=ALL) as agent:
        events: list[Event] = []
        async with aclosing(agent.stream("go", context=HERE)) as stream:
            events.append(await anext(stream))
            await asyncio.wait([driver.task for driver in agent.runtime._drivers if driver.task is not None])
            events += [event async for event in stream]
    shown = [event.text for event in events if isinstance(event, ToolProgressEvent)]
    assert shown == [str(n) for n in range(reports - VIEWER_PROGRESS, reports)]
    lost = [event for event in events if isinstance(event, EventsDroppedEvent)]
    assert [(event.count, event.path, event.live) for event in lost] == [(reports - VIEWER_PROGRESS, ("root",), True)]
    assert all(event.key == events[0].key and event.at and event.run_id == events[0].run_id for event in lost)
    stored = [event.seq for event in events if event.seq]
    assert stored == list(range(1, len(stored) + 1))


async def test_a_viewer_that_keeps_up_loses_nothing() -> None:
    reports = VIEWER_PROGRESS * 2

    @tool
    async def chatty(context: ToolContext) -> str:
        """Report much, and let others look."""
        for n in range(reports):
            context.progress(str(n))
            await asyncio.sleep(0)
        return "done"

    model = RecordingModel({"root": [calls(("chatty", {})), "end"]})
    async with Agent("root", model=model, tools=[chatty], permissions=ALL) as agent:
        events = await all_of(agent.stream("go", context=HERE))
    assert [event.text for event in events if isinstance(event, ToolProgressEvent)] == [str(n) for n in range(reports)]
    assert not any(isinstance(event, EventsDroppedEvent) for event in events)


# Who answers (D-28)


@pytest.mark.contract("D-28", "H-22", "D-10")
@pytest.mark.parametrize("allowed", [True, False])
async def test_on_request_answers_for_the_whole_tree(allowed: bool) -> None:
    asked: list[PermissionRequest] = []

    async def on_request(request: PermissionRequest) -> bool:
        asked.append(request)
        return allowed

    tools = Tools()
    agent = Agent("root", model=asking(), subagents=[chain(tools)], permissions=ASK, on_request=on_request)
    result = await agent.run("go", context=HERE)
    assert result.status == "completed"
    assert [(one.path, one.tool, one.agent_id, len(one.invocations)) for one in asked] == [
        (("root", "c1", "c2"), "write", "c2", 2)
    ]
    assert tools.written == (["x"] if allowed else [])
    assert ("wrote x" in result.text) is allowed
    assert ("Not allowed: `write` was denied (by on_request)" in result.text) is not allowed
    assert await audit(agent.runtime.ledger, result.run_id) == []
    await agent.close()


@pytest.mark.contract("D-28")
async def test_a_consumer_that_answers_goes_on_in_the_same_stream() -> None:
    tools = Tools()
    agent = Agent("root", model=asking("x", "y"), subagents=[chain(tools)], permissions=ASK)

    async def each(event: Event) -> None:
        if isinstance(event, PermissionRequest):
            assert await agent.answer(event, allow=event.arguments == '{"text":"x"}', note="only x") is None

    events = await all_of(agent.stream("go", context=HERE), each)
    last = events[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.status == "completed"
    assert tools.written == ["x"]
    assert 'The answer says: "only x".' in last.result.text
    assert [event.TYPE for event in events].count("REQUEST_OPENED") == 2
    assert [event.TYPE for event in events].count("REQUEST_CLOSED") == 2
    await agent.close()


@pytest.mark.contract("D-28")
async def test_a_consumer_that_ignores_a_request_ends_waiting_and_the_answer_goes_on() -> None:
    tools = Tools()
    agent = Agent("root", model=asking(), subagents=[chain(tools)], permissions=ASK)
    events = await asyncio.wait_for(all_of(agent.stream("go", context=HERE)), 5)
    last = events[-1]
    assert isinstance(last, RunFinishedEvent)
    assert (last.status, last.result.status, len(last.result.requests)) == ("waiting", "waiting", 1)
    assert sum(isinstance(event, RunFinishedEvent) for event in events) == 1
    shown = next(event for event in events if isinstance(event, PermissionRequest))
    assert last.result.requests[0].request_id == shown.request_id
    assert [one.request_id for one in await agent.requests("s")] == [shown.request_id]
    assert {row.state.value for row in await agent.runtime.ledger.tree(last.run_id)} == {"waiting"}
    result = await agent.answer(shown, allow=True)
    assert result is not None
    assert (result.status, result.text) == ("completed", "root: c1: c2: wrote x")
    assert await audit(agent.runtime.ledger, last.run_id) == []
    with pytest.raises(RetinueError, match="already answered"):
        await agent.answer(shown, allow=False)
    await agent.close()


@pytest.mark.contract("D-28")
async def test_a_patient_stream_is_answered_from_another_task() -> None:
    clock, tools = VirtualClock(auto=True), Tools()
    runtime = Runtime(clock=clock)
    agent = Agent("root", model=asking(), subagents=[chain(tools)], permissions=ASK, runtime=runtime)
    answering: list[asyncio.Task[Any]] = []

    async def later(request: PermissionRequest) -> None:
        await clock.sleep(3_600)
        await agent.answer(request, allow=True)

    async def each(event: Event) -> None:
        if isinstance(event, PermissionRequest):
            answering.append(asyncio.create_task(later(event)))

    events = await all_of(agent.stream("go", context=HERE, patient=True), each)
    last = events[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.result.text == "root: c1: c2: wrote x"
    assert clock.monotonic() >= 3_600
    await asyncio.gather(*answering)
    await runtime.close()


@pytest.mark.contract("D-28")
@pytest.mark.case("B047")
async def test_without_anyone_there_the_run_waits_and_its_branches_end_first() -> None:
    tools = Tools()
    tools.release.set()
    agent = Agent("root", model=_with_other(), subagents=[chain(tools), child("other")], tool_harnesses=[tools], permissions=ASK)
    result = await agent.run("go", context=HERE)
    assert result.status == "waiting"
    states = {row.agent_id: row.state.value for row in await agent.runtime.ledger.tree(result.run_id)}
    assert states == {"root": "waiting", "c1": "waiting", "c2": "waiting", "other": "completed"}
    again = await agent.answer(result.requests[0], allow=True)
    assert again is not None
    assert again.text == "root: c1: c2: wrote x"
    assert await audit(agent.runtime.ledger, result.run_id) == []
    await agent.close()


def _with_other() -> RecordingModel:
    return RecordingModel(
        {
            "root": [calls(("c1", {"input": "a"}), ("slow", {}), ("other", {"input": "o"})), "root: {result.c1}"],
            "c1": [calls(("c2", {"input": "b"})), "c1: {result}"],
            "c2": [calls(("write", {"text": "x"})), "c2: {results}"],
            "other": ["other is done"],
        }
    )


@pytest.mark.contract("D-28", "D-10")
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("how", ["on_request", "patient", "run"])
async def test_an_answer_takes_effect_while_siblings_still_work(depth: int, how: str) -> None:
    tools = Tools()
    first = [("write", {"text": "x"})] if depth == 0 else [("c1", {"input": "a"})]
    script = {
        "root": [calls(*first, ("slow", {})), "root is done"],
        "c1": [calls(("c2", {"input": "b"})), "c1 is done"],
        "c2": [calls(("write", {"text": "x"})), "c2 is done"],
    }
    opened = asyncio.Event()

    async def on_request(_request: PermissionRequest) -> bool:
        opened.set()
        return True

    agent = Agent(
        "root",
        model=RecordingModel(script),
        tool_harnesses=[tools],
        subagents=[chain(tools)],
        permissions=ASK,
        on_request=on_request if how == "on_request" else None,
    )
    running: asyncio.Task[Any]
    if how == "patient":
        running = asyncio.create_task(all_of(agent.stream("go", context=HERE, patient=True)))
    else:
        running = asyncio.create_task(_status(agent))
    await tools.slow_began.wait()
    if how != "on_request":
        request = await _request(agent)
        assert await agent.answer(request, allow=True) is None
    for _ in range(200):
        await asyncio.sleep(0)
    assert tools.written == ["x"]  # although the slow one has not ended
    assert not running.done()
    tools.release.set()
    await asyncio.wait_for(running, 5)
    root = (await agent.runtime.ledger.runs(roots_only=True))[0]
    assert (root.state.value, root.attempt) == ("completed", 1)
    assert await audit(agent.runtime.ledger, root.run_id) == []
    await agent.close()


async def _status(agent: Agent) -> str:
    return (await agent.run("go", context=HERE)).status


async def _request(agent: Agent) -> PermissionRequest:
    for _ in range(10_000):
        found = await agent.requests("s")
        if found:
            return found[0]
        await asyncio.sleep(0)
    raise AssertionError("nobody asked")


@pytest.mark.contract("D-28", "H-27")
async def test_an_answer_that_is_remembered_is_not_asked_again_in_its_session_and_asked_in_another() -> None:
    tools, asked = Tools(), list[str]()

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(("c1", {"input": "a"}), ("c1", {"input": "b"})) if request.step == 1 else "root is done"
        return calls(("write", {"text": "x"})) if request.step <= 2 else "c1 is done"

    agent = Agent("root", model=RecordingModel(answer), subagents=[child("c1", tools)], permissions=ASK)

    async def each(event: Event) -> None:
        if isinstance(event, PermissionRequest):
            asked.append(event.agent_id)
            await agent.answer(event, allow=True, remember="session")

    await all_of(agent.stream("go", context=HERE), each)
    assert (asked, len(tools.written)) == (["c1", "c1"], 4)  # both had asked when the first answer came
    await all_of(agent.stream("again", context=HERE), each)
    assert (asked, len(tools.written)) == (["c1", "c1"], 8)
    await all_of(agent.stream("elsewhere", context=RuntimeContext(session_id="other")), each)
    assert asked == ["c1"] * 4
    await all_of(agent.stream("another", context=RuntimeContext(session_id="s", user_id="eve")), each)
    assert asked == ["c1"] * 6
    await agent.close()


@pytest.mark.contract("D-28", "H-28")
async def test_an_answer_takes_effect_while_a_child_works() -> None:
    tools = Tools()
    script = {
        "root": [calls(("c1", {"input": "a"}), ("write", {"text": "x"})), "done"],
        "c1": [calls(("slow", {})), "c1 is done"],
    }

    async def on_request(_request: PermissionRequest) -> bool:
        await tools.slow_began.wait()
        return True

    agent = Agent(
        "root",
        model=RecordingModel(script),
        tool_harnesses=[tools],
        subagents=[child("c1", tools)],
        permissions=ASK,
        on_request=on_request,
    )
    run = asyncio.create_task(agent.run("go"))
    await tools.slow_began.wait()
    for _ in range(200):
        await asyncio.sleep(0)
    assert tools.written == ["x"]
    assert not run.done()
    tools.release.set()
    assert (await run).text == "done"
    await agent.close()


class Pausing(MemoryLedger):
    """Every read takes a round of the loop before and after."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("run", "tree", "mail", "requests", "request", "journal", "cancel_intent", "invocation", "thread"):
            return found

        async def read(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            value = await found(*args, **options)
            await asyncio.sleep(0)
            return value

        return read


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("rounds", range(24))
@pytest.mark.parametrize("who", ["run", "stream"])
@pytest.mark.parametrize("what", ["answer", "cancel", "cancel child"])
async def test_what_comes_while_the_run_is_on_its_way_to_wait_is_not_lost(what: str, who: str, rounds: int) -> None:
    store = SharedStore(Pausing())
    await store.ledger.open()
    process, tools = store.process(), Tools()
    runtime = Runtime(ledger=process.ledger)
    agent = Agent("root", model=asking(), subagents=[chain(tools)], permissions=ASK, runtime=runtime)
    doing: list[asyncio.Task[Any]] = []

    def on_commit(ops: Sequence[Op]) -> None:
        if not doing and any(isinstance(op, PutRequest) for op in ops):
            doing.append(asyncio.create_task(act()))

    async def act() -> None:
        rows = {row.agent_id: row.run_id for row in await store.ledger.runs()}
        for _ in range(rounds):
            await asyncio.sleep(0)
        if what == "answer":
            await agent.answer((await agent.requests("s"))[0], allow=True)
        else:
            await agent.cancel(rows["root" if what == "cancel" else "c2"], reason="enough")

    process.on_commit = on_commit
    if who == "run":
        await agent.run("go", context=HERE, check=False)
    else:
        await all_of(agent.stream("go", context=HERE))
    await asyncio.wait_for(asyncio.gather(*doing), 5)
    if runtime._drivers:
        await asyncio.wait_for(asyncio.wait([driver.task for driver in runtime._drivers if driver.task is not None]), 5)
    root = (await store.ledger.runs(roots_only=True))[0]
    assert root.state.value == ("cancelled" if what == "cancel" else "completed")
    assert tools.written == (["x"] if what == "answer" else [])
    assert await audit(store.ledger, root.run_id) == []
    assert await store.ledger.requests(root_run=root.run_id, state=RequestState.OPEN) == []
    await runtime.close()


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("what", ["raises", "late"])
async def test_on_request_that_raises_fails_the_run_and_one_that_is_late_harms_nobody(what: str) -> None:
    tools, opened, go = Tools(), asyncio.Event(), asyncio.Event()

    async def on_request(_request: PermissionRequest) -> bool:
        opened.set()
        if what == "raises":
            raise ValueError("no")
        await go.wait()
        return False

    runtime = Runtime(clock=VirtualClock(), limits=Limits(stop_grace=5))
    agent = Agent(
        "root",
        model=asking(also=[("slow", {})]),
        tool_harnesses=[tools],
        subagents=[chain(tools)],
        permissions=ASK,
        on_request=on_request,
        runtime=runtime,
    )
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await opened.wait()
    if what == "late":
        await agent.answer(await _request(agent), allow=True)
        go.set()
        tools.release.set()
    result = await asyncio.wait_for(run, 5)
    expected = ("completed", None) if what == "late" else ("failed", "on_request_raised")
    assert (result.status, result.reason) == expected
    assert tools.written == (["x"] if what == "late" else [])
    assert await audit(runtime.ledger, result.run_id) == []
    assert await runtime.ledger.requests(root_run=result.run_id, state=RequestState.OPEN) == []
    await runtime.close()


async def test_partial_messages_of_a_child_reach_the_viewer_also_with_drafts() -> None:
    clock = VirtualClock(auto=True)
    text = "word " * 40
    model = RecordingModel(
        {"root": [calls(("c1", {"input": "a"})), "done"], "c1": [{"text": text, "chunk": 5, "chunk_delay": 0.5}]}, clock=clock
    )
    runtime = Runtime(clock=clock)
    agent = Agent("root", model=model, subagents=[child("c1")], permissions=ALL, runtime=runtime)
    events = await all_of(agent.stream("go", context=HERE))
    deltas = [event for event in events if isinstance(event, TextDeltaEvent) and event.path == ("root", "c1")]
    assert "".join(delta.text for delta in deltas) == text
    messages = [event for event in events if isinstance(event, MessageEvent) and event.path == ("root", "c1")]
    assert [event.message.text for event in messages] == ["a", text]
    seqs = [event.seq for event in events if event.path == ("root", "c1") and event.seq]
    assert seqs == list(range(1, len(seqs) + 1))
    assert await runtime.ledger.draft(messages[0].key) is None  # type: ignore[arg-type]
    await runtime.close()


async def test_the_note_of_a_denial_reaches_the_model() -> None:
    tools = Tools()
    model = RecordingModel({"root": [calls(("write", {"text": "x"})), "{result}"]})
    agent = Agent("root", model=model, tool_harnesses=[tools], permissions=ASK)
    waiting = await agent.run("go", context=HERE)
    result = await agent.answer(waiting.requests[0], allow=False, note="write to the other file")
    assert result is not None
    assert 'The answer says: "write to the other file".' in results_of(model.asked("root")[1])[0]
    assert tools.written == []
    await agent.close()


class Late(ScriptedModel):
    """A model that goes on emitting after its answer: what it said before, and more."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.emits: list[Emit] = []

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        self.emits.append(emit)
        return await super().answer(request, emit)


async def test_what_a_model_emits_after_its_answer_is_neither_shown_nor_drafted() -> None:
    model, drafted = Late([calls(("look", {}), text="first"), "second"]), list[Op]()

    @tool
    async def look() -> str:
        """Let the model of the last turn speak again."""
        model.emits[0](TextDelta("late" * 10_000))
        return "seen"

    class Drafts(MemoryLedger):
        def _commit(self, ops: Sequence[Op]) -> Any:
            drafted.extend(op for op in ops if isinstance(op, PutDraft))
            return super()._commit(ops)

    async with Runtime(ledger=Drafts()) as runtime:
        agent = Agent("root", model=model, tools=[look], runtime=runtime, permissions=ALL)
        seen = [event async for event in agent.stream("go", context=HERE)]
        model.emits[1](TextDelta("later" * 10_000))
    assert "".join(event.text for event in seen if isinstance(event, TextDeltaEvent)) == "firstsecond"
    assert drafted == []
