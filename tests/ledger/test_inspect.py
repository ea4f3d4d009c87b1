"""What `inspect` finds in a damaged, foreign or misplaced file, each with a remedy; and that it finds nothing in a sound one."""

import asyncio
import hashlib
import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from retinue.events import RunStartedEvent, ToolCallResultEvent, encode
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.inspect import SHOWN, Finding, inspect
from retinue.ledger.sqlite.schema import APPLICATION_ID, MIGRATIONS
from retinue.messages import BlobRef, CallRef
from retinue.ops import Append, NewEvent, OpenGeneration, PutBlob, PutRun
from retinue.rows import ForkPoint
from retinue.testing.conformance.sample import create, key_of, run_row

BLOB = b"a text"
DIGEST = hashlib.sha256(BLOB).hexdigest()


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A ledger with two generations, a fork, a blob and rows."""
    path = tmp_path / ".retinue" / "ledger.sqlite3"
    path.parent.mkdir(mode=0o700)
    asyncio.run(fill(path))
    return path


async def fill(path: Path) -> None:
    ledger = SqliteLedger(path)
    await ledger.open()
    key, fork = key_of(), key_of("fork")
    started = RunStartedEvent(agent_id="a", owner="own_1", attempt=1, envelope_hash=DIGEST)
    result = ToolCallResultEvent(
        call=CallRef("m", 0), call_id="c", name="n", content="x", blobs=(BlobRef(digest=DIGEST, characters=6),)
    )
    events = tuple(NewEvent(event.TYPE, encode(event), "run_1", 1, 5) for event in (started, result, started))
    await ledger.commit([create(key), PutBlob(DIGEST, BLOB), PutRun(run_row("run_1", key)), Append(key, 1, 0, events)])
    await ledger.commit([create(fork, base=ForkPoint(key, 1, 2)), OpenGeneration(key, 2, 3), Append(key, 2, 0, events[:2])])
    await ledger.close()


def faults(path: Path) -> list[Finding]:
    return [finding for finding in inspect(path) if finding.severity in ("warning", "error")]


def test_nothing_is_wrong_with_a_sound_ledger(sound: Path) -> None:
    findings = list(inspect(sound))
    assert [(finding.severity, finding.code) for finding in findings] == [
        ("ok", "filesystem"),
        ("ok", "version"),
        ("ok", "integrity"),
    ]


DAMAGES: dict[str, tuple[str, str]] = {
    "gaps": ("DELETE FROM event WHERE generation = 1 AND seq = 2", "3 records"),
    "head": ("UPDATE thread SET head = 7 WHERE thread = 'main'", "head of `ses/main` (generation 2) is 7"),
    "orphan_records": ("UPDATE event SET thread_id = 99 WHERE generation = 2", "belong to no thread"),
    "fork": ("UPDATE fork SET base_seq = 9", "begins with 9 records"),
    "record": ("UPDATE event SET body = X'7B' WHERE generation = 2 AND seq = 1", "record 1 of `ses/main` (generation 2)"),
    "row": ("UPDATE run SET body = X'7B7D'", "run `run_1`"),
    "blob": ("UPDATE blob SET data = X'00'", "not what its hash says"),
    "missing_blob": ("DELETE FROM blob", "refers to the blob"),
}


@pytest.mark.parametrize("code", DAMAGES)
def test_damage_is_found(sound: Path, code: str) -> None:
    statement, words = DAMAGES[code]
    database = sqlite3.connect(sound)
    assert database.execute(statement).rowcount >= 1
    database.commit()
    database.close()
    found = faults(sound)
    assert code in {finding.code for finding in found}
    words = words.replace("3 records", "2 records, numbered 1 to 3")
    assert any(words in finding.text for finding in found if finding.code == code), found
    assert all(finding.remedy and finding.severity == "error" for finding in found)


def test_a_damaged_file_is_found(sound: Path) -> None:
    data = bytearray(sound.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    data[5 * page : 6 * page] = b"\xff" * page
    sound.write_bytes(data)
    found = faults(sound)
    assert "damaged" in {finding.code for finding in found}
    assert any("copy" in finding.remedy for finding in found)


def test_what_is_wrong_many_times_is_counted(sound: Path) -> None:
    database = sqlite3.connect(sound)
    for number in range(SHOWN + 30):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        database.execute("INSERT INTO blob VALUES (?, ?)", (digest, b"other"))
    database.commit()
    database.close()
    found = faults(sound)
    assert len(found) == SHOWN + 1
    assert found[-1].text == "and 30 more like these (`blob`)"


NEWER = (f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={len(MIGRATIONS) + 1}")


@pytest.mark.parametrize(
    ("statements", "code"),
    [((), "not_a_ledger"), (("CREATE TABLE recipes(name)",), "not_a_ledger"), (NEWER, "newer_version")],
    ids=["text", "database", "newer"],
)
def test_files_that_are_none_of_ours(tmp_path: Path, statements: tuple[str, ...], code: str) -> None:
    path = tmp_path / "l.db"
    if statements:
        foreign(path, *statements)
    else:
        path.write_text("# notes\n" * 100)
    os.chmod(path, 0o600)
    before = path.read_bytes()
    assert [finding.code for finding in faults(path)] == [code]
    assert faults(path)[0].remedy
    assert path.read_bytes() == before


def foreign(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


def test_an_older_version_is_left_as_it_is(sound: Path) -> None:
    foreign(sound, "PRAGMA user_version=1")
    assert [finding.code for finding in inspect(sound)] == ["filesystem", "older_version"]


def test_another_journal_mode_is_told(sound: Path) -> None:
    foreign(sound, "PRAGMA journal_mode=DELETE")
    assert [(finding.severity, finding.code) for finding in faults(sound)] == [("warning", "journal_mode")]


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert [finding.code for finding in inspect(tmp_path / "none.db")] == ["filesystem", "no_ledger"]
    assert not (tmp_path / "none.db").exists()


def test_a_network_file_system_is_an_error(tmp_path: Path) -> None:
    (finding,) = inspect(tmp_path / "l.db", filesystem=lambda path: "nfs4")
    assert (finding.severity, finding.code) == ("error", "network_filesystem")
    assert "nfs4" in finding.text
    assert "local disk" in finding.remedy


def test_permissions_that_are_too_wide_are_told(sound: Path) -> None:
    os.chmod(sound, 0o644)
    os.chmod(sound.parent, 0o755)
    found = faults(sound)
    assert [finding.code for finding in found] == ["permissions", "permissions"]
    assert [f"chmod {right}" in finding.remedy for finding, right in zip(found, ("600", "700"), strict=True)] == [True, True]
    assert msgspec.json.encode(found)
