"""Slots: a limit on children at work never deadlocks, is never exceeded, and goes to the deepest first (M9, D-30)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolContext,
    ToolHarness,
    tool,
)
from retinue.agent.slots import Slots
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, VirtualClock, calls
from retinue.testing.audit import audit
from retinue.testing.scheduler import SeededLoop

ALL = PermissionRules(allow=["*"])
WORK: list[tuple[str, dict[str, Any]]] = [("work", {}), ("work", {})]


class Work(ToolHarness):
    """What children at work do: everything takes time, and is counted."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.at_work: Counter[str] = Counter()
        self.most = 0

    async def busy(self, run_id: str, seconds: float) -> None:
        """Work for a while in this run."""
        self.at_work[run_id] += 1
        self.most = max(self.most, sum(works > 0 for works in self.at_work.values()))
        try:
            await self.clock.sleep(seconds)
        finally:
            self.at_work[run_id] -= 1

    @tool
    async def work(self, context: ToolContext) -> str:
        """Work."""
        await self.busy(context.run_id, 3)
        return "worked"


def level(depth: int, most: int, work: Work) -> SubAgent:
    """The child at this depth, with the next one below it."""
    below = ToolHarness()
    if depth < most:
        below.add_subagent(level(depth + 1, most, work))
    return SubAgent(
        f"d{depth}",
        f"At depth {depth}.",
        instructions="Work.",
        surface="tool",
        tool_harnesses=[below, work],
        availability=SubAgentAvailability.ANY_ALLOWED_DEPTH,
    )


def everyone(work: Work, depth: int, width: int) -> RecordingModel:
    """Each agent asks `width` children of the next depth at once, works with a tool, and says so."""

    async def answer(request: ModelRequest) -> Any:
        here = 0 if request.agent_id == "root" else int(request.agent_id[1:])
        if here:
            await work.busy(request.run_id, 1 + here)
        if request.step == 1 and here < depth:
            wanted = [(f"d{here + 1}", {"input": "go"})] * width
            return calls(*wanted, *WORK[: min(here, 1)])
        if request.step == 1:
            return calls(*WORK)
        return f"{request.agent_id} is done"

    return RecordingModel(answer)


async def run_tree(limit: int, depth: int, width: int) -> tuple[int, int]:
    """Run a whole tree; the most that were at work at once, and how many children there were."""
    clock = VirtualClock(auto=True)
    work = Work(clock)
    runtime = Runtime(clock=clock, limits=Limits(max_children=limit))
    agent = Agent("root", model=everyone(work, depth, width), subagents=[level(1, depth, work)], runtime=runtime, permissions=ALL)
    result = await agent.run("go")
    assert (result.status, result.text) == ("completed", "root is done")
    children = await runtime.ledger.tree(result.run_id)
    assert await audit(runtime.ledger, result.run_id) == []
    assert not any(work.at_work.values())
    await runtime.close()
    return work.most, len(children) - 1


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.contract("D-30", "H-28")
def test_slots_never_deadlock(limit: int, depth: int, width: int) -> None:
    most, children = asyncio.run(asyncio.wait_for(run_tree(limit, depth, width), 60))
    assert children == sum(width**level for level in range(1, depth + 1))
    assert most <= limit
    assert most == limit or width < limit  # all slots are used where there is enough to do


@pytest.mark.contract("D-30")
@pytest.mark.anyio
async def test_tools_of_one_child_that_wait_for_each_other_do_not_shut_each_other_out() -> None:
    said = asyncio.Event()

    class Pair(ToolHarness):
        @tool
        async def hear(self) -> str:
            """Wait for the other."""
            await said.wait()
            return "heard"

        @tool
        async def say(self) -> str:
            """Let the other go on."""
            said.set()
            return "said"

    model = RecordingModel({"root": [calls(("d1", {"input": "go"})), "done"], "d1": [calls(("hear", {}), ("say", {})), "ok"]})
    child = SubAgent("d1", "One.", instructions="Work.", surface="tool", tool_harnesses=[Pair()])
    async with Agent("root", model=model, subagents=[child], limits=Limits(max_children=1), permissions=ALL) as agent:
        assert (await asyncio.wait_for(agent.run("go"), 10)).text == "done"


