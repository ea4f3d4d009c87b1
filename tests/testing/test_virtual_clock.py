"""Virtual time goes on when it is told to, or when everything else waits; never while somebody holds it."""

import asyncio

import pytest

from retinue.testing import VirtualClock

pytestmark = pytest.mark.anyio


async def test_time_moves_only_when_told() -> None:
    clock = VirtualClock()
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic())

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await clock.settle()
    assert clock.sleepers == 3
    start = clock.now_ms()
    await clock.advance(2.5)
    assert woken == [1, 2]
    assert (clock.monotonic(), clock.now_ms() - start) == (2.5, 2500)
    await clock.advance(1)
    assert woken == [1, 2, 3]
    await asyncio.gather(*tasks)
    assert clock.sleepers == 0


async def test_who_sleeps_again_wakes_within_the_same_advance() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticker())
    await clock.advance(3)
    assert ticks == [1, 2, 3]
    task.cancel()
    await asyncio.wait((task,))


async def test_equal_times_wake_in_the_order_of_their_calls() -> None:
    clock = VirtualClock(auto=True)
    woken: list[int] = []

    async def sleeper(number: int) -> None:
        await clock.sleep(1)
        woken.append(number)

    await asyncio.gather(*(sleeper(number) for number in range(20)))
    assert woken == list(range(20))


async def test_auto_jumps_when_everybody_waits() -> None:
    clock = VirtualClock(auto=True)
    await clock.sleep(3600)
    await clock.sleep(86_400)
    assert clock.monotonic() == 90_000


async def test_auto_waits_for_work_on_the_loop() -> None:
    clock = VirtualClock(auto=True)
    busy_until: list[float] = []

    async def busy() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        busy_until.append(clock.monotonic())

    await asyncio.gather(clock.sleep(1), busy())
    assert busy_until == [0]


async def test_auto_waits_for_sockets() -> None:
    clock = VirtualClock(auto=True)
    heard: list[float] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    async def talk() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello\n")
        await reader.readline()
        heard.append(clock.monotonic())
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(clock.sleep(60), talk())
    assert heard == [0]
    server.close()
    await server.wait_closed()


async def test_time_stands_still_while_a_thread_works() -> None:
    clock = VirtualClock(auto=True)
    seen: list[float] = []
    let_go = asyncio.Event()

    async def commit() -> None:
        with clock.hold():
            await asyncio.to_thread(sum, range(1000))
            seen.append(clock.monotonic())
            await let_go.wait()
            seen.append(clock.monotonic())

    async def opener() -> None:
        await asyncio.to_thread(sum, range(1000))
        let_go.set()

    await asyncio.gather(clock.sleep(5), commit(), opener())
    assert seen == [0, 0]
    assert clock.monotonic() == 5


async def test_advance_waits_for_whoever_holds_time() -> None:
    clock = VirtualClock()
    done: list[float] = []

    async def commit() -> None:
        await clock.sleep(1)
        with clock.hold():
            await asyncio.to_thread(sum, range(1000))
            done.append(clock.monotonic())

    task = asyncio.create_task(commit())
    await clock.advance(10)
    assert done == [1]
    await task


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock(auto=False)
    task = asyncio.create_task(clock.sleep(5))
    await clock.settle()
    task.cancel()
    await asyncio.wait((task,))
    assert clock.sleepers == 0
    await clock.advance(10)
    assert clock.monotonic() == 10
