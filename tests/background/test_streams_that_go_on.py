"""`stream(background=True)`: what goes on after the run is seen too, until nothing of the session is at work."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from retinue import Agent, PermissionRequest, PermissionRules, Runtime, RuntimeContext, SubAgent, ThreadBusy, tool
from retinue.events import Event, RunFinishedEvent, RunStartedEvent
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
SPAWN: tuple[str, dict[str, Any]] = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


@tool
def send() -> str:
    """Send it."""
    return "sent"


def model(kid: Any = "kid is done", *, spawns: int = 1) -> RecordingModel:
    """A root that gives tasks, and says what it was told."""

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return kid if isinstance(kid, str) else await kid(request)
        messages = [entry.message for entry in request.history]
        told = [one for one in messages if isinstance(one, UserMessage) and one.notice]
        if told:
            return f"told {sum(one.text.count('Background task') for one in told)}"
        return "given" if any(isinstance(one, ToolResult) for one in messages) else calls(*[SPAWN] * spawns)

    return RecordingModel(answer)


def root(runtime: Runtime, asked: RecordingModel, **options: Any) -> Agent:
    """The agent."""
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    return Agent("root", model=asked, subagents=[kid], tools=[send], runtime=runtime, **options)


def ends(events: list[Event]) -> list[tuple[str, str]]:
    """The ends with a result."""
    return [(one.status, one.result.text) for one in events if isinstance(one, RunFinishedEvent) and one.result is not None]


@pytest.mark.contract("H-21", "D-20")
async def test_the_tasks_and_what_they_wake_are_seen(runtime: Runtime) -> None:
    async with root(runtime, model(spawns=2)) as agent:
        events = [event async for event in agent.stream("go", context=HERE, background=True)]
    assert ends(events)[0] == ("completed", "given")
    assert ends(events)[-1] == ("completed", "told 2")
    assert isinstance(events[-1], RunFinishedEvent)
    begun = [event.path for event in events if isinstance(event, RunStartedEvent)]
    assert begun.count(("root", "kid")) == 2
    assert begun.count(("root",)) == len(ends(events))
    assert not agent._followers


async def test_without_tasks_it_ends_with_the_run(runtime: Runtime) -> None:
    async with root(runtime, RecordingModel(lambda _: "hello")) as agent:
        events = [event async for event in agent.stream("go", background=True)]
    assert ends(events) == [("completed", "hello")]


async def test_a_session_without_a_name_gets_one(runtime: Runtime) -> None:
    async with root(runtime, model()) as agent:
        events = [event async for event in agent.stream("go", background=True)]
        assert events[-1].key is not None
        assert events[-1].key.session.startswith("ses_")


async def test_other_sessions_are_not_seen(runtime: Runtime) -> None:
    go = asyncio.Event()

    async def kid(_: ModelRequest) -> str:
        await go.wait()
        return "kid is done"

    async with root(runtime, model(kid)) as agent:
        other = await agent.run("go", context=RuntimeContext(session_id="other"))
        events: list[Event] = []
        async with aclosing(agent.stream("go", context=HERE, background=True)) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, RunFinishedEvent) and event.result is not None:
                    go.set()
        assert {event.key.session for event in events if event.key and len(event.path) == 1} == {"s"}
        assert (await other.tasks[0].wait(10)).status == "completed"
    assert ends(events) == [("completed", "given"), ("completed", "told 1")]


@pytest.mark.contract("D-28")
async def test_a_question_of_a_task_can_be_answered_in_the_stream(runtime: Runtime) -> None:
    async def kid(request: ModelRequest) -> Any:
        return "kid is done" if any(isinstance(one.message, ToolResult) for one in request.history) else calls(("send", {}))

    asked: list[str] = []
    async with root(runtime, model(kid), permissions=PermissionRules(ask=["send"])) as agent:
        events: list[Event] = []
        async for event in agent.stream("go", context=HERE, background=True):
            events.append(event)
            if isinstance(event, PermissionRequest):
                asked.append(event.tool)
                await agent.answer(event, allow=True)
    assert asked == ["send"]
    assert ends(events)[-1] == ("completed", "told 1")


@pytest.mark.contract("D-28")
async def test_a_task_whose_question_nobody_answers_ends_the_stream(runtime: Runtime) -> None:
    async def kid(_: ModelRequest) -> Any:
        return calls(("send", {}))

    async with root(runtime, model(kid), permissions=PermissionRules(ask=["send"])) as agent:
        events = [event async for event in agent.stream("go", context=HERE, background=True)]
        (task,) = await agent.tasks("s")
        assert (await task.result()).status == "waiting"
        await task.cancel()
    assert ends(events) == [("completed", "given")]


async def test_leaving_it_leaves_the_tasks_alone(runtime: Runtime) -> None:
    go = asyncio.Event()

    async def kid(_: ModelRequest) -> str:
        await go.wait()
        return "kid is done"

    async with root(runtime, model(kid)) as agent:
        async with aclosing(agent.stream("go", context=HERE, background=True)) as stream:
            async for event in stream:
                if isinstance(event, RunFinishedEvent) and event.result is not None:
                    break
        assert not agent._followers
        go.set()
        (task,) = await agent.tasks("s")
        assert (await task.wait(10)).status == "completed"


async def test_what_the_run_raises_is_raised(runtime: Runtime) -> None:
    async with root(runtime, RecordingModel(lambda _: calls(("send", {}))), permissions=PermissionRules(ask=["send"])) as agent:
        waiting = await agent.run("go", context=HERE)
        with pytest.raises(ThreadBusy):
            async for _ in agent.stream("go", context=HERE, background=True):
                pass
        await agent.cancel(waiting.run_id)


@pytest.mark.contract("D-19")
async def test_a_resumed_task_is_seen_with_its_end(runtime: Runtime) -> None:
    async def kid(request: ModelRequest) -> Any:
        return "kid is done" if any(isinstance(one.message, ToolResult) for one in request.history) else calls(("send", {}))

    async with root(runtime, model(kid), permissions=PermissionRules(ask=["send"])) as agent:
        result = await agent.run("go", context=HERE)
        (request,) = (await result.tasks[0].wait(10)).requests
        events: list[Event] = []
        async for event in agent.resume_stream(request.run_id, background=True):
            events.append(event)
            if isinstance(event, PermissionRequest):
                await agent.answer(event, allow=True)
    assert ends(events) == [("completed", "kid is done"), ("completed", "told 1")]
