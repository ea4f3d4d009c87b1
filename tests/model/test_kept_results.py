"""A child's end that is refused, because a cancel came first, takes nothing else with it (found by the stateful test)."""

import asyncio

import pytest

from retinue import (
    Agent,
    ModelAnswer,
    ModelRequest,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ToolCallResultEvent,
)
from retinue.ledger import MemoryLedger
from retinue.ops import RequestCancel
from retinue.testing import ScriptedAgent, SharedStore, VirtualClock, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio


async def test_a_tool_whose_result_rode_behind_a_refused_end_does_not_run_again() -> None:
    tree = ScriptedAgent("lead", [ScriptedAgent("reader", says="It is blue."), calls(("put", {}))], says="Done.")
    script = ScriptedModel(tree.script())
    asked, answer, began, finish = (asyncio.Event() for _ in range(4))
    puts: list[str] = []

    async def reply(request: ModelRequest) -> ModelAnswer:
        if request.agent_id == "reader":
            asked.set()
            await answer.wait()
        return await script.answer(request, lambda _delta: None)

    async def put() -> str:
        """Change something."""
        puts.append("put")
        began.set()
        await finish.wait()
        return "changed"

    ledger, clock = MemoryLedger(), VirtualClock()
    await ledger.open()
    store = SharedStore(ledger)
    agent = Agent(
        "lead",
        model=ScriptedModel(reply),
        tools=[put],
        subagents=[SubAgent("reader", "Reads.", instructions="Read.")],
        runtime=Runtime(ledger=store.process().ledger, clock=clock),
        permissions=PermissionRules(allow=["*"]),
    )
    running = asyncio.create_task(agent.run("Begin.", context=RuntimeContext(session_id="s")))
    await asked.wait()
    await began.wait()
    root, child = sorted(await ledger.runs(), key=lambda row: len(row.lineage))
    async with store.still():  # what is committed now waits: first the child's end, behind it the tool's result
        answer.set()
        await clock.settle()
        finish.set()
        await clock.settle()
        await ledger.commit([RequestCancel(child.run_id, "from elsewhere", "ann", 1)])
    result = await running
    assert (result.status, result.text, puts) == ("completed", "Done.", ["put"])
    assert result.thread is not None
    results = {event.name: event.status for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)}
    assert results == {"agent_spawn": "cancelled", "put": "ok"}
    assert await audit(ledger, root.run_id) == []
    await agent.close()
