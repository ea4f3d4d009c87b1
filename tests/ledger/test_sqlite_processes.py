"""Several real processes on one ledger: fairness, liveness of owners, and SIGKILL at a commit."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from itertools import pairwise
from pathlib import Path

import pytest

from retinue.errors import LedgerConflict, LedgerUnavailable
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.locks import Turn
from retinue.ops import DropOwner, PutOwner
from retinue.testing.conformance.sample import append, create, key_of, owner_row, seen
from retinue.testing.failpoints import VARIABLE, FullDiskAt

pytestmark = pytest.mark.anyio

APPEND = """
import asyncio, json, sys, time
from retinue.ledger.sqlite import SqliteLedger
from retinue.testing.conformance.sample import append, create, key_of
from retinue.testing.failpoints import from_env

async def main(path, thread, count):
    ledger = SqliteLedger(path, durability="process", hooks=from_env())
    await ledger.open()
    print("open", flush=True)
    sys.stdin.readline()
    key, times = key_of(thread), []
    await ledger.commit([create(key)])
    for head in range(count):
        await ledger.commit([append(key, head, str(head))])
        times.append(time.monotonic())
        if from_env():
            print(head, flush=True)
    await ledger.close()
    print(json.dumps(times))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

LABEL = """
import asyncio, sys
from retinue.ledger.sqlite import SqliteLedger
from retinue.testing.conformance.sample import append, create, key_of, told

async def main(path, name, count):
    ledger = SqliteLedger(path, durability="process")
    await ledger.open()
    print("open", flush=True)
    sys.stdin.readline()
    results = []
    for number in range(count):
        child = key_of(session=f"sub-{name}-{number}")
        ops = [create(child, parent=key_of(), label=f"label {number}"), append(child, 0, "x")]
        results.append(str(await told(ledger.submit(ops))))
    await ledger.close()
    print(*results)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

OWN = """
import asyncio, sys
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import PutOwner
from retinue.testing.conformance.sample import owner_row

async def main(path):
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.commit([PutOwner(owner_row("own_child"))])
    print("registered", flush=True)
    sys.stdin.readline()
    await ledger.close()

asyncio.run(main(sys.argv[1]))
"""


async def start(script: str, *arguments: str, failpoint: str = "") -> tuple[Process, str]:
    """Start a process and wait for its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, VARIABLE: failpoint}
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


@pytest.mark.contract("H-04")
@pytest.mark.case("B151")
async def test_two_processes_one_ledger(tmp_path: Path) -> None:
    path, count = tmp_path / "ledger.sqlite3", 400
    started = [await start(APPEND, str(path), name, str(count)) for name in ("one", "two")]
    assert [line for _, line in started] == ["open", "open"]
    results = await asyncio.gather(*(process.communicate(b"go\n") for process, _ in started))
    assert [errors.decode() for _, errors in results] == ["", ""]
    one, two = (json.loads(output) for output, _ in results)
    end = min(one[-1], two[-1])
    assert all(sum(at <= end for at in times) > count / 4 for times in (one, two))  # while both ran, both went on
    assert max(later - at for times in (one, two) for at, later in pairwise(times)) < 2
    ledger = SqliteLedger(path)
    await ledger.open()
    for name in ("one", "two"):
        assert seen(await ledger.journal(key_of(name))) == [str(head) for head in range(count)]
    await ledger.close()


@pytest.mark.contract("A-27")
async def test_a_label_is_taken_by_one_of_two_processes(tmp_path: Path) -> None:
    path, count = tmp_path / "ledger.sqlite3", 100
    started = [await start(LABEL, str(path), name, str(count)) for name in ("one", "two")]
    assert [line for _, line in started] == ["open", "open"]
    results = await asyncio.gather(*(process.communicate(b"go\n") for process, _ in started))
    assert [errors.decode() for _, errors in results] == ["", ""]
    one, two = (output.decode().split() for output, _ in results)
    assert [sorted(pair) for pair in zip(one, two, strict=True)] == [["None", "label"]] * count
    ledger = SqliteLedger(path)
    await ledger.open()
    assert len(await ledger.children(key_of())) == count
    await ledger.close()


