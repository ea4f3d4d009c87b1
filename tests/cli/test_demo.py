"""The demonstration is real: its figures come from the files, three children run at once, and a kill loses nothing."""

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retinue.cli.demo import play
from retinue.cli.demo.run import SAMPLE, prepare_folder
from retinue.errors import ConfigurationError
from retinue.models.script import Turn

pytestmark = pytest.mark.anyio

SPECIALISTS = {"code-reader", "log-analyst", "notes-keeper"}


async def demo(command_line: Any, folder: Path, *options: str) -> Any:
    return await command_line("demo", "--fast", "--folder", str(folder), *options)


async def test_the_figures_come_from_the_files(command_line: Any, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first = await demo(command_line, folder)
    assert first.code == 0, first.err
    assert "SCRIPTED" in first.err
    assert str(folder) in first.err
    assert "3 source files, 4 open marks, 1 of them a FIXME." in first.out
    assert "4 errors and 3 warnings in the log." in first.out
    assert "3 decisions, 3 open questions." in first.out
    (folder / "src" / "gauge.js").unlink()
    (folder / "notes" / "2031-03-18-review.md").unlink()
    shutil.rmtree(folder / "logs")
    second = await demo(command_line, folder)
    assert second.code == 0, second.err
    assert "2 source files, 2 open marks, 0 of them a FIXME." in second.out
    assert "0 errors and 0 warnings in the log." in second.out
    assert "2 decisions, 1 open question." in second.out


async def test_three_children_are_at_work_at_once(command_line: Any, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    await demo(command_line, folder)
    listed = await command_line("threads", "list", "--workspace", str(folder), "--json")
    (root,) = json.loads(listed.out)
    shown = await command_line("threads", "show", root["session"], "--workspace", str(folder), "--json")
    lifecycle = [
        (record["type"].rpartition("_")[2], record["body"]["childAgentId"])
        for record in json.loads(shown.out)
        if record["type"].startswith("SUBAGENT_")
    ]
    assert {agent for kind, agent in lifecycle[:3] if kind == "STARTED"} == SPECIALISTS
    assert {agent for kind, agent in lifecycle[3:] if kind == "COMPLETED"} == SPECIALISTS


@pytest.mark.crash
async def test_a_killed_demonstration_is_finished_by_another_process(command_line: Any, tmp_path: Path) -> None:
    ended = await demo(command_line, tmp_path / "demo", "--kill")
    assert ended.code == 0, ended.err
    assert "was killed with SIGKILL, after the first tool result of log-analyst" in ended.err
    assert "goes on (attempt 2)" in ended.err
    assert "Answered before, and asked again all the same:    0" in ended.err
    assert "It should wait: 1 FIXME, 4 errors, 3 open questions." in ended.out


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds other files"):
        prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_new_folder_gets_every_sample_file(tmp_path: Path) -> None:
    made = prepare_folder(tmp_path / "new")
    assert _files(made) == _files(SAMPLE)


def _files(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("agent", sorted(play.PLAY))
def test_the_play_goes_on_whatever_the_tools_say(agent: str) -> None:
    odd: list[tuple[str, str]] = [("grep_files", "[no line matches]"), ("list_files", "error: no such folder"), ("x", "")]
    for results in ([], odd, [(name, "denied") for name, _ in odd]):
        for turn in play.PLAY[agent]:
            assert isinstance(turn(results), Turn)


@pytest.mark.crash
async def test_a_demonstration_that_is_stopped_speaks_of_no_review(command_line: Any, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    async with command_line.terminal("demo", "--folder", str(folder)) as terminal:
        await terminal.until("code-reader started")
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ended() == 130
        shown = terminal.shown
    assert "Every figure" not in shown
    assert "It did not come to its review." in shown
