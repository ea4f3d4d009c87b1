"""Removal in SQLite: small commits that let others in, going on where one was cut short, and nothing left in the file."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from retinue.errors import LedgerConflict
from retinue.ledger import Collected
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.removal import SOME, mark
from retinue.ops import HideThread, Op, PutBlob, PutOwner, PutRun, Receipt
from retinue.rows import ForkPoint
from retinue.states import RunState
from retinue.testing.conformance.sample import append, create, key_of, owner_row, refused, run_row, seen
from retinue.testing.failpoints import Failpoint

pytestmark = pytest.mark.anyio

DIES = """
import asyncio, os, sys
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import PutOwner, PutRun
from retinue.testing.conformance.sample import key_of, owner_row, run_row

async def main():
    ledger = SqliteLedger(sys.argv[1])
    await ledger.open()
    await ledger.commit([PutOwner(owner_row("own_dead")), PutOwner(owner_row("own_forgotten"))])
    await ledger.commit([PutRun(run_row("run_1", key_of(), owner="own_dead"))])
    os._exit(9)

asyncio.run(main())
"""


class StopAfter(Failpoint):
    """Raises in place of the COMMIT of one batch."""

    def __init__(self, batch: int) -> None:
        self.at = batch

    def before_commit(self, n: int) -> None:
        """See `Failpoint`."""
        if n == self.at:
            raise OSError("the disk is gone")


async def filled(path: Path, count: int, hooks: Failpoint | None = None) -> SqliteLedger:
    """A ledger with one deleted thread of so many records and one that lives."""
    ledger = SqliteLedger(path, hooks=hooks, durability="process")
    await ledger.open()
    key = key_of("gone")
    await ledger.commit([create(key), append(key, 0, *(f"text {number}" for number in range(count))), create(key_of())])
    await ledger.commit([HideThread(key)])
    return ledger


async def test_others_come_to_their_turn_in_the_middle_of_a_collection(tmp_path: Path) -> None:
    ledger = await filled(tmp_path / "l.db", SOME * 5)
    seen_between: list[int] = []
    appended: list[asyncio.Future[Receipt]] = []

    def progress(sums: Collected) -> None:
        seen_between.append(sums.records)
        appended.append(asyncio.ensure_future(ledger.commit([append(key_of(), len(appended), "between")])))

    done = await ledger.collect(now=0, grace_ms=0, progress=progress)
    assert done == Collected(threads=1, records=SOME * 5)
    assert seen_between == [SOME * part for part in (1, 2, 3, 4, 5)] + [SOME * 5]
    await asyncio.gather(*appended)
    assert seen(await ledger.journal(key_of())) == ["between"] * 6
    await ledger.close()


async def test_a_collection_that_was_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    path, key = tmp_path / "l.db", key_of("gone")
    ledger = await filled(path, SOME * 3, hooks=StopAfter(5))  # 2 commits above, the mark, one part; the next part fails
    with pytest.raises(Exception, match="disk"):
        await ledger.collect(now=0, grace_ms=0)
    fork = key_of("fork")
    await refused(ledger, "missing", create(fork, base=ForkPoint(key, 1, 1)))  # half of it is not there any more
    await refused(ledger, "missing", append(key, SOME * 3, "late"))
    await refused(ledger, "exists", create(key))
    await ledger.close()
    again = SqliteLedger(path)
    await again.open()
    assert await again.collect(now=0, grace_ms=0) == Collected(threads=1, records=SOME * 2)
    await again.commit([create(key)])
    await again.close()


async def test_a_fork_that_came_after_the_look_keeps_the_thread(tmp_path: Path) -> None:
    ledger = await filled(tmp_path / "l.db", 2)
    other = await filled_other(tmp_path / "l.db")
    writer, writing = ledger._writer, ledger._writing
    assert writer is not None
    assert writing is not None
    assert await writing.submit(lambda: writer.remove(mark, [1])) == []  # the look had found thread 1
    assert seen(await other.journal(key_of("fork"))) == ["text 0", "text 1"]
    await other.close()
    await ledger.close()


async def filled_other(path: Path) -> SqliteLedger:
    """A second ledger on the file that makes a fork."""
    other = SqliteLedger(path)
    await other.open()
    await other.commit([create(key_of("fork"), base=ForkPoint(key_of("gone"), 1, 2))])
    return other


async def test_a_dead_owner_is_kept_as_long_as_its_run_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DIES, str(path)], check=False)
    assert ended.returncode == 9
    ledger = SqliteLedger(path)
    await ledger.open()
    assert (await ledger.owner("own_dead"), await ledger.owner_alive("own_dead")) == (owner_row("own_dead"), False)
    assert await ledger.owner("own_forgotten") is None
    await ledger.commit([PutRun(run_row("run_1", key_of(), state=RunState.FAILED), (RunState.RUNNING, 1))])
    assert await ledger.collect(now=0) == Collected(owners=1)
    assert await ledger.owner("own_dead") is None
    await ledger.close()


async def test_what_is_purged_is_not_left_in_the_file(tmp_path: Path) -> None:
    path, secret = tmp_path / "l.db", "a word that nobody may find again"
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.commit([create(key_of()), append(key_of(), 0, *[secret] * 100), create(key_of("kept"))])
    await ledger.commit([append(key_of("kept"), 0, "something else")])
    assert await ledger.pragma("secure_delete = OFF") == 0  # some builds of SQLite have it on
    await ledger.purge(key_of())
    await ledger.close()
    assert sorted(os.listdir(tmp_path)) == ["l.db", "l.db.owners"]
    assert secret.encode() not in path.read_bytes()


async def test_a_conflict_of_a_purge_leaves_the_ledger_at_work(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "l.db")
    await ledger.open()
    ops: Sequence[Op] = [create(key_of()), PutRun(run_row("run_1", key_of())), PutBlob("aa", b""), PutOwner(owner_row("own_1"))]
    await ledger.commit(ops)
    before = await ledger.pragma("secure_delete")
    with pytest.raises(LedgerConflict, match="unfinished run `run_1`"):
        await ledger.purge(key_of())
    assert await ledger.pragma("secure_delete") == before
    await ledger.commit([append(key_of(), 0, "on")])
    await ledger.close()
    database = sqlite3.connect(tmp_path / "l.db")
    assert database.execute("SELECT count(*) FROM event").fetchone() == (1,)
    database.close()
