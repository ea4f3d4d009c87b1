"""Many tasks at once: how soon a stop and a result are seen elsewhere, what a commit costs a crowd, and what waiting costs."""

import asyncio
import gc
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from benchmarks.chaos import SESSION, Log, give, lead, opened, worker
from benchmarks.table import print_table, ratio_row
from retinue import Agent, Limits, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, tool
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import Append, CreateThread, NewEvent
from retinue.rows import ThreadKey, ThreadRow

__all__ = ["crowd_table"]

CHILDREN = 200
RESULTS = 40
WRITERS = 1_000
COMMITS = 5
WAITING = 1_000


@asynccontextmanager
async def crew(ledger: Path, log: Path, tasks: int, *, endless: bool, size: int = 3) -> AsyncGenerator[None, None]:
    """Workers for as long as the block lasts."""
    processes = [await worker(ledger, log, tasks, endless=endless) for _ in range(size)]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in processes))


def _lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


async def _cancelled(folder: Path) -> float:
    """Seconds from a stop of a tree of running children in three processes to the last model or tool call of any of them."""
    ledger, log = folder / "cancel.sqlite3", folder / "cancel.log"
    root = await give(ledger, log, CHILDREN, endless=True)
    async with crew(ledger, log, CHILDREN, endless=True), opened(ledger, CHILDREN) as runtime:
        while len({line[2] for line in _lines(log) if line[:2] == ["asked", "kid"]}) < CHILDREN:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        agent = lead(runtime, Log(log), CHILDREN, endless=True)
        began = time.time()
        await agent.cancel(root)
        while await runtime.ledger.tasks(unfinished=True, limit=CHILDREN):  # noqa: ASYNC110  other processes end them
            await asyncio.sleep(0.1)
    return max(float(line[-1]) for line in _lines(log)) - began


async def _seen(folder: Path) -> float:
    """Seconds from the commit of a result to the moment in which a process sees it that waits for it: the longest."""
    ledger, log = folder / "seen.sqlite3", folder / "seen.log"
    await give(ledger, log, RESULTS)
    async with opened(ledger, RESULTS) as runtime, lead(runtime, Log(log), RESULTS) as agent:
        tasks = await agent.tasks(SESSION)

        async def seen(place: int) -> float:
            await tasks[place].wait()
            now = runtime.clock.now_ms()
            row = await runtime.ledger.task(tasks[place].task_id)
            assert row is not None
            return (now - row.updated_at) / 1_000

        async with crew(ledger, log, RESULTS, endless=False, size=1):
            return max(await asyncio.gather(*(seen(place) for place in range(len(tasks)))))


async def _appended(path: Path, events: int) -> float:
    """Events per second of a crowd of writers, each with a thread of its own."""
    ledger = SqliteLedger(path)
    await ledger.open()
    body = b'{"text":"' + b"x" * 200 + b'"}'
    keys = [ThreadKey("", "crowd", f"t{number}") for number in range(WRITERS)]
    await ledger.commit([CreateThread(ThreadRow(key=key, default_agent_id="a", created_at=1)) for key in keys])

    async def write(key: ThreadKey) -> None:
        head = 0
        for _ in range(COMMITS):
            await ledger.commit([Append(key, 1, head, tuple(NewEvent("NOTE", body, "run_1", 1, 1) for _ in range(events)))])
            head += events

    began = time.perf_counter()
    await asyncio.gather(*map(write, keys))
    took = time.perf_counter() - began
    await ledger.close()
    return WRITERS * COMMITS * events / took


def _plain(path: Path, count: int) -> float:
    """Rows per second of `executemany` in one transaction, into a table of the same form."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(
            "CREATE TABLE event(thread_id INTEGER, generation INTEGER, seq INTEGER, type TEXT, run TEXT, attempt INTEGER,"
            " at INTEGER, body BLOB, PRIMARY KEY(thread_id, generation, seq)) WITHOUT ROWID"
        )
        body = b'{"text":"' + b"x" * 200 + b'"}'
        rows = [(number % WRITERS, 1, number // WRITERS, "NOTE", "run_1", 1, 1, body) for number in range(count)]
        began = time.perf_counter()
        db.execute("BEGIN")
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")
        return count / (time.perf_counter() - began)


def _resident_kib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4.0


async def _waiting(folder: Path) -> tuple[float, float]:
    """KiB for each child that waits for a person: of a crowd that waits in this process, and on disk."""

    @tool
    async def send() -> str:
        """Send it."""
        return "sent"

    spawn = {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": "x", "timeout_seconds": 0}}
    script = {"lead": [{"calls": [spawn] * WAITING}, "given"], "kid": [{"calls": [{"name": "send"}]}, "done"]}
    limits = Limits(max_tree_children=2 * WAITING, max_children=2 * WAITING)
    gc.collect()
    async with Runtime(ledger=SqliteLedger(folder / "waiting.sqlite3", durability="process"), limits=limits) as runtime:
        kid = SubAgent("kid", "Works.", instructions="Work.")
        rules = PermissionRules(ask=["send"])
        agent = Agent("lead", model=ScriptedModel(script), subagents=[kid], tools=[send], runtime=runtime, permissions=rules)
        atwork = on_disk = 0.0
        for crowd in (1, 2):  # what the first has needed, and what is brought in for it, is there for the second
            before, most = _resident_kib(), 0.0
            await agent.run("Begin.", context=RuntimeContext(session_id=f"{SESSION}{crowd}"))
            while any(not one.over for one in runtime._drivers):
                most = max(most, _resident_kib())
                await asyncio.sleep(0.02)
            assert not runtime._trees
            gc.collect()
            atwork, on_disk = max(atwork, (most - before) / WAITING), (_resident_kib() - before) / WAITING
        return atwork, on_disk


async def crowd_table(folder: Path) -> None:
    """Print what many tasks cost."""
    rows = [
        ["last call after a stop of 200 children in 3 processes", f"{await _cancelled(folder):.2f} s", "<= 2 s"],
        ["a result, seen by another process that waits for it", f"{await _seen(folder):.2f} s", "<= 1 s"],
    ]
    atwork, on_disk = await _waiting(folder)
    rows += [
        ["a child that is about to wait for a person, in process", f"{atwork:.1f} KiB", "<= 16 KiB"],
        ["one that waits on disk", f"{on_disk:.1f} KiB", "0"],
    ]
    print_table("Many tasks (SQLite)", ["what", "figure", "goal"], rows)
    count = WRITERS * COMMITS
    ratios = [
        ratio_row(
            f"{events} event{'s' if events > 1 else ''} an append",
            await _appended(folder / f"appends{events}.sqlite3", events) / 1_000,
            _plain(folder / f"plain{events}.sqlite3", count * events) / 1_000,
            goal,
            unit="k/s",
            at_least=True,
        )
        for events, goal in ((1, 0.3), (4, 0.6))
    ]
    print_table(
        "Events appended by 1,000 writers at once, of one `executemany`", ["", "own", "floor", "ratio", "goal", ""], ratios
    )
