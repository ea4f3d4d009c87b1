"""Limits of a tree (D-30, D-03): how many children and how deep; a refusal names the setting, also after a resume."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolCallResultEvent,
    ToolHarness,
    tool,
)
from retinue.ledger.memory import MemoryLedger
from retinue.models.port import ModelRequest
from retinue.states import ResultStatus
from retinue.testing import RecordingModel, StrictProvider, calls, results_of
from retinue.testing.audit import audit
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

ALL = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")


def helper(name: str = "helper", **fields: Any) -> SubAgent:
    """A child on the tool surface."""
    return SubAgent(name, f"The subagent {name}.", instructions="Help.", surface="tool", **fields)


async def results(agent: Agent, thread: Any) -> list[ToolCallResultEvent]:
    """The results in a thread."""
    return [event for event in await thread.events() if isinstance(event, ToolCallResultEvent)]


@pytest.mark.contract("D-30")
@pytest.mark.case("B021", "B047")
async def test_the_201st_child_is_refused_and_every_call_has_a_result() -> None:
    turns = [{"calls": [{"name": "helper", "arguments": {"input": str(n)}} for n in range(67)]} for _ in range(3)]
    async with (
        StrictProvider({"root": [*turns, "done"], "helper": ["helped"]}) as provider,
        Agent("root", model=provider.model(), subagents=[helper()], permissions=ALL) as agent,
    ):
        result = await agent.run("go", context=HERE)
        ended = await results(agent, result.thread)
        assert (result.text, provider.refused) == ("done", [])
        assert len(await agent.runtime.ledger.tree(result.run_id)) == 201
        assert await audit(agent.runtime.ledger, result.run_id) == []
    assert sorted(one.status for one in ended) == [ResultStatus.LIMIT] + [ResultStatus.OK] * 200
    refused = next(one for one in ended if one.status is ResultStatus.LIMIT)
    assert refused.call.index == 66
    assert "`Limits(max_tree_children=…)` is 200" in refused.content
    assert len(provider.asked("helper")) == 200


@pytest.mark.contract("D-30")
async def test_parallel_branches_do_not_share_the_last_child() -> None:
    def answer(request: ModelRequest) -> Any:
        if request.step > 1 or request.agent_id == "low":
            return "ok"
        return calls(*[("mid" if request.agent_id == "root" else "low", {"input": "x"})] * 3)

    below = ToolHarness()
    below.add_subagent(helper("low", availability=SubAgentAvailability.ANY_ALLOWED_DEPTH))
    model = RecordingModel(answer)
    runtime = Runtime(limits=Limits(max_tree_children=5))
    agent = Agent("root", model=model, subagents=[helper("mid", tool_harnesses=[below])], runtime=runtime, permissions=ALL)
    result = await agent.run("go")
    assert len(await runtime.ledger.tree(result.run_id)) == 6
    assert len(model.asked("low")) == 2
    refused = [text for request in model.asked("mid") for text in results_of(request) if "max_tree_children" in text]
    assert len(refused) == 7
    assert await audit(runtime.ledger, result.run_id) == []
    await runtime.close()


@pytest.mark.contract("D-30")
async def test_the_last_child_is_not_given_twice_while_the_ledger_is_asked(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.step > 1 or request.agent_id == "low":
            return "ok"
        if request.agent_id == "root":
            return calls(*[("agent_spawn", {"agent_id": "mid", "task": "t"})] * 3)
        return calls(("agent_spawn", {"agent_id": "low", "task": "t", "label": "one"}))

    children = [SubAgent("mid", "Mid.", instructions="Mid.", leaf=False), SubAgent("low", "Low.", instructions="Low.")]
    runtime = Runtime(ledger=tmp_path / "ledger.db", limits=Limits(max_tree_children=4))
    agent = Agent("root", model=RecordingModel(answer), subagents=children, permissions=ALL, runtime=runtime)
    result = await agent.run("go")
    rows = await runtime.ledger.tree(result.run_id)
    assert sorted(row.agent_id for row in rows) == ["low", "mid", "mid", "mid", "root"]
    assert await audit(runtime.ledger, result.run_id) == []
    await runtime.close()


@pytest.mark.contract("D-03", "H-06")
async def test_a_delegation_too_deep_names_the_setting() -> None:
    def answer(request: ModelRequest) -> Any:
        return calls(("deep", {"input": "deeper"})) if request.step == 1 else f"at depth {request.depth}"

    # the deepest agent does not see the tool; a forged call is refused all the same
    harness = ToolHarness()
    harness.add_subagent(helper("deep", tool_harnesses=[harness], availability=SubAgentAvailability.ANY_ALLOWED_DEPTH))
    model = RecordingModel(answer)
    agent = Agent("root", model=model, tool_harnesses=[harness], permissions=ALL, max_subagent_depth=2)
    result = await agent.run("go")
    assert result.status == "completed"
    rows = await agent.runtime.ledger.tree(result.run_id)
    assert [row.depth for row in rows] == [0, 1, 2]
    offered = ["deep" in [spec.name for spec in request.envelope.tools] for request in model.requests if request.step == 1]
    assert offered == [True, True, False]
    refused = next(text for request in model.requests if request.depth == 2 for text in results_of(request))
    assert "`max_subagent_depth` is 2" in refused
    assert await audit(agent.runtime.ledger, result.run_id) == []
    await agent.close()


@pytest.mark.contract("D-30")
async def test_children_made_before_a_crash_count_after_it() -> None:
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    hang = asyncio.Event()

    class Hanging(ToolHarness):
        @tool(idempotent=True)
        async def hang(self) -> str:
            """Hang, the first time."""
            if not hang.is_set():
                hang.set()
                await asyncio.Event().wait()
            return "gone on"

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "helper":
            return "helped"
        turns = [calls(*[("helper", {"input": "x"})] * 2), calls(("hang", {})), calls(*[("helper", {"input": "y"})] * 2), "done"]
        return turns[request.step - 1]

    model, limits = RecordingModel(answer), Limits(max_tree_children=3)

    def agent(ledger: Any) -> Agent:
        runtime = Runtime(ledger=ledger, limits=limits)
        return Agent("root", model=model, tool_harnesses=[Hanging()], subagents=[helper()], runtime=runtime, permissions=ALL)

    process = store.process()
    first = agent(process.ledger)
    run = asyncio.create_task(first.run("go", context=HERE))
    await hang.wait()
    process.kill()
    run.cancel()
    await asyncio.wait((run,))
    root = (await store.ledger.runs(roots_only=True))[0]
    second = agent(store.process().ledger)
    result = await second.resume(root.run_id)
    statuses = [one.status for one in await results(second, result.thread) if one.name == "helper"]
    assert sorted(statuses) == [ResultStatus.LIMIT] + [ResultStatus.OK] * 3
    assert len(model.asked("helper")) == 3
    await second.runtime.close()
