"""A subagent that the model sees as a function of its own name, beside a plain tool.

It needs a model: the key of one in OPENAI_API_KEY, or RETINUE_MODEL=http://127.0.0.1:8080/v1#name for a server of your own.
To see it without either, let a script say what the model says:

RETINUE_MODEL=scripted:examples/scripts/subagent_as_tool.json python examples/subagent_as_tool.py
"""

import asyncio
import os

from retinue import Agent, AgentConfig, PermissionRules, SubAgent, ToolHarness, subagent, tool

MODEL = os.environ.get("RETINUE_MODEL", "openai:gpt-5")
PRICES = {"apple": 0.4, "pear": 0.6}


class Shop(ToolHarness):
    """What the assistant can use."""

    @tool
    async def price(self, fruit: str) -> float:
        """The price of a fruit in euros.

        Args:
            fruit: Its name, in the singular.
        """
        return PRICES[fruit]

    @subagent
    def copywriter(self) -> SubAgent:
        """The model calls it like a function, with `input`."""
        return SubAgent.from_config(
            "shop/copywriter",
            "copywriter",
            "Writes one line of advertisement.",
            AgentConfig(name="Copywriter", instructions="Write one line. No exclamation marks."),
        )


async def main() -> None:
    """Let the assistant use both; the subagent is allowed in advance."""
    rules = PermissionRules(allow=["copywriter"])
    async with Agent("assistant", model=MODEL, tool_harnesses=[Shop], permissions=rules) as agent:
        result = await agent.run("What does an apple cost? Have a line written that says so.", check=False)
        print(result)  # how it ended, why and what to do if it failed, and the answer


if __name__ == "__main__":
    asyncio.run(main())
