"""1,000 children in one message, and a delegation that passes on 2,000 messages; limits raised (cases E to G)."""

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.table import print_table, ratio_row
from retinue import Agent, Limits, ModelAnswer, ModelRequest, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.events import MessageEvent, encode
from retinue.ledger.open import open_ledger
from retinue.ledger.port import Ledger
from retinue.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from retinue.models.scripted import ScriptedModel
from retinue.ops import Append, CreateThread, NewEvent, Op
from retinue.rows import ThreadKey, ThreadRow

__all__ = ["fan_out_table", "history_table"]

CHILDREN = 1_000
LATENCY = 0.1
"""Seconds that the fake model takes, so that all children are there at once."""
MESSAGES = 2_000
RUNS = 20
TEXT = "lorem ipsum dolor sit amet " * 20


def _delegates(count: int, latency: float) -> Callable[[ModelRequest], Awaitable[ModelAnswer]]:
    async def answer(request: ModelRequest) -> ModelAnswer:
        if latency:
            await asyncio.sleep(latency)
        last = request.history[-1].message
        if request.agent_id == "child" or isinstance(last, ToolResult) or getattr(last, "text", "") != "fan":
            return ModelAnswer(text="done")
        return ModelAnswer(calls=tuple(ToolCall(id=f"c{i}", name="child", arguments='{"input":"x"}') for i in range(count)))

    return answer


def _agent(ledger: Ledger, count: int, policy: str = "fresh", latency: float = 0.0) -> Agent:
    limits = Limits(max_children=CHILDREN * 2, max_tree_children=CHILDREN * 2)
    child = SubAgent("child", "Helps.", instructions="You help.", surface="tool", context_policy=policy)  # type: ignore[arg-type]
    return Agent(
        "parent",
        model=ScriptedModel(_delegates(count, latency)),
        subagents=[child],
        permissions=PermissionRules(allow=["child"]),
        runtime=Runtime(ledger=ledger, limits=limits),
    )


async def _once(work: Callable[[], Awaitable[Any]], repeats: int) -> float:
    taken: list[float] = []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time_ns()
        await work()
        taken.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(taken)


async def _floor_fan() -> None:
    """The same by hand: 1,000 loops over dictionaries, gathered."""

    async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        await asyncio.sleep(LATENCY)
        if messages[-1]["content"] != "fan":
            return {"role": "assistant", "content": "done"}
        calls = [{"id": f"c{i}", "function": {"name": "child", "arguments": '{"input":"x"}'}} for i in range(CHILDREN)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    async def loop(task: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You help."}, {"role": "user", "content": task}]
        while True:
            answer = await model(messages)
            messages.append(answer)
            if not answer.get("tool_calls"):
                return answer["content"]

            async def call(one: dict[str, Any]) -> dict[str, Any]:
                given = json.loads(one["function"]["arguments"])["input"]
                return {"role": "tool", "tool_call_id": one["id"], "content": await loop(given)}

            messages += await asyncio.gather(*(call(one) for one in answer["tool_calls"]))

    await loop("fan")


async def fan_out_table(folder: Path, repeats: int) -> None:
    """CPU ms of 1,000 children in one message."""
    rows: list[list[str]] = []
    cases: list[tuple[str, Ledger, float]] = [
        ("memory", open_ledger("memory"), 5),
        ("SQLite, survives SIGKILL", open_ledger(folder / "fan-process.sqlite3", durability="process"), 12),
        ("SQLite, survives power loss", open_ledger(folder / "fan-full.sqlite3", durability="full"), 12),
    ]
    for name, ledger, goal in cases:
        agent = _agent(ledger, CHILDREN, latency=LATENCY)
        async with agent.runtime:
            bare = await _once(_floor_fan, repeats)
            own = await _once(lambda agent=agent: agent.run("fan"), repeats)
            rows.append(ratio_row(name, own, bare, goal, unit="ms"))
    print_table(f"{CHILDREN:,} children in one message (CPU)", ["ledger", "own", "floor", "ratio", "goal", "reached"], rows)


async def history_table(repeats: int) -> None:
    """CPU µs of a delegation that forks a thread of 2,000 messages, against one of 2: a whole run on a thread that exists."""
    measured: dict[int, list[float]] = {2: [], MESSAGES: []}
    for number in range(repeats):
        for count in (2, MESSAGES):
            agent = _agent(open_ledger("memory"), 1, "fork")
            async with agent.runtime:
                context = RuntimeContext(session_id=f"s{number}")
                await agent.build()
                await agent.runtime.ledger.commit(_conversation(ThreadKey("", f"s{number}", "main"), count))
                await agent.run("fan", context=context)
                measured[count].append(await _once(lambda a=agent, c=context: _several(a, c), 1) * 1e3 / RUNS)
    own, two = statistics.median(measured[MESSAGES]), statistics.median(measured[2])
    rows = [ratio_row(f"{MESSAGES:,} messages passed on / 2", own, two, 1.5, unit="µs")]
    print_table("One delegation with the parent's history (CPU)", ["", "own", "with 2", "ratio", "goal", "reached"], rows)


async def _several(agent: Agent, context: RuntimeContext) -> None:
    for _ in range(RUNS):
        await agent.run("fan", context=context)


def _conversation(key: ThreadKey, count: int) -> list[Op]:
    """A thread with `count` messages, in one commit."""
    events: list[NewEvent] = []
    for number in range(count):
        text = f"{number} {TEXT}"
        even = number % 2 == 0
        message = UserMessage(id=f"m{number}", text=text) if even else AssistantMessage(id=f"m{number}", text=text)
        event = MessageEvent(message=message)
        events.append(NewEvent(event.TYPE, encode(event), "run_0", 1, 0))
    row = ThreadRow(key=key, default_agent_id="parent", created_at=0)
    return [CreateThread(row), Append(key, 1, 0, tuple(events))]
