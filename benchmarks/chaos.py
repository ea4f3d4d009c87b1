"""Background work while its processes are killed: is anything lost, told twice, done twice, or left running?

    python -m benchmarks.chaos [--tasks 1000] [--workers 3] [--kills 20] [--seed 1]     prints one JSON document

A parent gives the tasks in one message and leaves them in a SQLite ledger. Workers go on with them and are killed with SIGKILL at
random moments, and others take their place. The model of every process writes each request, and the tool each of its effects,
into a file outside of the ledger; at the end both are held against what the ledger says.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ToolContext,
    ToolHarness,
    subagent,
    tool,
)
from retinue.events import MessageEvent, decode
from retinue.harness.worker import Worker
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing.audit import audit

__all__ = ["Log", "chaos", "give", "lead", "opened", "worker"]

SESSION = "chaos"
KEY = ThreadKey("", SESSION, "main")
NESTED = 5
"""Every so many tasks one delegates once more."""
LIMIT_SECONDS = 300


class Log:
    """Lines that several processes append to one file; what one of them wrote before it died is there."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, *words: object) -> None:
        """Write a line at once, with the time."""
        os.write(self._file, (" ".join(map(str, (*words, time.time()))) + "\n").encode())


class Notes(ToolHarness):
    """The tool with an effect."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @tool
    async def note(self, text: str, context: ToolContext) -> str:
        """An effect: it must not happen twice."""
        self._log("effect", context.idempotency_key)
        return f"noted {text}"


class Desk(Notes):
    """The same, and a child of one's own."""

    @subagent
    def helper(self) -> SubAgent:
        """A child."""
        harness = Notes(self._log)
        return SubAgent("helper", "Helps.", instructions="Help.", requires_permission=False, tool_harnesses=[harness])


def answer_of(tasks: int, log: Log, *, endless: bool = False) -> Any:
    """A model that says the same in every process. `endless`: the tasks come to no end by themselves."""

    async def forever(request: ModelRequest) -> Any:
        if request.agent_id == "lead":
            return answer(request)
        await asyncio.sleep(0.1)
        log("asked", request.agent_id, request.run_id, request.step)
        return {"calls": [{"name": "note", "arguments": {"text": "again"}}]}

    def answer(request: ModelRequest) -> Any:
        log("asked", request.agent_id, request.run_id, request.step)
        messages = [entry.message for entry in request.history]
        if request.agent_id == "lead":
            if any(isinstance(one, ToolResult) for one in messages):
                return "Noted."
            return {"calls": [{"name": "agent_spawn", "arguments": _task(number)} for number in range(tasks)]}
        if request.step > 1:
            return f"{request.agent_id} is done."
        first = next(one.text for one in messages if isinstance(one, UserMessage))
        nested = request.agent_id == "kid" and int(first.rsplit(" ", 1)[1]) % NESTED == 0
        call = {"name": "helper", "arguments": {"input": first}} if nested else {"name": "note", "arguments": {"text": first}}
        return {"calls": [call]}

    return forever if endless else answer


def lead(runtime: Runtime, log: Log, tasks: int, *, endless: bool = False) -> Agent:
    """The parent and its children."""
    kid = SubAgent("kid", "Works.", instructions="Work.", leaf=False, max_iters=10_000, tool_harnesses=[Desk(log)])
    return Agent(
        "lead",
        model=ScriptedModel(answer_of(tasks, log, endless=endless)),
        subagents=[kid],
        runtime=runtime,
        permissions=PermissionRules(allow=["*"]),
        recovery="leave",
        on_exit="detach",
    )


def _task(number: int) -> dict[str, Any]:
    return {"agent_id": "kid", "task": f"task {number}", "timeout_seconds": 0}


def opened(ledger: Path, tasks: int) -> Runtime:
    """A runtime on the ledger, without the limits of small trees."""
    limits = Limits(max_tree_children=4 * tasks + 10, max_children=64, max_task_attempts=1_000, max_wakes=1_000_000)
    return Runtime(ledger=SqliteLedger(ledger, durability="process"), limits=limits)


async def give(ledger: Path, log: Path, tasks: int, *, endless: bool = False) -> str:
    """Give the tasks and leave them; the parent's run."""
    async with opened(ledger, tasks) as runtime, lead(runtime, Log(log), tasks, endless=endless) as agent:
        result = await agent.run("Begin.", context=RuntimeContext(session_id=SESSION))
        return result.run_id


