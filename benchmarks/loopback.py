"""Delegations per second over loopback HTTP, streamed, durable, 50 at once, as a share of raw aiohttp's (case H).

A delegation is three requests: parent, child, parent. The raw floor sends the same requests by hand and reads the stream.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.serving import Endpoint
from benchmarks.table import print_table, ratio_row
from retinue import Agent, PermissionRules, Runtime, SubAgent
from retinue.ledger.open import open_ledger
from retinue.models.openai import OpenAIChatModel

__all__ = ["loopback_table"]

AT_ONCE = 50
WINDOW_SECONDS = 1.5


async def _rate(work: Callable[[], Awaitable[Any]], windows: int) -> float:
    """The best rate of several windows: a shared machine only ever takes away."""
    best = 0.0
    for _ in range(windows):
        done, end = 0, time.perf_counter() + WINDOW_SECONDS
        start = time.perf_counter()

        async def worker(until: float = end) -> int:
            count = 0
            while time.perf_counter() < until:
                await work()
                count += 1
            return count

        done = sum(await asyncio.gather(*(worker() for _ in range(AT_ONCE))))
        best = max(best, done / (time.perf_counter() - start))
    return best


async def loopback_table(folder: Path, windows: int) -> None:
    """Delegations per second."""
    import aiohttp

    rows: list[list[str]] = []
    async with Endpoint() as endpoint, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
            text = ""
            calls: list[dict[str, Any]] = []
            body = {"model": "m", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
            async with session.post(f"{endpoint.url}/chat/completions", json=body) as response:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                        calls += choice["delta"].get("tool_calls") or []
            return (
                {"role": "assistant", "content": text, "tool_calls": calls} if calls else {"role": "assistant", "content": text}
            )

        async def raw() -> None:
            messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "DELEGATE"}]
            messages.append(await ask(messages))
            call = messages[-1]["tool_calls"][0]
            given = json.loads(call["function"]["arguments"])["input"]
            child = await ask([{"role": "system", "content": "s"}, {"role": "user", "content": given}])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": child["content"]})
            await ask(messages)

        model = OpenAIChatModel("m", base_url=endpoint.url, max_connections=AT_ONCE * 4)
        child = SubAgent("child", "Helps.", instructions="You help.", surface="tool", context_policy="fresh")
        for name, ledger in (
            ("SQLite, survives SIGKILL", open_ledger(folder / "http-process.sqlite3", durability="process")),
            ("SQLite, survives power loss", open_ledger(folder / "http-full.sqlite3", durability="full")),
        ):
            agent = Agent(
                "parent",
                model=model,
                subagents=[child],
                permissions=PermissionRules(allow=["child"]),
                runtime=Runtime(ledger=ledger),
            )
            async with agent.runtime:
                before = await _rate(raw, windows)
                own = await _rate(lambda agent=agent: agent.run("DELEGATE"), windows)
                after = await _rate(raw, windows)
                rows.append(ratio_row(name, own, (before + after) / 2, 0.6, unit="/s", at_least=True))
    print_table(
        f"Delegations per second over loopback HTTP, streamed, {AT_ONCE} at once",
        ["ledger", "own", "raw aiohttp", "ratio", "goal", "reached"],
        rows,
    )
