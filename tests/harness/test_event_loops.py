"""One agent, threads and event loops: `run_sync` from many threads, and a runtime that belongs to one loop while it is open."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, RunCancelled
from retinue.harness.runtime import Runtime
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, ScriptedModel, calls

BOUND = 30


def loop_threads() -> int:
    return sum(thread.name == "retinue-sync" for thread in threading.enumerate())


def together(count: int, work: Callable[[], object]) -> list[object]:
    """What `work` gives, or raises, in `count` threads that begin at the same moment."""
    line = threading.Barrier(count)

    def one() -> object:
        line.wait(BOUND)
        try:
            return work()
        except BaseException as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(count) as pool:
        return [future.result(BOUND) for future in [pool.submit(one) for _ in range(count)]]


def test_run_sync_from_many_threads_shares_one_loop_and_closes_once(tmp_path: Path) -> None:
    before = loop_threads()
    agent = Agent("parent", model=ScriptedModel(lambda request: "ok"), ledger=tmp_path / "l.db")
    assert together(8, lambda: agent.run_sync("Go.").text) == ["ok"] * 8
    assert loop_threads() == before + 1
    assert together(8, agent.close_sync) == [None] * 8
    assert loop_threads() == before
    assert agent.run_sync("Go.").text == "ok"  # it can be used again
    agent.close_sync()


def test_run_sync_calls_run_side_by_side() -> None:
    met = threading.Barrier(3)

    def meet() -> str:
        """Wait for the others."""
        met.wait(BOUND)
        return "met"

    def answer(request: ModelRequest) -> Any:
        return calls(("meet", {})) if request.step == 1 else "ok"

    agent = Agent("parent", model=RecordingModel(answer), tools=[meet])
    assert together(3, lambda: agent.run_sync("Go.").text) == ["ok"] * 3
    agent.close_sync()


def test_close_sync_ends_a_run_of_another_thread(tmp_path: Path) -> None:
    begun = threading.Event()

    async def stuck() -> str:
        """Wait without end."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    def answer(request: ModelRequest) -> Any:
        return calls(("stuck", {}))

    agent = Agent("parent", model=RecordingModel(answer), tools=[stuck], ledger=tmp_path / "l.db")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(agent.run_sync, "Go.")
        assert begun.wait(BOUND)
        agent.close_sync()
        with pytest.raises(RunCancelled):
            running.result(BOUND)


def test_close_sync_against_run_sync_leaves_nobody_waiting(tmp_path: Path) -> None:
    before = loop_threads()
    agent = Agent("parent", model=ScriptedModel(lambda request: "ok"), ledger=tmp_path / "l.db")
    turn = iter(range(100))

    def either() -> object:
        return agent.close_sync() if next(turn) % 2 else agent.run_sync("Go.", check=False).status

    for _ in range(3):
        ends = together(8, either)
        assert not [end for end in ends if isinstance(end, Exception) and type(end).__name__ != "CancelledError"], ends
    agent.close_sync()
    assert loop_threads() == before


def test_agents_that_share_a_runtime_share_its_loop() -> None:
    runtime = Runtime()
    one, two = (Agent(name, model=ScriptedModel(lambda request: "ok"), runtime=runtime) for name in ("one", "two"))
    assert (one.run_sync("Go.").text, two.run_sync("Go.").text) == ("ok", "ok")
    one.close_sync()
    assert two.run_sync("Go.").text == "ok"
    runtime.close_sync()


def in_a_new_loop(work: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(BOUND)


@pytest.mark.parametrize("use", ["run", "close", "cancel"])
def test_a_second_loop_is_refused_while_the_first_has_the_agent_open(tmp_path: Path, use: str) -> None:
    agent = Agent("parent", model=ScriptedModel(lambda request: "ok"), ledger=tmp_path / "l.db")

    async def elsewhere() -> object:
        match use:
            case "run":
                return await agent.run("Go.")
            case "close":
                return await agent.close()
            case _:
                return await agent.cancel()

    async def first() -> None:
        async with agent:
            with pytest.raises(ConfigurationError) as refused:
                await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            assert refused.value.code == "other_loop"
            assert refused.value.remedy
            assert (await agent.run("Go.")).text == "ok"
        assert use == "close" or await asyncio.to_thread(lambda: asyncio.run(elsewhere_and_close())) is None

    async def elsewhere_and_close() -> None:
        await elsewhere()  # free again since the first has closed it
        await agent.close()

    asyncio.run(first())


def test_run_sync_while_a_loop_has_the_agent_open_is_refused() -> None:
    agent = Agent("parent", model=ScriptedModel(lambda request: "ok"))

    async def first() -> None:
        async with agent:
            with pytest.raises(ConfigurationError, match="another event loop"):
                await asyncio.to_thread(agent.run_sync, "Go.")

    asyncio.run(first())
    agent.close_sync()


@pytest.mark.parametrize("ledger", ["memory", "file"])
def test_loops_one_after_the_other_go_on_working(tmp_path: Path, ledger: str) -> None:
    agent = Agent("parent", model=ScriptedModel(lambda request: "ok"), ledger=tmp_path / "l.db" if ledger == "file" else "memory")
    assert [asyncio.run(agent.run("Go.")).text for _ in range(3)] == ["ok"] * 3
    assert agent.run_sync("Go.").text == "ok"
    agent.close_sync()
    assert asyncio.run(agent.run("Go.")).text == "ok"
    asyncio.run(agent.close())
