"""The threads of synchronous tools: bounded, known, and never holding anything up."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from retinue.clock import SystemClock
from retinue.errors import ConfigurationError, RetinueError
from retinue.tools import ToolThreads

pytestmark = pytest.mark.anyio
CLOCK = SystemClock()


class NoPatience(SystemClock):
    """A clock on which every wait is over at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Gate:
    """A call that says when it has started, and waits to be let go."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.started = asyncio.Event()
        self.go = threading.Event()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.started.set)
        assert self.go.wait(30)
        return threading.current_thread().name


async def abandoned(threads: ToolThreads, owner: str = "") -> Gate:
    """A started call whose waiter has been cancelled."""
    gate = Gate()
    task = asyncio.ensure_future(threads.run(gate, name="stuck", owner=owner))
    await gate.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return gate


async def test_results_errors_and_threads_are_reused(threads: ToolThreads) -> None:
    assert threads.threads == 0  # started when needed
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert threads.threads == 1
    assert threads.running() == []


async def test_no_more_than_the_limit_at_once(threads: ToolThreads) -> None:
    gates = [Gate() for _ in range(4)]
    tasks = [asyncio.ensure_future(threads.run(gate, name=f"g{i}")) for i, gate in enumerate(gates)]
    await gates[0].started.wait()
    await gates[1].started.wait()
    assert [call.name for call in threads.running()] == ["g0", "g1"]
    assert threads.threads == 2
    for gate in gates:
        gate.go.set()
    assert set(await asyncio.gather(*tasks)) == {"retinue-tool-1", "retinue-tool-2"}


async def test_a_call_that_was_cancelled_before_it_started_never_does(threads: ToolThreads) -> None:
    gates = [Gate(), Gate()]
    tasks = [asyncio.ensure_future(threads.run(gate)) for gate in gates]
    for gate in gates:
        await gate.started.wait()
    called: list[int] = []
    queued = asyncio.ensure_future(threads.run(called.append, 1))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    for gate in gates:
        gate.go.set()
    await asyncio.gather(*tasks)
    await threads.run(int)
    assert called == []


async def test_stuck_calls_do_not_stop_the_others(threads: ToolThreads) -> None:
    stuck = [await abandoned(threads) for _ in range(2)]
    assert await threads.run(int) == 0  # in a third thread
    assert threads.threads == 3
    stuck += [await abandoned(threads) for _ in range(2)]
    assert threads.threads == 4
    waiting = asyncio.ensure_future(threads.run(int))  # but not without end
    await asyncio.sleep(0)
    assert threads.threads == 4
    assert not waiting.done()
    for gate in stuck:
        gate.go.set()
    assert await waiting == 0
    assert await threads.idle(30, CLOCK)
    await asyncio.gather(*(threads.run(int) for _ in range(8)))
    assert threads.threads <= 3


async def test_idle_waits_for_one_owner_or_all_but_not_longer(threads: ToolThreads) -> None:
    assert await threads.idle(0, NoPatience())
    first, second = await abandoned(threads, "run_1"), await abandoned(threads, "run_2")
    assert [call.owner for call in threads.running()] == ["run_1", "run_2"]
    assert not await threads.idle(5, NoPatience())
    waiting = asyncio.ensure_future(threads.idle(30, CLOCK, owner="run_1"))
    await asyncio.sleep(0)
    first.go.set()
    assert await waiting
    assert [call.owner for call in threads.running()] == ["run_2"]
    second.go.set()
    assert await threads.idle(30, CLOCK)


async def test_close_refuses_the_queued_and_abandons_the_stuck() -> None:
    threads = ToolThreads(1)
    gate = Gate()
    running = asyncio.ensure_future(threads.run(gate, name="stuck"))
    await gate.started.wait()
    queued = asyncio.ensure_future(threads.run(int))
    await asyncio.sleep(0)
    (left,) = await threads.close(5, NoPatience())
    assert left.name == "stuck"
    with pytest.raises(RetinueError) as caught:
        await queued
    assert caught.value.code == "tool_threads_closed"
    with pytest.raises(RetinueError):
        await threads.run(int)
    gate.go.set()
    assert await running
    assert await threads.close(30, CLOCK) == []
    assert threads.threads == 0


async def test_close_waits_for_what_ends_in_time() -> None:
    threads = ToolThreads(1)
    gate = Gate()
    running = asyncio.ensure_future(threads.run(gate))
    await gate.started.wait()
    closing = asyncio.ensure_future(threads.close(30, CLOCK))
    await asyncio.sleep(0)
    gate.go.set()
    assert await closing == []
    assert threads.threads == 0
    await running


async def test_a_waiting_thread_keeps_nothing_alive(threads: ToolThreads) -> None:
    class Big:
        pass

    def give(value: Big) -> Big:
        return value

    value = Big()
    seen = weakref.ref(value)
    assert await threads.run(give, value) is value
    del value
    for _ in range(100_000):  # the thread lets go just after it has delivered
        gc.collect(0)
        if seen() is None:
            break
        await asyncio.sleep(0)
    assert seen() is None


def test_a_closed_loop_does_not_break_the_thread() -> None:
    threads = ToolThreads(1)
    gates: list[Gate] = []

    async def leave() -> None:
        gates.append(await abandoned(threads))

    asyncio.run(leave())
    gates[0]._loop = asyncio.new_event_loop()  # the old one is closed
    gates[0].go.set()

    async def again() -> int:
        result = await threads.run(int)
        await threads.idle(30, CLOCK)
        await threads.close(30, CLOCK)
        return result

    assert asyncio.run(again()) == 0
    gates[0]._loop.close()


def test_a_stuck_tool_does_not_hold_up_the_end_of_the_process() -> None:
    code = """
import asyncio, threading
from retinue.tools import ToolThreads

async def main():
    threads = ToolThreads(1)
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    def stuck():
        loop.call_soon_threadsafe(started.set)
        threading.Event().wait()
    task = asyncio.ensure_future(threads.run(stuck))
    await started.wait()
    task.cancel()

asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "ended"


def test_a_limit_below_one_is_refused() -> None:
    make: Callable[[int], ToolThreads] = ToolThreads
    with pytest.raises(ConfigurationError):
        make(0)
