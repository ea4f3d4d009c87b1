"""Tasks: a receipt at once, one end, one notice, whoever drives them (H-11, H-12, H-20, D-20)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    NotifyNever,
    NotifyOnFinalState,
    PermissionRules,
    RunResult,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolHarness,
    UnknownId,
    tool,
)
from retinue.events import Event, SubAgentInvocationStartedEvent, ToolCallResultEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.sqlite import SqliteLedger
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
ALL = PermissionRules(allow=["*"])
SPAWN: tuple[str, dict[str, Any]] = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})


@pytest.fixture(params=["memory", "sqlite"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Runtime]:
    """A runtime on either store."""
    ledger = MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "l.sqlite3")
    async with Runtime(ledger=ledger) as made:
        yield made


def told(request: ModelRequest) -> list[str]:
    """The notices in a request."""
    messages = (entry.message for entry in request.history)
    return [one.text for one in messages if isinstance(one, UserMessage) and one.notice == "background-task"]


class Kids:
    """What children answer: each waits until it is let go."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers or ("kid is done",)
        self.go = asyncio.Event()

    async def __call__(self, request: ModelRequest) -> Any:
        await self.go.wait()
        answer = self.answers[min(request.step, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def root_and(kids: Kids, *root: Any, spawns: int = 1, call: tuple[str, dict[str, Any]] = SPAWN) -> RecordingModel:
    """A root that gives `spawns` tasks, then says `root` one after the other; what it is told comes back to it."""
    asked: list[ModelRequest] = []

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return await kids(request)
        asked.append(request)
        if len(asked) == 1:
            return calls(*[call] * spawns)
        return root[len(asked) - 2] if len(asked) - 2 < len(root) else f"told {len(told(request))}"

    return RecordingModel(answer)


def kid(**fields: Any) -> SubAgent:
    """A child."""
    return SubAgent("kid", "Helps.", instructions="Help.", **fields)


async def journal(runtime: Runtime, key: ThreadKey = KEY) -> list[Event]:
    """A thread's events."""
    stored = await runtime.ledger.journal(key)
    assert stored is not None
    return [decode(record) for record in stored.own]


async def all_waited(result: RunResult) -> list[str]:
    """How the tasks of a run ended."""
    return [(await task.wait(10)).status for task in result.tasks]


@pytest.mark.contract("H-12", "H-20", "A-26", "A-32", "A-33")
async def test_a_spawn_gives_a_receipt_and_its_end_is_told_once(runtime: Runtime) -> None:
    kids = Kids()
    model = root_and(kids, "it is on its way")
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL) as agent:
        result = await agent.run("go", context=HERE)
        assert result.text == "it is on its way"
        (task,) = result.tasks
        events = await journal(runtime)
        receipt = next(event for event in events if isinstance(event, ToolCallResultEvent))
        assert f"status: accepted\ntask_id: {task.task_id}\n" in receipt.content
        assert "do not ask for its result at once" in receipt.content
        assert receipt.metadata["taskId"] == task.task_id
        assert (await task.result()).status in ("pending", "running")
        assert [one.task_id for one in await agent.tasks("s")] == [task.task_id]
        kids.go.set()
        done = await task.wait(10)
        assert (done.status, done.text, done.ended) == ("completed", "kid is done", True)
    types = [event.TYPE for event in await journal(runtime)]
    assert types.count("SUBAGENT_INVOCATION_STARTED") == types.count("SUBAGENT_INVOCATION_COMPLETED") == 1
    assert types.index("TOOL_CALL_RESULT") < types.index("SUBAGENT_INVOCATION_COMPLETED")
    started = next(event for event in await journal(runtime) if isinstance(event, SubAgentInvocationStartedEvent))
    assert started.mode == "background"
    notices = [told(request) for request in model.asked("root")]
    assert [len(one) for one in notices] == [0, 0, 1]  # it was woken, and one request first contains it
    assert f"Background task {task.task_id} (`kid`) is completed:\nkid is done" in notices[-1][0]
    assert await runtime.ledger.mail(KEY) == []


@pytest.mark.contract("H-11", "H-12")
@pytest.mark.parametrize("policy", ["background_only", "model_choice"])
async def test_the_tool_surface_gives_the_documented_receipt(runtime: Runtime, policy: Any) -> None:
    kids = Kids()
    arguments = {"input": "x", "invocationMode": "background"} if policy == "model_choice" else {"input": "x"}
    model = root_and(kids, "given", call=("kid", arguments))
    child = kid(surface="tool", invocation_mode_policy=policy)
    async with Agent("root", model=model, subagents=[child], runtime=runtime, permissions=ALL) as agent:
        result = await agent.run("go", context=HERE)
        receipt = next(event for event in await journal(runtime) if isinstance(event, ToolCallResultEvent))
        fields = json.loads(receipt.content)
        assert list(fields) == ["status", "taskId", "subAgentName", "invocationId", "message"]
        assert (fields["status"], fields["taskId"], fields["subAgentName"]) == ("accepted", result.tasks[0].task_id, "kid")
        kids.go.set()
        assert await all_waited(result) == ["completed"]


@pytest.mark.contract("H-11")
@pytest.mark.parametrize(
    ("policy", "mode", "words"),
    [
        ("synchronous_only", "background", "synchronously only"),
        ("background_only", "synchronous", "in the background only"),
        ("model_choice", "later", "Expected `synchronous` or `background`"),
    ],
)
async def test_a_mode_that_cannot_be_is_said(runtime: Runtime, policy: Any, mode: str, words: str) -> None:
    model = root_and(Kids(), "ok", call=("kid", {"input": "x", "invocationMode": mode}))
    child = kid(surface="tool", invocation_mode_policy=policy)
    agent = Agent("root", model=model, subagents=[child], runtime=runtime, permissions=ALL)
    result = await agent.run("go", context=HERE)
    assert result.tasks == ()
    receipt = next(event for event in await journal(runtime) if isinstance(event, ToolCallResultEvent))
    assert words in receipt.content


@pytest.mark.contract("D-20", "H-13")
async def test_twenty_results_in_one_window_are_one_notice(runtime: Runtime) -> None:
    kids = Kids()
    model = root_and(kids, "given", spawns=20)
    agent = Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL, wake=False)
    result = await agent.run("go", context=HERE)
    kids.go.set()
    assert await all_waited(result) == ["completed"] * 20
    assert (await agent.run("and?", context=HERE)).text == "told 1"
    last = model.asked("root")[-1]
    assert told(last)[0].count("is completed") == 20
    types = [event.TYPE for event in await journal(runtime)]
    assert types.count("SUBAGENT_INVOCATION_COMPLETED") == 20


