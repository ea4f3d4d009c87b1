"""A letter of a task that cannot be read is told once, and keeps nothing from going on: its row says how the task ended."""

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, RuntimeContext, SubAgent
from retinue.events import SubAgentInvocationCompletedEvent, decode
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
SPAWN: dict[str, Any] = {"agent_id": "kid", "task": "x", "timeout_seconds": 0}


def model(spawns: int = 1) -> RecordingModel:
    """A root that gives tasks."""

    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return "kid is done"
        first = len(request.history) == 1
        return calls(*[("agent_spawn", SPAWN)] * spawns) if first else "seen"

    return RecordingModel(answer)


def agent_at(path: Path, asked: RecordingModel) -> Agent:
    """The root on a ledger."""
    return Agent("root", model=asked, ledger=path, subagents=[SubAgent("kid", "Helps.", instructions="Help.")])


def damage(path: Path, body: bytes, count: int) -> None:
    """Write over letters."""
    database = sqlite3.connect(path)
    where = f"rowid IN (SELECT rowid FROM mail WHERE body IS NOT NULL LIMIT {count})"
    assert database.execute(f"UPDATE mail SET body = ? WHERE {where}", (body,)).rowcount == count
    database.commit()
    database.close()


ANOTHER = b'{"mailId":"m","kind":"task","body":{},"at":1}'


@pytest.mark.contract("D-20")
@pytest.mark.parametrize("body", [b"\xff", b"{", ANOTHER], ids=["bytes", "cut", "field"])
@pytest.mark.parametrize("spawns", [1, 3])
@pytest.mark.parametrize("wakes", [False, True])
async def test_the_end_of_a_task_whose_letter_is_damaged_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes, spawns: int, wakes: bool
) -> None:
    path, asked = tmp_path / "l.db", model(spawns)
    agent = agent_at(path, asked)
    async with agent.runtime:  # not kept open itself: nobody wakes it
        result = await agent.run("go", context=HERE)
        assert [(await task.wait(10)).status for task in result.tasks] == ["completed"] * spawns
    damage(path, body, 1)
    with caplog.at_level(logging.WARNING, "retinue"):
        async with agent_at(path, asked) as agent:
            if wakes:
                from retinue.harness.tasks import deliver

                deliver(agent, KEY)
            else:
                await agent.run("and?", context=HERE)
    async with agent_at(path, asked) as agent:
        await agent.run("more?", context=HERE)
        journal = await agent.runtime.ledger.journal(KEY)
    assert journal is not None
    events = [decode(record) for record in journal.own]
    ends = [event for event in events if isinstance(event, SubAgentInvocationCompletedEvent)]
    assert len({event.invocation_id for event in ends}) == len(ends) == spawns
    messages = (entry.message for entry in asked.asked("root")[-1].history)
    (notice,) = [one.text for one in messages if isinstance(one, UserMessage) and one.notice]
    assert notice.count("is completed:") == spawns
    assert notice.count("Its text is damaged here. Read it with `task_output(") == 1
    assert notice.count("kid is done") == spawns - 1
    assert sum("goes on without a letter" in record.getMessage() for record in caplog.records) == 1