@pytest.mark.parametrize("seed", range(12))
def test_slots_never_deadlock_in_any_order(seed: int) -> None:
    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed)) as runner:
        most, children = runner.run(asyncio.wait_for(run_tree(1 + seed % 3, 3, 2), 60))
    assert most <= 1 + seed % 3
    assert children == 14


async def _take(slots: Slots, depth: int, order: int, got: list[tuple[int, int]]) -> None:
    await slots.take(depth, order)
    got.append((depth, order))


@pytest.mark.anyio
async def test_a_free_slot_goes_to_the_deepest_and_then_to_the_oldest() -> None:
    slots, got = Slots(1), list[tuple[int, int]]()
    await slots.take(1, 0)
    waiting: Sequence[tuple[int, int]] = [(1, 1), (2, 5), (3, 9), (2, 4), (3, 8)]
    tasks = [asyncio.create_task(_take(slots, depth, order, got)) for depth, order in waiting]
    await asyncio.sleep(0)
    assert slots.queued == 5
    for _ in waiting:
        slots.give()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert got == [(3, 8), (3, 9), (2, 4), (2, 5), (1, 1)]
    assert (slots.taken, slots.queued) == (1, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["waiting", "given"])
async def test_a_slot_that_is_not_wanted_any_more_goes_to_the_next(when: str) -> None:
    slots, got = Slots(1), list[tuple[int, int]]()
    await slots.take(1, 0)
    first = asyncio.create_task(_take(slots, 2, 1, got))
    second = asyncio.create_task(_take(slots, 1, 2, got))
    await asyncio.sleep(0)
    if when == "given":
        slots.give()  # it is the first one's, which has not run yet
        first.cancel()
    else:
        first.cancel()
        await asyncio.sleep(0)
        slots.give()
    await second
    assert got == [(1, 2)]
    assert slots.taken == 1
    slots.give()
    assert (slots.taken, slots.queued) == (0, 0)


class Odd(ToolHarness):
    """Tools that do not end well."""

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise ValueError("no")

    @tool
    async def stuck(self) -> str:
        """Never end."""
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if LEAVE.is_set():
                    raise

    @tool(read_only=True)
    async def good_work(self) -> str:
        """Be done."""
        return "well"


LEAVE = asyncio.Event()


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["model_error", "tool_error", "cancelled", "stuck"])
async def test_a_slot_is_given_back_however_its_child_ends(how: str) -> None:
    clock = VirtualClock()
    LEAVE.clear()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(("bad", {"input": "x"}), ("good", {"input": "y"})) if request.step == 1 else "root is done"
        if request.agent_id == "good":
            await clock.sleep(1)
            return calls(("good_work", {})) if request.step < 3 else "good is done"
        if how == "model_error":
            raise ValueError("no")
        if how == "cancelled":
            await asyncio.Event().wait()
        return calls(("fail" if how == "tool_error" else "stuck", {})) if request.step == 1 else "bad is done"

    runtime = Runtime(clock=clock, limits=Limits(max_children=1, stop_grace=5))
    agent = Agent(
        "root",
        model=RecordingModel(answer),
        subagents=[
            SubAgent("bad", "Bad.", instructions="Be bad.", surface="tool", tool_harnesses=[Odd()]),
            SubAgent("good", "Good.", instructions="Be good.", surface="tool", tool_harnesses=[Odd()]),
        ],
        runtime=runtime,
        permissions=ALL,
    )
    run = asyncio.create_task(agent.run("go", context=RuntimeContext(session_id="s")))
    await clock.advance(10)
    if how in ("cancelled", "stuck"):
        assert not run.done()
        root = (await runtime.ledger.runs(roots_only=True))[0]
        bad = next(row for row in await runtime.ledger.tree(root.run_id) if row.agent_id == "bad")
        await agent.cancel(bad.run_id)
        await clock.advance(10)
    result = await asyncio.wait_for(run, 5)
    assert result.text == "root is done"
    ended = {row.agent_id: row.state.value for row in await runtime.ledger.tree(result.run_id)}
    expected = {"model_error": "failed", "tool_error": "completed", "cancelled": "cancelled", "stuck": "cancelled"}
    assert ended == {"root": "completed", "bad": expected[how], "good": "completed"}
    LEAVE.set()
    await clock.advance(1)
    await runtime.close()
