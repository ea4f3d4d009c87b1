"""Public faults of runs inside tools: synchronous ones, in threads and event loops of their own."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, Limits, PermissionRules, RuntimeContext
from retinue.messages import ToolResult
from retinue.models.port import ModelRequest
from retinue.testing import Recorded, RecordingModel, StrictProvider, calls, messages_of

HERE = RuntimeContext(session_id="s")
BOUND = 30
ALL = PermissionRules(allow=["*"])


def nested(limit: int) -> Agent:
    """An agent whose synchronous tool runs the agent itself, whose synchronous tool it needs then."""

    def nest() -> str:
        """Ask yourself."""
        return agent.run_sync("inner").text

    def leaf() -> str:
        """Say it."""
        return "leaf"

    def answer(request: ModelRequest) -> Any:
        last = messages_of(request)[-1]
        if isinstance(last, ToolResult):
            return last.content
        return calls(("leaf", {})) if last.text == "inner" else calls(("nest", {}))

    agent = Agent("parent", model=RecordingModel(answer), tools=[nest, leaf], limits=Limits(tool_threads=limit))
    return agent


@pytest.mark.case("B212")
@pytest.mark.parametrize(("threads", "runs"), [(1, 1), (4, 20)])
def test_runs_inside_synchronous_tools_need_no_thread_that_these_hold(threads: int, runs: int) -> None:
    agent = nested(threads)
    try:
        with ThreadPoolExecutor(runs) as pool:
            begun = [pool.submit(agent.run_sync, "outer") for _ in range(runs)]
            try:
                assert [one.result(BOUND).text for one in begun] == ["leaf"] * runs
            finally:
                agent.close_sync()  # before the pool waits for its threads
    finally:
        agent.close_sync()


@pytest.mark.anyio
@pytest.mark.case("B212")
async def test_a_run_inside_a_synchronous_tool_of_an_awaited_run_is_refused_in_words() -> None:
    async with nested(4) as agent:
        result = await agent.run("outer")
        assert "another event loop" in result.text
        with pytest.raises(ConfigurationError, match="from async code"):
            agent.run_sync("outer")


@pytest.mark.anyio
@pytest.mark.case("B213")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_model_that_a_parent_shares_with_runs_in_other_loops_serves_them_all(tmp_path: Path) -> None:
    def answer(request: Recorded) -> Any:
        if request.agent != "parent":
            return "Done."
        return calls(*(("elsewhere", {"place": place}) for place in range(3))) if request.step == 1 else "ok"

    async with StrictProvider(answer) as provider:
        model = provider.model(max_connections=1)

        def elsewhere(place: int) -> str:
            """Ask the same model in a loop of this thread's own."""

            async def ask() -> str:
                async with Agent(f"child{place}", model=model, ledger=tmp_path / f"{place}.sqlite3") as inner:
                    return (await inner.run("Go.")).text

            return asyncio.run(ask())  # which ends with the model's pool open

        async with Agent("parent", model=model, tools=[elsewhere], permissions=ALL, ledger=tmp_path / "parent.sqlite3") as agent:
            async with asyncio.timeout(BOUND):
                assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert provider.asked("parent")[-1].results == ["Done."] * 3
        assert provider.refused == []
    gc.collect()  # what the other loops left open is gone before the next test
