"""The floor: the least that an agent loop can do, by hand over dictionaries, with the same fake model. Nothing is stored."""

import asyncio
import json
from typing import Any

__all__ = ["delegation", "one_tool", "one_turn"]

Message = dict[str, Any]


async def fake_model(messages: list[Message]) -> Message:
    """Answers at once, without giving up the loop: the first turn of a task that names a tool calls it, others are text."""
    last = messages[-1]
    if last["role"] == "user" and last["content"].startswith("call "):
        _, name, argument = last["content"].split(" ", 2)
        function = {"name": name, "arguments": json.dumps({"input": argument})}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": function}]}
    return {"role": "assistant", "content": "done"}


async def echo(text: str) -> str:
    """The tool."""
    return text


async def child(text: str) -> str:
    """The subagent: a loop of its own."""
    return await loop(text)


TOOLS = {"echo": echo, "child": child}


async def loop(task: str) -> str:
    """Ask, call, ask again, until the answer has no calls."""
    messages: list[Message] = [{"role": "system", "content": "You help."}, {"role": "user", "content": task}]
    while True:
        answer = await fake_model(messages)
        messages.append(answer)
        calls = answer.get("tool_calls")
        if not calls:
            return answer["content"]
        arguments = [json.loads(call["function"]["arguments"]) for call in calls]
        if len(calls) == 1:
            results = [await TOOLS[calls[0]["function"]["name"]](arguments[0]["input"])]
        else:
            made = (TOOLS[c["function"]["name"]](a["input"]) for c, a in zip(calls, arguments, strict=True))
            results = list(await asyncio.gather(*made))
        for call, result in zip(calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def one_turn() -> None:
    """One model call."""
    await loop("hello")


async def one_tool() -> None:
    """Two model calls and a tool."""
    await loop("call echo hello")


async def delegation() -> None:
    """Three model calls: parent, child, parent."""
    await loop("call child hello")
