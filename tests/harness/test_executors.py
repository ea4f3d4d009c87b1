"""Who may go on with a tree: one that has the tools of every unfinished run in it. Others are refused, and leave it as it is."""

from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    ConfigurationError,
    PermissionRequest,
    PermissionRules,
    RetinueError,
    ScriptedModel,
    SubAgent,
    SubAgentAvailability,
    ToolHarness,
    subagent,
    tool,
)
from retinue.models.port import ModelRequest
from retinue.rows import RunRow
from retinue.states import RequestState, RunState
from retinue.testing import calls

pytestmark = pytest.mark.anyio

TURNS: dict[str, tuple[str, dict[str, str]]] = {
    "outer": ("inner", {"input": "x"}),
    "inner": ("pay", {}),
    "boss": ("outer", {"input": "x"}),
}
ASK = PermissionRules(allow=["*"], ask=["pay"])


class Pays(ToolHarness):
    """Has the tool of the innermost child."""

    @tool
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class Other(ToolHarness):
    """Has another one."""

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


def reply(request: ModelRequest) -> Any:
    return "done" if request.step > 1 else calls(TURNS[request.agent_id])


def boss(ledger: Path, *, harness: type[ToolHarness] = Pays, inner: bool = True, outer: bool = True) -> Agent:
    """A boss whose child `outer` has a child `inner`, which has the tools of `harness`."""

    class Inners(ToolHarness):
        """Has the child of the child."""

        @subagent
        def inner(self) -> SubAgent:
            made = SubAgent("inner", "I.", instructions="I.", tool_harnesses=[harness], requires_permission=False)
            return made.with_availability(SubAgentAvailability.ANY_ALLOWED_DEPTH)

    child = SubAgent(
        "outer",
        "O.",
        instructions="O.",
        surface="tool",
        tool_harnesses=[Inners if inner else Other],
        leaf=False,
        requires_permission=False,
    )
    return Agent("boss", model=ScriptedModel(reply), subagents=[child] if outer else [], ledger=ledger, permissions=ASK)


LACKING: list[dict[str, Any]] = [{"harness": Other}, {"inner": False}, {"outer": False}]


async def rows_of(agent: Agent, run_id: str) -> list[RunRow]:
    return await agent.runtime.ledger.tree(run_id)


@pytest.mark.contract("D-19")
@pytest.mark.parametrize("lacking", LACKING)
async def test_a_tree_with_a_child_whose_tools_are_gone_stays_as_it_is(tmp_path: Path, lacking: dict[str, Any]) -> None:
    ledger = tmp_path / "l.db"
    async with boss(ledger) as first:
        waiting = await first.run("go")
        before = await rows_of(first, waiting.run_id)
    assert [row.state for row in before] == [RunState.WAITING] * 3
    async with boss(ledger, **lacking) as bare:
        for attempt in (lambda: bare.resume(waiting.run_id), lambda: bare.answer(waiting.requests[0], allow=True)):
            with pytest.raises(ConfigurationError) as caught:
                await attempt()
            assert caught.value.code == "no_executor"
            assert await rows_of(bare, waiting.run_id) == before
        (request,) = await bare.runtime.ledger.requests(root_run=waiting.run_id)
        assert (request.state, request.answer) == (RequestState.OPEN, None)
    async with boss(ledger) as again:
        result = await again.answer(waiting.requests[0], allow=True)
    assert result is not None
    assert (result.status, result.text) == ("completed", "done")


@pytest.mark.parametrize("lacking", LACKING)
async def test_a_tree_whose_code_is_gone_can_be_cancelled(tmp_path: Path, lacking: dict[str, Any]) -> None:
    async with boss(tmp_path / "l.db") as first:
        waiting = await first.run("go")
    async with boss(tmp_path / "l.db", **lacking) as bare:
        await bare.cancel(waiting.run_id)
        assert [row.state for row in await rows_of(bare, waiting.run_id)] == [RunState.CANCELLED] * 3


async def test_an_answer_given_twice_says_so_before_it_speaks_of_tools(tmp_path: Path) -> None:
    async with boss(tmp_path / "l.db") as first:
        waiting = await first.run("go")
        await first.answer(waiting.requests[0], allow=True)
    async with boss(tmp_path / "l.db", outer=False) as bare:
        with pytest.raises(RetinueError) as caught:
            await bare.answer(waiting.requests[0], allow=True)
    assert caught.value.code == "already_answered"


async def test_an_answer_for_a_run_that_another_owner_drives_needs_no_code(tmp_path: Path) -> None:
    async with boss(tmp_path / "l.db") as driving, boss(tmp_path / "l.db", outer=False) as answering:
        asked = False
        async for event in driving.stream("go", patient=True):
            if isinstance(event, PermissionRequest):
                asked = True
                assert await answering.answer(event, allow=True) is None
                request = await answering.runtime.ledger.request(event.request_id)
                assert request is not None
                assert request.state is RequestState.ANSWERED
                assert not answering.runtime._trees
                await driving.cancel()
        assert asked
