"""Memory of a child that waits for its model: in process, and over HTTP as a multiple of what aiohttp itself needs.

Peak resident memory over the growth of 1,000 (in process) or 200 (over HTTP) children at once, in a process of its own each.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.serving import Endpoint
from benchmarks.table import print_table, ratio_row

__all__ = ["waiting_table"]

IN_PROCESS = 1_000
OVER_HTTP = 200


def _resident_kib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4.0


async def _floor_in_process() -> float:
    gate = asyncio.Event()

    async def child() -> str:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]
        await gate.wait()
        messages.append({"role": "assistant", "content": "done"})
        return "done"

    before = _resident_kib()
    tasks = [asyncio.create_task(child()) for _ in range(IN_PROCESS)]
    await asyncio.sleep(0.2)
    grown = _resident_kib() - before
    gate.set()
    await asyncio.gather(*tasks)
    return grown / IN_PROCESS


async def _own(children: int, model: Any, waiting: "asyncio.Event", gate: Any) -> float:
    from retinue import Agent, Limits, PermissionRules, Runtime, SubAgent

    limits = Limits(max_children=children * 2, max_tree_children=children * 2)
    child = SubAgent("child", "Helps.", instructions="You help.", surface="tool", context_policy="fresh")
    agent = Agent(
        "parent", model=model, subagents=[child], permissions=PermissionRules(allow=["child"]), runtime=Runtime(limits=limits)
    )
    async with agent.runtime:
        await agent.run("warm")
        before = _resident_kib()
        running = asyncio.create_task(agent.run("fan"))
        await waiting.wait()
        await asyncio.sleep(0.3)
        grown = _resident_kib() - before
        gate()
        await running
    return grown / children


async def _own_in_process() -> float:
    from retinue import ModelAnswer, ModelRequest
    from retinue.messages import ToolCall, ToolResult
    from retinue.models.scripted import ScriptedModel

    gate, waiting = asyncio.Event(), asyncio.Event()
    count = 0

    async def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal count
        last = request.history[-1].message
        if request.agent_id == "child":
            count += 1
            if count == IN_PROCESS:
                waiting.set()
            await gate.wait()
            return ModelAnswer(text="done")
        if isinstance(last, ToolResult) or getattr(last, "text", "") != "fan":
            return ModelAnswer(text="done")
        calls = tuple(ToolCall(id=f"c{i}", name="child", arguments='{"input":"x"}') for i in range(IN_PROCESS))
        return ModelAnswer(calls=calls)

    return await _own(IN_PROCESS, ScriptedModel(answer), waiting, gate.set)


async def _floor_over_http() -> float:
    import aiohttp

    async with Endpoint() as endpoint, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def child(hold: bool) -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": "HOLD" if hold else "x"}], "stream": True}
            async with session.post(f"{endpoint.url}/chat/completions", json=body) as response:
                async for _ in response.content:
                    pass

        await child(False)
        before = _resident_kib()
        tasks = [asyncio.create_task(child(True)) for _ in range(OVER_HTTP)]
        await endpoint.held(OVER_HTTP)
        await asyncio.sleep(0.3)
        grown = _resident_kib() - before
        await endpoint.release()
        await asyncio.gather(*tasks)
        return grown / OVER_HTTP


async def _own_over_http() -> float:
    from retinue.models.openai import OpenAIChatModel

    async with Endpoint() as endpoint:
        waiting = asyncio.Event()

        async def watch() -> None:
            await endpoint.held(OVER_HTTP)
            waiting.set()

        watcher = asyncio.create_task(watch())
        releases: list[asyncio.Task[None]] = []
        model = OpenAIChatModel("m", base_url=endpoint.url, max_connections=OVER_HTTP * 2)
        grown = await _own(OVER_HTTP, model, waiting, lambda: releases.append(asyncio.create_task(endpoint.release())))
        await watcher
        return grown


CASES = {
    "floor": _floor_in_process,
    "own": _own_in_process,
    "floor-http": _floor_over_http,
    "own-http": _own_over_http,
}


def _measured(case: str) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.waiting", case], check=True, capture_output=True, text=True, timeout=120
    )
    return float(done.stdout.split()[-1])


def waiting_table() -> None:
    """KiB per waiting child."""
    own, floor = _measured("own"), _measured("floor")
    rows = [
        [
            f"in process ({IN_PROCESS:,} at once)",
            f"{own:.1f} KiB",
            f"{floor:.1f} KiB",
            f"{own / floor:.2f} x",
            "<= 12 KiB",
            "yes" if own <= 12 else "NO",
        ],
        ratio_row(f"over HTTP ({OVER_HTTP} at once)", _measured("own-http"), _measured("floor-http"), 2, unit="KiB"),
    ]
    print_table("Memory of a child that waits for its model", ["", "own", "floor", "ratio", "goal", "reached"], rows)


if __name__ == "__main__":
    print(asyncio.run(CASES[sys.argv[1]]()))
