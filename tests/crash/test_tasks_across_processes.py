"""Tasks in the background when processes die, stand still, or are two at once: nothing lost, nothing told or done twice."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Limits, Runtime, RuntimeContext, SubAgent, tool
from retinue.events import decode
from retinue.ledger.port import Ledger
from retinue.messages import UserMessage
from retinue.rows import InvocationRow, ThreadKey
from retinue.testing import StrictProvider
from retinue.testing.audit import audit
from retinue.testing.provider_record import Recorded

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).with_name("task_worker.py")
KEY = ThreadKey("", "s", "main")
LOOK: dict[str, Any] = {"calls": [{"name": "look"}]}


def script(kid: list[Any], *, spawns: int = 1, root: list[Any] | None = None) -> Callable[[Recorded], Any]:
    """A root that gives its tasks once in its thread, and children that do `kid`."""
    spawn = {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": "x", "timeout_seconds": 0}}
    turns = {"root": root or [{"calls": [spawn] * spawns}, "given"], "kid": kid}

    def answer(request: Recorded) -> Any:
        mine = turns[request.agent]
        said = sum(message["role"] == "assistant" for message in request.body["messages"])
        return mine[min(said, len(mine) - 1)]

    return answer


class Process:
    """A worker. It is killed at the end of its block if it is still there."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self, *words: str) -> None:
        """Wait until it has said one of these."""
        assert self.process.stdout is not None
        while (line := await self.process.stdout.readline()).decode().strip() not in words:
            assert line, f"it ended before it said {words}"

    async def ended(self) -> int:
        """Wait for its end; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def worker(path: Path, provider: StrictProvider, mode: str, failpoint: str = "") -> AsyncGenerator[Process, None]:
    """A process on this ledger."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), str(path), provider.url, mode, failpoint, stdin=pipe, stdout=pipe
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def served(path: Path, provider: StrictProvider, failpoint: str = "") -> int:
    """Let a process go on with what there is; its exit code."""
    async with worker(path, provider, "serve", failpoint) as process:
        return await process.ended()


async def settled(ledger: Ledger, *, told: int) -> list[InvocationRow]:
    """The tasks, when all is over: sound, and the model is told `told` of their ends, each once."""
    rows = await ledger.tasks()
    for run in await ledger.runs(roots_only=True):
        assert await audit(ledger, run.run_id) == []
    assert [run.run_id for run in await ledger.runs(limit=1_000) if not run.state.terminal] == []
    journal = await ledger.journal(KEY)
    assert journal is not None
    messages = (getattr(decode(record), "message", None) for record in journal.own)
    notices = "\n".join(one.text for one in messages if isinstance(one, UserMessage) and one.notice)
    counts = Counter({row.task_id: notices.count(f"Background task {row.task_id} ") for row in rows})
    assert set(counts.values()) == {1}
    assert len(counts) == told
    return rows


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Runtime, None]:
    """A runtime here, to look and to act as an operator."""
    async with Runtime(ledger=path) as runtime:
        yield runtime


def asked(provider: StrictProvider, agent: str) -> list[str]:
    """What was asked for this agent, as texts that tell one request from another."""
    return [str(one.body["messages"]) for one in provider.asked(agent)]


@pytest.mark.contract("D-19", "D-20")
@pytest.mark.parametrize(
    "failpoint", ["before:PutMail", "after:PutMail", "before:TakeMail", "after:TakeMail"], ids=lambda name: name.replace(":", " ")
)
async def test_result_commits_while_parent_dies(tmp_path: Path, failpoint: str) -> None:
    """Before, during and after the parent's drain: the next process tells what was not told."""
    path = tmp_path / "l.sqlite3"
    async with StrictProvider(script([LOOK, "kid is done"])) as provider:
        gate = provider.hold(agent="kid", step=2)
        async with worker(path, provider, "run") as first:
            await first.says("completed")
            await gate.arrived.wait()
            first.process.kill()
            await first.process.wait()
        gate.release()
        assert await served(path, provider, failpoint) == -signal.SIGKILL
        before = Counter(asked(provider, "kid"))
        assert await served(path, provider) == 0
        async with opened(path) as runtime:
            agent = Agent("root", model=provider.model(), runtime=runtime)
            await agent.run("and?", context=RuntimeContext(session_id="s"))  # where nobody was left to be woken, it is told now
            (row,) = await settled(runtime.ledger, told=1)
            assert row.state == "completed"
        if failpoint != "before:PutMail":  # its answer was recorded
            assert Counter(asked(provider, "kid")) == before
        assert not provider.refused


