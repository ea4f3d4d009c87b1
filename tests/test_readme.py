"""What the README and the examples say is so: their Python runs, their commands parse, their links lead somewhere."""

import ast
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from retinue import ConfigurationError, RunFinishedEvent, RunResult, events
from retinue.cli.exits import Exit, report
from retinue.cli.jsonl import EventLines
from retinue.cli.main import cli
from retinue.testing import StrictProvider

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_LINE = (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")
JSON = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SCRIPT: dict[str, Any] = {
    "orchestrator": [{"calls": [call("agent_spawn", agent_id="reviewer", task="Look.")]}, "Two defects."],
    "reviewer": ["One defect."],
    "assistant": [
        {"calls": [call("summarizer", input="hours"), call("opening_hours", day="Monday")]},
        "{results}",
    ],
    "desk/summarizer": ["- hours"],
    "clerk": ['{"shop": "Bakery", "total": 4.2}'],
    "*": ["ok"],
}


@pytest.mark.anyio
@pytest.mark.parametrize("index", range(len(blocks("python"))))
async def test_python_of_the_readme_runs(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receipt.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with StrictProvider({"agents": SCRIPT}) as provider:
        source = blocks("python")[index].replace("openai:gpt-5", f"{provider.url}#fake")
        names: dict[str, Any] = {"__name__": "readme"}
        made = eval(compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(made):
            await made
        await names["agent"].close()
        assert provider.requests
        assert not provider.refused
        if "result" in names:
            assert names["result"].status == "completed"


EXAMPLE_OUTPUT = {
    "first_delegation": "The worst: none.",
    "subagent_as_tool": "0.4\nApples, 40 cents.",
    "watch_and_answer": "general-purpose asks for write_file: yes\ndone general-purpose Written.\ncompleted\nIt is written.",
}


def source_of(example: Path) -> str:
    return example.read_text(encoding="utf-8")


@pytest.mark.anyio
@pytest.mark.parametrize("served", [True, False], ids=["provider", "script"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
async def test_examples_run(example: Path, served: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    script = example.parent / "scripts" / f"{example.stem}.json"
    source = source_of(example)
    assert f"RETINUE_MODEL=scripted:{script.relative_to(ROOT)} python {example.relative_to(ROOT)}" in source
    monkeypatch.chdir(tmp_path)
    async with StrictProvider(script) as provider:
        monkeypatch.setenv("RETINUE_MODEL", f"{provider.url}#fake" if served else f"scripted:{script}")
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(source, str(example), "exec"), names)
        await names["main"]()
    assert EXAMPLE_OUTPUT[example.stem] in capsys.readouterr().out


@pytest.mark.anyio
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
async def test_examples_say_what_they_need(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("RETINUE_MODEL", raising=False)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source_of(example), str(example), "exec"), names)
    await names["main"]()
    said = capsys.readouterr().out
    assert "failed (missing_key)" in said
    assert "set `OPENAI_API_KEY` in the environment" in said


def command_lines() -> list[str]:
    found = [*blocks("sh"), *re.findall(r"^```sh\n(.*?)^```$", COMMAND_LINE, re.MULTILINE | re.DOTALL)]
    lines = [line.partition("  #")[0].partition(" < ")[0] for block in found for line in block.splitlines()]
    return [line for line in lines if line.startswith("retinue ")]


@pytest.mark.parametrize("line", command_lines())
def test_commands_of_the_readme_parse(line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line)[1:]
    context = click.Context(cli, info_name="retinue")
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.commands[name]
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, words)


def test_one_command_each() -> None:
    shell = [block.strip() for block in blocks("sh")]
    assert shell[0] == "python3 dev.py demo"
    assert shell[1] == "python3 dev.py test"
    assert "python3 dev.py test" in (ROOT / ".ci" / "run").read_text()


def test_the_guide_names_what_a_line_of_json_has() -> None:
    line = EventLines().describe(RunFinishedEvent(status="completed", result=RunResult(status="completed")))
    assert [name for name in line if f"`{name}`" not in COMMAND_LINE] == []
    (shown,) = [json.loads(found) for found in JSON.findall(COMMAND_LINE) if '"requests"' in found]
    assert shown.keys() == line["result"].keys()
    assert shown["usage"].keys() == line["result"]["usage"].keys()
    known = {kind.TYPE for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)}
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", COMMAND_LINE)) - {"RETINUE_MODEL"} <= known
    for code in Exit:
        assert f"| {code.value} | " in COMMAND_LINE


def test_the_guide_names_what_an_error_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ConfigurationError("no model is named", code="no_model", remedy="pass one"), as_json=True) is Exit.USAGE
    (shown,) = [json.loads(found) for found in JSON.findall(COMMAND_LINE) if '"ERROR"' in found]
    assert shown.keys() == json.loads(capsys.readouterr().out).keys()


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/decisions/README.md", "docs/guides/command-line.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_dev_py_says_what_it_can_do() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "dev.py")], capture_output=True, text=True, check=True)
    for command in ("demo", "test", "check", "format", "setup"):
        assert f"  {command} " in done.stdout
