"""`ask_parent`: a child's question to its parent or, through it, to a person; it waits on disk until it is answered (D-10)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, PermissionRules, RetinueError, Runtime, RuntimeContext, SubAgent
from retinue.events import ToolCallResultEvent, decode
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")


def spawn(seconds: float) -> tuple[str, dict[str, Any]]:
    """A call that gives the child its task."""
    return ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": seconds})


def kid(**fields: Any) -> SubAgent:
    """A child that may ask."""
    return SubAgent("kid", "Helps.", instructions="Help.", ask_parent=True, **fields)


def results(request: ModelRequest) -> list[str]:
    """What the calls in a request gave."""
    return [entry.message.content for entry in request.history if isinstance(entry.message, ToolResult)]


def notices(request: ModelRequest) -> list[str]:
    """The notices in a request."""
    messages = (entry.message for entry in request.history)
    return [one.text for one in messages if isinstance(one, UserMessage) and one.notice == "background-task"]


def task_of(text: str) -> str:
    """The task id in a text."""
    return next(word.strip("`:") for word in text.replace('"', " ").split() if word.startswith("task_0"))


def asking(seconds: float, *, answers: bool = True, send: bool = False) -> RecordingModel:
    """A parent whose child asks which colour, and says it."""

    def parent(request: ModelRequest) -> Any:
        heard = [*results(request), *notices(request)]
        if not heard:
            return calls(spawn(seconds))
        asked = next((text for text in heard if "Which colour?" in text), None)
        done = next((text for text in heard if "painted" in text), None)
        if done:
            return "all is painted"
        if asked and answers and not any("has the answer" in text or "had its answer" in text for text in heard):
            if send:
                key = next(line.split(": ")[1] for line in results(request)[0].splitlines() if line.startswith("agent_key"))
                return calls(("agent_send", {"agent_key": key, "message": "red"}))
            return calls(("task_answer", {"task_id": task_of(asked), "answer": "red"}))
        return "later"

    def child(request: ModelRequest) -> Any:
        said = results(request)
        return f"painted {said[0]}" if said else calls(("ask_parent", {"question": "Which colour?"}))

    return RecordingModel(lambda request: parent(request) if request.agent_id == "root" else child(request))


async def results_in(runtime: Runtime, key: ThreadKey) -> list[ToolCallResultEvent]:
    """The results in a journal."""
    stored = await runtime.ledger.journal(key)
    assert stored is not None
    return [event for event in map(decode, stored.own) if isinstance(event, ToolCallResultEvent)]


async def child_of(runtime: Runtime) -> ThreadKey:
    """The only child's thread."""
    (row,) = await runtime.ledger.tasks()
    return row.child


@pytest.mark.contract("D-10")
@pytest.mark.parametrize("send", [False, True], ids=["task_answer", "agent_send"])
@pytest.mark.parametrize("seconds", [0, 30], ids=["background", "waited for"])
async def test_the_parents_model_answers(runtime: Runtime, seconds: float, send: bool) -> None:
    model = asking(seconds, send=send)
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime) as agent:
        await agent.run("go", context=HERE)
        for _ in range(3):  # it is woken for the question, and for the result
            for task in await agent.tasks("s"):
                await task.wait(10)
    (task,) = await agent.tasks("s")
    end = await task.result()
    assert (end.status, end.text) == ("completed", "painted red")
    assert [one.content for one in await results_in(runtime, await child_of(runtime))] == ["red"]
    assert len(model.asked("kid")) == 2
    told = notices(model.asked("root")[-1])
    assert sum("Which colour?" in text for text in told) == (1 if seconds == 0 else 0)
    assert sum("painted red" in text for text in told) == 1


@pytest.mark.contract("D-10")
async def test_a_child_that_is_waited_for_asks_in_the_result_of_its_call(runtime: Runtime) -> None:
    model = asking(30, answers=False)
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        assert result.text == "later"
        (receipt,) = await results_in(runtime, KEY)
        assert "status: waiting" in receipt.content
        assert "question:\nWhich colour?" in receipt.content
        assert receipt.metadata["subAgentStatus"] == "waiting"
        (task,) = result.tasks
        waiting = await task.wait(10)
        assert waiting.status == "waiting"
        (request,) = waiting.requests
        assert (request.kind, request.description, request.options) == ("question", "Which colour?", ("text",))
        assert list(runtime._trees) == []  # nothing of it lives here
        await agent.answer(request, text="blue")
        assert (await task.wait(10)).text == "painted blue"


