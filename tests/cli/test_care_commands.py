"""`retinue explain`, `gc`, `purge`, `threads delete` and `doctor`, as processes."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from retinue.models.script import parse_script
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio


def delegating(provider: StrictProvider, workspace: Path) -> None:
    """An agent with one child."""
    (workspace / "subagents").mkdir()
    (workspace / "subagents" / "reader.md").write_text("---\ndescription: Reads files\n---\nYou read files.\n")
    spawn = {"name": "agent_spawn", "arguments": {"agent_id": "reader", "task": "look"}}
    provider.script = parse_script({"agents": {"assistant": [{"calls": [spawn]}, "Done."], "reader": ["Read."]}})


def waiting(provider: StrictProvider) -> None:
    """An agent that asks for permission."""
    call = {"name": "write_file", "arguments": {"path": "a.txt", "content": "x"}}
    provider.script = parse_script({"agents": {"assistant": [{"calls": [call]}, "Done."]}})


async def document(command_line: Any, *arguments: str) -> Any:
    return json.loads((await command_line(*arguments, "--json")).out)


async def test_a_run_that_waits_is_explained_with_the_command_that_moves_it_on(
    command_line: Any, provider: StrictProvider
) -> None:
    waiting(provider)
    ended = await command_line("run", "Write.", "--session", "s1", *command_line.model)
    assert ended.code == 3
    said = await document(command_line, "explain", "s1")
    assert (said["kind"], said["state"], said["heldBy"]) == ("thread", "waiting", None)
    run = next(name for name in said["related"] if name.startswith("run_"))
    request = next(name for name in said["related"] if name.startswith("req_"))
    assert said["waitsFor"] == f"an answer to: `write_file` ({request})"
    assert (said["command"], said["stop"]) == (f"retinue answer {request} allow", f"retinue cancel {run}")
    shown = await command_line("explain", request)
    assert shown.code == 0
    assert "may agent `assistant` call `write_file`? It is open." in shown.out
    assert f"retinue answer {request} allow    (or deny)\n  stop it    retinue cancel {run}" in shown.out
    refused = await command_line("threads", "delete", "s1", "--yes")
    assert (refused.code, run in refused.err) == (1, True)
    found = await document(command_line, "doctor")
    assert [one["code"] for one in found["findings"] if "req_" in one["text"]] == ["open_request"]


async def test_an_unknown_id_is_told_by_its_kind(command_line: Any, provider: StrictProvider) -> None:
    await command_line("run", "Hello.", *command_line.model)
    ended = await command_line("explain", "inv_" + "0" * 32)
    assert (ended.code, ended.out) == (2, "")
    assert "it looks like an invocation id" in ended.err


async def test_what_is_deleted_is_collected(command_line: Any, provider: StrictProvider) -> None:
    delegating(provider, command_line.workspace)
    assert (await command_line("run", "Go.", "--session", "s1", "--trust", *command_line.model)).code == 0
    assert (await command_line("gc")).out == "nothing to remove\n"
    asked = await command_line("threads", "delete", "s1")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert await document(command_line, "threads", "delete", "s1", "--yes") == {"threads": 2}
    assert await document(command_line, "threads", "list", "--all") == []
    counted = await document(command_line, "gc", "--dry-run")
    assert (counted["threads"], counted["blobs"], counted["dryRun"]) == (2, 2, True)
    removed = await command_line("gc")
    assert removed.out.startswith("removed 2 threads (")
    assert removed.out.count("blobs") == 1
    assert (await command_line("gc", "--dry-run")).out == "nothing to remove\n"


async def test_a_purge_asks_and_takes_the_children_along(command_line: Any, provider: StrictProvider) -> None:
    delegating(provider, command_line.workspace)
    for session in ("s1", "s2"):
        await command_line("run", "A word to forget.", "--session", session, "--trust", *command_line.model)
    async with command_line.terminal("purge", "s1") as terminal:
        listed = await terminal.until("[y/N]")
        assert "A word to forget." in listed
        terminal.type("n\n")
        assert await terminal.ended() == 130
    async with command_line.terminal("purge", "s1") as terminal:
        await terminal.until("[y/N]")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    (row,) = await document(command_line, "threads", "list")
    assert row["session"] == "s2"
    assert await document(command_line, "purge", "s2", "--yes", "--keep-children") == {"threads": 1, "records": row["events"]}
    left = await document(command_line, "threads", "list", "--all")
    assert [row["agent"] for row in left] == ["reader"]
    assert (await command_line("purge", "s2", "--yes")).code == 2


async def test_the_doctor_finds_what_is_wrong_and_says_so_by_its_code(command_line: Any, provider: StrictProvider) -> None:
    await command_line("run", "Hello.", *command_line.model)
    well = await command_line("doctor", *command_line.model)
    assert (well.code, well.err) == (0, "")
    assert "answers, in" in well.out
    path = command_line.workspace / ".retinue" / "ledger.sqlite3"
    database = sqlite3.connect(path)
    database.execute("UPDATE thread SET head = head + 1")
    database.commit()
    database.close()
    os.chmod(path, 0o644)
    ill = await command_line("doctor", "--model", "http://127.0.0.1:9/v1#none")
    assert ill.code == 1
    for words in (
        "WARNING  other users",
        "ERROR    the head of",
        "ERROR    cannot reach",
        "to do: restore the ledger from a copy",
    ):
        assert words in ill.out
    assert ill.err == "2 errors\n"


async def test_a_doctor_needs_no_ledger_and_makes_none(command_line: Any) -> None:
    found = await document(command_line, "doctor")
    assert (found["ok"], "no_ledger" in {one["code"] for one in found["findings"]}) == (True, True)
    assert os.listdir(command_line.workspace) == []
    for command in (("gc",), ("explain", "x"), ("purge", "s", "--yes")):
        ended = await command_line(*command)
        assert (ended.code, "there is no ledger at" in ended.err) == (2, True)
