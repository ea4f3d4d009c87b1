"""Processes that die in-process: what is lost, what stays, and that nothing of them goes on."""

import asyncio
from typing import Literal

import pytest

from retinue.errors import LedgerConflict, LedgerUnavailable
from retinue.ledger import Ledger, MemoryLedger
from retinue.ops import PutOwner
from retinue.testing import MortalProcess, SharedStore, VirtualClock
from retinue.testing.conformance.sample import append, create, key_of, owner_row, seen

pytestmark = pytest.mark.anyio
KEY = key_of()


async def store(clock: VirtualClock | None = None) -> SharedStore:
    ledger = MemoryLedger()
    await ledger.open()
    await ledger.commit([create(KEY)])
    return SharedStore(ledger, clock)


async def test_commits_are_carried_out_in_order_and_told() -> None:
    process = (await store()).process()
    first, second = process.submit([append(KEY, 0, "a")]), process.submit([append(KEY, 1, "b")])
    assert process.committing
    assert (await second).heads == {KEY: (1, 2)}
    assert first.done()
    assert process.commits == 2
    assert seen(await process.ledger.journal(KEY)) == ["a", "b"]
    with pytest.raises(LedgerConflict):
        await process.ledger.commit([append(KEY, 0, "c")])
    assert process.commits == 2


@pytest.mark.parametrize(("when", "left"), [("before", ["a"]), ("after", ["a", "b"])])
async def test_death_at_a_commit(when: Literal["before", "after"], left: list[str]) -> None:
    shared = await store()
    process, died = shared.process(), list[str]()
    process.on_death = lambda: died.append("once")
    await process.ledger.commit([append(KEY, 0, "a")])
    process.kill_at(1, when)
    outcomes = [process.submit([append(KEY, 1, "b")]), process.submit([append(KEY, 2, "c")])]
    for outcome in outcomes:
        with pytest.raises(LedgerUnavailable, match="killed"):
            await outcome
    process.kill()
    assert died == ["once"]
    assert seen(await shared.ledger.journal(KEY)) == left


async def test_the_dead_know_and_write_nothing_and_others_go_on() -> None:
    shared = await store()
    dead, alive = shared.process(), shared.process()
    for name, process in (("own_1", dead), ("own_2", alive)):
        await process.ledger.commit([PutOwner(owner_row(name))])
    lost = dead.submit([append(KEY, 0, "lost")])
    dead.kill()
    for refused in (dead.ledger.commit([append(KEY, 0, "x")]), dead.ledger.journal(KEY), dead.ledger.open(), lost):
        with pytest.raises(LedgerUnavailable):
            await refused
    assert [await alive.ledger.owner_alive(owner) for owner in ("own_1", "own_2")] == [False, True]
    await alive.ledger.commit([append(KEY, 0, "b")])
    await alive.ledger.close()
    assert seen(await alive.ledger.journal(KEY)) == ["b"]


async def test_a_read_that_outlives_its_process_says_nothing() -> None:
    class Slow(MemoryLedger):
        asked, let_go = asyncio.Event(), asyncio.Event()

        async def owner(self, owner_id: str) -> None:
            self.asked.set()
            await self.let_go.wait()

    ledger: Ledger = Slow()
    await ledger.open()
    process: MortalProcess = SharedStore(ledger).process()
    reading = asyncio.create_task(process.ledger.owner("own_1"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Slow.asked.wait()
    process.kill()
    Slow.let_go.set()
    with pytest.raises(LedgerUnavailable):
        await reading


async def test_a_cancelled_caller_first_learns_of_its_commit() -> None:
    shared = await store()
    process = shared.process()
    async with shared.still() as ledger:
        commit = asyncio.create_task(process.ledger.commit([append(KEY, 0, "a")]))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.sleep(0)
        assert not commit.done()
        assert seen(await ledger.journal(KEY)) == []
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert seen(await shared.ledger.journal(KEY)) == ["a"]


async def test_time_stands_still_while_a_commit_is_on_its_way() -> None:
    clock = VirtualClock(auto=True)
    shared = await store(clock)
    process = shared.process()
    slept = asyncio.create_task(clock.sleep(5))
    async with shared.still():
        outcome = process.submit([append(KEY, 0, "a")])
        for _ in range(20):
            await asyncio.sleep(0)
        assert clock.monotonic() == 0
    await outcome
    await slept
    assert clock.monotonic() == 5
