"""`retinue resume` and `retinue answer` keep the rules of the run, for its children too, and leave alone what needs code."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, HarnessAgent, PermissionRules, Runtime, RuntimeContext, ScriptedModel, tool
from retinue.models.script import parse_script
from retinue.rows import RunRow
from retinue.states import RequestState
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio

PAY: list[Any] = [{"calls": [{"name": "pay", "arguments": {}}]}, "paid"]


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


def ledger_of(command_line: Any) -> Path:
    return command_line.workspace / ".retinue" / "ledger.sqlite3"


async def run_in(command_line: Any, run_id: str) -> RunRow | None:
    async with Runtime(ledger=ledger_of(command_line)) as runtime:
        return await runtime.ledger.run(run_id)


async def open_request(command_line: Any) -> str:
    async with Runtime(ledger=ledger_of(command_line)) as runtime:
        (request,) = await runtime.ledger.requests(state=RequestState.OPEN)
    return request.request_id


def write(path: str) -> dict[str, Any]:
    return {"calls": [{"name": "write_file", "arguments": {"path": path, "content": "x"}}]}


SPAWN: dict[str, Any] = {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "general-purpose", "task": "Write."}}]}


@pytest.mark.contract("D-29")
@pytest.mark.parametrize(
    "turns",
    [
        {"assistant": [write("a.txt"), write("b.txt"), "Done."]},
        {"assistant": [SPAWN, "Done."], "general-purpose": [write("a.txt"), write("b.txt"), "Tried."]},
    ],
    ids=["its own call", "a child's call"],
)
async def test_what_was_denied_stays_denied_after_an_answer(
    command_line: Any, provider: StrictProvider, turns: dict[str, Any]
) -> None:
    provider.script = parse_script({"agents": turns})
    ended = await command_line("run", "Write.", "--deny", "write_file(b.txt)", *command_line.model)
    assert ended.code == 3
    async with command_line.terminal("resume") as terminal:
        await terminal.until("all of these: ")
        terminal.type("\x04")
        assert await terminal.ended() == 3  # taken over once more, without an answer
    ended = await command_line("answer", await open_request(command_line), "allow", "--remember")
    assert (ended.code, ended.out.strip()) == (0, "Done.")
    assert (command_line.workspace / "a.txt").exists()
    assert not (command_line.workspace / "b.txt").exists()


@pytest.mark.contract("D-19")
@pytest.mark.parametrize("kind", ["agent", "harness agent"])
async def test_a_run_that_needs_code_is_refused_and_stays_as_it_is(
    command_line: Any, provider: StrictProvider, kind: str
) -> None:
    ledger = ledger_of(command_line)
    ledger.parent.mkdir(exist_ok=True)
    common: Any = {"model": ScriptedModel(PAY), "tools": [pay], "permissions": PermissionRules(ask=["pay"]), "ledger": ledger}
    plain = kind == "agent"
    code = Agent("ed", **common) if plain else HarnessAgent("ed", workspace=command_line.workspace, **common)
    async with code as agent:
        result = await agent.run("Pay.", context=RuntimeContext(session_id="s1"))
    before = await run_in(command_line, result.run_id)
    for command in (
        ("resume", result.run_id),
        ("resume",),
        *([] if plain else [("answer", result.requests[0].request_id, "allow")]),
    ):
        ended = await command_line(*command, *command_line.model)
        assert (ended.code, ended.out) == (2, "")
        assert "started by an agent in code" in ended.err if plain else "`pay`" in ended.err
    assert await run_in(command_line, result.run_id) == before
    assert await open_request(command_line) == result.requests[0].request_id
    assert provider.requests == []
