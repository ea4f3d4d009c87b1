"""`--model replay:FILE`: the command line plays a recording back, and says where it does not fit."""

from pathlib import Path
from typing import Any

import pytest

from retinue import HarnessAgent, ScriptedModel
from retinue.cli.run import AGENT_NAME
from retinue.testing import RecordModel, calls

pytestmark = pytest.mark.anyio

SCRIPT = [calls(("read_file", {"path": "a.txt"})), "It says: {result}"]


async def recorded(workspace: Path) -> Path:
    """A recording of an agent that is what `retinue run` makes of this folder."""
    (workspace / "a.txt").write_text("blue\n")
    path = workspace.parent / "desk.jsonl"
    model = RecordModel(ScriptedModel({AGENT_NAME: SCRIPT}), path)
    async with HarnessAgent(AGENT_NAME, model=model, workspace=workspace, ledger="memory") as agent:
        assert "blue" in (await agent.run("What does a.txt say?")).text
    return path


async def test_a_recording_is_played_back(command_line: Any) -> None:
    path = await recorded(command_line.workspace)
    ended = await command_line("run", "What does a.txt say?", "--model", f"replay:{path}")
    assert (ended.code, "blue" in ended.out) == (0, True), ended.err


async def test_a_tool_that_says_something_else_is_noticed(command_line: Any) -> None:
    path = await recorded(command_line.workspace)
    (command_line.workspace / "a.txt").write_text("green\n")
    ended = await command_line("run", "What does a.txt say?", "--model", f"replay:{path}")
    assert ended.code == 1
    assert "has no answer to turn 2" in ended.err
    assert "green" in ended.err


async def test_a_recording_that_is_not_there(command_line: Any) -> None:
    ended = await command_line("run", "Go.", "--model", "replay:none.jsonl")
    assert ended.code == 2
    assert "recording `none.jsonl` cannot be read" in ended.err