@pytest.mark.contract("D-10")
async def test_another_process_answers(tmp_path: Path) -> None:
    """The question is in the ledger: who opens it answers, and goes on with the task."""
    model, ledger = asking(0, answers=False), tmp_path / "l.sqlite3"
    async with Runtime(ledger=ledger) as first:
        agent = Agent("root", model=model, subagents=[kid()], runtime=first)
        result = await agent.run("go", context=HERE)
        assert (await result.tasks[0].wait(10)).status == "waiting"
    async with Runtime(ledger=ledger) as second, Agent("root", model=model, subagents=[kid()], runtime=second) as agent:
        (request,) = await agent.requests("s")
        ended = await agent.answer(request, text="green")
        assert ended is not None
        assert ended.text == "painted green"
        (task,) = await agent.tasks("s")
        assert (await task.result()).status == "completed"


@pytest.mark.contract("D-10")
async def test_a_question_without_an_answer(runtime: Runtime) -> None:
    """Who has no answer says so: the child goes on without it."""
    model = asking(0, answers=False)
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        (request,) = (await result.tasks[0].wait(10)).requests
        await agent.answer(request, allow=False, note="nobody knows")
        assert (await result.tasks[0].wait(10)).status == "completed"
    (told,) = await results_in(runtime, await child_of(runtime))
    assert told.status == "denied"
    assert told.content.startswith('Not answered. It was said: "nobody knows".')


@pytest.mark.contract("D-10")
async def test_the_first_answer_holds(runtime: Runtime) -> None:
    """A person answers before the parent's model does: that is told so, and the child hears one answer."""
    model = asking(0)
    agent = Agent("root", model=model, subagents=[kid()], runtime=runtime)  # not kept open: nobody wakes it
    result = await agent.run("go", context=HERE)
    (request,) = (await result.tasks[0].wait(10)).requests
    await agent.answer(request, text="blue")
    with pytest.raises(RetinueError, match="already"):
        await agent.answer(request, text="red")
    await result.tasks[0].wait(10)
    assert (await agent.run("and?", context=HERE)).text == "all is painted"
    assert not any("Question of" in text for text in notices(model.asked("root")[-1]))  # it has its answer
    assert [one.content for one in await results_in(runtime, await child_of(runtime))] == ["blue"]


@pytest.mark.contract("D-10", "D-28")
async def test_on_the_tool_surface_a_call_that_only_waits_asks_a_person(runtime: Runtime) -> None:
    """There is no receipt, so the parent cannot be told."""
    asked: list[str] = []

    async def person(request: Any) -> str:
        asked.append(request.description)
        return "white"

    model = RecordingModel(
        lambda request: (
            (calls(("kid", {"input": "x"})) if request.step == 1 else "done")
            if request.agent_id == "root"
            else (
                calls(("ask_parent", {"question": "Which colour?"})) if request.step == 1 else f"painted {results(request)[-1]}"
            )
        )
    )
    child = kid(surface="tool", requires_permission=False)
    async with Agent("root", model=model, subagents=[child], runtime=runtime, on_request=person) as agent:
        await agent.run("go", context=HERE)
    assert asked == ["Which colour?"]
    assert [one.content for one in await results_in(runtime, KEY)] == ["painted white"]


