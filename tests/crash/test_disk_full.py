"""A full disk at any commit of a run: a clear error, nothing half-written, and the run goes on to the same transcript."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.config import AgentConfig, PermissionRules, RuntimeContext
from retinue.errors import LedgerUnavailable, UnknownId
from retinue.events import PermissionRequest
from retinue.harness.agent import Agent
from retinue.ledger.sqlite import SqliteLedger
from retinue.models.scripted import ScriptedModel
from retinue.subagents.declaration import SubAgent
from retinue.subagents.decorator import subagent
from retinue.testing.audit import audit, transcript
from retinue.testing.failpoints import Failpoint, FullDiskAt
from retinue.tools.decorator import tool
from retinue.tools.harness import ToolHarness

pytestmark = pytest.mark.anyio

SCRIPT: dict[str, Any] = {
    "lead": [
        {
            "calls": [
                {"name": "look", "arguments": {}},
                {"name": "put", "arguments": {}},
                {"name": "worker", "arguments": {"input": "Work."}},
            ]
        },
        "Done. {result.worker}",
    ],
    "worker": [{"calls": [{"name": "pay", "arguments": {}}, {"name": "put", "arguments": {}}]}, "Worked. {result.pay}"],
}


class Counted(ToolHarness):
    """Tools that count."""

    def __init__(self, effects: Counter[str]) -> None:
        self._effects = effects

    @tool(read_only=True)
    async def look(self) -> str:
        """Look."""
        self._effects["look"] += 1
        return "seen"

    @tool(idempotent=True)
    async def put(self) -> str:
        """Put."""
        self._effects["put"] += 1
        return "put"

    @tool(requires_permission=True)
    async def pay(self) -> str:
        """Pay."""
        self._effects["pay"] += 1
        return "paid"


class Below(ToolHarness):
    """A child with the same tools."""

    def __init__(self, effects: Counter[str]) -> None:
        self._effects = effects

    @subagent
    def worker(self) -> SubAgent:
        """The child."""
        config = AgentConfig(name="Worker", instructions="Work.")
        return SubAgent.from_config("worker", "worker", "Works.", config, tool_harnesses=[Counted(self._effects)])


def agent_on(path: Path, effects: Counter[str], hooks: Failpoint) -> Agent:
    """The agent of this module, on a ledger whose disk may be full."""

    async def yes(_request: PermissionRequest) -> bool:
        return True

    return Agent(
        "lead",
        model=ScriptedModel(SCRIPT),
        tool_harnesses=[Counted(effects), Below(effects)],
        ledger=SqliteLedger(path, durability="process", hooks=hooks),
        permissions=PermissionRules(allow=["worker"]),
        on_request=yes,
    )


async def go(agent: Agent) -> None:
    await agent.run("Go.", context=RuntimeContext(session_id="s1"))


def checked(conversation: dict[str, Any], undisturbed: dict[str, Any], effects: Counter[str]) -> list[str]:
    """What is wrong after a resume. `pay` may have an unknown outcome: it is not repeated then."""
    unknown = "unknown_outcome" in str(conversation)
    faults: list[str] = []
    if not unknown and conversation != undisturbed:
        faults.append(f"another transcript: {conversation}")
    if unknown and conversation["status"] != "completed":
        faults.append(f"not completed: {conversation}")
    if effects["pay"] > 1 or (not unknown and effects["pay"] != 1):
        faults.append(f"`pay` ran {effects['pay']} times")
    return faults


@pytest.mark.parametrize("where", ["the same runtime", "a new one"])
async def test_disk_full_at_commit_n(tmp_path: Path, where: str) -> None:
    async with agent_on(tmp_path / "undisturbed", Counter(), Failpoint()) as agent:
        await go(agent)
        root = (await agent.runtime.ledger.runs(roots_only=True))[0].run_id
        undisturbed = await transcript(agent.runtime.ledger, root)
    faults: list[str] = []
    for n in range(1, 50):
        hooks, effects = FullDiskAt(n), Counter[str]()
        path = tmp_path / f"{n}.sqlite3"
        agent = agent_on(path, effects, hooks)
        told = await caught(agent)
        if told is None:
            assert not hooks.failed or n > 4  # the very last: the owner's row, which nobody misses
            await agent.close()
            break
        if told.code != "disk_full" or "full" not in str(told) or told.remedy is None:
            faults.append(f"{n}: {told!r} with remedy {told.remedy!r}")
        if where == "a new one":
            await agent.close()
            assert ledger_threads() == [], n  # also where the owner could not be registered, or its row not be removed
            agent = agent_on(path, effects, Failpoint())
        async with agent:
            ledger = agent.runtime.ledger
            roots = await ledger.runs(roots_only=True)
            if not roots:
                with pytest.raises(UnknownId):
                    await agent.resume("run_none")
                await go(agent)
                roots = await ledger.runs(roots_only=True)
            else:
                faults += [f"{n}: half-written: {fault}" for fault in await audit(ledger, roots[0].run_id)]
                await agent.resume(roots[0].run_id)
            faults += [f"{n}: {fault}" for fault in await audit(ledger, roots[0].run_id)]
            faults += [f"{n}: {fault}" for fault in checked(await transcript(ledger, roots[0].run_id), undisturbed, effects)]
        assert agent.runtime._trees == {}
        assert ledger_threads() == []
    else:
        pytest.fail("the scenario has no end")
    assert faults == []


def ledger_threads() -> list[str]:
    """Threads of a ledger that is still open."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("retinue-ledger")]


async def caught(agent: Agent) -> LedgerUnavailable | None:
    """The error that a full disk gives to the caller of `run`."""
    try:
        await go(agent)
    except LedgerUnavailable as error:
        return error
    return None