@pytest.mark.contract("D-20")
async def test_a_busy_parent_is_told_at_its_next_step(runtime: Runtime) -> None:
    kids, arrived, go = Kids(), asyncio.Event(), asyncio.Event()

    class Work(ToolHarness):
        @tool
        async def work(self) -> str:
            """Work."""
            arrived.set()
            await go.wait()
            return "worked"

    model = root_and(kids, calls(("work", {})))
    agent = Agent("root", model=model, subagents=[kid()], tool_harnesses=[Work], runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go", context=HERE))
    await arrived.wait()
    kids.go.set()
    (task,) = await agent.tasks("s")
    await task.wait(10)
    go.set()
    assert (await run).text == "told 1"
    assert [len(told(request)) for request in model.asked("root")] == [0, 0, 1]


@pytest.mark.contract("H-13", "D-09", "D-07")
@pytest.mark.parametrize(
    ("answer", "notification", "status", "words"),
    [
        ("kid is done", None, "completed", ["is completed:\nkid is done"]),
        ("kid is done", NotifyOnFinalState(completed=False), "completed", []),
        ("kid is done", NotifyNever(), "completed", []),
        (" ", None, "failed", ["failed:\nthe model answered with nothing"]),
        (ValueError("broken"), None, "failed", ["failed:\n", "broken"]),
        (ValueError("broken"), NotifyOnFinalState(faulted=False), "failed", []),
        (None, None, "cancelled", []),
        (None, NotifyOnFinalState(cancelled=True), "cancelled", ["was cancelled:\n"]),
    ],
)
async def test_what_is_told_of_an_end_is_the_authors_choice(
    runtime: Runtime, answer: Any, notification: Any, status: str, words: list[str]
) -> None:
    kids = Kids(answer)
    model = root_and(kids, "given")
    child = kid(background_notification=notification)
    agent = Agent("root", model=model, subagents=[child], runtime=runtime, permissions=ALL, wake=False)
    result = await agent.run("go", context=HERE)
    if answer is None:
        await result.tasks[0].cancel("enough")
    kids.go.set()
    assert await all_waited(result) == [status]
    await agent.run("and?", context=HERE)
    notices = told(model.asked("root")[-1])
    assert len(notices) == bool(words)
    assert all(word in notices[0] for word in words)
    types = [event.TYPE for event in await journal(runtime)]
    assert types.count(f"SUBAGENT_INVOCATION_{status.upper()}") == 1


@pytest.mark.contract("D-20")
@pytest.mark.parametrize("first", ["user", "task"])
async def test_wake_races_with_user_input(runtime: Runtime, first: str) -> None:
    """Whichever comes first, there is one notice, and no run is lost."""
    kids = Kids()
    model = root_and(kids, "given")
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL) as agent:
        result = await agent.run("go", context=HERE)
        if first == "task":
            kids.go.set()
            await result.tasks[0].wait(10)
        asked = asyncio.create_task(agent.run("and?", context=HERE, check=False))
        kids.go.set()
        outcome = await asyncio.gather(asked, return_exceptions=True)
        assert await all_waited(result) == ["completed"]
    if isinstance(outcome[0], BaseException):  # the thread was at work when it was asked
        assert getattr(outcome[0], "code", "") == "thread_busy"
    whole = [entry for entry in (await _messages(runtime)) if entry.notice]
    assert len(whole) == 1
    rows = await runtime.ledger.runs()
    assert all(row.state.terminal for row in rows)


