"""Where a child works and what it is told: the decision table of workspaces and instructions."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue import (
    Agent,
    ConfigurationError,
    HarnessAgent,
    PermissionRules,
    SubAgent,
    SubAgentRunConfig,
)
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

Model = Callable[..., RecordingModel]
RunIn = Callable[..., Awaitable[None]]
ToolsOf = Callable[[ModelRequest], list[str]]

ALLOW = PermissionRules(allow=["*"])


def told(model: RecordingModel, agent_id: str) -> str:
    """The instructions of an agent without the fixed section of a subagent."""
    return model.asked(agent_id)[0].envelope.instructions.split("## Subagent context")[0].strip()


# The decision table

REVIEWER = SubAgent("reviewer", "Reviews.", workspace="./defs/../defs/reviewer", workspace_mode="isolated")


@pytest.mark.contract("A-07", "D-13")
@pytest.mark.case("AS-27")
async def test_general_purpose_has_no_base_and_works_in_the_main_workspace(folder: Path, reads: Model, run_in: RunIn) -> None:
    model = reads("general-purpose")
    await run_in(folder, model)
    assert told(model, "general-purpose") == "Main instructions."
    assert "of the main workspace" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("A-08", "A-05", "A-16")
@pytest.mark.case("AS-28", "AS-13")
async def test_a_definition_folder_is_base_and_workspace(folder: Path, reads: Model, run_in: RunIn) -> None:
    model = reads("reviewer")
    await run_in(folder, model, replace(REVIEWER, tools=[]))
    assert told(model, "reviewer") == "You review."
    assert "of the reviewer's folder" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("A-09")
@pytest.mark.case("AS-29", "AS-14")
async def test_a_shared_child_with_a_definition_folder_works_in_the_main_workspace(
    folder: Path, reads: Model, run_in: RunIn
) -> None:
    model = reads("reviewer")
    await run_in(folder, model, replace(REVIEWER, workspace_mode="shared", tools=[]))
    assert told(model, "reviewer").startswith("You review.")
    assert "of the main workspace" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("A-10")
@pytest.mark.case("AS-30")
async def test_an_inline_child_gets_a_folder_of_its_own_on_demand(folder: Path, reads: Model) -> None:
    model = reads("team/scout")
    child = SubAgent("team/scout", "Scouts.", instructions="You scout.", tools=[])
    agent = HarnessAgent("parent", model=model, workspace=folder, subagents=[child], ledger="memory")
    own = folder / "agents" / "team%2Fscout" / "workspace"
    async with agent:
        assert not own.exists()
        await agent.run("Go.")
        assert own.is_dir()
    assert "`note.txt` does not exist" in results_of(model.asked("parent")[1])[0]
    assert told(model, "team/scout") == "You scout."


@pytest.mark.contract("A-11")
@pytest.mark.case("AS-31")
async def test_a_shared_inline_child_works_in_the_main_workspace(folder: Path, reads: Model, run_in: RunIn) -> None:
    model = reads("scout")
    await run_in(folder, model, SubAgent("scout", "Scouts.", instructions="You scout.", workspace_mode="shared", tools=[]))
    assert told(model, "scout").startswith("You scout.")
    assert "of the main workspace" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("A-12")
async def test_a_definition_folder_without_instructions_means_an_empty_base(folder: Path, reads: Model, run_in: RunIn) -> None:
    model = reads("silent")
    await run_in(folder, model, SubAgent("silent", "Says nothing.", workspace="defs/silent", tools=[]))
    assert told(model, "silent") == ""


@pytest.mark.contract("A-15")
@pytest.mark.case("AS-32")
async def test_two_declarations_may_share_a_definition_folder(folder: Path, reads: Model, run_in: RunIn) -> None:
    model = reads("one", "two")
    await run_in(folder, model, *(replace(REVIEWER, name=name, agent_id=name, tools=[]) for name in ("one", "two")))
    assert told(model, "one") == told(model, "two") == "You review."
    assert all("of the reviewer's folder" in text for text in results_of(model.asked("parent")[1]))


@pytest.mark.contract("A-05", "D-27")
async def test_a_definition_folder_needs_a_parent_with_a_workspace() -> None:
    agent = Agent("parent", model=RecordingModel(["ok"]), subagents=[REVIEWER])
    with pytest.raises(ConfigurationError, match=r"`reviewer`.*HarnessAgent"):
        await agent.run("Go.")


@pytest.mark.contract("A-05", "A-06")
@pytest.mark.case("AS-13")
@pytest.mark.parametrize("missing", ["defs/none", "note.txt"])
async def test_a_definition_folder_that_is_not_there_is_said_at_build(folder: Path, missing: str) -> None:
    child = SubAgent("reviewer", "Reviews.", workspace=missing)
    agent = HarnessAgent("parent", model=RecordingModel(["ok"]), workspace=folder, subagents=[child])
    with pytest.raises(ConfigurationError) as raised:
        await agent.build()
    assert "reviewer" in str(raised.value)
    assert missing in str(raised.value)


@pytest.mark.contract("D-26", "D-01", "A-08", "A-09", "A-11")
@pytest.mark.parametrize(
    ("fields", "text", "note", "tools"),
    [
        ({"workspace": "defs/reviewer"}, "You review.", None, set[str]()),
        ({"workspace": "defs/reviewer", "builtin_tools": ["read_file"]}, "You review.", "reviewer's folder", {"read_file"}),
        ({"instructions": "Own.", "workspace_mode": "shared", "builtin_tools": "all"}, "Own.", "main workspace", {"write_file"}),
        ({"instructions": "Own.", "builtin_tools": ["read_file"]}, "Own.", None, {"read_file"}),
    ],
)
async def test_on_the_tool_surface_a_folder_and_its_tools_are_there_for_who_asks_for_them(
    folder: Path, fields: dict[str, Any], text: str, note: str | None, tools: set[str], run_in: RunIn, tools_of: ToolsOf
) -> None:
    child = SubAgent("reviewer", "Reviews.", surface="tool", **fields)

    def answer(request: ModelRequest) -> Any:
        results = results_of(request)
        if request.agent_id == "parent":
            return "ok" if results else calls(("reviewer", {"input": "x"}))
        return results[-1] if results else calls(("read_file", {"path": "note.txt"}))

    model = RecordingModel(answer)
    await run_in(folder, model, child, permissions=ALLOW)
    request = model.asked("reviewer")[0]
    assert request.envelope.instructions == text
    assert tools <= set(tools_of(request))
    assert ("write_file" in tools_of(request)) is ("write_file" in tools)
    if note is not None:
        assert f"of the {note}" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("H-09", "A-08")
async def test_included_instructions_stand_before_those_of_the_definition_folder(
    folder: Path, reads: Model, run_in: RunIn
) -> None:
    model = reads("reviewer")
    child = replace(REVIEWER, tools=[]).with_run_config(SubAgentRunConfig.inherit().include("instructions"))
    await run_in(folder, model, child, instructions="PARENT")
    assert told(model, "reviewer") == "PARENT\n\nMain instructions.\n\nYou review."
