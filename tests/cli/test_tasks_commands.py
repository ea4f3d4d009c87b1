"""Work in the background on the command line: seen to its end, looked at, waited for, answered, stopped, left and resumed."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue import Runtime
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio

KID = "---\ndescription: Helps\nworkspace:\n  mode: shared\n---\nHelp.\n"


def spawn(task: str = "Count the sheep", label: str = "herd") -> dict[str, Any]:
    """A call that gives a task."""
    return {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": task, "label": label, "timeout_seconds": 0}}


WRITE: dict[str, Any] = {"calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}]}


@pytest.fixture
def herd(command_line: Any) -> Any:
    """A workspace with a child."""
    (command_line.workspace / "subagents").mkdir()
    (command_line.workspace / "subagents" / "kid.md").write_text(KID)
    return command_line


def script(kid: list[Any], *, spawns: int = 1) -> Any:
    """A parent that gives tasks."""
    from retinue.models.script import parse_script

    first = {"calls": [spawn(label=f"herd{number}") for number in range(spawns)]}
    return parse_script({"agents": {"assistant": [first, "Given."], "kid": kid}})


def ledger_of(herd: Any) -> Path:
    """Where its ledger is."""
    return herd.workspace / ".retinue" / "ledger.sqlite3"


async def listed(herd: Any, *options: str) -> list[dict[str, Any]]:
    """The tasks as JSON."""
    return json.loads((await herd("tasks", "list", "--json", *options)).out)


async def seen_to_the_end(herd: Any, provider: StrictProvider, *options: str) -> Any:
    """A run whose task ends after it."""
    provider.script = script(["12 sheep."])
    gate = provider.hold(agent="kid", step=1)
    async with herd.started("run", "Go", "--trust", *herd.model, *options) as running:
        first = [await running.process.stdout.readline()]
        while b"Given." not in first[-1]:
            first.append(await running.process.stdout.readline())
        gate.release()
        ended = await running.ended()
    return replace(ended, out=b"".join(first).decode() + ended.out)


@pytest.mark.contract("D-20", "H-12")
async def test_a_run_shows_its_tasks_to_their_end(herd: Any, provider: StrictProvider) -> None:
    ended = await seen_to_the_end(herd, provider)
    assert ended.code == 0
    assert ended.out.splitlines() == ["Given.", "Given."]
    assert "Background task task_" in str(provider.asked("assistant")[-1].body)
    assert "1 task at work in the background" in ended.err
    assert "kid completed" in ended.err
    (task,) = await listed(herd)
    assert (task["state"], task["task"], task["label"], task["heldBy"]) == ("completed", "Count the sheep", "herd0", None)


async def test_json_lines_go_on_to_the_end(herd: Any, provider: StrictProvider) -> None:
    ended = await seen_to_the_end(herd, provider, "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert lines[-1]["type"] == "RUN_FINISHED"
    finished = [line for line in lines if line.get("result")]
    assert [line["result"]["status"] for line in finished] == ["completed", "completed"]
    assert finished[0]["run"] != finished[1]["run"]


async def waits(herd: Any, provider: StrictProvider, *, spawns: int = 1) -> list[dict[str, Any]]:
    """A run whose task waits for a permission; the tasks."""
    provider.script = script([WRITE, "Written."], spawns=spawns)
    ended = await herd("run", "Go", "--trust", "--session", "s1", *herd.model)
    assert (ended.code, ended.out.strip()) == (3, "Given.")
    assert "waits for an answer" in ended.err
    assert "retinue tasks answer task_" in ended.err
    return await listed(herd, "--status", "waiting")


@pytest.mark.contract("D-10", "D-28")
@pytest.mark.parametrize("by", ["taskId", "label", "agentKey", "name"])
async def test_a_task_that_waits_is_shown_and_answered(herd: Any, provider: StrictProvider, by: str) -> None:
    (task,) = await waits(herd, provider)
    shown = await herd("tasks", "show", task[by])
    assert shown.code == 0
    for words in ("state      waiting", "wants to call write_file a.txt", "tasks answer task_", "label      herd0"):
        assert words in shown.out
    ended = await herd("tasks", "answer", task[by], "allow", *herd.model)
    assert ended.code == 0
    assert (herd.workspace / "a.txt").read_text() == "x"
    assert (await listed(herd))[-1]["state"] == "completed"
    again = await herd("tasks", "answer", task["taskId"], "allow")
    assert (again.code, "waits for no answer" in again.err) == (2, True)


async def test_a_task_is_answered_on_a_terminal(herd: Any, provider: StrictProvider) -> None:
    (task,) = await waits(herd, provider)
    async with herd.terminal("tasks", "answer", task["taskId"], *herd.model) as terminal:
        await terminal.until("wants to call write_file")
        await terminal.until("allow?")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    assert (herd.workspace / "a.txt").exists()


async def test_nobody_there_to_be_asked(herd: Any, provider: StrictProvider) -> None:
    (task,) = await waits(herd, provider)
    ended = await herd("tasks", "answer", task["taskId"])
    assert (ended.code, "no terminal to ask on" in ended.err) == (2, True)


async def test_a_name_that_means_several_is_refused(herd: Any, provider: StrictProvider) -> None:
    first, second = await waits(herd, provider, spawns=2)
    ended = await herd("tasks", "show", "kid")
    assert ended.code == 2
    assert first["taskId"] in ended.err
    assert second["taskId"] in ended.err
    unknown = await herd("tasks", "show", "nobody")
    assert (unknown.code, "retinue tasks list" in unknown.err) == (2, True)


@pytest.mark.contract("D-07")
async def test_tasks_are_stopped(herd: Any, provider: StrictProvider) -> None:
    first, second = await waits(herd, provider, spawns=2)
    ended = await herd("tasks", "cancel", first["taskId"], "--reason", "enough")
    assert (ended.code, "is cancelled" in ended.out) == (0, True)
    states = {one["taskId"]: (one["state"], one["reason"]) for one in await listed(herd)}
    assert states == {first["taskId"]: ("cancelled", "enough"), second["taskId"]: ("waiting", None)}
    again = await herd("tasks", "cancel", first["taskId"], second["taskId"], "--json")
    assert [one["before"] for one in json.loads(again.out)] == ["cancelled", "waiting"]
    waited = await herd("tasks", "wait", first["taskId"])
    assert (waited.code, "cancelled (enough)" in waited.out) == (1, True)


@pytest.mark.contract("D-18")
async def test_another_process_waits_for_a_task(herd: Any, provider: StrictProvider) -> None:
    provider.script = script(["12 sheep."])
    gate = provider.hold(agent="kid", step=1)
    async with herd.started("run", "Go", "--trust", *herd.model) as running:
        await gate.arrived.wait()
        (task,) = await listed(herd, "--status", "running")
        assert (task["state"], task["heldBy"]["pid"]) == ("running", running.process.pid)
        early = await herd("tasks", "wait", task["taskId"], "--timeout", "0.1")
        assert (early.code, "running" in early.out) == (3, True)
        async with herd.started("tasks", "wait", task["taskId"]) as waiting:
            gate.release()
            ended = await waiting.ended()
        assert (ended.code, f"{task['taskId']} (kid): completed" in ended.out) == (0, True)
        assert (await running.ended()).code == 0
    shown = await herd("tasks", "show", task["taskId"], "--json")
    assert json.loads(shown.out)["text"] == "12 sheep."


@pytest.mark.contract("D-19")
async def test_what_a_killed_process_left_is_gone_on_with(herd: Any, provider: StrictProvider) -> None:
    """The run has ended, its task was at work: `resume --all` brings it to its end, and the parent is told."""
    provider.script = script(["12 sheep."])
    gate = provider.hold(agent="kid", step=1)
    async with herd.started("run", "Go", "--trust", "--session", "s1", *herd.model) as running:
        await gate.arrived.wait()
        while b"Given." not in (await running.process.stdout.readline()):  # the run has ended
            pass
        os.kill(running.process.pid, signal.SIGKILL)
        await running.process.wait()
    gate.release()
    (task,) = await listed(herd)
    assert task["state"] == "interrupted"
    waited = await herd("tasks", "wait")
    assert (waited.code, "interrupted; go on with it" in waited.out) == (3, True)
    ended = await herd("resume", "--all", "--trust")
    assert ended.code == 0, ended.err
    assert "kid): completed" in ended.err
    (task,) = await listed(herd)
    assert (task["state"], task["attempts"]) == ("completed", 2)
    messages = (await herd("threads", "show", "s1")).out
    assert "12 sheep." in messages
    assert (await herd("resume", "--all")).err.startswith("nothing to resume")


@pytest.mark.contract("D-19")
async def test_ctrl_c_leaves_the_tasks_when_the_run_has_ended(herd: Any, provider: StrictProvider) -> None:
    provider.script = script(["12 sheep."])
    gate = provider.hold(agent="kid", step=1)
    async with herd.started("run", "Go", "--trust", "--session", "s1", *herd.model) as running:
        await gate.arrived.wait()
        while b"Given." not in (await running.process.stdout.readline()):
            pass
        await asyncio.sleep(0)
        running.signal()
        ended = await running.ended()
    assert ended.code == 130
    assert "1 task is not done, and is kept" in ended.err
    assert "resume --all" in ended.err
    gate.release()
    (task,) = await listed(herd)
    assert task["state"] == "interrupted"
    resumed = await herd("resume", task["taskId"], "--trust")
    assert resumed.code == 0, resumed.err
    assert (await listed(herd))[0]["state"] == "completed"


@pytest.mark.parametrize(("how", "state"), [("detach", "interrupted"), ("cancel", "cancelled")])
async def test_what_becomes_of_tasks_at_the_end_can_be_said(herd: Any, provider: StrictProvider, how: str, state: str) -> None:
    provider.script = script(["12 sheep."])
    gate = provider.hold(agent="kid", step=1)
    ended = await herd("run", "Go", "--trust", "--on-exit", how, *herd.model)
    gate.release()
    assert (ended.code, ended.out.strip()) == (0, "Given.")
    (task,) = await listed(herd)
    assert task["state"] == state


async def test_a_task_is_explained(herd: Any, provider: StrictProvider) -> None:
    (task,) = await waits(herd, provider)
    ended = await herd("explain", task["taskId"])
    assert "write_file" in ended.out
    assert f"retinue cancel {task['taskId']}" in ended.out
    stopped = await herd("cancel", task["taskId"])
    assert stopped.code == 0
    assert (await listed(herd))[0]["state"] == "cancelled"


async def test_nothing_is_listed_where_there_is_nothing(herd: Any, provider: StrictProvider) -> None:
    from retinue.models.script import parse_script

    provider.script = parse_script({"agents": {"assistant": ["Hello."]}})
    assert (await herd("run", "Go", "--trust", *herd.model)).code == 0
    assert (await herd("tasks", "list")).err.strip() == "no tasks in the background"
    assert (await herd("tasks", "list", "--status", "failed")).err.strip() == "no tasks that are failed"
    assert (await herd("tasks", "wait")).err.strip() == "no tasks that are running"
    refused = await herd("resume", "--all", "s1")
    assert (refused.code, "`--all` is given together" in refused.err) == (2, True)


async def test_several_answers_are_not_guessed(herd: Any, provider: StrictProvider) -> None:
    provider.script = script([{"calls": [*WRITE["calls"], *WRITE["calls"]]}, "Written."])
    await herd("run", "Go", "--trust", *herd.model)
    (task,) = await listed(herd)
    ended = await herd("tasks", "answer", task["taskId"], "allow")
    assert (ended.code, "waits for 2 answers" in ended.err) == (2, True)


async def test_a_question_is_answered_with_a_text(herd: Any, provider: StrictProvider) -> None:
    """A child of code asks; its process is gone; the answer is recorded for whoever has that code."""
    from retinue import Agent, ScriptedModel, SubAgent

    kid = SubAgent("kid", "Helps.", instructions="Help.", ask_parent=True)
    model = ScriptedModel(
        {
            "assistant": [{"calls": [spawn()]}, "Given."],
            "kid": [{"calls": [{"name": "ask_parent", "arguments": {"question": "Which colour?"}}]}, "{result}"],
        }
    )
    ledger_of(herd).parent.mkdir()
    async with Runtime(ledger=ledger_of(herd)) as runtime:
        result = await Agent("assistant", model=model, subagents=[kid], runtime=runtime).run("Go")
        assert (await result.tasks[0].wait(10)).status == "waiting"
    (task,) = await listed(herd)
    shown = await herd("tasks", "show", task["taskId"])
    assert "Question: assistant > kid" in shown.out
    assert "Which colour?" in shown.out
    ended = await herd("tasks", "answer", task["taskId"], "red")
    assert (ended.code, "its own code goes on with it" in ended.err) == (0, True)
    async with (
        Runtime(ledger=ledger_of(herd)) as runtime,
        Agent("assistant", model=model, subagents=[kid], runtime=runtime) as agent,
    ):
        (handle,) = await agent.tasks(task["session"])
        end = await handle.wait(10)
        assert (end.status, end.text) == ("completed", "red")
