"""Public faults of encodings: text is cut between characters, what is stored and sent is valid UTF-8, and an odd stdout or
locale costs nobody an answer."""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, Limits, RuntimeContext
from retinue.testing import StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ANSWER = "Grüße 🤖 世界"


def stored_events(path: Path) -> list[bytes]:
    """The bodies of all events of a ledger, as they lie in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return [bytes(row[0]) for row in connection.execute("SELECT body FROM event")]


@pytest.mark.case("B175")
async def test_a_cut_at_any_place_of_a_row_of_emoji_stores_and_sends_whole_characters(tmp_path: Path) -> None:
    async def robots(before: int) -> str:
        """Robots, after so many letters."""
        return "a" * before + "🤖" * 2_000

    script = {"parent": [calls(*(("robots", {"before": place}) for place in range(9))), "ok"]}
    path = tmp_path / "l.sqlite3"
    limits = Limits(max_result_characters=1_000)
    async with (
        StrictProvider(script) as provider,
        Agent("parent", model=provider.model(), tools=[robots], ledger=path, limits=limits) as agent,
    ):
        assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert provider.refused == []
        sent = provider.requests[1].results
    assert len(sent) == 9
    assert all(len(text) <= 1_000 and "🤖" in text and "\ufffd" not in text for text in sent)
    for body in stored_events(path):
        msgspec.json.decode(body)


# The command, as a process


async def retinue(
    workspace: Path, *arguments: str, env: dict[str, str] | None = None, closed: bool = False
) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of the command. `closed`: it is started without a stdout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RETINUE_", "PYTHONIO", "PYTHONUTF", "LC_", "LANG"))
    }
    command = [sys.executable, "-m", "retinue.cli", *arguments]
    if closed:
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=workspace,
        env={**kept, "TERM": "dumb", **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out, err


@pytest.mark.case("B177")
@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii:strict", "Gr??e ? ??"), ("cp1252:strict", "Grüße ? ??"), ("utf-8", ANSWER)]
)
async def test_an_answer_that_stdout_cannot_spell_is_printed_with_replacements(encoding: str, shown: str, tmp_path: Path) -> None:
    async with StrictProvider([ANSWER]) as provider:
        env = {"PYTHONIOENCODING": encoding}
        code, out, err = await retinue(tmp_path, "run", "Go.", "--model", f"{provider.url}#fake", env=env)
    assert (code, b"Traceback" in err) == (0, False)
    assert out.decode(encoding.partition(":")[0]).strip() == shown


@pytest.mark.case("B177")
@pytest.mark.parametrize("mode", [(), ("--json",), ("--quiet",)], ids=["plain", "json", "quiet"])
async def test_without_a_stdout_the_run_still_ends_well(mode: tuple[str, ...], tmp_path: Path) -> None:
    async with StrictProvider([ANSWER]) as provider:
        code, _, err = await retinue(tmp_path, "run", "Go.", "--model", f"{provider.url}#fake", *mode, closed=True)
        assert (code, len(provider.requests)) == (0, 1), err.decode()


@pytest.mark.case("B178")
async def test_files_are_utf_8_in_any_locale_and_a_path_is_no_pattern(tmp_path: Path) -> None:
    workspace = tmp_path / "C:\\Users\\x"
    (workspace / "subagents").mkdir(parents=True)
    (workspace / "AGENTS.md").write_text("Be bräv 🤖.", "utf-8")
    (workspace / "subagents" / "helper.md").write_text("---\ndescription: Hilft 🤖 世界.\n---\nSei bräv 🤖.\n", "utf-8")
    (workspace / "size.txt").write_text("Größe 🤖", "utf-8")

    def answer(request: Any) -> Any:
        if request.agent == "helper":
            return "Grüße 🤖"
        made = (("read_file", {"path": "size.txt"}), ("agent_spawn", {"agent_id": "helper", "task": "x"}))
        return calls(*made) if request.step == 1 else ANSWER

    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    async with StrictProvider(answer) as provider:
        code, _, err = await retinue(workspace, "run", "Go.", "--trust", "--model", f"{provider.url}#fake", env=env)
        assert (code, provider.refused) == (0, []), err.decode("utf-8", "replace")
        first, child, last = provider.requests
    assert "Be bräv 🤖." in first.system
    assert "Hilft 🤖 世界." in first.system
    assert "Sei bräv 🤖." in child.system
    told = last.results
    assert "Größe 🤖" in told[0]
    assert told[1].endswith("Grüße 🤖")
