"""Scripts of whole trees, written as they nest."""

import pytest

from retinue import Agent, ConfigurationError, PermissionRules, ScriptedModel, SubAgent
from retinue.testing import ScriptedAgent, calls

pytestmark = pytest.mark.anyio

READER = ScriptedAgent("reader", calls(("look", {"at": "sky"})), says="It is {result}.", task="Look up.")


def test_a_tree_becomes_turns_by_agent() -> None:
    writer = ScriptedAgent("writer", surface="tool", says={"text": "Written.", "usage": {"input": 3}})
    tree = ScriptedAgent("lead", [READER, calls(("note", {})), writer], READER, says="{results}")
    assert tree.script() == {
        "lead": [
            {
                "calls": [
                    {"name": "agent_spawn", "arguments": {"agent_id": "reader", "task": "Look up."}},
                    {"name": "note", "arguments": {}},
                    {"name": "writer", "arguments": {"input": "Do the work of writer."}},
                ]
            },
            {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "reader", "task": "Look up."}}]},
            "{results}",
        ],
        "reader": [{"calls": [{"name": "look", "arguments": {"at": "sky"}}]}, "It is {result}."],
        "writer": [{"text": "Written.", "usage": {"input": 3}}],
    }
    assert [agent.agent_id for agent in tree.walk()] == ["lead", "reader", "writer", "reader"]


def test_a_turn_without_calls_keeps_what_it_says() -> None:
    assert ScriptedAgent("lead", {"text": "Hm.", "finish_reason": "stop"}).script()["lead"][0] == {
        "text": "Hm.",
        "finish_reason": "stop",
    }


def test_an_agent_that_does_two_things_is_refused() -> None:
    tree = ScriptedAgent("lead", READER, ScriptedAgent("reader", says="Something else."))
    with pytest.raises(ConfigurationError, match="`reader` stands in two places"):
        tree.script()


async def test_the_tree_runs() -> None:
    def look(at: str) -> str:
        """Look."""
        return f"the blue {at}"

    tree = ScriptedAgent("lead", READER, says="{result}")
    reader = SubAgent("reader", "Looks.", instructions="Look.")
    agent = Agent(
        "lead", model=ScriptedModel(tree.script()), tools=[look], subagents=[reader], permissions=PermissionRules(allow=["*"])
    )
    async with agent:
        result = await agent.run("What is up there?")
    assert "reply:\nIt is the blue sky." in result.text
    assert result.usage.calls == 4
