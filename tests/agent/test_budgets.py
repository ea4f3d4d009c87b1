"""Budgets (M13): set aside before a call, counted after it, over a run, a child, a tree; what is left is told."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue import (
    Agent,
    Budget,
    ConfigurationError,
    PermissionRequest,
    PermissionRules,
    RunFailed,
    Runtime,
    ScriptedModel,
    SubAgent,
    tool,
)
from retinue.agent.budget import Left, allowance_of, left
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import ToolResult
from retinue.models.port import ModelRequest
from retinue.ops import PutSpend
from retinue.rows import SpendRow
from retinue.testing import RecordingModel, VirtualClock, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

PRICE = {"input": 1_000_000, "output": 0}  # a dollar for each token of what is sent


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """A ledger of each kind."""
    return MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "l.sqlite3")


@tool
async def look() -> str:
    """Look."""
    return "seen"


def looping(usage: dict[str, int] | None = None, turns: int = 6) -> Any:
    """A script that looks again and again."""
    turn: dict[str, Any] = {"text": "On it.", "calls": [{"name": "look"}], "usage": usage or {"input": 10, "output": 10}}
    return [turn] * turns + ["done"]


@pytest.mark.contract("D-30")
@pytest.mark.parametrize(
    ("budget", "reason", "turns"),
    [
        (Budget(requests=2), "limit:requests", 2),
        (Budget(tokens=6_000), "limit:tokens", 1),  # 4,096 are set aside for each answer
        (Budget(tokens=20_000), "limit:tokens", 4),
    ],
)
async def test_a_run_ends_when_its_budget_is_used_up(store: Ledger, budget: Budget, reason: str, turns: int) -> None:
    model = ScriptedModel({"agents": {"desk": looping({"input": 2_000, "output": 1_990})}})
    async with Runtime(ledger=store) as runtime:
        agent = Agent("desk", model=model, tools=[look], runtime=runtime)
        result = await agent.run("go", check=False, budget=budget)
        assert (result.status, result.reason, result.usage.calls) == ("failed", reason, turns)
        assert result.text == "On it."
        assert "the budget of this run is used up" in result.message
        assert result.left is not None
        assert await audit(runtime.ledger, result.run_id) == []


async def test_without_a_budget_nothing_is_limited_or_written(store: Ledger) -> None:
    async with Runtime(ledger=store) as runtime:
        result = await Agent("desk", model=ScriptedModel({"agents": {"desk": looping()}}), tools=[look], runtime=runtime).run(
            "go"
        )
        assert (result.text, result.left) == ("done", None)
        assert await runtime.ledger.spends(result.run_id) == []


@pytest.mark.contract("D-30")
async def test_money_is_set_aside_at_the_models_price(store: Ledger) -> None:
    model = ScriptedModel({"price": PRICE, "agents": {"desk": looping({"input": 100, "output": 0})}})
    async with Runtime(ledger=store) as runtime:
        agent = Agent("desk", model=model, tools=[look], runtime=runtime, budget=Budget(cost="450"))
        result = await agent.run("go", check=False)
        assert (result.status, result.reason) == ("failed", "limit:cost")
        assert result.cost is not None
        assert Decimal(300) <= result.cost <= Decimal(450)
        assert result.left == Left(cost=450 - result.cost)


async def test_a_model_without_a_price_is_refused_where_money_counts(store: Ledger) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        asked.append(request)
        return "hello"

    async with Runtime(ledger=store) as runtime:
        agent = Agent("desk", model=ScriptedModel(answer), runtime=runtime, budget=Budget(cost=1))
        with pytest.raises(RunFailed, match="is not known") as failed:
            await agent.run("go")
        assert failed.value.code == "unpriced_model"
        assert asked == []
        assert (await agent.run("go", budget=None)).text == "hello"


def tree(kids: int = 1, **child: Any) -> tuple[RecordingModel, list[SubAgent]]:
    """A root that gives `kids` children each a task at once; each looks twice."""

    def answer(request: ModelRequest) -> Any:
        results = [entry.message.content for entry in request.history if isinstance(entry.message, ToolResult)]
        if request.agent_id == "root":
            spawn = ("agent_spawn", {"agent_id": "kid", "task": "x"})
            return "\n".join(results) if results else calls(*[spawn] * kids)
        return calls(("look", {})) if len(results) < 2 else "kid is done"

    return RecordingModel(answer), [SubAgent("kid", "Helps.", instructions="Help.", **child)]


@pytest.mark.contract("D-30")
async def test_a_childs_budget_ends_the_child_alone(store: Ledger) -> None:
    model, kids = tree(budget=Budget(requests=1))
    async with Runtime(ledger=store) as runtime:
        result = await Agent("root", model=model, subagents=kids, tools=[look], runtime=runtime).run("go")
        assert result.status == "completed"
        assert "status: error" in result.text
        assert "the budget of this run is used up" in result.text
        assert "Budget(requests=…)" in result.text
        assert result.left is None
        assert await audit(runtime.ledger, result.run_id) == []


@pytest.mark.contract("D-30")
@pytest.mark.parametrize("room", [4, 7, 8, 100])
async def test_a_trees_budget_is_over_all_of_it(store: Ledger, room: int) -> None:
    """Side by side no more calls are made than there is room for, and none is refused that has room."""
    model, kids = tree(4)
    async with Runtime(ledger=store) as runtime:
        agent = Agent("root", model=model, subagents=kids, tools=[look], runtime=runtime)
        result = await agent.run("go", check=False, budget=Budget(requests=room))
        made = len(model.asked("root")) + len(model.asked("kid"))
        assert made == min(room, 14)
        assert result.usage.calls == made
        assert (result.status, result.reason) == (("failed", "limit:requests") if room < 14 else ("completed", None))
        assert result.left == Left(requests=max(room - 14, 0))
        spent = await runtime.ledger.spends(result.run_id)
        assert sum(row.requests for row in spent) == made
        assert {row.owner for row in spent} == {None}
        assert await audit(runtime.ledger, result.run_id) == []


async def test_what_others_have_set_aside_is_waited_for(store: Ledger) -> None:
    """Two children have room one after the other: neither is refused, although both together would be too many."""
    model, kids = tree(2)
    async with Runtime(ledger=store) as runtime:
        agent = Agent("root", model=model, subagents=kids, tools=[look], runtime=runtime)
        result = await agent.run("go", check=False, budget=Budget(tokens=9_000))
    assert (result.status, result.reason) == ("completed", None)


async def test_the_smallest_of_the_chain_holds(store: Ledger) -> None:
    model, kids = tree(1, budget=Budget(requests=100))
    async with Runtime(ledger=store) as runtime:
        agent = Agent("root", model=model, subagents=kids, tools=[look], runtime=runtime)
        result = await agent.run("go", check=False, budget=Budget(requests=2))
    assert (result.status, result.reason, result.usage.calls) == ("failed", "limit:requests", 2)


async def test_a_dead_owner_holds_nothing_back(tmp_path: Path) -> None:
    """What a process had set aside when it died is nobody's."""
    model, kids = tree(1)
    path = tmp_path / "l.sqlite3"
    async with Runtime(ledger=path) as runtime:
        agent = Agent(
            "root", model=model, subagents=kids, tools=[look], runtime=runtime, permissions=PermissionRules(ask=["look"])
        )
        waiting = await agent.run("go", budget=Budget(tokens=9_000))
        (kid,) = [row for row in await runtime.ledger.tree(waiting.run_id) if row.depth]
        held = SpendRow(
            run_id=kid.run_id, root=waiting.run_id, lineage=kid.lineage, owner="own_dead", held_tokens=8_000, held_requests=1
        )
        await runtime.ledger.commit([PutSpend(held)])
        for request in waiting.requests:
            await agent.answer(request, allow=True, remember="session")
        row = await runtime.ledger.run(waiting.run_id)
        assert row is not None
        assert row.state == "completed"


