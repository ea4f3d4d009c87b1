"""`diagnose`: the environment, the workspace, runs that nobody drives, questions, histories, and the model if one is named."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue import Agent, HarnessAgent, PermissionRules, RuntimeContext, ScriptedModel, tool
from retinue.agent.projection import Projection
from retinue.events import MessageEvent, RunFinishedEvent, encode
from retinue.harness.doctor import Finding, check_environment, check_model, check_runs, check_workspace, diagnose, history_fault
from retinue.ledger import Ledger, MemoryLedger
from retinue.messages import AssistantMessage, CallRef, Entry, Message, ToolCall, ToolResult, UserMessage
from retinue.ops import Append, NewEvent, PutOwner, PutRun
from retinue.states import RunState
from retinue.testing import VirtualClock
from retinue.testing.conformance.sample import create, key_of, owner_row, run_row

pytestmark = pytest.mark.anyio

DIES = """
import asyncio, os, sys
from retinue import Agent, ScriptedModel, tool

@tool
def end() -> str:
    "Ends the process."
    os._exit(9)

agent = Agent("lead", model=ScriptedModel([{"calls": [{"name": "end"}]}]), tools=[end], ledger=sys.argv[1])
asyncio.run(agent.run("go"))
"""


@tool
def note(text: str) -> str:
    """Keep a note."""
    return text


async def found(ledger: Ledger) -> list[tuple[str, str]]:
    return [(finding.severity, finding.code) async for finding in check_runs(ledger)]


async def all_of(folder: Path, **options: object) -> dict[str, Finding]:
    return {finding.code: finding async for finding in diagnose(folder, **options)}  # type: ignore[arg-type]


async def test_a_new_folder_has_nothing_wrong(tmp_path: Path) -> None:
    findings = await all_of(tmp_path)
    assert {finding.severity for finding in findings.values()} == {"ok", "info"}
    assert set(findings) == {"python", "sqlite", "workspace", "filesystem", "no_ledger"}
    assert os.listdir(tmp_path) == []


async def test_an_interrupted_run_and_an_open_question_are_found(tmp_path: Path) -> None:
    path = tmp_path / ".retinue" / "ledger.sqlite3"
    path.parent.mkdir(mode=0o700)
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DIES, str(path)], check=False)
    assert ended.returncode == 9
    script = [{"calls": [{"name": "note", "arguments": {"text": "x"}}]}]
    rules = PermissionRules(ask=["note"])
    async with Agent("asker", model=ScriptedModel(script), tools=[note], ledger=path, permissions=rules) as agent:
        waiting = await agent.run("ask")
        assert waiting.status == "waiting"
    findings = await all_of(tmp_path)
    orphan, request = findings["orphaned_run"], findings["open_request"]
    assert (orphan.severity, request.severity) == ("warning", "info")
    assert "of agent `lead` is interrupted: process " in orphan.text
    assert orphan.remedy.startswith("`retinue resume run_")
    assert waiting.requests[0].request_id in request.remedy
    assert not [finding for finding in findings.values() if finding.severity == "error"]


async def test_a_damaged_ledger_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / ".retinue" / "ledger.sqlite3"
    path.parent.mkdir(mode=0o700)
    async with Agent("a", model=ScriptedModel(["done"]), ledger=path) as agent:
        await agent.run("go")
    data = bytearray(path.read_bytes())
    data[3 * 4096 : 9 * 4096] = b"\xff" * (6 * 4096)
    path.write_bytes(data)
    findings = await all_of(tmp_path)
    assert findings["damaged"].severity == "error"
    assert "runs" not in findings


async def test_faults_of_unfinished_runs_are_found() -> None:
    ledger = MemoryLedger()
    await ledger.open()
    assert await found(ledger) == [("ok", "runs")]
    key, far = key_of(), key_of("far")
    await ledger.commit([PutOwner(owner_row("own_1")), create(key), PutRun(run_row("run_1", key, owner="own_1"))])
    assert await found(ledger) == []
    await ledger.commit([PutRun(run_row("run_2", far, owner="own_1"))])
    assert await found(ledger) == [("error", "invalid_history")]  # there is no thread `far`
    ended = RunFinishedEvent(status="completed")
    await ledger.commit([create(far), Append(far, 1, 0, (NewEvent(ended.TYPE, encode(ended), "run_2", 1, 5),))])
    assert await found(ledger) == [("error", "invalid_history")]  # journal and row do not agree
    await ledger.commit([PutRun(run_row("run_2", far, state=RunState.COMPLETED), (RunState.RUNNING, 1))])
    assert await found(ledger) == []
    call = AssistantMessage(id="msg_1", calls=(ToolCall(id="c", name="n"),))
    events = tuple(NewEvent("MESSAGE", encode(MessageEvent(message=one)), "run_1", 1, 5) for one in (call, call))
    await ledger.commit([Append(key, 1, 0, events)])
    assert await found(ledger) == []  # calls that are open are no fault
    await ledger.commit([Append(key, 1, 2, (NewEvent("MESSAGE", b"{", "run_1", 1, 5),))])
    assert await found(ledger) == [("error", "invalid_history")]


RESULTS = [ToolResult(call=CallRef("m", index), call_id=name, name="n", content="") for index, name in enumerate("ab")]
CALLS = AssistantMessage(id="m", calls=(ToolCall(id="a", name="n"), ToolCall(id="b", name="n")))
SAID = UserMessage(id="u", text="hello")


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([SAID, CALLS, *RESULTS, SAID], None),
        ([CALLS, RESULTS[0], SAID], "the call `b` has no result"),
        ([CALLS, RESULTS[0]], "the call `b` has no result"),
        ([CALLS, *reversed(RESULTS)], "the result `b` does not follow its call"),
        ([CALLS, *RESULTS, RESULTS[1]], "the result `b` does not follow its call"),
        ([SAID, RESULTS[0]], "the result `a` does not follow its call"),
    ],
)
def test_histories_that_no_model_takes_are_found(history: list[Message], fault: str | None) -> None:
    projection = Projection()
    projection.history = [Entry(message) for message in history]
    assert history_fault(projection) == fault


def test_the_environment_is_named() -> None:
    assert [(finding.severity, finding.code) for finding in check_environment()] == [("ok", "python"), ("ok", "sqlite")]


async def test_a_workspace_that_is_open_to_others_or_not_trusted_is_told(tmp_path: Path) -> None:
    async with HarnessAgent("a", model=ScriptedModel(["done"]), workspace=tmp_path) as agent:
        await agent.run("go", context=RuntimeContext(session_id="s"))
    assert [finding.code for finding in check_workspace(tmp_path)] == ["workspace"]
    os.chmod(tmp_path / ".retinue", 0o755)
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    first, second = check_workspace(tmp_path)
    assert (first.severity, first.code, second.severity, second.code) == ("warning", "permissions", "info", "untrusted_workspace")
    assert "chmod 700" in first.remedy
    agent.workspace.trust()
    assert [finding.code for finding in check_workspace(tmp_path)] == ["workspace"]
    (missing,) = check_workspace(tmp_path / "nowhere")
    assert missing.severity == "error"


async def test_a_model_is_asked_only_if_it_is_named() -> None:
    clock = VirtualClock()
    good = await check_model(ScriptedModel(["ready"]), clock)
    assert (good.severity, good.code) == ("ok", "model")
    bad = await check_model(ScriptedModel([{"error": {"code": "unreachable", "message": "x"}}]), clock)
    assert (bad.severity, bad.code) == ("error", "unreachable")
    assert bad.remedy
