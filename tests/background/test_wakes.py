"""An idle thread is woken for the ends of its tasks, but not for ever where nobody says anything (D-20, D-30)."""

import logging
from typing import Any

import pytest

from retinue import Agent, Limits, Runtime, RuntimeContext, SubAgent
from retinue.ledger.memory import MemoryLedger
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
SPAWN = {"agent_id": "kid", "task": "x", "timeout_seconds": 0}


def restless() -> RecordingModel:
    """A root that answers each notice with another task."""

    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return "done"
        return "given" if request.step > 1 else calls(("agent_spawn", SPAWN))

    return RecordingModel(answer)


@pytest.mark.contract("D-20", "D-30")
async def test_a_thread_that_wakes_itself_comes_to_rest(caplog: pytest.LogCaptureFixture) -> None:
    model, kid = restless(), SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(ledger=MemoryLedger(), limits=Limits(max_wakes=3)) as runtime:
        with caplog.at_level(logging.WARNING):
            async with Agent("root", model=model, subagents=[kid], runtime=runtime) as agent:
                await agent.run("go", context=HERE)
        assert len(model.asked("kid")) == 4  # of the run that was asked for, and of three that were woken
        assert [record.message for record in caplog.records if "max_wakes" in record.message] != []
        assert [row.state.value for row in await runtime.ledger.tasks(unfinished=True)] == []


@pytest.mark.contract("D-20", "D-30")
async def test_who_says_something_lets_it_be_woken_again() -> None:
    model, kid = restless(), SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(ledger=MemoryLedger(), limits=Limits(max_wakes=1)) as runtime:
        agent = Agent("root", model=model, subagents=[kid], runtime=runtime)
        for _ in range(2):
            async with agent:
                await agent.run("go", context=HERE)
        assert len(model.asked("kid")) == 4


async def test_no_thread_is_woken_where_none_may_be() -> None:
    model, kid = restless(), SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(ledger=MemoryLedger(), limits=Limits(max_wakes=0)) as runtime:
        async with Agent("root", model=model, subagents=[kid], runtime=runtime) as agent:
            await agent.run("go", context=HERE)
        assert len(model.asked("kid")) == 1
