"""`retinue agents list` and `retinue doctor` tell of names in agent files that lead to nothing, with near names."""

import json
from typing import Any

import pytest

from retinue import HarnessAgent, ScriptedModel
from retinue.testing import StrictProvider

pytestmark = pytest.mark.anyio

MISTAKEN = """---
description: Reads
tools: [read_fil, grep_*]
disallowedTools: [wrte_file]
builtinTools: [list_file]
model: opnai:gpt-5
maxIter: 3
---
Read.
"""
TOLD = ("`read_file`", "`write_file`", "`list_files`", "`openai:gpt-5`", "`maxIters`")


async def test_names_that_lead_to_nothing_are_told_with_near_names(command_line: Any) -> None:
    folder = command_line.workspace / "subagents"
    folder.mkdir()
    (folder / "a.md").write_text(MISTAKEN)
    listed = await command_line("agents", "list")
    looked = await command_line("doctor")
    assert (listed.code, looked.code) == (0, 0)  # warnings
    for said in (listed.err, looked.out):
        assert [name for name in TOLD if name not in said] == []
        assert "grep_*" not in said
    document = json.loads((await command_line("doctor", "--json")).out)
    found = [one["code"] for one in document["findings"] if one["severity"] == "warning"]
    assert found == ["unknown_key", *["unknown_tool_named"] * 3, "unknown_model"]


@pytest.mark.parametrize(
    ("env", "model", "code"),
    [
        ({}, "gpt-5", 1),
        ({}, "openai:gpt-5", 0),
        ({"RETINUE_MODEL": "openai:gpt-5"}, "gpt-5", 0),
        ({"RETINUE_MODEL": "scripted:x.json"}, "gpt-5", 1),
    ],
)
async def test_a_bare_name_is_a_model_of_the_parents_provider(
    command_line: Any, env: dict[str, str], model: str, code: int
) -> None:
    folder = command_line.workspace / "subagents"
    folder.mkdir()
    (folder / "a.md").write_text(f"---\ndescription: Reads\nmodel: {model}\n---\nRead.\n")
    listed = await command_line("agents", "list", "--json", env=env)
    assert [one["code"] for one in json.loads(listed.out)["diagnostics"]] == ["unknown_model"] * code
    looked = await command_line("doctor", env=env)
    assert ("subagent `a`: model `gpt-5`" in looked.out) == bool(code)


async def test_a_run_tells_of_a_model_that_its_parent_has_not(command_line: Any, provider: StrictProvider) -> None:
    folder = command_line.workspace / "subagents"
    folder.mkdir()
    (folder / "a.md").write_text("---\ndescription: Reads\nmodel: gpt-5\n---\nRead.\n")
    (folder / "b.md").write_text("---\ndescription: Reads\nmodel: openai:gpt-5\n---\nRead.\n")
    async with HarnessAgent("a", model=ScriptedModel(["done"]), workspace=command_line.workspace, ledger="memory") as agent:
        await agent.run("Go.")
        (found,) = agent.diagnostics
    assert (found.code, found.path) == ("unknown_model", folder / "a.md")
    async with HarnessAgent("a", model=provider.model(), workspace=command_line.workspace, ledger="memory") as agent:
        await agent.run("Go.")
        assert agent.diagnostics == ()


async def test_a_refused_file_is_an_error_of_doctor(command_line: Any) -> None:
    folder = command_line.workspace / "subagents"
    folder.mkdir()
    (folder / "a.md").write_text("---\nname: a\n---\nRead.\n")
    looked = await command_line("doctor")
    assert looked.code == 1
    assert "a.md:1: `description` is missing or blank" in looked.out