@pytest.mark.contract("D-30")
async def test_the_time_at_work_is_limited() -> None:
    clock = VirtualClock(auto=True)
    model = ScriptedModel(
        {"agents": {"desk": [{"text": "Begun.", "calls": [{"name": "look"}], "delay": 4}, {"text": "late", "delay": 40}]}},
        clock=clock,
    )
    async with Runtime(clock=clock) as runtime:
        agent = Agent("desk", model=model, tools=[look], runtime=runtime)
        result = await agent.run("go", check=False, budget=Budget(seconds=10))
        assert (result.status, result.reason, result.text) == ("failed", "limit:seconds", "Begun.")
        assert clock.monotonic() < 44
        assert await audit(runtime.ledger, result.run_id) == []


@pytest.mark.contract("D-30")
@pytest.mark.parametrize("where", ["here", "on disk"])
async def test_time_that_waits_for_a_person_does_not_count(where: str) -> None:
    clock = VirtualClock(auto=True)
    script = {"agents": {"desk": [{"calls": [{"name": "look"}], "delay": 4}, {"text": "in time", "delay": 4}]}}
    async with Runtime(clock=clock) as runtime:
        agent = Agent(
            "desk",
            model=ScriptedModel(script, clock=clock),
            tools=[look],
            runtime=runtime,
            permissions=PermissionRules(ask=["look"]),
        )
        if where == "on disk":
            waiting = await agent.run("go", budget=Budget(seconds=9))
            await clock.sleep(100)
            result = await agent.answer(waiting.requests[0], allow=True)
            assert result is not None
            assert (result.status, result.text) == ("completed", "in time")
        else:
            async for event in agent.stream("go", budget=Budget(seconds=9)):
                if isinstance(event, PermissionRequest):
                    await clock.sleep(100)
                    await agent.answer(event, allow=True)
            (row,) = await runtime.ledger.runs()
            assert (row.state, row.reason) == ("completed", None)


