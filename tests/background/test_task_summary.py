"""A parent knows its tasks without asking: they stand after the conversation, outside its prefix (A-41, D-21)."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])


@pytest.mark.contract("A-41")
async def test_tasks_that_go_on_are_told_in_the_tail_until_their_end_is_told() -> None:
    ended, given = asyncio.Event(), 12

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await ended.wait()
            return "kid is done"
        spawn = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})
        return calls(*[spawn] * given) if len(model.asked("root")) == 1 else "well"

    model = RecordingModel(answer)
    async with Runtime() as runtime:
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        agent = Agent("root", model=model, subagents=[kid], runtime=runtime, permissions=ALL, wake=False)
        first = await agent.run("go", context=HERE)
        again = Agent("root", model=model, subagents=[kid], runtime=runtime, permissions=ALL, wake=False)
        await again.run("and now?", context=HERE)
        ended.set()
        for task in first.tasks:
            await task.wait(10)
        await again.run("and then?", context=HERE)
        tails = [request.tail for request in model.asked("root")]
        assert tails[0] == tails[3] == ""
        assert tails[1] == tails[2]
        assert tails[1].startswith("Tasks in the background whose end you have not been told: task_")
        assert tails[1].endswith(f"(`kid`), and {given - 10} more.")
        assert all(request.tail == "" for request in model.asked("kid"))
