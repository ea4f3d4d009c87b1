"""An agent in a folder hands work to a reviewer of its own.

It needs a model: the key of one in OPENAI_API_KEY, or RETINUE_MODEL=http://127.0.0.1:8080/v1#name for a server of your own.
To see it without either, let a script say what the model says:

RETINUE_MODEL=scripted:examples/scripts/first_delegation.json python examples/first_delegation.py
"""

import asyncio
import os

from retinue import HarnessAgent, SubAgent

MODEL = os.environ.get("RETINUE_MODEL", "openai:gpt-5")


async def main() -> None:
    """Delegate once, and show what it cost."""
    reviewer = SubAgent(
        "reviewer",
        "Reviews source files and lists defects",
        instructions="Read the files that you are told of. List real defects with file and line, nothing else.",
        workspace_mode="shared",
        tools=["read_file", "grep_files", "list_files"],
    )
    async with HarnessAgent("orchestrator", model=MODEL, workspace=".", subagents=[reviewer]) as agent:
        result = await agent.run("Have the Python files of this folder reviewed, then name the worst defect.", check=False)
        print(result)  # how it ended, why and what to do if it failed, and the answer
        print(result.usage, result.cost)


if __name__ == "__main__":
    asyncio.run(main())
