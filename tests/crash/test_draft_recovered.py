"""D-33: the text that a killed process had streamed is kept where the run is then cancelled, and dropped where it goes on."""

import asyncio
from typing import Any

import pytest

from retinue.config import RuntimeContext
from retinue.errors import LedgerUnavailable
from retinue.harness.agent import Agent
from retinue.harness.runtime import Runtime
from retinue.ledger.memory import MemoryLedger
from retinue.models.port import ModelRequest
from retinue.models.scripted import ScriptedModel
from retinue.ops import Draft, PutDraft, RequestCancel
from retinue.subagents.declaration import SubAgent
from retinue.testing.audit import audit, transcript
from retinue.testing.mortal import SharedStore
from retinue.testing.transcripts import assert_valid_transcript

pytestmark = pytest.mark.anyio

HALF = "one two three " * 600
"""More than a draft checkpoint's 8 KiB."""

SPAWN: dict[str, Any] = {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "worker", "task": "Talk."}}]}


def agent_on(runtime: Runtime, who: str, *, hangs: bool) -> Agent:
    """An agent whose answer (or whose child's) is long, and hangs in the middle."""

    async def says(request: ModelRequest) -> Any:
        if request.agent_id != who:
            return SPAWN if request.step == 1 else "Lead is done."
        return {"text": HALF + "four.", "chunk": len(HALF), "chunk_delay": 60.0 if hangs else 0.0}

    worker = SubAgent("worker", "Works.", instructions="Work.")
    return Agent("lead", model=ScriptedModel(says), subagents=[worker], runtime=runtime)


@pytest.mark.contract("D-33")
@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("who", ["lead", "worker"])
async def test_the_draft_of_a_killed_process(who: str, cancelled: bool) -> None:
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    first = store.process()
    drafted = asyncio.Event()
    first.on_commit = lambda ops: drafted.set() if any(isinstance(op, PutDraft) for op in ops) else None
    runtime = Runtime(ledger=first.ledger)
    task = asyncio.create_task(agent_on(runtime, who, hangs=True).run("Go.", context=RuntimeContext(session_id="s1")))
    async with asyncio.timeout(20):
        await drafted.wait()
    first.kill()
    task.cancel()
    with pytest.raises((LedgerUnavailable, asyncio.CancelledError)):
        await task
    (root,) = await store.ledger.runs(roots_only=True)
    (key,) = [row.key for row in await store.ledger.tree(root.run_id) if row.agent_id == who]
    draft = await store.ledger.draft(key)
    assert draft is not None
    assert draft.text == HALF
    if cancelled:
        await store.ledger.commit([RequestCancel(root.run_id, "enough", "user", 1)])

    async with Runtime(ledger=store.process().ledger) as runtime:
        result = await agent_on(runtime, who, hangs=False).resume(root.run_id, check=False)
    assert await store.ledger.draft(key) is None
    assert await audit(store.ledger, root.run_id) == []
    said = str(await transcript(store.ledger, root.run_id))
    if cancelled:
        assert (result.status, result.reason) == ("cancelled", "enough")
        assert HALF in said
        assert "four." not in said
        assert result.text == (HALF if who == "lead" else "")
    else:
        assert result.status == "completed"
        assert said.count(HALF + "four.") == (1 if who == "lead" else 2)  # a child's text is its parent's result too
    await store.ledger.close()


@pytest.mark.contract("D-33")
async def test_a_draft_beside_open_calls_is_dropped() -> None:
    """Whoever wrote it: a message between calls and their results is a conversation that no provider takes."""
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    answers = {"lead": [{"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "worker", "task": "Talk."}}]}, "never"]}
    worker = SubAgent("worker", "Works.", instructions="Work.", requires_permission=True)
    async with Runtime(ledger=store.process().ledger) as runtime:
        agent = Agent("lead", model=ScriptedModel(answers), subagents=[worker], runtime=runtime)
        waiting = await agent.run("Go.", context=RuntimeContext(session_id="s1"))
    assert waiting.status == "waiting"
    (root,) = await store.ledger.runs(roots_only=True)
    await store.ledger.commit([PutDraft(root.key, Draft("msg_late", HALF, 1)), RequestCancel(root.run_id, "enough", "user", 1)])
    async with Runtime(ledger=store.process().ledger) as runtime:
        agent = Agent("lead", model=ScriptedModel(answers), subagents=[worker], runtime=runtime)
        result = await agent.resume(root.run_id, check=False)
        assert (result.status, result.text) == ("cancelled", "")
        assert result.thread is not None
        assert_valid_transcript(await result.thread.messages())
    assert await store.ledger.draft(root.key) is None
    assert await audit(store.ledger, root.run_id) == []
    assert HALF not in str(await transcript(store.ledger, root.run_id))
    await store.ledger.close()