async def _messages(runtime: Runtime) -> list[UserMessage]:
    events = await journal(runtime)
    found = [getattr(event, "message", None) for event in events]
    return [one for one in found if isinstance(one, UserMessage)]


@pytest.mark.contract("D-20")
async def test_an_idle_parent_is_not_woken_outside_of_the_agents_life(runtime: Runtime) -> None:
    kids = Kids()
    model = root_and(kids, "given")
    agent = Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL)
    result = await agent.run("go", context=HERE)
    kids.go.set()
    assert await all_waited(result) == ["completed"]
    assert len(model.asked("root")) == 2
    assert (await agent.run("and?", context=HERE)).text == "told 1"


@pytest.mark.contract("D-07")
async def test_a_stop_of_the_parent_stops_its_tasks(runtime: Runtime) -> None:
    kids, arrived = Kids(), asyncio.Event()

    class Work(ToolHarness):
        @tool
        async def work(self) -> str:
            """Work."""
            arrived.set()
            await asyncio.Event().wait()
            return "never"

    model = root_and(kids, calls(("work", {})))
    agent = Agent("root", model=model, subagents=[kid()], tool_harnesses=[Work], runtime=runtime, permissions=ALL)
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await arrived.wait()
    await agent.cancel(reason="enough")
    result = await run
    assert result.status == "cancelled"
    rows = {row.agent_id: row.state.value for row in await runtime.ledger.tree(result.run_id)}
    assert rows == {"root": "cancelled", "kid": "cancelled"}
    assert len(model.asked("kid")) == 1


@pytest.mark.parametrize(("how", "status"), [("wait", "completed"), ("cancel", "cancelled"), ("detach", "running")])
async def test_what_becomes_of_tasks_at_the_end_is_the_users_choice(runtime: Runtime, how: Any, status: str) -> None:
    kids = Kids()
    model = root_and(kids, "given")
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL, on_exit=how) as agent:
        result = await agent.run("go", context=HERE)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, kids.go.set)
        if how == "detach":
            while (await result.tasks[0].result()).status == "pending":  # noqa: ASYNC110 (the ledger tells nobody)
                await asyncio.sleep(0.001)
    row = await runtime.ledger.task(result.tasks[0].task_id)
    assert row is not None
    assert row.state.value == status
    assert [task.get_name() for task in asyncio.all_tasks() if "retinue run of" in task.get_name()] == []


