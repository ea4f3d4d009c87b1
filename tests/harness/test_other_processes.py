"""What another process commits reaches a run that is driven here within half a second: stops and answers (M8, D-18)."""

import asyncio
from pathlib import Path

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, ToolHarness, tool
from retinue.events import Event, PermissionRequest, RunFinishedEvent
from retinue.harness.watching import POLL_SECONDS
from retinue.ledger.sqlite import SqliteLedger
from retinue.testing import RecordingModel, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


@pytest.mark.contract("D-18", "A-37")
@pytest.mark.parametrize("whose", ["root", "helper"])
async def test_a_stop_from_another_process_is_seen_at_the_next_look(tmp_path: Path, whose: str) -> None:
    clock, path, reached = VirtualClock(), tmp_path / "l.sqlite3", asyncio.Event()

    class Work(ToolHarness):
        @tool
        async def work(self) -> str:
            """Work without end."""
            reached.set()
            await asyncio.Event().wait()
            return "never"

    model = RecordingModel({"root": [calls(("helper", {"input": "x"})), "root is done"], "helper": [calls(("work", {})), "no"]})
    helper = SubAgent("helper", "Helps.", instructions="Help.", surface="tool", tool_harnesses=[Work])
    async with Runtime(ledger=SqliteLedger(path), clock=clock) as runtime, Runtime(ledger=SqliteLedger(path)) as other:
        rules = PermissionRules(allow=["*"])
        agent = Agent("root", model=model, subagents=[helper], runtime=runtime, permissions=rules)
        run = asyncio.create_task(agent.run("go", context=HERE, check=False))
        await reached.wait()
        root = (await other.ledger.runs(roots_only=True))[0]
        target = next(row for row in await other.ledger.tree(root.run_id) if row.agent_id == whose)
        await Agent("root", model=ScriptedModel([]), runtime=other).cancel(target.run_id, reason="enough")
        await clock.settle()
        assert not run.done()
        while not run.done():
            await clock.advance(POLL_SECONDS)
        result = await run
        assert result.status == ("cancelled" if whose == "root" else "completed")
        ended = {row.agent_id: row.state.value for row in await other.ledger.tree(root.run_id)}
        assert ended["helper"] == "cancelled"
        assert len(model.asked("helper")) == 1


@pytest.mark.contract("D-28")
async def test_an_answer_from_another_process_is_seen_at_the_next_look(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "l.sqlite3"

    @tool
    def wipe() -> str:
        """Wipe."""
        return "wiped"

    script = [calls(("wipe", {})), "done"]
    rules = PermissionRules(ask=["wipe"])
    async with Runtime(ledger=SqliteLedger(path), clock=clock) as runtime, Runtime(ledger=SqliteLedger(path)) as other:
        agent = Agent("root", model=ScriptedModel(script), tools=[wipe], runtime=runtime, permissions=rules)
        elsewhere = Agent("root", model=ScriptedModel(script), tools=[wipe], runtime=other, permissions=rules)
        asked = asyncio.Event()
        seen: list[Event] = []

        async def follow() -> None:
            async for event in agent.stream("go", context=HERE, patient=True):
                seen.append(event)
                if isinstance(event, PermissionRequest):
                    asked.set()

        following = asyncio.create_task(follow())
        await asked.wait()
        assert isinstance(seen[-1], PermissionRequest)
        assert await elsewhere.answer(seen[-1].request_id, allow=True) is None  # it is driven here
        while not following.done():
            await clock.advance(POLL_SECONDS)
        await following
        assert isinstance(seen[-1], RunFinishedEvent)
        assert seen[-1].status == "completed"


async def test_nobody_looks_when_nothing_is_driven(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with Runtime(ledger=SqliteLedger(tmp_path / "l.sqlite3"), clock=clock) as runtime:
        agent = Agent("root", model=ScriptedModel(["hi"]), runtime=runtime)
        await agent.run("go", context=HERE)
        await clock.advance(2 * POLL_SECONDS)
        assert clock.sleepers == 0
