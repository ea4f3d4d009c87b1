"""`retinue worker`: goes on with what nobody drives, beside others of its kind, until it is told to stop."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Runtime, RuntimeContext, SubAgent
from retinue.testing import StrictProvider
from retinue.testing.provider_record import Recorded

pytestmark = pytest.mark.anyio

APP = """
from retinue import Agent, PermissionRules, Runtime, SubAgent, tool

@tool
def send() -> str:
    \"\"\"Send it.\"\"\"
    return "sent"

runtime = Runtime(ledger="l.sqlite3")
kid = SubAgent("kid", "Helps.", instructions="Help.")
rules = PermissionRules(ask=["send"])
lead = Agent("lead", model="{url}#fake", subagents=[kid], tools=[send], runtime=runtime, permissions=rules)


def made():
    return [lead]


nothing = 3
"""
SPAWN = {"name": "agent_spawn", "arguments": {"agent_id": "kid", "task": "x", "timeout_seconds": 0}}


def script(kid: list[Any]) -> Any:
    """A lead that gives one task in its thread."""
    turns = {"lead": [{"calls": [SPAWN]}, "given", "noted"], "kid": kid, "other": [{"calls": [SPAWN]}, "given"]}

    def answer(request: Recorded) -> Any:
        said = sum(message["role"] == "assistant" for message in request.body["messages"])
        return turns[request.agent][min(said, len(turns[request.agent]) - 1)]

    return answer


async def leave(command_line: Any, provider: StrictProvider, name: str = "lead") -> None:
    """A run whose task is left in the ledger."""
    kid = SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(ledger=command_line.workspace / "l.sqlite3") as runtime:
        from retinue import PermissionRules, tool

        @tool
        def send() -> str:
            """Send it."""
            return "sent"

        rules = PermissionRules(ask=["send"])
        agent = Agent(
            name, model=provider.model(), subagents=[kid], tools=[send], runtime=runtime, permissions=rules, on_exit="detach"
        )
        async with agent:
            assert (await agent.run("go", context=RuntimeContext(session_id=name))).text == "given"


async def states(command_line: Any) -> list[str]:
    """The states of the tasks."""
    listed = await command_line("tasks", "list", "--json", "--ledger", "l.sqlite3")
    return [one["state"] for one in json.loads(listed.out)]


@pytest.fixture
def app(command_line: Any, provider: StrictProvider) -> Path:
    """A module with a runtime."""
    path = command_line.workspace / "app.py"
    path.write_text(APP.replace("{url}", provider.url))
    return path


@pytest.mark.contract("D-19")
@pytest.mark.parametrize("name", ["app:runtime", "app:lead", "app:made"])
@pytest.mark.usefixtures("app")
async def test_a_worker_does_what_was_left(command_line: Any, provider: StrictProvider, name: str) -> None:
    provider._function = script(["kid is done"])
    gate = provider.hold(agent="kid")
    await leave(command_line, provider)
    gate.release()
    ended = await command_line("worker", name, "--once")
    assert ended.code == 0, ended.err
    assert "working for lead on" in ended.err
    assert "(lead/kid): goes on" in ended.err
    assert "(lead/kid): completed" in ended.err
    assert await states(command_line) == ["completed"]
    shown = await command_line("threads", "show", "lead", "--ledger", "l.sqlite3")
    assert "kid is done" in shown.out  # its parent was woken
    assert shown.out.count("noted") == 1


@pytest.mark.contract("D-10", "D-19")
@pytest.mark.usefixtures("app")
async def test_a_worker_goes_on_after_an_answer_from_elsewhere(command_line: Any, provider: StrictProvider) -> None:
    provider._function = script([{"calls": [{"name": "send"}]}, "kid is done"])
    async with command_line.started("worker", "app:runtime") as worker:
        await leave(command_line, provider)
        async with asyncio.timeout(20):
            while await states(command_line) != ["waiting"]:  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.1)
            listed = json.loads((await command_line("tasks", "list", "--json", "--ledger", "l.sqlite3")).out)
            answered = await command_line("tasks", "answer", listed[0]["taskId"], "allow", "--ledger", "l.sqlite3")
            assert (answered.code, "its own code goes on with it" in answered.err) == (0, True)
            while await states(command_line) != ["completed"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        worker.signal()
        ended = await worker.ended()
    assert ended.code == 0, ended.err
    assert "stopping" in ended.err
    shown = await command_line("threads", "show", "lead", "--ledger", "l.sqlite3")
    assert shown.out.count("noted") == 1


@pytest.mark.contract("A-38")
@pytest.mark.usefixtures("app")
async def test_a_task_without_code_is_named_and_given_up_after_a_while(command_line: Any, provider: StrictProvider) -> None:
    provider._function = script(["kid is done"])
    gate = provider.hold(agent="kid")
    await leave(command_line, provider, "other")
    gate.release()
    ended = await command_line("worker", "app:runtime", "--once")
    assert "no_executor, it is a task of `other`" in ended.err
    assert await states(command_line) == ["interrupted"]
    async with command_line.started("worker", "app:runtime", "--orphan-after", "0.1") as worker:
        async with asyncio.timeout(30):
            while await states(command_line) != ["failed"]:  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.2)
        worker.signal()
        assert (await worker.ended()).code == 0
    listed = json.loads((await command_line("tasks", "list", "--json", "--ledger", "l.sqlite3")).out)
    assert listed[0]["reason"] == "executor_lost"


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["app"], "is not `module:name`"),
        (["nowhere:x"], "cannot be imported"),
        (["app:nobody"], "has no attribute 'nobody'"),
        (["app:nothing"], "is int, and no agent"),
        (["app:lead", "--model", "m"], "are for a workspace"),
    ],
)
async def test_what_is_no_app_is_said(command_line: Any, arguments: list[str], words: str) -> None:
    ended = await command_line("worker", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended.err


async def test_a_worker_for_a_workspace(command_line: Any, provider: StrictProvider) -> None:
    def answer(request: Recorded) -> Any:
        if request.agent == "kid":
            return "kid is done"
        return {"calls": [SPAWN]} if len(request.body["messages"]) < 3 else "given"

    provider._function = answer
    (command_line.workspace / "subagents").mkdir()
    (command_line.workspace / "subagents" / "kid.md").write_text("---\ndescription: Helps\n---\nHelp.\n")
    gate = provider.hold(agent="kid")
    assert (await command_line("run", "Go", "--trust", "--on-exit", "detach", *command_line.model)).code == 0
    gate.release()
    ended = await command_line("worker", "--once", "--trust", *command_line.model)
    assert ended.code == 0, ended.err
    listed = json.loads((await command_line("tasks", "list", "--json")).out)
    assert [one["state"] for one in listed] == ["completed"]
