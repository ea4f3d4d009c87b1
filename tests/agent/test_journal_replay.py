"""What was seen live is what the journal says; a stop is in it too; and one run has one beginning and one end."""

from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    PermissionRules,
    RunCancelled,
    RunFinishedEvent,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
)
from retinue.events import CancelSeenEvent, Event
from retinue.models.port import ModelRequest
from retinue.states import InvocationState, RunState
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


def delegating(model: Any, **options: Any) -> Agent:
    """A parent with a child as its tool."""
    child = SubAgent("child", "D.", instructions="…", surface="tool")
    return Agent("parent", model=model, subagents=[child], permissions=PermissionRules(allow=["*"]), **options)


def stored(events: list[Event], path: tuple[str, ...]) -> list[Event]:
    """The events of one run that are in its journal, without what only a viewer is told."""
    return [
        msgspec.structs.replace(
            event, path=(), invocations=(), **({"result": None} if isinstance(event, RunFinishedEvent) else {})
        )
        for event in events
        if event.seq and event.path == path
    ]


@pytest.mark.contract("H-21", "H-20", "D-33")
@pytest.mark.case("HPD-48", "HPD-47", "AS-70", "AS-78", "AS-81")
async def test_the_journal_replays_what_was_seen_live() -> None:
    turns = [calls(("child", {"input": "x"}), ("child", {"input": "y"})), "ok"]
    model = RecordingModel({"parent": turns, "child": [{"text": "Done.", "chunk": 2}]})
    async with delegating(model) as agent:
        live = [event async for event in agent.stream("Go.", context=HERE)]
        graph = await agent.threads.graph("s")
        assert stored(live, ("parent",)) == await graph.threads[0].events()
        by_thread = {child.key: await child.events() for child in graph.runtime_children}
    for key, events in by_thread.items():
        assert [event for event in stored(live, ("parent", "child")) if event.key == key] == events
        assert [event.TYPE for event in events].count("RUN_STARTED") == 1
        assert [event.TYPE for event in events].count("RUN_FINISHED") == 1
    assert len(by_thread) == 2


@pytest.mark.contract("D-07", "H-20")
@pytest.mark.case("HPD-45", "AS-68", "AS-69", "B029")
async def test_a_parent_that_is_stopped_leaves_a_cancelled_child_and_says_so_everywhere() -> None:
    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "parent":
            return calls(("child", {"input": "x"}))
        await agent.cancel(reason="enough")  # while the child is at work
        return "too late"

    model = RecordingModel(answer)
    async with delegating(model) as agent:
        with pytest.raises(RunCancelled) as raised:
            await agent.run("Go.", context=HERE)
        graph = await agent.threads.graph("s")
        mine, theirs = await graph.threads[0].events(), await graph.runtime_children[0].events()
        started = next(event for event in mine if isinstance(event, SubAgentInvocationStartedEvent))
        row = await agent.runtime.ledger.invocation(started.invocation_id)
        run = await agent.runtime.ledger.run(started.child_run_id)
    result = raised.value.result
    assert (result.status, result.reason) == ("cancelled", "enough")
    ended = next(event for event in mine if isinstance(event, SubAgentInvocationCancelledEvent))
    assert ended.invocation_id == started.invocation_id
    told = next(event for event in mine if isinstance(event, ToolCallResultEvent))
    assert (told.status, told.metadata["subAgentStatus"]) == ("cancelled", "cancelled")
    assert row is not None
    assert row.state is InvocationState.CANCELLED
    assert run is not None
    assert run.state is RunState.CANCELLED
    for events in (mine, theirs):
        assert [type(event) for event in events].count(CancelSeenEvent) == 1
        assert isinstance(events[-1], RunFinishedEvent)
        assert events[-1].status == "cancelled"
    assert len(model.requests) == 2  # nobody was asked again


@pytest.mark.contract("D-07", "H-20")
@pytest.mark.case("B028", "B029")
async def test_a_child_that_alone_is_stopped_is_a_cancelled_call_and_its_parent_goes_on() -> None:
    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "parent":
            return "I go on." if request.step > 1 else calls(("child", {"input": "x"}))
        await agent.cancel(request.run_id, reason="not needed")
        return "too late"

    model = RecordingModel(answer)
    async with delegating(model) as agent:
        result = await agent.run("Go.", context=HERE)
        events = await (await agent.threads.graph("s")).threads[0].events()
    assert (result.status, result.text) == ("completed", "I go on.")
    ended = next(event for event in events if isinstance(event, SubAgentInvocationCancelledEvent))
    told = next(event for event in events if isinstance(event, ToolCallResultEvent))
    assert ended.reason == "not needed"
    assert told.status == "cancelled"
    assert "not needed" in told.content
    assert CancelSeenEvent not in [type(event) for event in events]


@pytest.mark.contract("H-08")
@pytest.mark.case("HPD-35")
async def test_the_form_of_the_parents_answer_is_not_asked_of_its_child() -> None:
    model = RecordingModel({"parent": [calls(("child", {"input": "x"})), "7"], "child": ["just text"]})
    async with delegating(model) as agent:
        result = await agent.run("Go.", output=int)
    assert result.output == 7
    assert model.asked("parent")[0].output is not None
    assert model.asked("child")[0].output is None
