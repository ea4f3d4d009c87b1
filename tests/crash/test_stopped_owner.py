"""M3: an owner that was stopped and revived after a take-over can write nothing, starts nothing and asks nobody."""

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.agent.journal import RunJournal
from retinue.agent.projection import Projection
from retinue.errors import LedgerConflict
from retinue.events import CancelSeenEvent
from retinue.ledger.memory import MemoryLedger
from retinue.ops import CreateThread, Draft, PutDraft, PutMail, PutRun, TakeMail
from retinue.rows import Mail, RunRow, ThreadKey, ThreadRow
from retinue.states import RunState
from retinue.testing.audit import audit, told, transcript
from retinue.testing.clock import VirtualClock

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


@pytest.mark.parametrize("kind", ["draft", "mail"])
async def test_writes_without_events_are_fenced_too(kind: str) -> None:
    """A draft, or a mail that is taken, carries no event of its own; an owner that lost its lease can write neither."""
    ledger, key = MemoryLedger(), ThreadKey("", "s1", "main")
    await ledger.open()
    row = RunRow(
        run_id="run_1",
        key=key,
        agent_id="lead",
        state=RunState.RUNNING,
        attempt=1,
        lineage=("run_1",),
        path=("lead",),
        started_at=1,
        updated_at=1,
    )
    mail = Mail(mail_id="mail_1", kind="answer", body=msgspec.Raw(b"{}"), at=1)
    await ledger.commit([CreateThread(ThreadRow(key=key, default_agent_id="lead", created_at=1)), PutRun(row)])
    await ledger.commit([PutMail(key, mail)])

    def journal(head: int) -> RunJournal:
        return RunJournal(
            ledger, VirtualClock(), row, Projection(), generation=1, head=head, stored=True, tell=lambda _events: None
        )

    old, new = journal(0), journal(0)
    new.stage(CancelSeenEvent(reason="taken over"))
    await new.flush()
    old.stage_op(PutDraft(key, Draft("msg_1", "half", 1)) if kind == "draft" else TakeMail(key, "mail_1"))
    with pytest.raises(LedgerConflict) as raised:
        await old.flush()
    assert raised.value.code == "head_moved"
    assert (await ledger.draft(key), await ledger.mail(key)) == (None, [mail])


async def recorded(ledger: Path, count: int) -> None:
    """Return when the ledger holds so many results of tools that change something. Nobody is told: they are another process."""
    query = (
        "SELECT count(*) FROM event WHERE type = 'TOOL_CALL_RESULT' AND json_extract(body, '$.name') IN ('note', 'put', 'pay')"
    )
    with closing(sqlite3.connect(ledger)) as db:
        async with asyncio.timeout(20):
            while db.execute(query).fetchone()[0] < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def attempts(ledger: Any, root: str) -> set[int]:
    """The attempts that wrote into the tree after the take-over's own events."""
    found: set[int] = set()
    for one in await told(ledger, root):
        numbers = [record.attempt for record, _ in one.events]
        found |= set(numbers[numbers.index(2) :]) if 2 in numbers else set()
    return found


@pytest.mark.parametrize(
    ("agent", "step", "effects_before"),
    [("lead", 2, 6), ("helper", 1, 4), ("helper", 3, 6), ("noter", 2, 1)],
)
async def test_stopped_owner_revived_after_takeover(
    tmp_path: Path, forks: Any, theatre: Any, read: Any, stand_still: Any, agent: str, step: int, effects_before: int
) -> None:
    """Stopped while a model answers: what the model said to the old owner goes nowhere."""
    path = tmp_path / "ledger.sqlite3"
    root = "noter" if agent == "noter" else "lead"
    gate = theatre.provider.hold(agent=agent, step=step)
    old = forks.start("run", "old", path, theatre.provider.url, agent=root)
    await theatre.reached(gate, old)
    await theatre.happened(effects_before)
    stand_still(await old.pid(), path)
    refused = await forks.start("resume", "refused", path, theatre.provider.url, agent=root).outcome()
    assert (refused["error"], refused["code"]) == ("ThreadBusy", "thread_busy")
    assert "alive" in refused["message"]
    assert "--take-over" in refused["message"]
    new = await forks.start("resume", "new", path, theatre.provider.url, agent=root, take_over=True).outcome()
    assert new["status"] == "completed", new
    async with read(path) as ledger:
        run_id = (await ledger.runs(roots_only=True))[0].run_id
        finished = await transcript(ledger, run_id)
        effects, asked = list(theatre.names()), list(theatre.asked())
        gate.release()
        os.kill(await old.pid(), signal.SIGCONT)
        lost = await old.outcome()
        assert (lost["error"], lost["code"]) == ("LeaseLost", "lease_lost")
        assert "taken over" in lost["message"]
        assert theatre.names() == effects
        assert theatre.asked() == asked
        assert asked.count((agent, step)) == 2
        assert [key for key, times in Counter(asked).items() if times > 1] == [(agent, step)]
        assert await audit(ledger, run_id) == []
        assert await transcript(ledger, run_id) == finished
        assert await attempts(ledger, run_id) == {2}
        assert [row.state.value for row in await ledger.tree(run_id)] == ["completed"] * len(await ledger.tree(run_id))


@pytest.mark.parametrize("tool", ["note", "put", "pay"])
async def test_stopped_in_the_middle_of_a_tool(
    tmp_path: Path, forks: Any, theatre: Any, read: Any, stand_still: Any, tool: str
) -> None:
    """The effect has happened and the old owner does not know: not repeated, unless the tool can be."""
    path = tmp_path / "ledger.sqlite3"
    gate = theatre.hold_effect(tool)
    asking = theatre.provider.hold(agent="helper", step=1)
    if tool == "pay":
        asking.release()
    old = forks.start("run", "old", path, theatre.provider.url)
    await theatre.reached(gate, old)
    await theatre.reached(asking, old)
    await theatre.happened(5 if tool == "pay" else 4)
    await recorded(path, 2 if tool == "pay" else 1)  # nothing else is under way now
    stand_still(await old.pid(), path)
    new = await forks.start("resume", "new", path, theatre.provider.url, take_over=True).outcome()
    assert new["status"] == "completed", new
    async with read(path) as ledger:
        run_id = (await ledger.runs(roots_only=True))[0].run_id
        finished = await transcript(ledger, run_id)
        asked, effects = list(theatre.asked()), list(theatre.names())
        gate.release()
        asking.release()
        os.kill(await old.pid(), signal.SIGCONT)
        assert (await old.outcome())["code"] == "lease_lost"
        assert (theatre.asked(), theatre.names()) == (asked, effects)
        assert await audit(ledger, run_id) == []
        assert await transcript(ledger, run_id) == finished
    assert str(finished).count("unknown_outcome") == (0 if tool == "put" else 1)
    if tool != "put":
        assert [name for name, _ in effects].count(tool) == 1
    else:
        assert len({effect["key"] for effect in theatre.effects if (effect["name"], effect["agent"]) == ("put", "lead")}) == 1