async def test_nobody_there_leaves_the_whole_run_waiting(runtime: Runtime) -> None:
    model = RecordingModel(
        lambda request: (
            (calls(("kid", {"input": "x"})) if request.step == 1 else "done")
            if request.agent_id == "root"
            else (calls(("ask_parent", {"question": "Which colour?"})) if request.step == 1 else "painted")
        )
    )
    async with Agent("root", model=model, subagents=[kid(surface="tool", requires_permission=False)], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        assert result.status == "waiting"
        (request,) = result.requests
        with pytest.raises(ConfigurationError, match="is a question"):
            await agent.answer(request, allow=True)
        ended = await agent.answer(request, text="grey")
        assert ended is not None
        assert ended.status == "completed"


async def test_a_permission_is_not_answered_by_a_text(runtime: Runtime) -> None:
    child = SubAgent("kid", "Helps.", instructions="Help.", surface="tool")
    model = RecordingModel(lambda request: calls(("kid", {"input": "x"})) if request.step == 1 else "done")
    async with Agent("root", model=model, subagents=[child], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        with pytest.raises(ConfigurationError, match="asks for a permission"):
            await agent.answer(result.requests[0], text="yes please")
        await agent.cancel(result.run_id)


@pytest.mark.contract("D-07")
async def test_a_task_that_asks_can_be_stopped(runtime: Runtime) -> None:
    model = asking(0, answers=False)
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        (request,) = (await result.tasks[0].wait(10)).requests
        await result.tasks[0].cancel()
        assert (await result.tasks[0].result()).status == "cancelled"
        with pytest.raises(RetinueError):
            await agent.answer(request, text="late")


@pytest.mark.contract("D-10")
async def test_a_rule_can_keep_a_child_from_asking(runtime: Runtime) -> None:
    model = asking(0, answers=False)
    rules = PermissionRules(deny=["ask_parent"])
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime, permissions=rules) as agent:
        result = await agent.run("go", context=HERE)
        assert (await result.tasks[0].wait(10)).status == "completed"
    (told,) = await results_in(runtime, await child_of(runtime))
    assert told.status == "denied"


async def test_only_a_child_that_may_ask_has_the_tool(runtime: Runtime) -> None:
    model = RecordingModel(lambda request: calls(spawn(0)) if request.agent_id == "root" and request.step == 1 else "done")
    for may in (False, True):
        child = SubAgent("kid", "Helps.", instructions="Help.", ask_parent=may)
        async with Agent("root", model=model, subagents=[child], runtime=runtime) as agent:
            result = await agent.run("go", context=RuntimeContext(session_id=f"s{may}"))
            await asyncio.gather(*(task.wait(10) for task in result.tasks))
        names = {tool.name for tool in model.asked("kid")[-1].envelope.tools}
        assert ("ask_parent" in names) is may
        assert ("task_answer" in {tool.name for tool in model.asked("root")[-1].envelope.tools}) is may


@pytest.mark.contract("D-10")
@pytest.mark.parametrize("arguments", [{}, {"question": " "}, {"question": 3}, {"question": "x", "to": "me"}])
async def test_a_question_that_is_none_is_told(runtime: Runtime, arguments: dict[str, Any]) -> None:
    model = RecordingModel(
        lambda request: (
            ("later" if results(request) else calls(spawn(0)))
            if request.agent_id == "root"
            else (calls(("ask_parent", arguments)) if request.step == 1 else "done")
        )
    )
    async with Agent("root", model=model, subagents=[kid()], runtime=runtime) as agent:
        result = await agent.run("go", context=HERE)
        assert (await result.tasks[0].wait(10)).status == "completed"
    (told,) = await results_in(runtime, await child_of(runtime))
    assert told.status == "error"


@pytest.mark.parametrize("wanted", ["task_01", "nothing"])
async def test_an_answer_that_nobody_waits_for_is_told(runtime: Runtime, wanted: str) -> None:
    def root(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return "done"
        if not results(request):
            return calls(spawn(0))
        if len(results(request)) == 1:
            task_id = wanted if wanted != "nothing" else task_of(results(request)[0])
            return calls(("task_wait", {}), ("task_answer", {"task_id": task_id, "answer": "red"}))
        return "ok"

    async with Agent("root", model=RecordingModel(root), subagents=[kid()], runtime=runtime) as agent:
        await agent.run("go", context=HERE)
    (told,) = [one for one in await results_in(runtime, KEY) if one.name == "task_answer"]
    assert told.status == "error"


@pytest.mark.contract("D-10")
async def test_the_end_of_the_process_does_not_stop_what_waits_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not while its driver still looks whether an answer has come."""
    ledger, looking, closing = tmp_path / "l.sqlite3", asyncio.Event(), asyncio.Event()

    async def has_news(*_: Any) -> bool:
        looking.set()
        await closing.wait()
        return False

    monkeypatch.setattr("retinue.harness.driving.has_news", has_news)
    runtime = await Runtime(ledger=ledger).open()
    await Agent("root", model=asking(0, answers=False), subagents=[kid()], runtime=runtime).run("go", context=HERE)
    await looking.wait()
    closed = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    closing.set()
    await closed
    async with Runtime(ledger=ledger) as second:
        (row,) = await second.ledger.tasks()
        assert row.state == "waiting"
        run = await second.ledger.run(row.child_run)
        assert run is not None
        assert await second.ledger.cancel_intent(run.lineage) is None
