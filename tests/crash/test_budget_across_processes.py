"""A budget is over a tree, whoever drives its parts (M13)."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Budget, Runtime, SubAgent, tool
from retinue.testing import StrictProvider
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

TASKS = 4
ROOM = 7
"""Two calls of the root, and five of the twelve that its tasks would make."""

SPAWN: dict[str, Any] = {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": "x", "timeout_seconds": 0}}
SCRIPT: dict[str, Any] = {
    "agents": {
        "root": [{"calls": [SPAWN] * TASKS}, "given"],
        "kid": [{"calls": [{"name": "look"}]}, {"calls": [{"name": "look"}]}, "kid is done"],
    }
}

WORKER = """
import asyncio, json, sys
from retinue import Agent, Runtime, SubAgent, resolve_model, tool

@tool
async def look() -> str:
    \"\"\"Look.\"\"\"
    return "seen"

async def main(path, url, runs):
    async with Runtime(ledger=path) as runtime:
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        agent = Agent("root", model=f"{url}#fake", subagents=[kid], tools=[look], runtime=runtime)
        print("ready", flush=True)
        sys.stdin.readline()
        ends = await asyncio.gather(*(agent.resume(run, check=False) for run in runs))
        print(json.dumps([[end.status, end.reason] for end in ends]), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
"""


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def worker(path: Path, url: str, runs: list[str]) -> asyncio.subprocess.Process:
    """A process that goes on with these runs when it is told to."""
    source = WORKER.replace(", resolve_model", "")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", source, str(path), url, *runs, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"ready"
    return process


@pytest.mark.contract("D-30")
async def test_budget_of_a_tree_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite3"
    async with StrictProvider(SCRIPT) as provider:
        gate = provider.hold(agent="kid")
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        async with Runtime(ledger=path) as runtime:
            model = provider.model()
            agent = Agent("root", model=model, subagents=[kid], tools=[look], runtime=runtime, on_exit="detach", recovery="leave")
            async with agent:
                result = await agent.run("go", budget=Budget(requests=ROOM))
            runs = [row.child_run for row in await runtime.ledger.tasks()]
        gate.release()
        provider.requests.clear()
        workers = [await worker(path, provider.url, runs[:2]), await worker(path, provider.url, runs[2:])]
        for one in workers:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            await one.stdin.drain()
        said = [await one.communicate() for one in workers]
        ends = [end for out, _ in said for end in json.loads(out)]
        made = len(provider.requests)
    async with Runtime(ledger=path) as runtime:
        spent = await runtime.ledger.spends(result.run_id)
        faults = await audit(runtime.ledger, result.run_id)
    assert made == ROOM - 2
    assert sum(row.requests for row in spent) == ROOM
    assert {row.owner for row in spent} == {None}
    assert len(ends) == TASKS
    assert {tuple(end) for end in ends} <= {("completed", None), ("failed", "limit:requests")}
    assert ["failed", "limit:requests"] in ends
    assert faults == []
