"""The floor: the least that an agent loop can do, by hand over dictionaries, with the same fake model. Nothing is stored."""

import asyncio
import json
from typing import Any

__all__ = ["delegation", "one_tool", "one_turn"]

Message = dict[str, Any]


async def _latency() -> None:
    """Where a fake model may wait; here it does not, so that the loop is never given up."""


async def fake_model(messages: list[Message], tools: list[Message]) -> Message:
    """What it says follows from the last user's message and from whether a result came after it."""
    await _latency()
    answered, task = False, ""
    for message in reversed(messages):
        if message["role"] == "tool":
            answered = True
        elif message["role"] == "user":
            task = message["content"]
            break
    if not answered and task.startswith("call ") and tools:
        _, name, argument = task.split(" ", 2)
        function = {"name": name, "arguments": f'{{"input":"{argument}"}}'}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]}
    return {"role": "assistant", "content": "done"}


def _tool(name: str) -> Message:
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [_tool("echo"), _tool("child")]


async def loop(task: str, tools: list[Message]) -> str:
    """Ask, call, ask again, until the answer has no calls."""
    messages: list[Message] = [{"role": "system", "content": "You help."}, {"role": "user", "content": task}]
    while True:
        answer = await fake_model(messages, tools)
        messages.append(answer)
        calls = answer.get("tool_calls")
        if not calls:
            return answer["content"]

        async def call(one: Message) -> Message:
            given = json.loads(one["function"]["arguments"])["input"]
            result = given if one["function"]["name"] == "echo" else await loop(given, TOOLS[:1])
            return {"role": "tool", "tool_call_id": one["id"], "content": result}

        if len(calls) == 1:
            messages.append(await call(calls[0]))
        else:
            messages += await asyncio.gather(*(call(one) for one in calls))


async def one_turn() -> None:
    """One model call."""
    await loop("hello", TOOLS)


async def one_tool() -> None:
    """Two model calls and a tool."""
    await loop("call echo hello", TOOLS)


async def delegation() -> None:
    """Three model calls: parent, child, parent."""
    await loop("call child hello", TOOLS)
