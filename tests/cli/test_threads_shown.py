"""`retinue threads`: columns with what each thread was begun with, and the state that its runs are really in."""

import json
import signal
from typing import Any

import pytest

from retinue.cli.threads import _table
from retinue.models.script import parse_script
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio


async def test_threads_are_listed_in_columns_with_their_task(command_line: Any, provider: StrictProvider) -> None:
    await command_line("run", "Look at the sea.\nThen at the sky.", "--session", "s1", *command_line.model)
    await command_line("run", "Go.", "--session", "a-longer-name", *command_line.model)
    head, newest, oldest = (await command_line("threads", "list")).out.splitlines()
    assert head.split() == ["SESSION", "THREAD", "AGENT", "STATE", "EVENTS", "LAST", "TASK"]
    assert newest.split()[:4] == ["a-longer-name", "main", "assistant", "completed"]
    assert oldest.endswith("  Look at the sea.")
    assert [line.index("main") for line in (newest, oldest)] == [head.index("THREAD")] * 2


def test_a_narrow_terminal_gets_the_task_below(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"user": "", "session": f"ses_{'0' * 32}", "thread": "main", "agent": "assistant", "state": "interrupted"}
    entry |= {"events": 7, "updatedAt": 0, "task": "Look at the sea."}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    head, row, task = _table([entry], now=1_000)
    assert ("TASK" in head, row.split()[0], task) == (False, entry["session"], "  Look at the sea.")
    monkeypatch.setenv("COLUMNS", "140")
    assert _table([entry], now=1_000)[1].endswith("  Look at the sea.")


@pytest.mark.crash
async def test_a_run_whose_process_is_dead_is_shown_as_interrupted(command_line: Any, provider: StrictProvider) -> None:
    gate = provider.hold()
    async with command_line.started("run", "Go.", "--session", "s1", *command_line.model) as running:
        await gate.arrived.wait()
        (alive,) = json.loads((await command_line("threads", "list", "--json")).out)
        running.signal(signal.SIGKILL)
        await running.ended()
    (dead,) = json.loads((await command_line("threads", "list", "--json")).out)
    assert (alive["state"], dead["state"]) == ("running", "interrupted")
    tree = json.loads((await command_line("threads", "tree", "--json")).out)
    assert (tree["state"], [node["state"] for node in tree["nodes"]]) == ("interrupted", ["interrupted"])
    assert "its process is gone" in (await command_line("threads", "tree")).out
    shown = await command_line("threads", "show", "s1")
    assert "[interrupted]\n  go on with it: " in shown.out
    assert f"resume {tree['run']}" in shown.out


async def test_a_thread_that_waits_says_so_and_results_keep_their_lines(command_line: Any, provider: StrictProvider) -> None:
    (command_line.workspace / "a.txt").write_text("one\ntwo\n")
    read = {"name": "read_file", "arguments": {"path": "a.txt"}}
    write = {"name": "write_file", "arguments": {"path": "b.txt", "content": "x"}}
    provider.script = parse_script({"assistant": [{"calls": [read]}, {"calls": [write]}, "Done."]})
    assert (await command_line("run", "Go.", "--session", "s1", *command_line.model)).code == 3
    shown = (await command_line("threads", "show", "s1")).out.splitlines()
    assert shown.index("  <- read_file:") + 1 < len(shown)
    assert [line.rstrip()[-3:] for line in shown if line.startswith("     | ")][-2:] == ["one", "two"]
    place = shown.index("[waiting]")
    assert shown[place + 1] == "  assistant asks for write_file b.txt"
    assert " answer req_" in shown[place + 2]
    tree = json.loads((await command_line("threads", "tree", "--json")).out)
    assert (tree["state"], [node["state"] for node in tree["nodes"]]) == ("waiting", ["waiting"])
    request = shown[place + 2].partition(" answer ")[2].split()[0]
    assert (await command_line("answer", request, "allow")).code == 0
    assert "answered by retinue answer: allow" in (await command_line("explain", request)).out