async def test_time_is_counted_over_attempts() -> None:
    """What an earlier process has used of it is read from the journal."""
    clock, ledger = VirtualClock(auto=True), MemoryLedger()
    script = {
        "agents": {
            "desk": [
                {"calls": [{"name": "look"}], "delay": 6},
                {"text": "Half.", "calls": [{"name": "look"}], "delay": 2},
                {"text": "late", "delay": 60},
            ]
        }
    }
    rules = PermissionRules(ask=["look"])
    async with Runtime(ledger=ledger, clock=clock) as runtime:
        agent = Agent("desk", model=ScriptedModel(script, clock=clock), tools=[look], runtime=runtime, permissions=rules)
        waiting = await agent.run("go", budget=Budget(seconds=10))
    async with Runtime(ledger=ledger, clock=clock) as runtime:
        agent = Agent("desk", model=ScriptedModel(script, clock=clock), tools=[look], runtime=runtime, permissions=rules)
        before = clock.monotonic()
        result = await agent.answer(waiting.requests[0], allow=True, remember="session")
        assert result is not None
        assert (result.status, result.reason, result.text) == ("failed", "limit:seconds", "Half.")
        assert clock.monotonic() - before < 6


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 0}, {"requests": -1}, {"cost": "x"}, {"cost": 0}, {"seconds": float("inf")}, {"tokens": 1.5}, {"requests": True}],
)
def test_what_is_no_budget_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Budget"):
        Budget(**wrong)


async def test_a_stop_ends_the_wait_for_others(store: Ledger) -> None:
    """Who waits for room in a budget is stopped like anybody else."""
    async with Runtime(ledger=store) as runtime:
        model, kids = tree(2)
        go = asyncio.Event()
        inner = model._function

        async def answer(request: ModelRequest) -> Any:
            if request.agent_id == "kid":
                go.set()
                await asyncio.Event().wait()
            assert inner is not None
            return inner(request)

        model._function = answer
        agent = Agent("root", model=model, subagents=kids, tools=[look], runtime=runtime)
        running = asyncio.create_task(agent.run("go", check=False, budget=Budget(tokens=9_000)))
        await go.wait()
        await agent.cancel()
        result = await running
        assert result.status == "cancelled"
        assert {row.owner for row in await runtime.ledger.spends(result.run_id)} == {None}
        assert await audit(runtime.ledger, result.run_id) == []


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)), max_size=6)


@given(ROWS, st.integers(1, 100))
def test_what_is_left_is_never_less_than_nothing(spent: list[tuple[int, int, int]], limit: int) -> None:
    rows = [
        SpendRow(run_id=f"r{number}", root="r", lineage=("r", f"r{number}"), tokens=tokens, requests=requests)
        for number, (_, tokens, requests) in enumerate(spent)
    ]
    found = left(allowance_of("r", Budget(tokens=limit)), rows)
    assert found.tokens == max(limit - sum(row.tokens for row in rows), 0)
    assert (found.requests, found.cost) == (None, None)


@pytest.mark.contract("D-30")
async def test_what_the_end_of_a_task_wakes_is_under_the_same_budget(store: Ledger) -> None:
    """Otherwise a run whose budget is used up would go on in the runs that its tasks wake."""
    spawn = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})

    def answer(request: ModelRequest) -> Any:
        return calls(spawn) if request.agent_id == "root" and request.step == 1 else "done"

    model = RecordingModel(answer)
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(ledger=store) as runtime:
        async with Agent("root", model=model, subagents=[kid], runtime=runtime) as agent:  # it would give tasks for ever
            result = await agent.run("go", budget=Budget(requests=10))
        assert len(model.asked("root")) + len(model.asked("kid")) == 10
        assert sum(row.requests for row in await runtime.ledger.spends(result.run_id)) == 10
        woken = [row for row in await runtime.ledger.runs(roots_only=True) if row.woken]
        assert {(row.state.value, row.reason) for row in woken[:1]} == {("failed", "limit:requests")}
        for row in await runtime.ledger.runs(roots_only=True):
            assert await audit(runtime.ledger, row.run_id) == []
