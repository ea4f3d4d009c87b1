"""A process that works on the tasks of a ledger, for tests that kill and stop it.

    python task_worker.py LEDGER URL MODE [FAILPOINT]

`run`: gives the tasks and leaves them, kept alive until a line comes. `serve`: goes on with what there is, to its end.
FAILPOINT `before:TakeMail` or `after:TakeMail` kills the process around the commit with the first op of that name.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from retinue import Agent, Runtime, RuntimeContext, SubAgent, tool
from retinue.ledger.sqlite import SqliteLedger
from retinue.models.openai import OpenAIChatModel
from retinue.ops import Op
from retinue.testing.failpoints import Failpoint

HERE = RuntimeContext(session_id="s")


class KillOn(Failpoint):
    """SIGKILL around the commit in which an op of this name is written first."""

    def __init__(self, when: str, name: str) -> None:
        self._when = when
        self._name = name
        self._here = False

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """See `CommitHooks`."""
        self._here = any(type(op).__name__ == self._name for ops in commits for op in ops)

    def before_commit(self, n: int) -> None:
        """See `CommitHooks`."""
        if self._here and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self, n: int) -> None:
        """See `CommitHooks`."""
        if self._here and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(idempotent=True)
async def die() -> str:
    """Take the process along."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


async def main(path: str, url: str, mode: str, failpoint: str) -> None:
    """Do what is asked."""
    hooks = KillOn(*failpoint.split(":")) if failpoint else None
    runtime = Runtime(ledger=SqliteLedger(path, durability="process", hooks=hooks))
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    model = OpenAIChatModel("fake", base_url=url)
    async with (
        runtime,
        Agent(
            "root",
            model=model,
            subagents=[kid],
            tools=[look, die],
            runtime=runtime,
            on_exit="detach" if mode == "run" else "wait",
        ) as agent,
    ):
        print("ready", flush=True)
        if mode == "run":
            result = await agent.run("go", context=HERE, check=False)
            print(result.status, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else ""))
