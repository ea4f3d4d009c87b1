"""A letter that cannot be read: it is told once, and the run goes on with what the request's row says, or waits on."""

import logging
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, PermissionRules, RunResult, Runtime, RuntimeContext, ScriptedModel
from retinue.harness.requests import answer_request
from retinue.ops import PutMail
from retinue.rows import Mail
from retinue.testing import calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ANOTHER = msgspec.json.encode(Mail(mail_id="m", kind="answer", body=msgspec.Raw(b"{}"), at=1))


def agent_at(path: Path, ran: list[str], **options: Any) -> Agent:
    """An agent with a tool that asks."""

    async def send(text: str) -> str:
        """Send it."""
        ran.append(text)
        return "sent"

    script = {"a": [calls(("send", {"text": "one"}), ("send", {"text": "two"})), "{results}"]}
    rules = PermissionRules(ask=["send"])
    return Agent("a", model=ScriptedModel(script), tools=[send], ledger=path, permissions=rules, **options)


async def answered(path: Path, ran: list[str], answers: list[bool]) -> RunResult:
    """A run that waits, and answers in its mailbox that nobody has read yet."""
    async with agent_at(path, ran) as agent:
        waiting = await agent.run("Go.", context=HERE)
    async with Runtime(ledger=path) as runtime:
        for request, allow in zip(waiting.requests, answers, strict=False):
            where = request.request_id
            await answer_request(runtime, where, user="", given=(allow, "not now"), remember="once", by="ann")
    return waiting


def damage(path: Path, body: object, where: str = "1") -> None:
    """Write over letters; without a body, over the name of a field of what they hold."""
    database = sqlite3.connect(path)
    new = "?" if body is not None else "CAST(replace(CAST(body AS TEXT), '\"requestId\"', '\"other\"') AS BLOB)"
    values = () if body is None else (body,)
    assert database.execute(f"UPDATE mail SET body = {new} WHERE body IS NOT NULL AND {where}", values).rowcount > 0
    database.commit()
    database.close()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of letters."""
    return [record.getMessage() for record in caplog.records if "goes on without a letter" in record.getMessage()]


@pytest.mark.parametrize(
    "body", [b"\xff", b"{", b"[1]", 7, ANOTHER, None], ids=["bytes", "cut", "form", "number", "another", "field"]
)
async def test_an_answer_whose_letter_is_damaged_is_read_from_its_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: object
) -> None:
    path, ran = tmp_path / "l.db", list[str]()
    waiting = await answered(path, ran, [True, False])
    damage(path, body)
    with caplog.at_level(logging.WARNING, "retinue"):
        async with agent_at(path, ran) as agent:
            result = await agent.resume(waiting.run_id)
    assert result.status == "completed"
    assert ran == ["one"]
    assert "not now" in result.text
    assert len(told(caplog)) == 2
    assert all("is damaged" in text and "`mail`" in text for text in told(caplog))
    caplog.clear()
    async with agent_at(path, ran) as agent:  # it was taken out
        assert (await agent.run("Again.", context=HERE)).status in ("completed", "waiting")
    assert not told(caplog)


async def test_one_damaged_letter_beside_a_sound_one(tmp_path: Path) -> None:
    path, ran = tmp_path / "l.db", list[str]()
    waiting = await answered(path, ran, [False, True])
    damage(path, b"\xff", "rowid = (SELECT min(rowid) FROM mail)")
    async with agent_at(path, ran) as agent:
        result = await agent.resume(waiting.run_id)
    assert (result.status, ran) == ("completed", ["two"])


async def test_a_damaged_letter_that_answers_nothing_keeps_no_run_from_waiting_and_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, ran = tmp_path / "l.db", list[str]()
    waiting = await answered(path, ran, [])
    assert waiting.thread is not None
    async with Runtime(ledger=path) as runtime:
        letter = Mail(mail_id="m1", kind="answer", body=msgspec.Raw(b"{}"), at=1)
        await runtime.ledger.commit([PutMail(waiting.thread.key, letter)])
    damage(path, b"\xff")
    with caplog.at_level(logging.WARNING, "retinue"):
        async with agent_at(path, ran) as agent:
            again = await agent.resume(waiting.run_id, check=False)
            assert (again.status, len(again.requests)) == ("waiting", 2)
            assert len(told(caplog)) == 1
            result = [await agent.answer(request, allow=True) for request in again.requests][-1]
    assert result is not None
    assert (result.status, ran) == ("completed", ["one", "two"])
    assert len(told(caplog)) == 1


async def test_where_the_request_is_damaged_too_the_run_can_be_stopped(tmp_path: Path) -> None:
    path, ran = tmp_path / "l.db", list[str]()
    waiting = await answered(path, ran, [True, True])
    damage(path, b"\xff")
    async with agent_at(path, ran) as agent:
        database = sqlite3.connect(path)
        database.execute("UPDATE request SET body = X'ff'")
        database.commit()
        database.close()
        again = await agent.resume(waiting.run_id, check=False)
        assert again.status == "waiting"
    assert ran == []
