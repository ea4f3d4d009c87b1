"""`deliver="after_turn"`: a run at work is not told of its tasks; a run of its own is, or the next one (D-20)."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, Runtime, RuntimeContext, SubAgent, tool
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KID = SubAgent("kid", "Helps.", instructions="Help.")


def told(request: ModelRequest) -> int:
    """How many ends a request tells."""
    messages = (entry.message for entry in request.history)
    return sum(one.text.count("is completed") for one in messages if isinstance(one, UserMessage) and one.notice)


@pytest.mark.contract("D-20")
@pytest.mark.parametrize(("deliver", "in_turn"), [("step", 1), ("after_turn", 0)])
@pytest.mark.parametrize("wakes", [True, False])
async def test_when_a_run_at_work_is_told(runtime: Runtime, deliver: Any, in_turn: int, wakes: bool) -> None:
    ended = asyncio.Event()

    @tool
    async def wait_for_it() -> str:
        """Wait until the task has ended."""
        await ended.wait()
        return "it has ended"

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return "kid is done"
        results = [entry for entry in request.history if isinstance(entry.message, ToolResult)]
        if not results:
            return calls(("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0}))
        return calls(("wait_for_it", {})) if len(results) == 1 else f"told {told(request)}"

    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[KID], tools=[wait_for_it], runtime=runtime, deliver=deliver, wake=wakes)
    async with agent:
        running = asyncio.create_task(agent.run("go", context=HERE))
        while not (tasks := await runtime.ledger.tasks()) or not tasks[0].state.terminal:
            await runtime.clock.sleep(0.001)
        ended.set()
        assert (await running).text == f"told {in_turn}"
    if not wakes:
        assert (await agent.run("and?", context=HERE)).text == "told 1"
    assert told(model.asked("root")[-1]) == 1


@pytest.mark.parametrize("wrong", [{"deliver": "never"}, {"on_exit": "stay"}, {"recovery": "maybe"}])
def test_what_is_no_choice_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Agent("root", **wrong)
