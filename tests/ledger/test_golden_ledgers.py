"""Ledgers that earlier versions wrote: each is brought to this version, read in full, and gone on with."""

import importlib.util
import sqlite3
from collections import Counter
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from retinue import Agent, RuntimeContext
from retinue.events import UnknownEvent, decode
from retinue.harness.doctor import check_runs
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.inspect import inspect
from retinue.ledger.sqlite.schema import MIGRATIONS
from retinue.rows import ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent / "golden"
GOLDEN = sorted(FOLDER.glob("v*.sql"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A golden file as a database of its own."""
    source: Path = request.param
    path = tmp_path / "ledger.sqlite3"
    database = sqlite3.connect(path)
    database.executescript(source.read_text(encoding="utf-8"))
    assert database.execute("PRAGMA user_version").fetchone() == (int(source.stem[1:]),)
    database.close()
    return path


def maker() -> ModuleType:
    """The program that wrote the golden files: it has the agent that a test goes on with."""
    spec = importlib.util.spec_from_file_location("golden_maker", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def boss(ledger: Path, *, script: object = None) -> Agent:
    made = maker()
    agent: Agent = made.boss(ledger, ask=True, script=script or made.SCRIPT)
    return agent


def test_there_is_a_golden_file_of_every_version() -> None:
    assert [path.stem for path in GOLDEN] == [f"v{version}" for version in range(1, len(MIGRATIONS) + 1)]


async def test_everything_is_read(golden: Path) -> None:
    ledger = SqliteLedger(golden)
    await ledger.open()
    assert await ledger.pragma("user_version") == len(MIGRATIONS)
    threads = await ledger.threads(hidden=True)
    assert Counter((row.key.user, row.key.session, row.hidden) for row in threads) == {
        ("ann", "done", False): 1,
        ("ann", "done", True): 2,
        ("", "asking", False): 1,
        ("", "asking", True): 1,
        ("", "interrupted", False): 1,
    }
    runs = await ledger.runs()
    assert Counter(run.state for run in runs) == {RunState.COMPLETED: 5, RunState.WAITING: 1, RunState.RUNNING: 1}
    for row in threads:
        journal = await ledger.journal(row.key)
        assert journal is not None
        events = [decode(record) for record in (*journal.inherited, *journal.own)]
        assert not any(isinstance(event, UnknownEvent) for event in events)
        assert bool(journal.inherited) == (row.key.thread != "main" and row.base is not None)
        for event in events:
            digest = getattr(event, "envelope_hash", "")
            assert not digest or await ledger.blob(digest) is not None
    for run in runs:
        invocations = await ledger.invocations(parent_run=run.run_id)
        assert [one.state for one in invocations] == (
            [] if run.depth or run.key.session == "interrupted" else [InvocationState.COMPLETED]
        )
    requests = await ledger.requests(state=RequestState.OPEN)
    assert [(one.tool, one.root.session) for one in requests] == [("write_note", "asking")]
    await ledger.close()


async def test_nothing_is_wrong_with_it(golden: Path) -> None:
    ledger = SqliteLedger(golden)
    await ledger.open()
    assert {finding.code async for finding in check_runs(ledger)} == {"orphaned_run", "open_request"}
    await ledger.close()
    assert {finding.severity for finding in inspect(golden)} <= {"ok", "warning"}  # the copy's mode is that of the test's folder


async def test_a_run_that_waits_is_answered(golden: Path) -> None:
    async with boss(golden) as agent:
        requests = await agent.requests("asking")
        result = await agent.answer(requests[0], allow=True)
        assert result is not None
        assert (result.status, result.text) == ("completed", "All done.")
        journal = await agent.runtime.ledger.journal(ThreadKey("", "asking", "main"))
        assert journal is not None
        contents = [getattr(decode(record), "content", "") for record in journal.own]
        assert 'noted: größer "quoted" \n note' in contents


async def test_an_interrupted_run_is_gone_on_with(golden: Path) -> None:
    script = [{"calls": [{"name": "write_note", "arguments": {"text": "die"}}]}, "Here instead."]
    async with boss(golden, script=script) as agent:
        (run,) = await agent.runtime.ledger.runs(states=(RunState.RUNNING,))
        result = await agent.resume(run.run_id)
        assert (result.status, result.text) == ("completed", "Here instead.")  # and the tool, started before, was not repeated


async def test_a_conversation_is_continued(golden: Path) -> None:
    async with boss(golden) as agent:
        result = await agent.run("Third task", context=RuntimeContext(session_id="done", user_id="ann"), check=False)
        assert result.status == "waiting"  # here the note asks
        assert result.thread is not None
        messages = await result.thread.messages()
        assert [getattr(message, "text", "") for message in messages].count("All done.") == 2


async def test_what_is_deleted_in_it_is_collected(golden: Path) -> None:
    from retinue.harness.care import delete_threads, with_children

    ledger = SqliteLedger(golden)
    await ledger.open()
    rows = await ledger.threads(session="done")
    await delete_threads(ledger, await with_children(ledger, rows))
    done = await ledger.collect(now=10**15, grace_ms=0)
    assert done.threads == 3
    assert done.records > 20
    assert [row.key.session for row in await ledger.threads()] == ["interrupted", "asking"]
    await ledger.close()


async def test_of_children_with_one_label_the_newest_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    database = sqlite3.connect(path)
    database.executescript((FOLDER / "v3.sql").read_text(encoding="utf-8"))
    add = (
        "INSERT INTO thread(user, session, thread, generation, head, updated_at, hidden, parent_user, parent_session,"
        " parent_thread, label, body) VALUES ('', ?, 'main', 1, 0, 1, 0, '', 'asking', 'main', ?, ?)"
    )
    for session, label in (("sub-1", "one"), ("sub-2", "two"), ("sub-3", "one")):
        row = ThreadRow(
            key=ThreadKey("", session, "main"),
            default_agent_id="helper",
            created_at=1,
            label=label,
            parent=ThreadKey("", "asking", "main"),
        )
        database.execute(add, (session, label, msgspec.json.encode(row)))
    database.commit()
    database.close()
    ledger = SqliteLedger(path)
    await ledger.open()
    labels = {row.key.session: row.label for row in await ledger.children(ThreadKey("", "asking", "main"))}
    assert labels == {**labels, "sub-1": None, "sub-2": "two", "sub-3": "one"}
    await ledger.close()


def test_what_a_migration_makes_is_what_a_new_file_has(golden: Path, tmp_path: Path) -> None:
    import asyncio

    async def opened(path: Path) -> None:
        ledger = SqliteLedger(path)
        await ledger.open()
        await ledger.close()

    fresh = tmp_path / "fresh.sqlite3"
    for path in (golden, fresh):
        asyncio.run(opened(path))
    tables: list[list[tuple[str, str]]] = []
    for path in (golden, fresh):
        database = sqlite3.connect(path)
        found: list[tuple[str, str]] = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        tables.append(sorted((name, " ".join(sql.split("/*")[0].split())) for name, sql in found))
        database.close()
    assert tables[0] == tables[1]