@pytest.mark.contract("D-19", "A-34", "A-38")
@pytest.mark.parametrize("recovery", ["resume", "fail"])
async def test_a_task_that_was_left_is_gone_on_with_or_ends(runtime: Runtime, recovery: Any) -> None:
    kids = Kids()
    model = root_and(kids, "given")
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL, on_exit="detach") as agent:
        result = await agent.run("go", context=HERE)
    kids.go.set()
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL, recovery=recovery) as again:
        task = await again.task(result.tasks[0].task_id)
        done = await task.wait(10)
        if recovery == "resume":
            assert (done.status, done.text) == ("completed", "kid is done")
        else:
            assert (done.status, done.reason) == ("failed", "executor_lost")
    notice = told(model.asked("root")[-1])[0]
    assert ("kid is done" in notice) is (recovery == "resume")
    assert ("the process that worked on it is gone" in notice) is (recovery == "fail")


@pytest.mark.contract("D-10", "D-28", "H-22")
async def test_answer_arrives_while_nobody_owns_the_run(runtime: Runtime) -> None:
    class Danger(ToolHarness):
        @tool
        def wipe(self) -> str:
            """Wipe."""
            return "wiped"

    kids = Kids(calls(("wipe", {})), "kid has wiped")
    kids.go.set()
    model = root_and(kids, "given")
    rules = PermissionRules(allow=["agent_spawn"], ask=["wipe"])
    child = kid(tool_harnesses=[Danger])
    agent = Agent("root", model=model, subagents=[child], runtime=runtime, permissions=rules, wake=False)
    result = await agent.run("go", context=HERE)
    (task,) = result.tasks
    waiting = await task.wait(10)
    assert waiting.status == "waiting"
    (request,) = waiting.requests
    assert request.path == ("root", "kid")
    assert not runtime._drivers  # no live run, no task
    assert [one.request_id for one in await agent.requests("s")] == [request.request_id]
    other = Agent("root", model=model, subagents=[child], runtime=runtime, permissions=rules, wake=False)
    await other.answer(request, allow=True)
    assert ((await task.wait(10)).status, (await task.result()).text) == ("completed", "kid has wiped")
    assert (await agent.run("and?", context=HERE)).text == "told 1"


async def test_a_task_is_known_to_its_user_alone(runtime: Runtime) -> None:
    kids = Kids()
    model = root_and(kids, "given")
    agent = Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=ALL)
    result = await agent.run("go", context=RuntimeContext(user_id="ann", session_id="s"))
    kids.go.set()
    assert await all_waited(result) == ["completed"]
    assert await agent.tasks("s") == []
    assert len(await agent.tasks("s", user_id="ann")) == 1
    with pytest.raises(UnknownId):
        await agent.task(result.tasks[0].task_id, user_id="bob")


@pytest.mark.contract("A-29", "A-30", "A-31", "A-35", "A-36")
async def test_the_tools_for_tasks_say_and_stop(runtime: Runtime) -> None:
    kids = Kids()
    said: list[str] = []

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return await kids(request)
        results: list[str] = [getattr(entry.message, "content", "") for entry in request.history]
        said.append("\n".join(results))
        ids = [line.split(": ")[1] for text in results for line in text.splitlines() if line.startswith("task_id: ")][:2]
        match request.step:
            case 1:
                return calls(SPAWN, SPAWN)
            case 2:
                return calls(("task_output", {"task_id": ids[0], "block": False}))
            case 3:
                return calls(("task_cancel", {"task_id": ids[0]}))
            case 4:
                kids.go.set()
                return calls(("task_wait", {"task_ids": ids, "timeout": 10_000}))
            case 5:
                return calls(("task_list", {"status_filter": "completed"}))
            case 6:
                return calls(("task_cancel", {"task_id": ids[1]}), ("task_output", {"task_id": "run_x"}))
            case _:
                pass
        return "done"

    agent = Agent("root", model=RecordingModel(answer), subagents=[kid()], runtime=runtime, permissions=ALL, wake=False)
    result = await agent.run("go", context=HERE)
    assert result.text == "done"
    assert "status: running" in said[2] or "status: pending" in said[2]
    assert "is stopped: cancelled" in said[3]
    assert "status: cancelled" in said[4]
    assert "status: completed\nresult:\nkid is done" in said[4]
    assert "\n1 task:" in said[5]
    assert "has ended already: completed" in said[6]
    assert "there is no task `run_x`" in said[6]
