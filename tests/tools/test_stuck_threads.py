"""Calls that do not end and hold all threads: who waits for one of these is told which, and does not wait for ever (M8)."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from retinue.clock import SystemClock
from retinue.errors import RetinueError
from retinue.testing import VirtualClock
from retinue.tools import ToolThreads

pytestmark = pytest.mark.anyio


class Tool:
    """A synchronous call that says when it has begun, and ends when told to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.go = threading.Event()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        return "well"


class Pool:
    """A pool of one thread, and one more beside a stuck call."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.threads = ToolThreads(1, clock=self.clock)
        self.tools: list[Tool] = []

    async def busy(self, name: str) -> "asyncio.Task[str]":
        """A call that has begun."""
        self.tools.append(tool := Tool())
        task = asyncio.create_task(self.threads.run(tool, name=name))
        await tool.begun.wait()
        return task

    async def stuck(self, name: str) -> None:
        """A call that has begun, and for which nobody waits any more."""
        await cancelled(await self.busy(name))

    async def queued(self) -> "asyncio.Task[int]":
        """A call that waits for a thread."""
        task = asyncio.create_task(self.threads.run(int))
        await self.clock.settle()
        assert not task.done()
        return task


async def cancelled(task: "asyncio.Task[str]") -> None:
    """Cancel a call and wait for the end of its wait."""
    task.cancel()
    await asyncio.wait((task,))


@pytest.fixture
async def pool() -> AsyncGenerator[Pool]:
    made = Pool()
    yield made
    for tool in made.tools:
        tool.go.set()
    assert await made.threads.idle(30, SystemClock())
    await made.threads.close(0, made.clock)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "retinue: stuck tool threads"]


async def test_a_call_that_stuck_ones_keep_waiting_fails_and_names_them(pool: Pool) -> None:
    await pool.stuck("fetch")
    await pool.clock.advance(60)
    await pool.stuck("solve")
    waiting = await pool.queued()
    await pool.clock.advance(9)
    later = await pool.queued()
    assert not waiting.done()
    await pool.clock.advance(2)
    with pytest.raises(RetinueError) as caught:
        await waiting
    assert caught.value.code == "tool_threads_stuck"
    assert "`fetch` since 2026-01-01 00:00:00 UTC, `solve` since 2026-01-01 00:01:00 UTC" in str(caught.value)
    assert caught.value.remedy is not None
    assert "`Limits(tool_threads=…)`" in caught.value.remedy
    assert not later.done()
    await pool.clock.advance(10)
    with pytest.raises(RetinueError):
        await later
    assert pool.clock.sleepers == 0


async def test_a_busy_pool_only_queues(pool: Pool) -> None:
    await pool.stuck("fetch")
    busy = await pool.busy("busy")
    waiting = await pool.queued()
    await pool.clock.advance(600)
    assert not waiting.done()
    await cancelled(busy)  # from now on nothing but stuck calls holds the threads
    await pool.clock.advance(9)
    assert not waiting.done()
    await pool.clock.advance(1)
    with pytest.raises(RetinueError, match=r"`fetch` since .*, `busy` since"):
        await waiting


async def test_a_stuck_call_that_returns_in_time_makes_room(pool: Pool) -> None:
    await pool.stuck("fetch")
    await pool.stuck("fetch")
    waiting = await pool.queued()
    await pool.clock.advance(9)
    pool.tools[0].go.set()
    assert await waiting == 0
    await pool.clock.advance(20)
    assert pool.clock.sleepers == 0


async def test_who_leaves_the_queue_leaves_nothing(pool: Pool) -> None:
    await pool.stuck("fetch")
    await pool.stuck("fetch")
    waiting = await pool.queued()
    assert pool.clock.sleepers == 1
    waiting.cancel()
    await pool.clock.settle()
    assert waiting.cancelled()
    assert pool.clock.sleepers == 0


async def test_close_ends_the_wait(pool: Pool) -> None:
    await pool.stuck("fetch")
    await pool.stuck("fetch")
    waiting = await pool.queued()
    assert len(await pool.threads.close(0, pool.clock)) == 2
    with pytest.raises(RetinueError) as caught:
        await waiting
    assert caught.value.code == "tool_threads_closed"
    assert pool.clock.sleepers == 0
