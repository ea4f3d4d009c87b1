"""A run begins in its caller's task and gets its own when it has to wait; nobody can tell, whatever happens in between."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ModelAnswer, PermissionRules, RunCancelled, Runtime, RuntimeContext, ScriptedModel, SubAgent
from retinue.agent.begun import landing, task_of
from retinue.states import RunState

pytestmark = pytest.mark.anyio

SCRIPT = {"root": [{"calls": [{"name": "child", "arguments": {"input": "x"}}]}, "done"], "child": ["child is done"]}

CHILD = SubAgent("child", "Helps.", instructions="Help.", surface="tool")


def begun(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return task_of(work, work.send(None), "begun")


def agent(model: Any, **more: Any) -> Agent:
    return Agent("root", model=model, subagents=[CHILD], permissions=PermissionRules(allow=["child"]), **more)


async def test_a_run_that_never_waits_needs_no_task() -> None:
    one = agent(ScriptedModel(SCRIPT))
    await one.build()
    before = asyncio.all_tasks()
    made: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work, **more: made.append(str(work)) or asyncio.Task(work, loop=loop, **more))  # type: ignore[arg-type]
    async with one:
        result = await one.run("go")
        assert made == []
    loop.set_task_factory(None)
    assert result.text == "done"
    assert asyncio.all_tasks() == before


async def test_a_model_that_waits_is_cancelled_in_the_runs_own_task() -> None:
    asked = asyncio.Event()

    async def answer(_request: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    one = agent(ScriptedModel(answer))
    run = asyncio.create_task(one.run("go"))
    await asked.wait()
    await one.cancel(reason="enough")
    with pytest.raises(RunCancelled, match="enough"):
        await run
    assert not run.cancelling()
    await one.close()


async def test_a_model_of_the_users_own_sees_one_task_before_and_after_it_waits() -> None:
    class Own:
        provider, name = "own", "one"

        async def answer(self, _request: Any, _emit: Any) -> ModelAnswer:
            mine = asyncio.current_task()
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
            assert asyncio.current_task() is mine
            return ModelAnswer(text="done")

        async def close(self) -> None: ...

    one = agent(Own())
    assert (await one.run("go")).text == "done"
    await one.close()


async def test_work_that_is_cancelled_before_its_tasks_first_step_is_told() -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")

    task = begun(work())
    assert task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert told == ["cancelled"]


async def test_work_goes_on_in_its_task_and_is_called_what_it_is() -> None:
    async def work() -> tuple[Any, str]:
        before = asyncio.current_task()
        await landing()
        after = asyncio.current_task()
        assert before is not after
        return after, "done"

    task = begun(work())
    assert "work" in repr(task)
    assert await task == (task, "done")


async def test_a_fault_of_the_beginning_is_the_callers() -> None:
    async def broken(_context: Any) -> Any:
        raise ValueError("mine")

    one = agent(ScriptedModel(SCRIPT))
    one.runtime.ledger.thread = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="mine"):
        await one.run("go", context=RuntimeContext(session_id="s"))
    assert one.runtime._drivers == set()
    await one.close()


async def test_what_waits_on_disk_when_its_stream_ends_still_waits_after_the_close(tmp_path: Path) -> None:
    rules = PermissionRules(ask=["child"])
    one = Agent("root", model=ScriptedModel(SCRIPT), subagents=[CHILD], permissions=rules, ledger=tmp_path / "l.db")
    async with one:
        events = [event async for event in one.stream("go")]
    assert getattr(events[-1], "status", None) == "waiting"
    async with Runtime(ledger=tmp_path / "l.db") as runtime:
        (row,) = await runtime.ledger.runs()
        assert row.state is RunState.WAITING
        assert await runtime.ledger.cancel_intent(row.lineage) is None