@pytest.mark.crash
async def test_stopped_owner_is_alive_and_a_killed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = SqliteLedger(path)
    await ledger.open()
    process, _ = await start(OWN, str(path))
    assert await ledger.owner_alive("own_child")
    os.kill(process.pid, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert await ledger.owner_alive("own_child")
    process.kill()
    await process.wait()
    assert not await ledger.owner_alive("own_child")
    assert await ledger.owner("own_child") == owner_row("own_child")
    await ledger.close()
    await ledger.open()
    assert await ledger.owner("own_child") is None
    assert sorted(file.name for file in owners_of(path)) == ["turn"]
    await ledger.close()


async def test_an_owner_that_closes_is_not_alive_and_a_live_one_is_not_swept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    process, line = await start(OWN, str(path))
    assert line == "registered"
    one, two = SqliteLedger(path), SqliteLedger(path)
    await one.open()
    await one.commit([PutOwner(owner_row("own_one"))])
    await two.open()
    assert await two.owner("own_child") == owner_row("own_child")
    assert [await two.owner_alive(name) for name in ("own_child", "own_one")] == [True, True]
    await process.communicate(b"end\n")
    await one.close()
    assert [await two.owner_alive(name) for name in ("own_child", "own_one")] == [False, False]
    await two.close()
    assert sorted(file.name for file in owners_of(path)) == ["turn"]


async def test_an_owner_id_has_one_holder_and_a_refused_commit_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    one, two = SqliteLedger(path, hooks=FullDiskAt(1)), SqliteLedger(path)
    await one.open()
    await two.open()
    with pytest.raises(LedgerUnavailable):
        await one.commit([PutOwner(owner_row("own_1"))])
    with pytest.raises(LedgerConflict):
        await one.commit([PutOwner(owner_row("own_2")), append(key_of(), 0, "no such thread")])
    for name in ("own_1", "own_2"):
        await two.commit([PutOwner(owner_row(name))])
        with pytest.raises(LedgerConflict) as taken:
            await one.commit([PutOwner(owner_row(name))])
        assert taken.value.code == "taken"
    await two.commit([DropOwner("own_1")])
    await one.commit([PutOwner(owner_row("own_1"))])
    with pytest.raises(LedgerConflict):
        await one.commit([PutOwner(owner_row("../escape"))])
    await one.close()
    await two.close()


async def test_a_writer_waits_for_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = SqliteLedger(path, busy_timeout=0.05)
    await ledger.open()
    turn = Turn(path.with_name(path.name + ".owners") / "turn")
    turn.take(0)
    with pytest.raises(LedgerUnavailable) as busy:
        await ledger.commit([create(key_of())])
    assert busy.value.code == "busy"
    receipt = ledger.submit([create(key_of())])
    turn.give()
    await receipt
    turn.close()
    await ledger.close()


@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("n", [1, 2, 5])
async def test_killed_at_commit_n(tmp_path: Path, n: int, when: str) -> None:
    path = tmp_path / "ledger.sqlite3"
    process, _ = await start(APPEND, str(path), "main", "10", failpoint=f"kill:{when}:{n}")
    output, _ = await process.communicate(b"go\n")
    assert process.returncode == -signal.SIGKILL
    receipts = output.decode().split()
    ledger = SqliteLedger(path)
    await ledger.open()
    batches = n if when == "after" else n - 1  # the first makes the thread
    assert len(receipts) == max(n - 2, 0)
    if batches == 0:
        assert await ledger.thread(key_of()) is None
        await ledger.commit([create(key_of())])
    journal = await ledger.journal(key_of())
    assert seen(journal) == [str(head) for head in range(max(batches - 1, 0))]
    await ledger.commit([append(key_of(), max(batches - 1, 0), "on")])
    await ledger.close()


def owners_of(path: Path) -> list[Path]:
    return list(path.with_name(path.name + ".owners").iterdir())
