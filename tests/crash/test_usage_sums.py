"""Usage and cost of a tree are the sums of its MODEL_CALLED records, whatever happened on the way."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from retinue.config import PermissionRules, RuntimeContext
from retinue.errors import LedgerUnavailable
from retinue.harness.agent import Agent
from retinue.harness.results import RunResult
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import Usage
from retinue.models.scripted import ScriptedModel
from retinue.subagents.declaration import SubAgent
from retinue.testing.audit import audit, spent
from retinue.testing.failpoints import Failpoint, FullDiskAt

pytestmark = pytest.mark.anyio

USED = {"input": 1_000, "output": 100, "cached": 10}
SPAWN = {"name": "agent_spawn", "arguments": {"agent_id": "worker", "task": "Work."}}


def turn(text: str = "", *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A turn that costs something."""
    return {"text": text, "calls": list(calls), "usage": USED, **fields}


def script(**changes: list[Any]) -> dict[str, Any]:
    """Two children side by side, each with a tool; what an agent says can be changed."""
    agents: dict[str, Any] = {
        "lead": [turn("", SPAWN, SPAWN), turn("Half."), turn("Done.")],
        "worker": [turn("", {"name": "look", "arguments": {}}), turn("Worked.")],
    }
    return {"agents": {**agents, **changes}, "price": {"input": "2", "output": "8", "cached": "1"}}


def agent_on(path: Path, said: dict[str, Any], hooks: Failpoint | None = None, *, ask: bool = False) -> Agent:
    """An agent with a child on its roster."""

    async def look() -> str:
        """Look."""
        return "seen"

    return Agent(
        "lead",
        model=ScriptedModel(said),
        tools=[look],
        subagents=[SubAgent("worker", "Works.", instructions="Work.")],
        ledger=SqliteLedger(path, durability="process", hooks=hooks),
        permissions=PermissionRules(ask=["look"]) if ask else None,
    )


async def same(agent: Agent, result: RunResult, calls: int) -> None:
    """The result's sums are the journals'."""
    usage, cost = await spent(agent.runtime.ledger, result.run_id)
    assert usage.calls == calls
    assert (result.usage, result.cost) == (usage, cost)
    assert cost == calls * Decimal("0.00279")
    assert result.own is not None
    assert await audit(agent.runtime.ledger, result.run_id) == []


CONTEXT = RuntimeContext(session_id="s1")


async def test_sums_after_an_undisturbed_run(tmp_path: Path) -> None:
    async with agent_on(tmp_path / "ledger", script()) as agent:
        result = await agent.run("Go.", context=CONTEXT)
        await same(agent, result, 6)
        assert result.own is not None
        assert result.own.usage == Usage(input_tokens=2_000, output_tokens=200, cached_tokens=20, calls=2)


async def test_sums_after_a_resume_at_every_commit(tmp_path: Path) -> None:
    """A call whose answer was not recorded is asked again, and then counts once."""
    for n in range(2, 40):
        async with agent_on(tmp_path / f"{n}", script(), FullDiskAt(n)) as agent:
            try:
                result = await agent.run("Go.", context=CONTEXT)
            except LedgerUnavailable:
                rows = await agent.runtime.ledger.runs(roots_only=True)
                result = await agent.resume(rows[0].run_id) if rows else await agent.run("Go.", context=CONTEXT)
            else:
                assert n > 3
                return
            await same(agent, result, 6)
    pytest.fail("the scenario has no end")


async def test_sums_after_waiting_and_an_answer(tmp_path: Path) -> None:
    async with agent_on(tmp_path / "ledger", script(), ask=True) as agent:
        waiting = await agent.run("Go.", context=CONTEXT)
        assert waiting.status == "waiting"
        first, second = waiting.requests
    async with agent_on(tmp_path / "ledger", script(), ask=True) as agent:
        still = await agent.answer(first, allow=True)
        assert still is not None
        assert still.status == "waiting"
        result = await agent.answer(second, allow=False)
        assert result is not None
        assert result.status == "completed"
        await same(agent, result, 6)


async def test_sums_after_a_failure(tmp_path: Path) -> None:
    """A child whose model fails in its second turn costs what its first one did, and so does the root's own failure."""
    broken = turn("", error={"code": "bad_request", "retryable": False})
    said = script(worker=[turn("", {"name": "look", "arguments": {}}), broken], lead=[turn("", SPAWN, SPAWN), broken])
    async with agent_on(tmp_path / "ledger", said) as agent:
        result = await agent.run("Go.", context=CONTEXT, check=False)
        assert result.status == "failed"
        await same(agent, result, 3)


async def test_sums_after_a_cancel(tmp_path: Path) -> None:
    """Stopped while one child waits for a person: what it has used is in the tree's sum."""
    async with agent_on(tmp_path / "ledger", script(), ask=True) as agent:
        waiting = await agent.run("Go.", context=CONTEXT)
        await agent.cancel(waiting.run_id)
        row = await agent.runtime.ledger.run(waiting.run_id)
        assert row is not None
        assert row.state.value == "cancelled"
        usage, _ = await spent(agent.runtime.ledger, waiting.run_id)
        assert usage.calls == 3
        events = await (await agent.threads.get(session_id="s1")).events()
        end: Any = events[-1]
        assert (end.TYPE, end.usage, end.cost) == ("RUN_FINISHED", usage, 3 * Decimal("0.00279"))
        assert await audit(agent.runtime.ledger, waiting.run_id) == []


async def test_sums_of_the_next_run_on_the_thread_begin_anew(tmp_path: Path) -> None:
    async with agent_on(tmp_path / "ledger", script()) as agent:
        first = await agent.run("Go.", context=CONTEXT)
        second = await agent.run("Again.", context=CONTEXT)
        await same(agent, first, 6)
        await same(agent, second, 6)
        assert first.run_id != second.run_id


async def calls_so_far(agent: Agent) -> int:
    """The model calls that the ledger knows of."""
    rows = await agent.runtime.ledger.runs(roots_only=True)
    return (await spent(agent.runtime.ledger, rows[0].run_id))[0].calls if rows else 0


async def test_sums_after_a_caller_left(tmp_path: Path) -> None:
    """The caller of `run` is cancelled in the middle of a model call."""
    said = script(worker=[turn("", {"name": "look", "arguments": {}}), turn("Worked.", delay=60.0)])
    async with agent_on(tmp_path / "ledger", said) as agent:
        task = asyncio.create_task(agent.run("Go.", context=CONTEXT))
        ledger = agent.runtime.ledger
        async with asyncio.timeout(20):
            while (await calls_so_far(agent)) < 3:  # noqa: ASYNC110  # until both children have had one answer
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (row,) = await ledger.runs(roots_only=True)
        assert row.state.value == "cancelled"
        end: Any = (await (await agent.threads.get(session_id="s1")).events())[-1]
        usage, cost = await spent(ledger, row.run_id)
        assert (end.usage, end.cost) == (usage, cost)
        assert await audit(ledger, row.run_id) == []
