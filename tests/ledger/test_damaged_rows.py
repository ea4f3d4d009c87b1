"""A file whose rows somebody has damaged: every read says what is damaged, where, and what to do."""

import hashlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, RuntimeContext, ScriptedModel
from retinue.agent.definition import envelope_from_blob
from retinue.agent.next_step import read_answer
from retinue.agent.projection import project
from retinue.errors import LedgerUnavailable
from retinue.harness.doctor import diagnose
from retinue.ledger.port import DAMAGED_MAIL
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import PutBlob, PutInvocation, PutMail, PutOwner, PutRequest, PutRun
from retinue.rows import Mail
from retinue.testing.conformance.sample import append, create, invocation_row, key_of, mail, owner_row, request_row, run_row

pytestmark = pytest.mark.anyio

KEY, CHILD = key_of(), key_of("child", session="sub-1", user="ann")
DIGEST = hashlib.sha256(b"data").hexdigest()
Read = Callable[[SqliteLedger], Awaitable[object]]

READS: list[tuple[str, str, Read]] = [
    ("thread", "ses/main", lambda ledger: ledger.thread(KEY)),
    ("thread", "ses/main", lambda ledger: ledger.threads(user="")),
    ("thread", "ses/main", lambda ledger: ledger.journal(KEY)),
    ("thread", "ann/sub-1/child", lambda ledger: ledger.children(KEY)),
    ("thread", "ann/sub-1/child", lambda ledger: ledger.child_thread(KEY, label="one")),
    ("run", "run_1", lambda ledger: ledger.run("run_1")),
    ("run", "run_1", lambda ledger: ledger.last_run(KEY)),
    ("run", "run_1", lambda ledger: ledger.runs()),
    ("run", "run_1", lambda ledger: ledger.tree("run_1")),
    ("invocation", "inv_1", lambda ledger: ledger.invocation("inv_1")),
    ("invocation", "inv_1", lambda ledger: ledger.invocations(root_run="run_1")),
    ("request", "req_1", lambda ledger: ledger.request("req_1")),
    ("request", "req_1", lambda ledger: ledger.requests()),
    ("owner", "own_1", lambda ledger: ledger.owner("own_1")),
    ("blob", DIGEST, lambda ledger: ledger.blob(DIGEST)),
]
TABLES = ("thread", "run", "invocation", "request", "mail", "owner", "blob")
DAMAGE: dict[str, Any] = {
    "not UTF-8": b"\xff\xfe",
    "cut": b"{",
    "another form": b"[1]",
    "half a character": b'{"key": "\xc3',
    "deep": b"[" * 100_000,
    "a number": 7,
}
damages = pytest.mark.parametrize("value", DAMAGE.values(), ids=DAMAGE.keys())


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A file with a row in each table, closed."""
    ledger = SqliteLedger(tmp_path / "ledger.sqlite3")
    await ledger.open()
    await ledger.commit(
        [
            create(KEY),
            append(KEY, 0, "a", "b"),
            create(CHILD, parent=KEY, label="one"),
            PutRun(run_row("run_1", KEY, owner="own_1")),
            PutInvocation(invocation_row("inv_1", KEY, CHILD)),
            PutRequest(request_row("req_1", KEY)),
            PutMail(KEY, mail("mail_1")),
            PutBlob(DIGEST, b"data"),
            PutOwner(owner_row("own_1")),
        ]
    )
    await ledger.close()
    return ledger.path


def damage(path: Path, statement: str, *values: Any) -> None:
    database = sqlite3.connect(path)
    assert database.execute(statement, values).rowcount > 0
    database.commit()
    database.close()


def damage_rows(path: Path, value: Any) -> None:
    for table in TABLES:
        damage(path, f"UPDATE {table} SET {'data' if table == 'blob' else 'body'} = ?", value)


def says(error: LedgerUnavailable, *parts: str) -> None:
    assert error.code == "damaged"
    assert "retinue doctor" in (error.remedy or "")
    for part in parts:
        assert part in error.message


@damages
async def test_every_read_of_a_damaged_row_says_which(path: Path, value: Any) -> None:
    damage_rows(path, value)
    ledger = SqliteLedger(path)
    await ledger.open()  # a damaged row keeps nobody from the sound ones
    for table, key, read in READS:
        with pytest.raises(LedgerUnavailable) as raised:
            await read(ledger)
        says(raised.value, f"`{key}`", f"`{table}`")
    (letter,) = await ledger.mail(KEY)  # it can be taken out: nobody is to stop for it
    assert (letter.mail_id, letter.kind) == ("mail_1", DAMAGED_MAIL)
    assert b"`mail_1`" in bytes(letter.body)
    assert b"`mail`" in bytes(letter.body)
    assert [record.body for record in await ledger.records(KEY, generation=1)] == [b'{"text":"a"}', b'{"text":"b"}']
    await ledger.close()


async def test_text_that_is_none_is_damage(path: Path) -> None:
    damage(path, "UPDATE event SET type = CAST(X'ff' AS TEXT) WHERE seq = 2")
    ledger = SqliteLedger(path)
    await ledger.open()
    with pytest.raises(LedgerUnavailable) as raised:
        await ledger.records(KEY, generation=1)
    says(raised.value, str(path))
    await ledger.close()


@damages
async def test_a_damaged_record_is_named_where_it_is_decoded(path: Path, value: Any) -> None:
    damage(path, "UPDATE event SET body = ? WHERE seq = 2", value)
    ledger = SqliteLedger(path)
    await ledger.open()
    record = (await ledger.records(KEY, generation=1))[1]
    with pytest.raises(LedgerUnavailable) as raised:
        project((msgspec.structs.replace(record, key=CHILD),), ())
    says(raised.value, "record 2", "`sub-1/child` of user `ann`", "`event`", "`MESSAGE`")
    await ledger.close()


async def test_a_purge_that_meets_a_damaged_row_says_which(path: Path) -> None:
    damage(path, "UPDATE request SET body = X'ff'")
    damage(path, "UPDATE run SET state = 'completed'")
    ledger = SqliteLedger(path)
    await ledger.open()
    with pytest.raises(LedgerUnavailable) as raised:
        await ledger.purge(KEY)
    says(raised.value, "req_1", "`request`")
    assert await ledger.thread(KEY) is not None
    await ledger.close()


@pytest.mark.parametrize("data", [b"\xff", b"{}", b'{"instructions": 1}'])
def test_a_damaged_envelope_and_a_damaged_answer_are_named(data: bytes) -> None:
    with pytest.raises(LedgerUnavailable) as raised:
        envelope_from_blob(data, DIGEST)
    says(raised.value, DIGEST, "`blob`")
    with pytest.raises(LedgerUnavailable) as raised:
        read_answer(Mail(mail_id="mail_1", kind="answer", body=msgspec.Raw(data), at=1))
    says(raised.value, "mail_1", "`mail`")


async def test_a_run_on_a_damaged_journal_ends_with_the_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    async with Agent("one", model=ScriptedModel(["Hello."]), ledger=path) as agent:
        await agent.run("Hi.", context=RuntimeContext(session_id="s"))
    damage(path, "UPDATE event SET body = X'ff' WHERE type = 'MESSAGE'")
    async with Agent("one", model=ScriptedModel(["Hello."]), ledger=path) as agent:
        with pytest.raises(LedgerUnavailable) as raised:
            await agent.run("Hi.", context=RuntimeContext(session_id="s"))
        says(raised.value, "`s/main`")
        assert (await agent.run("Hi.", context=RuntimeContext(session_id="other"))).text == "Hello."


async def test_the_doctor_names_what_is_damaged(path: Path) -> None:
    damage_rows(path, b"\xff")
    damage(path, "UPDATE event SET body = X'ff'")
    texts = [finding.text async for finding in diagnose(path.parent, path) if finding.severity == "error"]
    for wanted in ("run_1", "inv_1", "req_1", "mail_1", "own_1", DIGEST[:12], "record 1 of", "thread `main`"):
        assert any(wanted in text for text in texts), wanted
