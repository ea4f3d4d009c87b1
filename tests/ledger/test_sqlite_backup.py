"""Copies of a ledger in use, as `docs/reliability.md` says: sound, complete up to their moment, and good to go on with."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.inspect import inspect
from retinue.ops import PutOwner, PutRun
from retinue.testing.conformance.sample import append, create, key_of, owner_row, run_row, seen

pytestmark = pytest.mark.anyio


def back_up(path: Path, copy: Path) -> None:
    """The snippet of the page, step by step, so that writers come between."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target, pages=1)


async def test_a_copy_that_is_made_beside_writers_is_sound_and_complete(tmp_path: Path) -> None:
    path, copy, key = tmp_path / "l.db", tmp_path / "copy.db", key_of()
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.commit([create(key), PutOwner(owner_row("own_1")), PutRun(run_row("run_1", key, owner="own_1"))])
    await ledger.commit([append(key, 0, *("before" for _ in range(500)))])
    copying = asyncio.create_task(asyncio.to_thread(back_up, path, copy))
    count = 500
    while not copying.done():
        await ledger.commit([append(key, count, "during")])
        count += 1
    await copying
    await ledger.close()
    copy.chmod(0o600)
    faults = {finding.code for finding in inspect(copy) if finding.severity == "error"}
    assert faults <= {"record"}  # the bodies of these events are no messages
    restored = SqliteLedger(copy)
    await restored.open()
    texts = seen(await restored.journal(key))
    assert texts[:500] == ["before"] * 500
    assert set(texts[500:]) <= {"during"}
    assert not await restored.owner_alive("own_1")  # so its run counts as interrupted
    await restored.commit([append(key, len(texts), "on")])
    await restored.close()
