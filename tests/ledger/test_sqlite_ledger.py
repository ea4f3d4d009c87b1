"""What the SQLite ledger adds to the port: group commit, the shield, durability, faults of the disk, and nothing left open."""

import asyncio
import gc
import os
import resource
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from retinue.errors import LedgerConflict, LedgerUnavailable
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.segments import Segments
from retinue.ops import Op, PutBlob, Receipt
from retinue.testing.conformance import LedgerFactory
from retinue.testing.conformance.sample import append, create, key_of, seen
from retinue.testing.failpoints import Failpoint, FullDiskAt, Record

pytestmark = pytest.mark.anyio


class Gate(Record):
    """Holds the first batch before its COMMIT until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before_commit(self, n: int) -> None:
        super().before_commit(n)
        if n == 1:
            self.reached.set()
            assert self.opened.wait(30)


async def opened(path: Path, hooks: Failpoint | None = None, busy_timeout: float = 30.0) -> SqliteLedger:
    ledger = SqliteLedger(path / "ledger.sqlite3", hooks=hooks, durability="process", busy_timeout=busy_timeout)
    await ledger.open()
    return ledger


@pytest.mark.case("B151")
async def test_commits_that_come_together_share_one_transaction(tmp_path: Path) -> None:
    gate, key = Gate(), key_of()
    ledger = await opened(tmp_path, gate)
    first = ledger.submit([create(key)])
    await asyncio.to_thread(gate.reached.wait, 30)
    later = [ledger.submit([append(key, head, str(head))]) for head in range(20)]
    gate.opened.set()
    await first
    assert [await receipt for receipt in later][-1] == Receipt({key: (1, 20)})
    assert gate.log == [("before", 1), ("after", 1), ("before", 2), ("after", 2)]
    assert [len(batch) for batch in gate.batches] == [1, 20]
    await ledger.close()


async def test_group_commit_isolates_conflicts(tmp_path: Path) -> None:
    gate, key, other = Gate(), key_of(), key_of("other")
    ledger = await opened(tmp_path, gate)
    first = ledger.submit([create(key)])
    await asyncio.to_thread(gate.reached.wait, 30)
    good = ledger.submit([append(key, 0, "a")])
    wrong = append(key, 0, "b")
    bad = ledger.submit([create(other), append(other, 0, "x"), wrong])
    odd = ledger.submit([create(other), PutBlob("aa", object())])  # pyright: ignore[reportArgumentType]
    after = ledger.submit([append(key, 1, "c")])
    gate.opened.set()
    await asyncio.gather(first, good, after)
    with pytest.raises(LedgerConflict) as conflict:
        await bad
    assert conflict.value.op is wrong
    with pytest.raises((sqlite3.Error, TypeError)):
        await odd
    assert seen(await ledger.journal(key)) == ["a", "c"]
    assert await ledger.thread(other) is None
    assert len(gate.batches) == 2
    assert len(gate.batches[1]) == 2  # all four came together; two of them went in
    await ledger.close()


async def test_a_cancelled_commit_first_learns_its_fate(tmp_path: Path) -> None:
    gate, key = Gate(), key_of()
    ledger = await opened(tmp_path, gate)
    good = asyncio.create_task(ledger.commit([create(key), append(key, 0, "a")]))
    await asyncio.to_thread(gate.reached.wait, 30)
    bad = asyncio.create_task(ledger.commit([append(key, 7, "b")]))
    await asyncio.to_thread(threading.Event().wait, 0)
    for task in (good, bad):
        task.cancel()
        task.cancel()
    done, _ = await asyncio.wait([good, bad], timeout=0.05)
    assert not done
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await good
    assert gate.commits == 1
    with pytest.raises(asyncio.CancelledError) as stop:
        await bad
    assert isinstance(stop.value.__cause__, LedgerConflict)
    assert seen(await ledger.journal(key)) == ["a"]
    await ledger.close()


async def test_a_conflict_that_nobody_looks_at_is_not_logged(make_ledger: LedgerFactory) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    ledger = make_ledger()
    ledger.submit([append(key_of(), 7, "not open")])
    await ledger.open()
    ledger.submit([append(key_of(), 7, "no such thread")])
    await ledger.close()
    gc.collect()
    assert problems == []


async def test_a_reader_sees_every_commit_with_a_receipt(tmp_path: Path) -> None:
    key = key_of()
    ledger = await opened(tmp_path)
    await ledger.commit([create(key)])
    for head in range(50):
        await ledger.commit([append(key, head, str(head))])
        assert len(await ledger.records(key, generation=1)) == head + 1
        journal = await ledger.journal(key)
        assert journal is not None
        assert len(journal.own) == head + 1
    await ledger.close()


def test_records_that_were_read_are_kept_within_a_limit(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE event(thread_id, generation, seq, type, run, attempt, at, body)")
    rows = [(thread, 1, seq, "T", "run", 1, 1, b"x" * 100) for thread in (1, 2, 3) for seq in range(1, 11)]
    database.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    segments, key = Segments(limit=8000), key_of()
    for thread in (1, 2, 3, 3, 2, 1):
        for upto in (0, 3, 10, 5):
            records = segments.read(database, thread, key, 1, upto)
            assert [record.seq for record in records] == list(range(1, upto + 1))
    database.execute("DELETE FROM event")
    found = [len(segments.read(database, thread, key, 1, 10)) for thread in (1, 2, 3)]
    assert found == [10, 10, 0]  # two of the three fit, those that were used last
    segments.clear()
    assert segments.read(database, 1, key, 1, 10) == []
    database.close()


async def test_full_durability_means_fsync_before_the_receipt(tmp_path: Path) -> None:
    """That COMMIT returns after fsync is SQLite's promise for these settings; that the receipt comes after COMMIT is ours."""
    gate = Gate()
    ledger = SqliteLedger(tmp_path / "ledger.sqlite3", hooks=gate)
    await ledger.open()
    receipt = ledger.submit([create(key_of())])
    await asyncio.to_thread(gate.reached.wait, 30)
    done, _ = await asyncio.wait([receipt], timeout=0.05)
    assert not done
    gate.opened.set()
    await receipt
    assert gate.log == [("before", 1), ("after", 1)]
    assert (await ledger.pragma("journal_mode"), await ledger.pragma("synchronous")) == ("wal", 2)
    await ledger.close()


