"""What a resumed run does about its children: their code may be gone, their time may be up, their thread may be another's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue import (
    Agent,
    ConfigurationError,
    MessageEvent,
    Middleware,
    ModelAnswer,
    ModelRequest,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
)
from retinue.agent.middleware import RunCall
from retinue.config import UNSET, Unset
from retinue.ledger.memory import MemoryLedger
from retinue.messages import ToolCall, ToolResult, UserMessage
from retinue.states import InvocationState, RequestState, RunState
from retinue.testing import VirtualClock

pytestmark = pytest.mark.anyio


async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


SCRIPT: dict[str, object] = {
    "boss": [{"calls": [call("helper", input="go")]}, "{result}"],
    "helper": [{"calls": [call("pay", amount=3)]}, "helped"],
}


def boss(ledger: MemoryLedger, *, helper: bool, clock: VirtualClock | None = None, timeout: float | Unset = UNSET) -> Agent:
    child = SubAgent(
        "helper",
        "Helps.",
        instructions="Help.",
        surface="tool",
        context_policy="fresh",
        requires_permission=False,
        timeout_seconds=timeout,
    )
    return Agent(
        "boss",
        model=ScriptedModel(SCRIPT),
        tools=[pay],
        subagents=[child.with_run_config(child.run_config.include("tools"))] if helper else [],
        runtime=Runtime(ledger=ledger, clock=clock),
        permissions=PermissionRules(ask=["pay"]),
    )


@pytest.mark.contract("D-28")
async def test_a_child_whose_code_is_gone_keeps_the_run_resumable() -> None:
    ledger = MemoryLedger()
    agent = boss(ledger, helper=True)
    async with agent.runtime:
        waiting = await agent.run("go")
    assert waiting.status == "waiting"
    without = boss(ledger, helper=False)
    async with without.runtime:
        with pytest.raises(ConfigurationError) as caught:
            await without.answer(waiting.requests[0], allow=True)
        assert caught.value.code == "no_executor"
        (request,) = await ledger.requests(root_run=waiting.run_id)
        assert (request.state, request.answer) == (RequestState.OPEN, None)  # nothing was recorded
    again = boss(ledger, helper=True)
    async with again.runtime:
        result = await again.answer(waiting.requests[0], allow=True)
        assert result is not None
        assert (result.status, result.text) == ("completed", "helped")


async def test_a_child_whose_code_is_gone_is_ended_by_a_cancel() -> None:
    ledger = MemoryLedger()
    agent = boss(ledger, helper=True)
    async with agent.runtime:
        waiting = await agent.run("go")
    without = boss(ledger, helper=False)
    async with without.runtime:
        await without.cancel(waiting.run_id)
        rows = await ledger.tree(waiting.run_id)
        assert [row.state for row in rows] == [RunState.CANCELLED, RunState.CANCELLED]
        invocations = await ledger.invocations(root_run=waiting.run_id)
        assert [row.state for row in invocations] == [InvocationState.CANCELLED]
        assert await ledger.requests(root_run=waiting.run_id, state=RequestState.OPEN) == []


async def test_a_time_limit_goes_on_over_a_resume() -> None:
    ledger, clock = MemoryLedger(), VirtualClock()
    agent = boss(ledger, helper=True, clock=clock, timeout=10)
    async with agent.runtime:
        waiting = await agent.run("go")
        assert waiting.status == "waiting"
        await clock.advance(11)
        result = await agent.answer(waiting.requests[0], allow=True)
    assert result is not None
    assert "time limit" in result.text


async def test_two_threads_that_send_to_one_child_do_not_end_each_other() -> None:
    ledger = MemoryLedger()
    gate = asyncio.Event()
    key: list[str] = []

    async def answer(request: ModelRequest) -> ModelAnswer:
        last = request.history[-1].message
        if request.agent_id == "helper":
            return ModelAnswer(text="child")
        if isinstance(last, ToolResult):
            if last.name == "agent_spawn":
                key.append(last.content.split("\n")[0].removeprefix("agent_key: "))
            return ModelAnswer(text=last.content)
        assert isinstance(last, UserMessage)
        if last.text == "spawn":
            made = ToolCall(id="c", name="agent_spawn", arguments='{"agent_id":"helper","task":"x"}')
        else:
            await gate.wait()
            made = ToolCall(id="c", name="agent_send", arguments=f'{{"agent_key":"{key[0]}","message":"more"}}')
        return ModelAnswer(calls=(made,))

    agent = Agent(
        "boss",
        model=ScriptedModel(answer),
        subagents=[SubAgent("helper", "Helps.", instructions="Help.")],
        runtime=Runtime(ledger=ledger),
    )
    async with agent.runtime:
        await agent.run("spawn", context=RuntimeContext(session_id="s", thread_id="t0"))
        runs = [
            asyncio.create_task(agent.run("send", context=RuntimeContext(session_id="s", thread_id=f"t{number}")))
            for number in (1, 2)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*runs)
    assert [result.status for result in results] == ["completed", "completed"]
    assert any("reply:" in result.text for result in results)


async def test_a_middleware_that_does_not_go_on_loses_nothing_of_a_resumed_run() -> None:
    class Lazy(Middleware):
        async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
            return await next(call) if call.attempt == 1 else None

    agent = Agent(
        "solo",
        model=ScriptedModel({"solo": [{"calls": [call("pay", amount=3)]}, "{result}"]}),
        tools=[pay],
        permissions=PermissionRules(ask=["pay"]),
        middleware=[Lazy()],
    )
    async with agent:
        waiting = await agent.run("go")
        result = await agent.answer(waiting.requests[0], allow=True)
        assert result is not None
        assert result.thread is not None
        said = [event for event in await result.thread.events() if isinstance(event, MessageEvent)]
        shown = await result.thread.messages()
        assert len(said) <= len(shown), "no message of the journal may vanish from the conversation"