async def work(ledger: Path, log: Path, tasks: int, *, endless: bool) -> None:
    """What a worker's process does, until it is told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Worker([lead(opened(ledger, tasks), Log(log), tasks, endless=endless)]).run(stop)


async def worker(ledger: Path, log: Path, tasks: int, *, endless: bool = False) -> asyncio.subprocess.Process:
    """A process that works on the ledger."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--work", str(ledger), str(log), "--tasks", str(tasks)]
    command += ["--endless"] if endless else []
    return await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[1])


async def chaos(folder: Path, *, tasks: int, workers: int, kills: int, seed: int) -> dict[str, Any]:
    """Give tasks, work on them, kill the workers now and then; what became of it all."""
    ledger, log, dice = folder / "ledger.sqlite3", folder / "log", random.Random(seed)
    root = await give(ledger, log, tasks)
    began = time.monotonic()
    crew = [await worker(ledger, log, tasks) for _ in range(workers)]
    killed = 0
    try:
        async with opened(ledger, tasks) as runtime:
            left = tasks
            while left and time.monotonic() - began < LIMIT_SECONDS:
                await asyncio.sleep(dice.uniform(0.2, 0.8))
                left = len(await runtime.ledger.tasks(unfinished=True, limit=10 * tasks))
                if left and killed < kills:
                    place = dice.randrange(workers)
                    crew[place].kill()
                    await crew[place].wait()
                    killed += 1
                    crew[place] = await worker(ledger, log, tasks)
                if killed < kills and left < tasks * (kills - killed) / kills:
                    continue  # so that all of the kills meet work
            seconds = time.monotonic() - began
            for process in crew:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*(process.wait() for process in crew)), 60)
            async with lead(runtime, Log(log), tasks) as agent:
                await _told(agent)
            return {"tasks": tasks, "workers": workers, "kills": killed, "seconds": round(seconds, 1)} | await _checked(
                runtime, root, log, tasks
            )
    finally:
        for process in crew:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _told(agent: Agent) -> None:
    """Let the parent be told what nobody could tell it any more."""
    ledger = agent.runtime.ledger
    last = await ledger.last_run(KEY)
    if last is not None and not last.state.terminal:
        await agent.resume(last.run_id, check=False)
    await agent.run("And?", context=RuntimeContext(session_id=SESSION), check=False)


async def _checked(runtime: Runtime, root: str, log: Path, tasks: int) -> dict[str, Any]:
    ledger = runtime.ledger
    rows = await ledger.tasks(limit=10 * tasks)
    journal = await ledger.journal(KEY)
    assert journal is not None
    messages = [event.message for event in map(decode, journal.own) if isinstance(event, MessageEvent)]
    notices = "\n".join(one.text for one in messages if isinstance(one, UserMessage) and one.notice)
    told = Counter({row.task_id: notices.count(f"Background task {row.task_id} ") for row in rows})
    asked: dict[str, int] = {}
    again = 0
    effects: Counter[str] = Counter()
    for line in (await asyncio.to_thread(log.read_text)).splitlines():
        kind, *words, _ = line.split()
        if kind == "effect":
            effects[words[0]] += 1
            continue
        _, run, step = words
        again += int(step) < asked.get(run, 0)  # it had got further: its answer was recorded
        asked[run] = max(asked.get(run, 0), int(step))
    runs = await ledger.tree(root)
    return {
        "lost": tasks - sum(row.state.value == "completed" for row in rows),
        "not_told": sum(count == 0 for count in told.values()),
        "told_twice": sum(count > 1 for count in told.values()),
        "left_running": sum(not run.state.terminal for run in runs),
        "recorded_answers_asked_again": again,
        "effects_twice": sum(count > 1 for count in effects.values()),
        "attempts": max(run.attempt for run in runs),
        "faults": (await audit(ledger, root))[:3],
    }


def main(arguments: list[str]) -> int:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=2, metavar=("LEDGER", "LOG"), help=argparse.SUPPRESS)
    parser.add_argument("--endless", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        asyncio.run(work(Path(given.work[0]), Path(given.work[1]), given.tasks, endless=given.endless))
        return 0
    with tempfile.TemporaryDirectory(prefix="retinue-chaos-") as folder:
        outcome = asyncio.run(chaos(Path(folder), tasks=given.tasks, workers=given.workers, kills=given.kills, seed=given.seed))
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
