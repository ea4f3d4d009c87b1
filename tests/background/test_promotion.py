"""A roster child that is not done at its limit goes on as a task, driven as it is (D-08)."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RunResult, Runtime, RuntimeContext, SubAgent, ToolHarness, tool
from retinue.events import SubAgentInvocationCompletedEvent, ToolCallResultEvent, decode
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.states import InvocationState
from retinue.testing import RecordingModel, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
ALL = PermissionRules(allow=["*"])


class Slow(ToolHarness):
    """A tool that takes its time on the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    @tool
    async def work(self, seconds: float) -> str:
        """Work."""
        await self.clock.sleep(seconds)
        return "worked"


def told(request: ModelRequest) -> list[str]:
    """The notices in a request."""
    messages = (entry.message for entry in request.history)
    return [one.text for one in messages if isinstance(one, UserMessage) and one.notice]


def model(child: list[Any], spawn: dict[str, Any]) -> RecordingModel:
    """A root that spawns, ends, and says what it was told; a child with a script."""

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return child[request.step - 1]
        if told(request):
            return f"told: {len(told(request))}"
        return calls(("agent_spawn", spawn)) if request.step == 1 else "ended"

    return RecordingModel(answer)


async def results(runtime: Runtime) -> list[str]:
    """What the root's calls gave."""
    journal = await runtime.ledger.journal(KEY)
    assert journal is not None
    return [event.content for event in map(decode, journal.own) if isinstance(event, ToolCallResultEvent)]


async def until(clock: VirtualClock, run: "asyncio.Task[RunResult]") -> RunResult:
    """Let time pass until it is done."""
    while not run.done():
        await clock.advance(1)
    return await run


@pytest.mark.contract("D-08", "A-26")
@pytest.mark.parametrize(("spawn", "limit"), [({"timeout_seconds": 5}, 5), ({}, 30), ({"timeout_seconds": 900}, 600)])
async def test_it_goes_on_as_a_task_and_is_not_started_again(spawn: dict[str, Any], limit: float) -> None:
    clock = VirtualClock()
    asked = model([calls(("work", {"seconds": limit + 10})), "kid is done"], {"agent_id": "kid", "task": "x", **spawn})
    async with Runtime(clock=clock) as runtime:
        kid = SubAgent("kid", "Helps.", instructions="Help.", tool_harnesses=[Slow(clock)])
        async with Agent("root", model=asked, subagents=[kid], runtime=runtime, permissions=ALL) as agent:
            run = asyncio.create_task(agent.run("go", context=HERE))
            result = await until(clock, run)
            assert (result.text, clock.monotonic()) == ("ended", limit)
            (receipt,) = await results(runtime)
            (task,) = result.tasks
            assert f"status: timeout_promoted\ntask_id: {task.task_id}\n" in receipt
            assert (await task.result()).status == "running"
            await clock.advance(20)
            done = await task.result()
            assert (done.status, done.text) == ("completed", "kid is done")
            assert len(asked.asked("kid")) == 2
            assert len(asked.asked("root")) == 3  # it was woken
        journal = await runtime.ledger.journal(KEY)
        assert journal is not None
        ends = [event for event in map(decode, journal.own) if isinstance(event, SubAgentInvocationCompletedEvent)]
        assert [end.mode for end in ends] == ["background"]


@pytest.mark.contract("D-08")
async def test_promotion_races_with_completion() -> None:
    """However many steps of the loop the end comes before or after the limit, there is one end and one answer."""
    for turns in range(12):
        clock = VirtualClock()
        asked = model([calls(("work", {"seconds": 5})), "kid is done"], {"agent_id": "kid", "task": "x", "timeout_seconds": 5})
        async with Runtime(clock=clock) as runtime:
            kid = SubAgent("kid", "Helps.", instructions="Help.", tool_harnesses=[Late(clock, turns)])
            async with Agent("root", model=asked, subagents=[kid], runtime=runtime, permissions=ALL) as agent:
                run = asyncio.create_task(agent.run("go", context=HERE))
                result = await until(clock, run)
                await clock.advance(5)
                assert result.status == "completed"
                (row,) = await runtime.ledger.invocations(parent_run=result.run_id)
                assert row.state is InvocationState.COMPLETED
                (told_then,) = await results(runtime)
                assert ("kid is done" in told_then) is (row.mode == "synchronous")
                assert len(asked.asked("kid")) == 2
                assert len(asked.asked("root")) == (2 if row.mode == "synchronous" else 3)


class Late(Slow):
    """The same, some steps of the loop later."""

    def __init__(self, clock: VirtualClock, turns: int) -> None:
        super().__init__(clock)
        self.turns = turns

    @tool
    async def work(self, seconds: float) -> str:
        """Work."""
        await self.clock.sleep(seconds)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return "worked"


@pytest.mark.contract("D-08")
async def test_an_author_can_have_it_stopped_instead() -> None:
    clock = VirtualClock()
    asked = model([calls(("work", {"seconds": 60})), "never"], {"agent_id": "kid", "task": "x", "timeout_seconds": 5})
    async with Runtime(clock=clock) as runtime:
        kid = SubAgent("kid", "Helps.", instructions="Help.", tool_harnesses=[Slow(clock)], on_timeout="cancel")
        agent = Agent("root", model=asked, subagents=[kid], runtime=runtime, permissions=ALL)
        result = await until(clock, asyncio.create_task(agent.run("go", context=HERE)))
        assert (result.text, result.tasks) == ("ended", ())
        assert "status: timeout" in (await results(runtime))[0]
