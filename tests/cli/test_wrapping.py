"""Lines on a terminal: broken between words, never inside of a command; one line for many findings; whole lines in a pipe."""

import fcntl
import struct
import termios
from typing import Any

import pytest

from retinue.cli.wrapping import wrapped
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("short", 20, ["short"]),
        ("one two three four five six", 20, ["one two three four", "five six"]),
        ("  to do: one two three four", 20, ["  to do: one two", "  three four"]),
        ("  | one two three four five", 20, ["  | one two three", "  | four five"]),
        ("write `retinue run --session s1` then", 20, ["write", "`retinue run --session s1`", "then"]),
        (
            "Go on with: .venv/bin/retinue run --session s1 'TASK'",
            20,
            ["Go on with:", ".venv/bin/retinue run --session s1 'TASK'"],
        ),
        ("a" * 30, 20, ["a" * 30]),
        ("first\n\nlast", 20, ["first", "", "last"]),
    ],
)
def test_lines_are_broken_between_words(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width).split("\n") == lines


async def test_a_terminal_gets_lines_that_fit_and_a_pipe_whole_ones(command_line: Any) -> None:
    piped = (await command_line("run", "Go.")).err
    assert max(map(len, piped.splitlines())) > 80
    async with command_line.terminal("run", "Go.") as terminal:
        fcntl.ioctl(terminal._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        assert await terminal.ended() == 2
        shown = terminal.shown.replace("\r\n", "\n")
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.split()) == " ".join(piped.split())
    assert "`http://127.0.0.1:8080/v1#name`" in shown


async def test_many_findings_are_one_line_before_a_run(command_line: Any, provider: StrictProvider) -> None:
    folder = command_line.workspace / "subagents"
    folder.mkdir()
    for number in range(5):
        (folder / f"a{number}.md").write_text("---\ndescription: Reads\nmaxIter: 3\ntools: [read_fil]\n---\nRead.\n")
    ran = await command_line("run", "Go.", "--trust", *command_line.model)
    assert ran.err.splitlines()[0] == "10 findings about the agent files: retinue agents list"
    assert "maxIter" not in ran.err
    listed = await command_line("agents", "list")
    assert listed.err.count("maxIters") == 5


async def test_a_rule_for_a_tool_that_nobody_has_is_told_once(command_line: Any) -> None:
    ended = await command_line("run", "Go.", "--deny", "wrte_file", *command_line.model)
    assert (ended.code, ended.err.count("`wrte_file`")) == (2, 1)


async def test_why_a_run_failed_is_told_once(command_line: Any) -> None:
    ended = await command_line("run", "Go.", "--model", "http://127.0.0.1:9/v1#x")
    assert (ended.code, ended.err.count("cannot reach")) == (5, 1)
    assert "assistant: failed: unreachable" in ended.err


async def test_a_conversation_is_shown_in_lines_that_fit(command_line: Any, provider: StrictProvider) -> None:
    text = "a long story " * 20
    await command_line("run", text, "--session", "s1", *command_line.model)
    async with command_line.terminal("threads", "show", "s1") as terminal:
        assert await terminal.ended() == 0
        shown = terminal.shown.replace("\r\n", "\n")
    assert max(map(len, shown.splitlines())) <= 80
    assert text.strip() in " ".join(shown.split())
