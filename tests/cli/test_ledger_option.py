"""`--ledger` inside of the workspace: the run's own tools cannot reach it."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


@pytest.mark.contract("A-39")
async def test_the_tools_of_a_run_cannot_reach_its_ledger(command_line: Any) -> None:
    wanted: list[tuple[str, dict[str, str]]] = [
        ("list_files", {}),
        ("grep_files", {"pattern": "."}),
        ("read_file", {"path": "l.db"}),
        ("write_file", {"path": "l.db-wal", "content": "broken"}),
    ]
    turn = {"calls": [{"name": name, "arguments": arguments} for name, arguments in wanted]}
    script = command_line.workspace.parent / "script.json"
    script.write_text(json.dumps({"assistant": [turn, "done"]}))
    options = ("--ledger", "l.db", "--model", f"scripted:{script}", "--allow", "*", "--json")
    ended = await command_line("run", "go", *options)
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    results = {line["body"]["name"]: line["body"]["content"] for line in lines if line["type"] == "TOOL_CALL_RESULT"}
    assert len(results) == 4
    assert "l.db" not in results["list_files"] + results["grep_files"]
    assert "enied" in results["read_file"]
    assert "enied" in results["write_file"]
    shown = await command_line("threads", "list", "--ledger", "l.db")
    assert shown.code == 0, shown.err
