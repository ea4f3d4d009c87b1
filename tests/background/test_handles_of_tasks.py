"""What a program has of a task: `result.tasks`, `agent.tasks`, `agent.task`, and `wait`, `result`, `cancel` of each (H-12)."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, Runtime, RuntimeContext, SubAgent, Task, TaskResult, UnknownId
from retinue.messages import Usage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


class Stage:
    """A root that gives tasks to a kid, which answers when it is let go."""

    def __init__(self, runtime: Runtime, tasks: int = 1) -> None:
        self.go = asyncio.Event()
        self.model = RecordingModel(self._answer)
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        self.agent = Agent("root", model=self.model, subagents=[kid], runtime=runtime)
        self.tasks = tasks

    async def _answer(self, request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(*[SPAWN] * self.tasks) if request.step == 1 else "ended"
        await self.go.wait()
        return {"text": "kid is done", "usage": {"input": 7, "output": 3}}


@pytest.mark.contract("H-12", "A-33")
async def test_a_run_ends_while_its_task_goes_on_and_the_handle_says_how_far_it_is(runtime: Runtime) -> None:
    stage = Stage(runtime)
    result = await stage.agent.run("go", context=HERE)
    assert (result.status, result.text) == ("completed", "ended")
    (task,) = result.tasks
    assert isinstance(task, Task)
    assert (task.name, task.agent_id) == ("kid", "kid")
    assert repr(task) == f"Task({task.task_id!r}, 'kid')"
    now = await task.wait(0)
    assert isinstance(now, TaskResult)
    assert (now.status in ("pending", "running"), now.ended, now.text, now.reason) == (True, False, "", None)
    stage.go.set()
    done = await task.wait()
    assert (done.status, done.ended, done.text) == ("completed", True, "kid is done")
    assert done.usage == Usage(calls=1, input_tokens=7, output_tokens=3)
    assert await task.result() == await task.wait(0) == done


async def test_a_wait_ends_at_its_time_and_several_wait_for_one(runtime: Runtime) -> None:
    stage = Stage(runtime)
    (task,) = (await stage.agent.run("go", context=HERE)).tasks
    assert not (await task.wait(0.01)).ended
    waits = [asyncio.create_task(task.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    stage.go.set()
    assert [one.status for one in await asyncio.gather(*waits)] == ["completed"] * 3


@pytest.mark.contract("H-12")
async def test_the_tasks_of_a_session_newest_first_and_a_task_by_its_id(runtime: Runtime) -> None:
    stage = Stage(runtime, tasks=3)
    given = (await stage.agent.run("go", context=HERE)).tasks
    listed = await stage.agent.tasks("s")
    assert [one.task_id for one in listed] == [one.task_id for one in reversed(given)]
    assert len(await stage.agent.tasks("s", unfinished=True)) == 3
    stage.go.set()
    for one in given:
        assert (await (await stage.agent.task(one.task_id)).wait()).status == "completed"
    assert await stage.agent.tasks("s", unfinished=True) == []
    assert await stage.agent.tasks("elsewhere") == []


@pytest.mark.contract("H-12", "A-34")
async def test_another_agent_object_reads_and_stops_what_it_did_not_give(runtime: Runtime) -> None:
    stage, other = Stage(runtime), Stage(runtime)
    (task,) = (await stage.agent.run("go", context=HERE)).tasks
    same = await other.agent.task(task.task_id)
    assert not (await same.result()).ended
    await same.cancel("not needed")
    ended = await task.wait()
    assert (ended.status, ended.reason, ended.text) == ("cancelled", "not needed", "")


@pytest.mark.contract("H-12", "D-18")
async def test_a_cancel_stops_one_task_and_leaves_the_others(runtime: Runtime) -> None:
    stage = Stage(runtime, tasks=3)
    one, two, three = (await stage.agent.run("go", context=HERE)).tasks
    await two.cancel()
    assert (await two.wait()).status == "cancelled"
    assert [(await task.result()).ended for task in (one, three)] == [False, False]
    stage.go.set()
    assert [(await task.wait()).status for task in (one, three)] == ["completed", "completed"]
    await one.cancel("too late")  # nothing is changed by it
    assert (await one.result()).status == "completed"


async def test_tasks_of_another_user_are_unknown(runtime: Runtime) -> None:
    stage = Stage(runtime)
    theirs = RuntimeContext(session_id="s", user_id="ann")
    (task,) = (await stage.agent.run("go", context=theirs)).tasks
    assert await stage.agent.tasks("s") == []
    assert [one.task_id for one in await stage.agent.tasks("s", user_id="ann")] == [task.task_id]
    for user in (None, "bob"):
        with pytest.raises(UnknownId, match=task.task_id):
            await stage.agent.task(task.task_id, user_id=user)
    stage.go.set()
    assert (await (await stage.agent.task(task.task_id, user_id="ann")).wait()).status == "completed"


@pytest.mark.parametrize("task_id", ["", "task_0", "nobody", "tâche", "run_1"])
async def test_an_id_of_no_task_is_unknown(runtime: Runtime, task_id: str) -> None:
    with pytest.raises(UnknownId) as raised:
        await Stage(runtime).agent.task(task_id)
    assert "agent.tasks" in str(raised.value.remedy)


@pytest.mark.contract("A-31")
async def test_a_session_sees_no_tasks_of_another(runtime: Runtime) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return "done"
        if request.step == 1:
            session_two = len(model.asked("root")) > 2
            return calls(("task_output", {"task_id": given[0]}), ("task_list", {})) if session_two else calls(SPAWN)
        return "ok"

    given: list[str] = []
    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[SubAgent("kid", "Helps.", instructions="Help.")], runtime=runtime)
    (task,) = (await agent.run("go", context=HERE)).tasks
    await task.wait()
    given.append(task.task_id)
    await agent.run("look", context=RuntimeContext(session_id="t"))
    output, listed = results_of(model.requests[-1])
    assert f"there is no task `{task.task_id}` in this session" in output
    assert listed.startswith("No tasks")
