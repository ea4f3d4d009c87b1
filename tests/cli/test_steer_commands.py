"""`retinue answer` and `retinue cancel`: without a terminal, from another process, and for runs of code that is not here."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, Runtime, RuntimeContext, ScriptedModel, tool
from retinue.models.script import parse_script
from retinue.states import RequestState, RunState
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio

WRITE: dict[str, Any] = {"calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}]}
PAY: list[Any] = [{"calls": [{"name": "pay", "arguments": {}}]}, "paid"]


def ledger_of(command_line: Any) -> Path:
    return command_line.workspace / ".retinue" / "ledger.sqlite3"


async def waits(command_line: Any, provider: StrictProvider) -> str:
    """A run that waits for an answer; the request's id."""
    provider.script = parse_script({"agents": {"assistant": [WRITE, "Written."]}})
    ended = await command_line("run", "Write.", "--session", "s1", *command_line.model)
    assert ended.code == 3
    assert "retinue answer req_" in ended.err
    assert "retinue cancel run_" in ended.err
    async with Runtime(ledger=ledger_of(command_line)) as runtime:
        (request,) = await runtime.ledger.requests(state=RequestState.OPEN)
    return request.request_id


@pytest.mark.contract("D-28")
async def test_an_answer_goes_on_with_the_run(command_line: Any, provider: StrictProvider) -> None:
    request = await waits(command_line, provider)
    ended = await command_line("answer", request, "allow")
    assert (ended.code, ended.out.strip()) == (0, "Written.")
    assert (command_line.workspace / "a.txt").read_text() == "x"
    again = await command_line("answer", request, "deny")
    assert (again.code, "already answered" in again.err) == (1, True)
    assert (command_line.workspace / "a.txt").read_text() == "x"


@pytest.mark.contract("D-28")
async def test_a_denial_carries_its_note_to_the_model(command_line: Any, provider: StrictProvider) -> None:
    request = await waits(command_line, provider)
    ended = await command_line("answer", request, "deny", "--note", "not in this folder")
    assert ended.code == 0
    assert not (command_line.workspace / "a.txt").exists()
    assert "not in this folder" in str(provider.requests[-1].body)


async def test_a_request_that_is_not_there(command_line: Any, provider: StrictProvider) -> None:
    await waits(command_line, provider)
    for wanted in ("req_" + "0" * 32, "résumé"):
        ended = await command_line("answer", wanted, "allow")
        assert (ended.code, "there is no request" in ended.err) == (2, True)


async def test_a_run_that_waits_is_stopped(command_line: Any, provider: StrictProvider) -> None:
    request = await waits(command_line, provider)
    ended = await command_line("cancel", "s1", "--reason", "no longer wanted")
    assert (ended.code, "is cancelled" in ended.out) == (0, True)
    async with Runtime(ledger=ledger_of(command_line)) as runtime:
        (row,) = await runtime.ledger.runs()
        asked = await runtime.ledger.request(request)
    assert (row.state, row.reason) == (RunState.CANCELLED, "no longer wanted")
    assert asked is not None
    assert asked.state is RequestState.CANCELLED
    assert (await command_line("cancel", "s1")).code == 2
    assert (await command_line("answer", request, "allow")).code == 1


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


async def code_that_waits(command_line: Any, name: str) -> tuple[str, str]:
    """A run of an agent in code that waits for an answer."""
    ledger = ledger_of(command_line)
    ledger.parent.mkdir(exist_ok=True)
    rules = PermissionRules(ask=["pay"])
    async with Agent(name, model=ScriptedModel(PAY), tools=[pay], permissions=rules, ledger=ledger) as agent:
        result = await agent.run("pay", context=RuntimeContext(session_id="code"))
    return result.run_id, result.requests[0].request_id


async def test_a_run_of_code_is_answered_here_and_gone_on_with_there(command_line: Any) -> None:
    run, request = await code_that_waits(command_line, "payer")
    ended = await command_line("answer", request, "allow")
    assert ended.code == 0
    assert f"run {run}: its own code goes on with it" in ended.err
    rules = PermissionRules(ask=["pay"])
    ledger = ledger_of(command_line)
    async with Agent("payer", model=ScriptedModel(PAY), tools=[pay], permissions=rules, ledger=ledger) as agent:
        assert (await agent.resume(run)).text == "paid"


@pytest.mark.contract("D-07")
async def test_a_run_of_code_is_stopped_without_the_code(command_line: Any) -> None:
    run, _ = await code_that_waits(command_line, "payer")
    ended = await command_line("cancel", run, "--json")
    assert ended.code == 0
    assert f'"runId": "{run}", "session": "code", "state": "cancelled"' in ended.out


OTHER_PROCESS = """
import asyncio, sys
from retinue import Agent, RuntimeContext, ScriptedModel

async def never(_request):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def main():
    async with Agent("payer", model=ScriptedModel(never), ledger=sys.argv[1]) as agent:
        events = [event async for event in agent.stream("pay", context=RuntimeContext(session_id="code"))]  # stored at once
        result = events[-1].result
        print(result.status, result.reason, flush=True)
        await asyncio.to_thread(sys.stdin.read)  # it lives on: that the run has ended is not told by its death

asyncio.run(main())
"""


@pytest.mark.contract("D-07")
async def test_a_run_that_another_process_drives_is_told_to_stop(command_line: Any) -> None:
    """`retinue cancel` returns when that process has ended the run, and says so."""
    ledger = ledger_of(command_line)
    ledger.parent.mkdir(exist_ok=True)
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER_PROCESS, str(ledger), stdin=pipe, stdout=pipe)
    try:
        assert other.stdout is not None
        assert await other.stdout.readline() == b"asked\n"
        async with Runtime(ledger=ledger) as runtime:
            (before,) = await runtime.ledger.runs()
        assert before.state is RunState.RUNNING
        ended = await command_line("cancel", "code", "--reason", "enough")
        assert (ended.code, ended.err) == (0, "")
        assert f"run {before.run_id} is cancelled; what was done is kept in session code" in ended.out
        assert other.returncode is None
        async with Runtime(ledger=ledger) as runtime:
            (after,) = await runtime.ledger.runs()
        assert (after.state, after.reason, after.attempt) == (RunState.CANCELLED, "enough", before.attempt)
        assert await other.stdout.readline() == b"cancelled enough\n"
        out, _ = await other.communicate(b"")
        assert (out, other.returncode) == (b"", 0)
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()
