"""Old readers survive new writers: events of types that this version does not know are kept, shown and skipped."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RuntimeContext, SubAgent
from retinue.events import UnknownEvent
from retinue.ledger.open import open_ledger
from retinue.ops import Append, NewEvent
from retinue.rows import ThreadKey
from retinue.testing import StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
BODY = b'{"weight":7,"nested":{"deep":[1,null]}}'


async def spoil(path: Path, thread: str, *, run: str) -> None:
    """Append an event of a later version to a thread, as that version's process would have."""
    ledger = open_ledger(path)
    await ledger.open()
    try:
        key = ThreadKey("", "s", thread)
        row = await ledger.thread(key)
        assert row is not None
        found = await ledger.run(run)
        event = NewEvent("TOMORROWS_EVENT", BODY, run, 1 if found is None else found.attempt, row.updated_at)
        await ledger.commit([Append(key, row.generation, row.head, (event,))])
    finally:
        await ledger.close()


def agent(provider: StrictProvider, path: Path, permissions: PermissionRules | None = None) -> Agent:
    """A parent whose child is asked for."""
    child = SubAgent("child", "D.", instructions="…", surface="tool")
    return Agent("parent", model=provider.model(), subagents=[child], ledger=path, permissions=permissions)


SCRIPT: dict[str, Any] = {"parent": [calls(("child", {"input": "x"}), ("child", {"input": "y"})), "ok"], "child": ["Done."]}


@pytest.mark.contract("H-20", "D-28", "D-32")
async def test_unknown_event_type_survives(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    async with StrictProvider(SCRIPT) as provider:
        async with agent(provider, path) as first:
            waiting = await first.run("Go.", context=HERE)
        assert waiting.status == "waiting"
        await spoil(path, "main", run=waiting.run_id)
        async with agent(provider, path) as second:
            still = await second.answer(waiting.requests[0], allow=True)
            assert still is not None
            assert still.status == "waiting"
        await spoil(path, "main", run=waiting.run_id)
        async with agent(provider, path) as third:
            done = await third.answer(waiting.requests[1], allow=True)
            assert done is not None
            assert done.text == "ok"
        await spoil(path, "main", run="run_of_tomorrow")
        async with agent(provider, path, PermissionRules(allow=["*"])) as fourth:
            again = await fourth.run("Again.", context=HERE)
            thread = await fourth.threads.get(session_id="s")
            events = await thread.events()
        assert again.status == "completed"
        assert provider.refused == []
        assert len(provider.asked("parent")) == 4
    unknown = [event for event in events if isinstance(event, UnknownEvent)]
    assert [(event.type, bytes(event.body)) for event in unknown] == [("TOMORROWS_EVENT", BODY)] * 3
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


@pytest.mark.contract("H-03")
async def test_a_fork_over_an_unknown_event_holds_the_conversation(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    async with StrictProvider(SCRIPT) as provider:
        async with agent(provider, path, PermissionRules(deny=["child"])) as first:
            await first.run("Go.", context=HERE)
        await spoil(path, "main", run="run_of_tomorrow")
        async with agent(provider, path, PermissionRules(allow=["*"])) as second:
            await second.run("Again.", context=HERE)
        child = provider.asked("child")[0]
        assert provider.refused == []
    assert [message["role"] for message in child.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "user",
    ]
