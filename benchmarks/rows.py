"""Retinue's rows: the same three pieces of work as the floor, with every default on, on one ledger."""

from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.measure import Operation
from retinue import Agent, PermissionRules, Runtime, SubAgent
from retinue.ledger.port import Ledger
from retinue.models.scripted import ScriptedModel

__all__ = ["operations_on"]

SCRIPT = {
    "turn": ["done"],
    "tool": [{"calls": [{"name": "echo", "arguments": {"text": "hello"}}]}, "done"],
    "delegation": [{"calls": [{"name": "child", "arguments": {"input": "hello"}}]}, "done"],
    "child": ["done"],
}


async def echo(text: str) -> str:
    """Give the text back."""
    return text


async def operations_on(ledger: Ledger | Path | str, stack: AsyncExitStack) -> tuple[Operation, ...]:
    """One turn, one tool, one delegation, as operations to be measured; each in a session of its own."""
    runtime = await stack.enter_async_context(Runtime(ledger=ledger))
    model = ScriptedModel(SCRIPT)
    child = SubAgent("child", "Helps.", instructions="You help.", surface="tool")
    rules = PermissionRules(allow=["echo", "child"])
    agents = [
        Agent(name, model=model, instructions="You help.", tools=[echo], subagents=[child], runtime=runtime, permissions=rules)
        for name in ("turn", "tool", "delegation")
    ]
    for agent in agents:
        result = await agent.run("hello")
        assert result.text == "done", result
    return tuple(_operation(agent) for agent in agents)


def _operation(agent: Agent) -> Operation:
    async def run() -> None:
        await agent.run("hello")

    return run
