"""What a run is sent while it works: it arrives at its next step, once, and before its end (A-27)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, SubAgent, ToolHarness, UnknownId, tool
from retinue.events import ToolCallResultEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.ops import Op, RequestCancel, TakeMail
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
ALL = PermissionRules(allow=["*"])


def heard(request: ModelRequest) -> list[str]:
    """What users said."""
    return [entry.message.text for entry in request.history if isinstance(entry.message, UserMessage)]


class Held(ToolHarness):
    """A tool that stays until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    @tool
    async def work(self) -> str:
        """Work."""
        self.arrived.set()
        await self.go.wait()
        return "worked"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_message_arrives_at_the_next_step(store: str, tmp_path: Path) -> None:
    held, model = Held(), RecordingModel([calls(("work", {})), "done"])
    ledger = MemoryLedger() if store == "memory" else SqliteLedger(tmp_path / "l.sqlite3")
    async with Runtime(ledger=ledger) as runtime:
        agent = Agent("root", model=model, tool_harnesses=[held], runtime=runtime, permissions=ALL)
        run = asyncio.create_task(agent.run("go", context=HERE))
        await held.arrived.wait()
        run_id = (await runtime.ledger.runs())[0].run_id
        await agent.send(run_id, "mind the gap")
        assert not run.done()
        held.go.set()
        assert (await run).text == "done"
        assert [heard(request) for request in model.requests] == [["go"], ["go", "mind the gap"]]
        assert await audit(runtime.ledger, run_id) == []
        assert await runtime.ledger.mail(KEY) == []
        with pytest.raises(UnknownId) as raised:
            await agent.send(run_id, "too late")
        assert raised.value.code == "run_ended"


async def test_a_message_that_comes_with_the_last_answer_is_heard_before_the_end() -> None:
    run_ids: list[str] = []

    async def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            run_ids.append(request.run_id)
            await agent.send(request.run_id, "one more thing")
        return f"answer {request.step}"

    model = RecordingModel(answer)
    async with Runtime() as runtime:
        agent = Agent("root", model=model, runtime=runtime)
        assert (await agent.run("go", context=HERE)).text == "answer 2"
        assert heard(model.requests[1]) == ["go", "one more thing"]


async def test_a_message_of_the_parent_reaches_a_child_that_works() -> None:
    held = Held()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return calls(("work", {})) if request.step == 1 else f"heard: {heard(request)[-1]}"
        if request.step == 1:
            return calls(("agent_spawn", {"agent_id": "kid", "task": "x", "label": "k", "timeout_seconds": 0}))
        if request.step == 2:
            await held.arrived.wait()
            return calls(("agent_send", {"label": "k", "message": "hurry"}))
        return "sent"

    async with Runtime() as runtime:
        kid = SubAgent("kid", "Helps.", instructions="Help.", tool_harnesses=[held])
        agent = Agent("root", model=RecordingModel(answer), subagents=[kid], runtime=runtime, permissions=ALL)
        result = await agent.run("go", context=HERE)
        journal = await runtime.ledger.journal(KEY)
        assert journal is not None
        told = [event.content for event in map(decode, journal.own) if isinstance(event, ToolCallResultEvent)]
        assert "status: queued" in told[1]
        held.go.set()
        done = await result.tasks[0].wait(10)
        assert (done.status, done.text) == ("completed", "heard: hurry")


class Refusing(MemoryLedger):
    """The first commit that takes a letter is refused, because a stop of something else comes before it."""

    refused = 0

    def _commit(self, ops: Sequence[Op]) -> Any:
        if any(isinstance(op, TakeMail) for op in ops) and not self.refused:
            self.refused += 1
            return super()._commit([*ops, RequestCancel("run_of_nobody", "x", "y", 1)])
        return super()._commit(ops)


async def test_a_message_is_heard_once_also_when_its_commit_is_refused() -> None:
    held, model = Held(), RecordingModel([calls(("work", {})), "done"])
    ledger = Refusing()
    async with Runtime(ledger=ledger) as runtime:
        agent = Agent("root", model=model, tool_harnesses=[held], runtime=runtime, permissions=ALL)
        run = asyncio.create_task(agent.run("go", context=HERE))
        await held.arrived.wait()
        await agent.send((await runtime.ledger.runs())[0].run_id, "once")
        held.go.set()
        assert (await run).text == "done"
        assert ledger.refused == 1
        assert heard(model.requests[-1]) == ["go", "once"]
