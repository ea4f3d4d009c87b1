"""A resumed run keeps the rules that it was started under, and is refused to an agent that lacks its tools."""

from pathlib import Path

import pytest

from retinue import Agent, ConfigurationError, PermissionRules
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

TURNS = {"ed": [calls(("pay", {})), calls(("remove", {})), "done"]}


def agent(ledger: Path, ran: list[str], *, permissions: PermissionRules | None = None, tools: bool = True) -> Agent:
    """An agent with two tools, or without any."""

    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    async def remove() -> str:
        """Remove."""
        ran.append("remove")
        return "removed"

    return Agent("ed", model=RecordingModel(TURNS), tools=[pay, remove] if tools else [], ledger=ledger, permissions=permissions)


async def waiting_run(ledger: Path, ran: list[str]) -> str:
    """A run that waits for an answer about `pay` and may not `remove`."""
    async with agent(ledger, ran, permissions=PermissionRules(ask=["pay"], deny=["remove"])) as first:
        result = await first.run("Go.")
    assert result.status == "waiting"
    return result.run_id


@pytest.mark.contract("D-29")
@pytest.mark.parametrize("now", [None, PermissionRules(allow=["*"])])
async def test_a_resumed_run_keeps_what_it_was_forbidden(tmp_path: Path, now: PermissionRules | None) -> None:
    ran: list[str] = []
    run_id = await waiting_run(tmp_path / "l.db", ran)
    for _ in range(2):  # the second take-over finds them in the event of the first
        async with agent(tmp_path / "l.db", ran, permissions=now) as again:
            assert (await again.resume(run_id)).status == "waiting"
    async with agent(tmp_path / "l.db", ran, permissions=now) as last:
        (request,) = (await last.resume(run_id)).requests
        result = await last.answer(request, allow=True)
    assert result is not None
    assert result.status == "completed"
    assert ran == ["pay"]


@pytest.mark.contract("D-29")
async def test_rules_of_the_agent_that_resumes_tighten(tmp_path: Path) -> None:
    ran: list[str] = []
    run_id = await waiting_run(tmp_path / "l.db", ran)
    async with agent(tmp_path / "l.db", ran, permissions=PermissionRules(deny=["pay"])) as again:
        (request,) = (await again.resume(run_id)).requests
        await again.answer(request, allow=True)
    assert ran == []


@pytest.mark.contract("D-19")
async def test_an_agent_without_the_runs_tools_is_refused_and_can_still_cancel(tmp_path: Path) -> None:
    ran: list[str] = []
    run_id = await waiting_run(tmp_path / "l.db", ran)
    async with agent(tmp_path / "l.db", ran, tools=False) as bare:
        before = await bare.runtime.ledger.run(run_id)
        with pytest.raises(ConfigurationError, match="`pay`, `remove`") as raised:
            await bare.resume(run_id)
        assert raised.value.code == "no_executor"
        assert await bare.runtime.ledger.run(run_id) == before
        await bare.cancel(run_id)
        row = await bare.runtime.ledger.run(run_id)
        assert row is not None
        assert row.state == "cancelled"
    assert ran == []
