"""A run that waits for a person lives in the ledger alone: any process answers and finishes it, and the first answer wins."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.config import PermissionRules, RuntimeContext
from retinue.errors import RetinueError
from retinue.harness.agent import Agent
from retinue.models.scripted import ScriptedModel
from retinue.subagents.declaration import SubAgent
from retinue.testing.audit import audit, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

DONE = "Lead is done. Worker is done. Helper is done. paid 7"


async def waiting(forks: Any, case: str, path: Path, url: str) -> str:
    """Run until a grandchild's tool asks; the process ends, and the request is left."""
    outcome = await forks.start("run", case, path, url, answers=False).outcome()
    assert outcome["status"] == "waiting"
    (request,) = outcome["requests"]
    return request


async def opened_requests(ledger: Any) -> list[Any]:
    """The requests of a run that another process drives, as soon as there are any."""
    async with asyncio.timeout(20):
        while not (rows := await ledger.requests()):  # noqa: ASYNC110  # another process's event: there is none to wait for
            await asyncio.sleep(0)
    return rows


@pytest.mark.contract("D-28", "D-10")
async def test_waiting_survives(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    case, path, url = "waiting", tmp_path / "ledger.sqlite3", provider_process.url
    request = await waiting(forks, case, path, url)
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        rows = await ledger.tree(root)
        assert [(row.agent_id, row.state.value, row.owner) for row in rows] == [
            (name, "waiting", None) for name in ("lead", "worker", "helper")
        ]
        assert [row.state.value for row in await ledger.invocations(root_run=root)] == ["waiting", "waiting"]
        assert await audit(ledger, root) == []
        answered = await forks.start("answer", case, path, url, request=request, answers=False).outcome()
        assert (answered["status"], answered["text"]) == ("completed", DONE)
        again = await forks.start("answer", case, path, url, request=request, answers=False, allow=False).outcome()
        assert again["code"] == "already_answered"
        assert await audit(ledger, root) == []
        assert (await ledger.request(request)).answer == "allow"
    requests, effects = await provider_process.record(case)
    assert set(Counter((one["agent"], one["step"]) for one in requests).values()) == {1}
    assert [one["refused"] for one in requests if one["refused"]] == []
    assert Counter(effect["name"] for effect in effects) == {"look": 2, "note": 1, "put": 2, "pay": 1}


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("allow", [True, False])
async def test_first_answer_wins_when_two_processes_answer_at_once(
    tmp_path: Path, forks: Any, provider_process: Any, read: Any, allow: bool
) -> None:
    case, path, url = f"two-answers-{allow}", tmp_path / "ledger.sqlite3", provider_process.url
    request = await waiting(forks, case, path, url)
    both = [forks.start("answer", case, path, url, request=request, answers=False, allow=one) for one in (allow, not allow)]
    outcomes = await asyncio.gather(*(one.outcome() for one in both))
    winners = [(one, outcome) for one, outcome in zip((allow, not allow), outcomes, strict=True) if "status" in outcome]
    losers = [outcome for outcome in outcomes if "status" not in outcome]
    assert [loser["code"] for loser in losers] == ["already_answered"]
    ((won, outcome),) = winners
    assert outcome["status"] == "completed"
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        assert (await ledger.request(request)).answer == ("allow" if won else "deny")
        assert await audit(ledger, root) == []
        assert ("paid 7" in str(await transcript(ledger, root))) is won
    _, effects = await provider_process.record(case)
    assert Counter(effect["name"] for effect in effects)["pay"] == (1 if won else 0)


@pytest.mark.contract("D-28")
async def test_an_open_request_is_asked_again_by_whoever_resumes(
    tmp_path: Path, forks: Any, provider_process: Any, read: Any
) -> None:
    """Resumed where `on_request` answers: it is asked, though an earlier process opened the request."""
    case, path, url = "asked-again", tmp_path / "ledger.sqlite3", provider_process.url
    request = await waiting(forks, case, path, url)
    still = await forks.start("resume", case, path, url, answers=False).outcome()
    assert (still["status"], still["requests"]) == ("waiting", [request])
    resumed = await forks.start("resume", case, path, url, answers=True).outcome()
    assert (resumed["status"], resumed["text"]) == ("completed", DONE)
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        assert await audit(ledger, root) == []
        assert (await ledger.request(request)).by == "on_request"


@pytest.mark.contract("D-28")
async def test_an_answer_from_another_process_is_found_while_a_process_waits_for_one(
    tmp_path: Path, forks: Any, theatre: Any, read: Any
) -> None:
    """A run that is driven elsewhere is not taken over by whoever answers; its owner finds the answer when it next looks."""
    path, url = tmp_path / "ledger.sqlite3", theatre.provider.url
    gate = theatre.hold_effect("note")
    asking = forks.start("run", "asking", path, url, answers=False)
    await theatre.reached(gate, asking)  # a sibling of the branch that asks is still at work
    await theatre.happened(4)
    async with read(path) as ledger:
        rows = await opened_requests(ledger)
        answered = await forks.start("answer", "b", path, url, request=rows[0].request_id, answers=False).outcome()
        assert answered["status"] is None
        gate.release()
        outcome = await asking.outcome()
        assert (outcome["status"], outcome["text"]) == ("completed", DONE)
        assert await audit(ledger, rows[0].root_run) == []
    assert sorted(theatre.names()).count(("pay", 2)) + sorted(theatre.names()).count(("pay", 1)) == 1


@pytest.mark.contract("D-28")
async def test_waiting_survives_reopening_in_the_same_process(tmp_path: Path) -> None:
    paid: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    script = {
        "lead": [{"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "worker", "task": "Pay."}}]}, "Done."],
        "worker": [{"calls": [{"name": "pay", "arguments": {"amount": 3}}]}, "{result.pay}"],
    }

    def made() -> Agent:
        worker = SubAgent("worker", "Works.", instructions="Work.")
        rules = PermissionRules(ask=["pay"])
        ledger = tmp_path / "ledger.sqlite3"
        return Agent("lead", model=ScriptedModel(script), tools=[pay], subagents=[worker], ledger=ledger, permissions=rules)

    agent = made()
    async with agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s1"))
        assert result.status == "waiting"
    async with agent:  # the same object on a ledger that was closed and opened again
        assert list(await agent.requests("s1")) == [result.requests[0]]
    async with made() as agent:
        answered = await agent.answer(result.requests[0].request_id, allow=True)
        assert answered is not None
        assert (answered.status, answered.text, paid) == ("completed", "Done.", [3])
        with pytest.raises(RetinueError) as raised:
            await agent.answer(result.requests[0], allow=False)
        assert raised.value.code == "already_answered"
        assert await audit(agent.runtime.ledger, answered.run_id) == []
