"""Labels that two runs of a session take at the same moment: the ledger decides, and the model of the other one is told."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, Middleware, Runtime, RuntimeContext, ScriptedModel, SubAgent
from retinue.agent.middleware import Fork
from retinue.ledger import MemoryLedger
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing import calls, results_of

pytestmark = pytest.mark.anyio


class Meet(Middleware):
    """Holds each delegation to `twin`, after its label was found free, until both have come as far."""

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)

    async def before_fork_commit(self, fork: Fork) -> None:
        if fork.child_agent_id == "twin":
            await self._both.wait()


def spawn(agent_id: str = "helper", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "agent_spawn", {"agent_id": agent_id, **arguments}


def parent(model: ScriptedModel, runtime: Runtime) -> Agent:
    children = [SubAgent(name, "Helps.", instructions="You help.", context_policy="fork") for name in ("helper", "twin")]
    return Agent("parent", model=model, subagents=children, runtime=runtime, middleware=[Meet()])


@pytest.mark.contract("A-27")
@pytest.mark.parametrize("at", [1, 2])
async def test_a_label_that_another_thread_took_meanwhile_is_in_use(at: int) -> None:
    told: list[list[str]] = []
    asked: list[str] = []

    def answer(request: ModelRequest) -> Any:
        asked.append(request.agent_id)
        if request.agent_id != "parent":
            return "Done."
        if request.step == at:
            return calls(spawn("twin", task="x", label="one"), spawn(), spawn(task="y"))
        if request.step < at:
            return calls(spawn(task="z"))
        told.append(results_of(request)[-3:])
        return "ok"

    ledger = MemoryLedger()
    async with Runtime(ledger=ledger) as runtime:
        agent = parent(ScriptedModel(answer), runtime)
        contexts = [RuntimeContext(session_id="s", thread_id=name) for name in ("a", "b")]
        ends = await asyncio.gather(*(agent.run("Go.", context=context) for context in contexts))
        assert [end.text for end in ends] == ["ok", "ok"]
        rows = [row for name in ("a", "b") for row in await ledger.children(ThreadKey("", "s", name))]
    assert [row.label for row in rows if row.default_agent_id == "twin"] == ["one"]
    labelled, idle, others = zip(*sorted(told), strict=True)
    assert "status: ok" in labelled[0]
    assert "label `one` is already in use" in labelled[1]
    assert all("status: accepted" in text for text in idle)
    assert all("status: ok" in text for text in others)
    keys = {line for results in told for text in results for line in text.splitlines() if line.startswith("agent_key: ")}
    helpers = {f"agent_key: {row.agent_key}" for row in rows}
    assert keys <= helpers  # nobody was told of a child that is not there
    assert len(rows) == 5 + 2 * (at - 1)
    assert sorted(asked) == ["helper"] * 2 * at + ["parent"] * 2 * (at + 1) + ["twin"]  # no model was asked twice


@pytest.mark.contract("A-27")
async def test_a_label_is_in_use_while_its_child_is_on_its_way() -> None:
    told: list[list[str]] = []

    def answer(request: ModelRequest) -> Any:
        told.append(results_of(request))
        return calls(spawn(label="one"), spawn(label="ONE"), spawn(task="x", label="One ")) if request.step == 1 else "ok"

    async with Runtime(ledger=MemoryLedger()) as runtime:
        await parent(ScriptedModel(answer), runtime).run("Go.")
    assert len(told) == 2  # the parent alone was asked
    first, second, third = told[1]
    assert "status: accepted" in first
    assert "label `ONE` is already in use" in second
    assert "label `One` is already in use" in third


@pytest.mark.contract("A-27")
async def test_a_label_with_a_secret_is_the_one_that_is_stored() -> None:
    secret, told = "sk-0123456789abcdef", list[list[str]]()

    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return "Done."
        told.append(results_of(request))
        if request.step < 3:
            return calls(spawn(label=f"key {secret}"))
        return calls(("agent_send", {"label": f"key {secret}", "message": "x"})) if request.step == 3 else "ok"

    async with Runtime(ledger=MemoryLedger(), secrets=[secret]) as runtime:
        await parent(ScriptedModel(answer), runtime).run("Go.")
        first, second, third = told[-1]
    assert "status: accepted" in first
    assert "is already in use" in second
    assert secret not in second
    assert "reply:\nDone." in third
