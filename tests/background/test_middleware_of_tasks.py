"""Middleware stands around the run of a task, which its parent does not wait for; a fault of it is the task's alone (H-26)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import Agent, Middleware, RunCall, RunEnd, Runtime, RuntimeContext, SubAgent, UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


class Around(Middleware):
    """Keeps what it is around, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[RunEnd]]) -> RunEnd:
        """A run."""
        self.seen.append(f"{call.agent_id} begins")
        end = await next(call)
        self.seen.append(f"{call.agent_id} {end.status}")
        return end


async def test_middleware_is_around_the_run_of_a_task_after_its_parents_end(runtime: Runtime) -> None:
    go = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await go.wait()
            return "done"
        return calls(SPAWN) if len(model.asked("root")) == 1 else "ok"

    model = RecordingModel(answer)
    around = Around()
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime, middleware=[around])
    (task,) = (await agent.run("go", context=HERE)).tasks
    assert [one for one in around.seen if one != "kid begins"] == ["root begins", "root completed"]
    go.set()
    assert (await task.wait()).text == "done"
    assert sorted(around.seen) == ["kid begins", "kid completed", "root begins", "root completed"]
    assert around.seen[-1] == "kid completed"


class Faulty(Middleware):
    """Raises before the child begins."""

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[RunEnd]]) -> RunEnd:
        """A run."""
        if call.agent_id == "kid":
            raise ValueError("before it began")
        return await next(call)


async def test_a_fault_of_a_childs_middleware_is_the_end_of_the_task_alone(runtime: Runtime) -> None:
    def answer(request: ModelRequest) -> Any:
        return calls(SPAWN) if len(model.asked("root")) == 1 else "ok"

    model = RecordingModel(answer)
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    agent = Agent("root", model=model, subagents=[kid], runtime=runtime, middleware=[Faulty()])
    result = await agent.run("go", context=HERE)
    ended = await result.tasks[0].wait()
    assert (result.status, ended.status, ended.reason) == ("completed", "failed", "middleware_raised")
    await agent.run("and?", context=HERE)
    spoken = [message for message in messages_of(model.asked("root")[-1]) if isinstance(message, UserMessage)]
    told = [message.text for message in spoken if message.notice]
    assert len(told) == 1
    assert "before it began" in told[0]
