"""Forks, answers in a form, and sums of usage and cost, of children that work in the background (H-17, H-19)."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from retinue import (
    Agent,
    PermissionRules,
    RunFinishedEvent,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationCompletedEvent,
    UserMessage,
)
from retinue.events import decode
from retinue.messages import Usage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


def kid(**declared: Any) -> SubAgent:
    """A subagent."""
    return SubAgent("kid", "Helps.", instructions="Help.", **declared)


def said(request: ModelRequest) -> list[str]:
    """What users said, and notices."""
    return [message.text for message in messages_of(request) if isinstance(message, UserMessage)]


@pytest.mark.contract("H-17", "H-12")
@pytest.mark.parametrize("surface", ["roster", "tool"])
async def test_a_fork_in_the_background_sees_what_was_said_before_it(runtime: Runtime, surface: Any) -> None:
    go = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await go.wait()
            return "done"
        call = SPAWN if surface == "roster" else ("kid", {"input": "x"})
        return calls(call) if len(model.asked("root")) == 2 else "ok"

    model = RecordingModel(answer)
    child = kid(surface=surface, context_policy="fork", invocation_mode_policy="background_only")
    agent = Agent("root", model=model, subagents=[child], runtime=runtime, permissions=ALL)
    await agent.run("the sky is blue", context=HERE)
    (task,) = (await agent.run("go", context=HERE)).tasks
    await agent.run("the sky is red", context=HERE)  # after the fork: the child knows nothing of it
    go.set()
    assert (await task.wait()).text == "done"
    (request,) = model.asked("kid")
    spoken = said(request)
    assert spoken[:2] == ["the sky is blue", "go"]
    assert "the sky is red" not in spoken
    await agent.run("and?", context=HERE)
    assert sum("is completed:\ndone" in text for text in said(model.asked("root")[-1])) == 1


@pytest.mark.contract("H-12")
async def test_the_answer_of_a_task_has_the_form_that_is_asked_for(runtime: Runtime) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(SPAWN) if len(model.asked("root")) == 1 else "ok"
        return "forty-two" if len(model.asked("kid")) == 1 else '```json\n{"n": 42}\n```'

    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[kid(output=dict[str, int])], runtime=runtime)
    (task,) = (await agent.run("go", context=HERE)).tasks
    ended = await task.wait()
    assert (ended.status, ended.text) == ("completed", '{"n":42}')
    assert len(model.asked("kid")) == 2  # the first was given back
    await agent.run("and?", context=HERE)
    assert any('is completed:\n{"n":42}\n' in text for text in said(model.asked("root")[-1]))


@pytest.mark.contract("H-12", "H-20")
@pytest.mark.parametrize("told", ["in the same run", "in the next"])
async def test_what_a_task_used_is_counted_once_where_its_end_is_told(runtime: Runtime, told: str) -> None:
    """Each call of a model takes 10 tokens and gives 1, at a dollar for a million."""
    used = {"usage": {"input": 10, "output": 1}}
    waits = [{**calls(("task_wait", {})), **used}] if told == "in the same run" else []
    turns = {
        "root": [{**calls(SPAWN), **used}, *waits, {"text": "ok", **used}],
        "kid": [{**calls(("agent_spawn", {"agent_id": "low", "task": "x"})), **used}, {"text": "kid", **used}],
        "low": [{"text": "low", **used}],
    }
    model = RecordingModel({"agents": turns, "price": {"input": 1, "output": 1}})
    low = SubAgent("low", "Low.", instructions="Low.")
    agent = Agent("root", model=model, subagents=[kid(leaf=False), low], runtime=runtime, permissions=ALL)
    results = [await agent.run("go", context=HERE)]
    ended = await results[0].tasks[0].wait()
    assert ended.usage == Usage(calls=3, input_tokens=30, output_tokens=3)
    if told == "in the next":
        assert results[0].usage.calls == 2
        follow_up = Agent(
            "root", model=RecordingModel({"root": [{"text": "ok", **used}]}), subagents=[kid(), low], runtime=runtime
        )
        results.append(await follow_up.run("and?", context=HERE))
        assert results[1].own is not None
        assert results[1].own.usage.calls == 1
    assert sum((result.usage for result in results), Usage()) == Usage(calls=6, input_tokens=60, output_tokens=6)
    if told == "in the same run":
        assert results[0].cost == Decimal(66) / 1_000_000
    journal = await runtime.ledger.journal((await runtime.ledger.runs(roots_only=True))[0].key)
    assert journal is not None
    events = [decode(record) for record in journal.own]
    (end,) = [event for event in events if isinstance(event, SubAgentInvocationCompletedEvent)]
    assert (end.usage, end.cost) == (ended.usage, Decimal(33) / 1_000_000)
    assert [event.usage for event in events if isinstance(event, RunFinishedEvent)] == [result.usage for result in results]
