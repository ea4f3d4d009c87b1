"""A stop that comes while a run is being begun, or taken up again, is no less a stop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RuntimeContext, ScriptedModel, tool

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


@pytest.mark.contract("D-07")
@pytest.mark.parametrize("turns", range(6))
async def test_a_run_that_is_being_begun_is_stopped(turns: int, tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(request: Any) -> str:
        asked.append(request)
        return "done"

    async with Agent("a", model=ScriptedModel(answer), ledger=tmp_path / "l.db") as agent:
        await Agent("a", model=ScriptedModel(["before"]), runtime=agent.runtime).run("zero", context=HERE)
        run = asyncio.create_task(agent.run("go", context=HERE, check=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        begun = bool(agent.runtime._drivers)
        await agent.cancel()
        result = await run
        assert not begun or (result.status, asked) == ("cancelled", [])


async def test_a_run_of_another_user_or_agent_goes_on(tmp_path: Path) -> None:
    async with Agent("a", model=ScriptedModel(["done"]), ledger=tmp_path / "l.db") as agent:
        other = Agent("b", model=ScriptedModel(["done"]), runtime=agent.runtime)
        runs = [
            asyncio.create_task(one.run("go", context=RuntimeContext(session_id=one.name, user_id="u"))) for one in (agent, other)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
            if len(agent.runtime._drivers) == 2:
                break
        await agent.cancel(user_id="nobody")
        assert [(await run).status for run in runs] == ["completed", "completed"]


@pytest.mark.contract("D-28")
async def test_a_run_that_is_taken_up_again_is_stopped(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        """Wipe."""
        ran.append("wiped")
        return "wiped"

    script: list[Any] = [{"calls": [{"name": "wipe", "arguments": {}}]}, "done"]
    rules = PermissionRules(ask=["wipe"])
    async with Agent("a", model=ScriptedModel(script), tools=[wipe], permissions=rules, ledger=tmp_path / "l.db") as agent:
        waiting = await agent.run("go", context=HERE)
        answering = asyncio.create_task(agent.answer(waiting.requests[0], allow=True))
        for _ in range(1_000_000):
            await asyncio.sleep(0)
            if agent.runtime._drivers:
                break
        await agent.cancel()
        result = await answering
        assert result is not None
        assert (result.status, ran) == ("cancelled", [])
