"""Deleting and purging conversations: children go along, unfinished runs are left alone, live forks keep what they need."""

from pathlib import Path

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, ThreadBusy, tool
from retinue.agent.tree import BLOB_SECONDS
from retinue.harness.care import delete_threads, purge_threads, with_children
from retinue.testing import VirtualClock

pytestmark = pytest.mark.anyio

SCRIPT = {
    "boss": [{"calls": [{"name": "helper", "arguments": {"input": "a"}}]}, {"calls": [{"name": "note"}]}, "done"],
    "helper": ["found"],
}


@tool
def note() -> str:
    """Keep a note."""
    return "noted"


def boss(path: Path, **rules: list[str]) -> Agent:
    helper = SubAgent("helper", "Helps", instructions="Help.", surface="tool", context_policy="fork")
    permissions = PermissionRules(allow=["helper", *rules.get("allow", [])], ask=rules.get("ask", []))
    model = ScriptedModel(SCRIPT)
    return Agent("boss", model=model, tools=[note], subagents=[helper], ledger=path, permissions=permissions)


async def test_children_come_first_and_go_along(tmp_path: Path) -> None:
    async with boss(tmp_path / "l.db") as agent:
        await agent.run("one", context=RuntimeContext(session_id="s"))
        ledger = agent.runtime.ledger
        rows = await with_children(ledger, await ledger.threads(session="s"))
        assert [row.parent is None for row in rows] == [False, True]
        records = sum(row.head for row in rows)
        assert await purge_threads(ledger, rows) == records
        assert await ledger.threads(hidden=True) == []
        assert await ledger.runs() == []


async def test_a_child_that_is_kept_keeps_its_history(tmp_path: Path) -> None:
    async with boss(tmp_path / "l.db") as agent:
        result = await agent.run("one", context=RuntimeContext(session_id="s"))
        assert result.thread is not None
        ledger = agent.runtime.ledger
        (child,) = await ledger.children(result.thread.key)
        before = await (await agent.threads.get(session_id="s", thread_id=child.key.thread)).messages()
        await purge_threads(ledger, await ledger.threads(session="s"))
        after = await (await agent.threads.get(session_id="s", thread_id=child.key.thread)).messages()
        assert list(after) == list(before)


@pytest.mark.parametrize("remove", [purge_threads, delete_threads])
async def test_unfinished_runs_are_left_alone(tmp_path: Path, remove: object) -> None:
    async with boss(tmp_path / "l.db", ask=["note"]) as agent:
        result = await agent.run("one", context=RuntimeContext(session_id="s"))
        assert result.status == "waiting"
        ledger = agent.runtime.ledger
        rows = await with_children(ledger, await ledger.threads(session="s"))
        with pytest.raises(ThreadBusy, match=result.run_id):
            await (purge_threads if remove is purge_threads else delete_threads)(ledger, rows)
        assert len(await ledger.threads(session="s", hidden=True)) == 2
        answered = await agent.answer(result.requests[0], allow=True)
        assert answered is not None
        assert answered.status == "completed"


async def test_what_is_deleted_leaves_the_lists_and_then_the_ledger(tmp_path: Path) -> None:
    async with boss(tmp_path / "l.db") as agent:
        for session in ("s", "kept"):
            await agent.run("one", context=RuntimeContext(session_id=session))
        ledger = agent.runtime.ledger
        await delete_threads(ledger, await with_children(ledger, await ledger.threads(session="s")))
        assert [thread.session_id for thread in await agent.threads.list()] == ["kept"]
        done = await ledger.collect(now=agent.runtime.clock.now_ms())
        assert (done.threads, done.blobs) == (2, 0)  # the envelopes are those of the other session
        result = await agent.run("again", context=RuntimeContext(session_id="s"))
        assert result.status == "completed"


async def test_a_blob_that_was_not_put_for_long_is_put_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with Runtime(ledger=tmp_path / "l.db", clock=clock) as runtime:
        agent = Agent("a", model=ScriptedModel(["done"], clock=clock), runtime=runtime)
        await agent.run("one", context=RuntimeContext(session_id="s"))
        await delete_threads(runtime.ledger, await runtime.ledger.threads())
        assert (await runtime.ledger.collect(now=clock.now_ms())).condemned == 1
        await agent.run("two", context=RuntimeContext(session_id="t"))  # relies on the blob without putting it
        assert (await runtime.ledger.collect(now=clock.now_ms())).condemned == 0
        await delete_threads(runtime.ledger, await runtime.ledger.threads())
        assert (await runtime.ledger.collect(now=clock.now_ms())).condemned == 1
        await clock.advance(BLOB_SECONDS)
        digest = agent._defined(None).envelope.digest
        assert runtime._services.blob_due(digest)
        await agent.run("three", context=RuntimeContext(session_id="u"))
        assert not runtime._services.blob_due(digest)
        assert await runtime.ledger.blob(digest) is not None