@pytest.mark.contract("D-19")
async def test_two_owners_of_one_task(tmp_path: Path) -> None:
    """Two processes find the same orphans at the same moment: each task has one of them."""
    path = tmp_path / "l.sqlite3"
    async with StrictProvider(script([LOOK, LOOK, "kid is done"], spawns=4)) as provider:
        gate = provider.hold(agent="kid", step=1)
        async with worker(path, provider, "run") as first:
            await first.says("completed")
            await gate.arrived.wait()
            first.process.kill()
            await first.process.wait()
        gate.release()
        already = len(provider.asked("kid"))
        codes = await asyncio.gather(*(served(path, provider) for _ in range(2)))
        assert codes == [0, 0]
        async with opened(path) as runtime:
            agent = Agent("root", model=provider.model(), runtime=runtime)
            await agent.run("and?", context=RuntimeContext(session_id="s"))
            rows = await settled(runtime.ledger, told=4)
            runs = [await runtime.ledger.run(row.child_run) for row in rows]
        assert [row.state.value for row in rows] == ["completed"] * 4
        assert all(run is not None and run.attempt == 2 for run in runs)
        assert len(provider.asked("kid")) <= already + 12  # three calls for each task, none by both
        assert not provider.refused


@pytest.mark.contract("D-19")
async def test_poison_task_stops(tmp_path: Path) -> None:
    """A task that kills whoever works on it is given up, and its parent is told so."""
    path = tmp_path / "l.sqlite3"
    async with StrictProvider(script([{"text": "Here goes.", "calls": [{"name": "die"}]}, "never"])) as provider:
        async with worker(path, provider, "run") as first:
            assert await first.process.wait() == -signal.SIGKILL
        deaths = 1
        while await served(path, provider) != 0:
            deaths += 1
            assert deaths <= Limits().max_task_attempts
        assert deaths == Limits().max_task_attempts
        async with opened(path) as runtime:
            agent = Agent("root", model=provider.model(), runtime=runtime)
            await agent.run("and?", context=RuntimeContext(session_id="s"), check=False)
            rows = await runtime.ledger.tasks()
            assert [(row.state.value, row.reason) for row in rows] == [("failed", "too_many_attempts")]
            await settled(runtime.ledger, told=1)
        assert len(provider.asked("kid")) == 1  # its answer was recorded, and is asked for once


@pytest.mark.contract("D-19")
async def test_stopped_owner_is_taken_over_by_an_operator(tmp_path: Path, stand_still: Callable[[int, Path], None]) -> None:
    """A process that stands still is alive: only an operator takes its task, and when it wakes it can write nothing."""
    path = tmp_path / "l.sqlite3"
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    async with StrictProvider(script([LOOK, "kid is done"])) as provider:
        gate = provider.hold(agent="kid", step=2)
        async with worker(path, provider, "run") as first:
            await first.says("completed")
            await gate.arrived.wait()
            stand_still(first.process.pid, path)
            async with opened(path) as runtime:
                agent = Agent("root", model=provider.model(), subagents=[kid], tools=[look, die], runtime=runtime)
                async with agent:
                    (task,) = await agent.tasks("s")
                    assert (await task.result()).status == "running"  # nobody has taken it by himself
                    gate.release()
                    end = await agent.resume(task._row.child_run, take_over=True)
                    assert (end.status, end.text) == ("completed", "kid is done")
                os.kill(first.process.pid, signal.SIGCONT)
                assert await first.ended() == 0
                await agent.run("and?", context=RuntimeContext(session_id="s"))
                (row,) = await settled(runtime.ledger, told=1)
                assert row.state == "completed"


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(idempotent=True)
async def die() -> str:
    """Take the process along."""
    raise AssertionError("not here")


@pytest.mark.contract("D-07", "D-18")
@pytest.mark.parametrize("order", ["the cancel first", "the spawn first", "at once"])
async def test_cancel_against_spawn_in_two_processes(tmp_path: Path, order: str) -> None:
    """A stop that is recorded keeps every later child from being made; one that was made before is stopped with the rest."""
    path = tmp_path / "l.sqlite3"
    spawn = {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": "x", "timeout_seconds": 0}}
    root = [LOOK, {"calls": [spawn, spawn]}, "given"]
    async with StrictProvider(script(["kid is done"], root=root)) as provider:
        spawns, works = provider.hold(agent="root", step=2), provider.hold(agent="kid", step=1)
        async with worker(path, provider, "run") as first, opened(path) as runtime:
            await spawns.arrived.wait()
            (run,) = await runtime.ledger.runs(roots_only=True)
            stopper = Agent("root", model=provider.model(), runtime=runtime)
            if order == "the spawn first":
                spawns.release()
                await works.arrived.wait()
            stop = asyncio.create_task(stopper.cancel(run.run_id, reason="enough"))
            if order == "the cancel first":
                await stop
            spawns.release()
            await stop
            async with asyncio.timeout(10):
                while await runtime.ledger.tasks(unfinished=True):  # noqa: ASYNC110  it is another process that ends them
                    await asyncio.sleep(0.05)
            await first.says("cancelled", "completed")
            works.release()
            assert await first.ended() == 0
            rows = await runtime.ledger.tasks()
            runs = await runtime.ledger.runs(limit=100)
            assert [one.run_id for one in runs if not one.state.terminal] == []
            assert {row.state.value for row in rows} <= {"cancelled", "completed"}
            if order == "the cancel first":
                assert rows == []
                assert provider.asked("kid") == []
            assert await audit(runtime.ledger, run.run_id) == []


def test_the_worker_is_there() -> None:
    assert WORKER.is_file()