async def test_process_durability_leaves_the_fsync_to_the_checkpoint(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    assert await ledger.pragma("synchronous") == 1
    await ledger.close()


@pytest.mark.parametrize("n", range(1, 6))
async def test_disk_full_at_commit_n(tmp_path: Path, n: int) -> None:
    key, failures = key_of(), list[tuple[int, str, bool]]()
    ledger = await opened(tmp_path, FullDiskAt(n))
    commits: list[list[Op]] = [[create(key)], *([append(key, head, str(head))] for head in range(4))]
    for number, ops in enumerate(commits, start=1):
        result = (await asyncio.gather(ledger.commit(ops), return_exceptions=True))[0]
        if isinstance(result, LedgerUnavailable):
            failures.append((number, result.code, bool(result.remedy)))
            await ledger.commit(ops)
    assert failures == [(n, "disk_full", True)]
    assert seen(await ledger.journal(key)) == ["0", "1", "2", "3"]
    await ledger.close()


async def test_a_full_disk_fails_its_batch_and_no_other(tmp_path: Path) -> None:
    class FullAtTwo(Gate):
        def before_commit(self, n: int) -> None:
            super().before_commit(n)
            if n == 2 and ("before", 2) not in self.log[:-1]:
                raise sqlite3.OperationalError("database or disk is full")

    gate, key = FullAtTwo(), key_of()
    ledger = await opened(tmp_path, gate)
    first = ledger.submit([create(key)])
    await asyncio.to_thread(gate.reached.wait, 30)
    batch = [ledger.submit([append(key, head, str(head))]) for head in range(3)]
    gate.opened.set()
    await first
    results = await asyncio.gather(*batch, return_exceptions=True)
    assert [type(result) for result in results] == [LedgerUnavailable] * 3
    assert len({id(result) for result in results}) == 3
    assert seen(await ledger.journal(key)) == []
    await ledger.commit([append(key, 0, "later")])
    await ledger.close()


async def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    """The kernel's own refusal (a limit on the size of files), not one that we make up."""
    key = key_of()
    ledger = await opened(tmp_path)
    await ledger.commit([create(key), append(key, 0, "a")])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(LedgerUnavailable) as error:
            await ledger.commit([append(key, 1, "b" * 400_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.code in ("io_error", "disk_full")
    assert seen(await ledger.journal(key)) == ["a"]
    await ledger.commit([append(key, 1, "c")])
    assert seen(await ledger.journal(key)) == ["a", "c"]
    await ledger.close()


async def test_nothing_is_left_open_after_close(tmp_path: Path) -> None:
    key = key_of()
    ledger = await opened(tmp_path)
    await ledger.commit([create(key), append(key, 0, "a")])
    assert await ledger.journal(key)
    assert ours(tmp_path)
    pending = [ledger.submit([append(key, head, "x")]) for head in range(1, 30)]
    await ledger.close()
    assert all(receipt.done() for receipt in pending)
    assert ours(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["ledger.sqlite3", "ledger.sqlite3.owners"]
    with pytest.raises(LedgerUnavailable) as closed:
        await ledger.journal(key)
    assert closed.value.code == "not_open"


async def test_a_log_that_grew_is_moved_into_the_file_at_close(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.sqlite3")
    ledger = await opened(tmp_path)
    other.execute("SELECT count(*) FROM event").fetchall()  # this connection keeps the log from being removed
    await ledger.commit([create(key_of()), append(key_of(), 0, "a" * 5000)])
    log = tmp_path / "ledger.sqlite3-wal"
    assert log.stat().st_size > 5000
    await ledger.close()
    assert log.stat().st_size == 0
    other.close()


async def test_closing_twice_at_once(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await asyncio.gather(ledger.close(), ledger.close(), ledger.open())
    await ledger.close()
    assert ours(tmp_path) == []


async def test_one_file_for_two_ledgers_of_one_process(tmp_path: Path) -> None:
    one, two = await opened(tmp_path), await opened(tmp_path)
    key = key_of()
    await one.commit([create(key)])
    for head in range(0, 40, 2):
        await one.commit([append(key, head, "one")])
        await two.commit([append(key, head + 1, "two")])
    assert seen(await one.journal(key)) == ["one", "two"] * 20
    await one.close()
    await two.close()


async def test_a_file_that_stays_locked_is_reported(tmp_path: Path) -> None:
    ledger = await opened(tmp_path, busy_timeout=0.05)
    other = sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailable) as busy:
        await ledger.commit([create(key_of())])
    assert busy.value.code == "busy"
    assert "another process" in str(busy.value)
    other.execute("ROLLBACK")
    await ledger.commit([create(key_of())])
    other.close()
    await ledger.close()


async def test_a_commit_waits_for_a_file_that_is_locked_for_a_moment(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    other = sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    receipt = ledger.submit([create(key_of())])
    done, _ = await asyncio.wait([receipt], timeout=0.05)
    assert not done
    other.execute("COMMIT")
    await receipt
    other.close()
    await ledger.close()


def test_what_loses_its_loop_does_no_harm(tmp_path: Path) -> None:
    gate = Gate()

    async def leave() -> SqliteLedger:
        ledger = await opened(tmp_path, gate)
        ledger.submit([create(key_of())])
        await asyncio.to_thread(gate.reached.wait, 30)
        return ledger

    ledger = asyncio.run(leave())
    gate.opened.set()

    async def come_back() -> Sequence[str]:
        again = await opened(tmp_path)
        await again.commit([append(key_of(), 0, "still there")])
        texts = seen(await again.journal(key_of()))
        await again.close()
        return texts

    assert asyncio.run(come_back()) == ["still there"]
    asyncio.run(ledger.close())
    assert ours(tmp_path) == []


def ours(folder: Path) -> list[str]:
    """Open files below `folder`, and our threads."""
    gc.collect()
    found = [thread.name for thread in threading.enumerate() if thread.name.startswith("retinue-ledger")]
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found
