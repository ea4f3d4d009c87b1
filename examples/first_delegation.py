"""An agent in a folder hands work to a reviewer of its own.

RETINUE_MODEL=http://127.0.0.1:8080/v1#name python examples/first_delegation.py
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
        result = await agent.run("Have the Python files of this folder reviewed, then name the worst defect.")
        print(result.text)
        print(result.usage, result.cost)


if __name__ == "__main__":
    asyncio.run(main())
