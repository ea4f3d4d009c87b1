"""The table of D-26, the workspace table, and which tools a child takes."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent
from retinue.config import AgentConfig, AgentInvocationModePolicy, SubAgentContextPolicy, WorkspaceMode
from retinue.errors import ConfigurationError
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.declaration import SubAgent
from retinue.subagents.registry import general_purpose
from retinue.subagents.resolved import ResolvedDeclaration, with_defaults, workspace_plan
from retinue.subagents.run_config import SubAgentRunConfig

MAIN = Path("/main")


@pytest.mark.contract("D-26", "H-03", "H-05", "H-11")
def test_the_tool_surface_fills_what_was_left_out() -> None:
    config = AgentConfig(name="X", instructions="Do.", max_iters=4, model="m")
    resolved = with_defaults(SubAgent.from_config("team/x", "x", "D", config), "tool")
    assert resolved.context_policy is SubAgentContextPolicy.FORK
    assert not resolved.new_session
    assert not resolved.inherits_tools
    assert (resolved.instructions, resolved.instructions_mode) == ("Do.", "exact")
    assert resolved.requires_permission
    assert not resolved.leaf
    assert resolved.availability == SubAgentAvailability.ROOT_ONLY
    assert (resolved.timeout_seconds, resolved.max_timeout_seconds, resolved.on_timeout) == (None, None, "fail")
    assert resolved.max_iters == 4
    assert resolved.invocation_mode_policy is AgentInvocationModePolicy.SYNCHRONOUS_ONLY
    assert resolved.own_chat.model == "m"
    assert resolved.builtin_tools == ()


@pytest.mark.contract("D-26", "A-23", "A-25")
def test_the_roster_fills_what_was_left_out() -> None:
    resolved = with_defaults(SubAgent("x", "D", instructions="Do."), "roster")
    assert resolved.context_policy is SubAgentContextPolicy.ISOLATED
    assert resolved.new_session
    assert resolved.inherits_tools
    assert resolved.instructions_mode == "with_context"
    assert not resolved.requires_permission
    assert resolved.leaf
    assert (resolved.timeout_seconds, resolved.max_timeout_seconds, resolved.on_timeout) == (30.0, 600.0, "promote")
    assert resolved.max_iters == 10
    assert resolved.invocation_mode_policy is AgentInvocationModePolicy.MODEL_CHOICE
    assert resolved.workspace_mode is WorkspaceMode.ISOLATED
    assert resolved.builtin_tools == "all"


@pytest.mark.contract("D-26")
@pytest.mark.parametrize("surface", ["tool", "roster"])
def test_what_the_author_wrote_stays(surface: Any) -> None:
    declaration = SubAgent(
        "x",
        "D",
        max_iters=3,
        leaf=False,
        context_policy="fresh",
        invocation_mode_policy="model_choice",
        requires_permission=True,
        timeout_seconds=5,
        on_timeout="cancel",
        builtin_tools="named",
        model="m",
    ).with_availability(SubAgentAvailability.through_depth(2))
    resolved = with_defaults(declaration, surface)
    assert (resolved.max_iters, resolved.leaf, resolved.requires_permission) == (3, False, True)
    assert resolved.context_policy is SubAgentContextPolicy.FRESH
    assert resolved.invocation_mode_policy is AgentInvocationModePolicy.MODEL_CHOICE
    assert (resolved.timeout_seconds, resolved.on_timeout) == (5, "cancel")
    assert resolved.availability == SubAgentAvailability.through_depth(2)
    assert (resolved.builtin_tools, resolved.own_chat.model) == ("named", "m")


@pytest.mark.contract("A-26", "D-08")
def test_a_roster_limit_is_at_most_ten_minutes_and_a_contradiction_is_refused() -> None:
    assert with_defaults(SubAgent("x", "D", timeout_seconds=4000), "roster").timeout_seconds == 600
    assert with_defaults(SubAgent("x", "D", timeout_seconds=4000), "tool").timeout_seconds == 4000
    with pytest.raises(ConfigurationError, match="on_timeout"):
        with_defaults(SubAgent("x", "D", on_timeout="promote"), "tool")


@pytest.mark.contract("D-02", "H-24")
def test_the_wrong_surface_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="surface"):
        with_defaults(SubAgent("x", "D", surface="tool"), "roster")
    with pytest.raises(ConfigurationError, match="surface"):
        with_defaults(SubAgent("x", "D", surface="roster"), "tool")
    with pytest.raises(ConfigurationError, match="team/x"):
        with_defaults(SubAgent("team/x", "D"), "tool")
    with pytest.raises(ConfigurationError, match="fork_compaction"):
        with_defaults(SubAgent("x", "D", fork_compaction=object()), "roster")
    both = SubAgent("x", "D", surface="both")
    assert with_defaults(both, "tool").leaf is False
    assert with_defaults(both, "roster").leaf is True


@pytest.mark.contract("A-22", "A-23", "D-13")
def test_general_purpose_mirrors_its_parent_and_is_a_leaf() -> None:
    resolved = with_defaults(general_purpose(), "roster")
    assert resolved.agent_id == "general-purpose"
    assert resolved.leaf
    assert resolved.max_iters is None
    assert resolved.own_chat.model is None
    assert resolved.instructions == ""
    assert resolved.inherits_tools


def test_what_the_parent_or_the_store_knows_is_left_to_them() -> None:
    for declaration in (SubAgent.from_parent("x", "x", "D"), SubAgent.from_agent_id("x", "x", "D")):
        resolved = with_defaults(declaration, "tool")
        assert (resolved.instructions, resolved.max_iters) == (None, None)


@pytest.mark.contract("A-14", "D-11")
def test_tools_filter_what_is_inherited_and_denied_names_hold_for_both() -> None:
    listed = with_defaults(SubAgent("x", "D", tools=["read_file", "mcp__*"], disallowed_tools=["mcp__write"]), "roster")
    assert [tool for tool in ("read_file", "execute", "mcp__read", "mcp__write") if listed.admits_inherited(tool)] == [
        "read_file",
        "mcp__read",
    ]
    assert listed.admits_builtin("write_file")
    assert not listed.admits_builtin("mcp__write")
    everything = with_defaults(SubAgent("x", "D"), "roster")
    assert everything.admits_inherited("anything")
    assert not with_defaults(SubAgent("x", "D", tools=[]), "roster").admits_inherited("anything")


@pytest.mark.contract("D-26")
@pytest.mark.parametrize("surface", ["roster", "both", None])
def test_a_context_that_the_model_chooses_is_refused_on_the_roster_where_it_cannot(surface: Any) -> None:
    one = SubAgent("x", "D", context_policy="model_choice", **({} if surface is None else {"surface": surface}))
    with pytest.raises(ConfigurationError, match="model_choice") as refused:
        Agent("parent", model="openai:x", subagents=[one])
    assert '`surface="tool"`' in (refused.value.remedy or "")


@pytest.mark.contract("D-11")
def test_builtin_tools_named_or_listed() -> None:
    named = with_defaults(SubAgent("x", "D", tools=["read_file"], builtin_tools="named"), "roster")
    assert (named.admits_builtin("read_file"), named.admits_builtin("write_file")) == (True, False)
    listed = with_defaults(SubAgent("x", "D", builtin_tools=["grep_files"]), "roster")
    assert (listed.admits_builtin("grep_files"), listed.admits_builtin("read_file")) == (True, False)


@pytest.mark.contract("D-26", "H-09")
def test_the_parents_tools_are_opted_in_or_out_by_the_run_configuration() -> None:
    wants = SubAgent("x", "D").with_run_config(SubAgentRunConfig.inherit().include("tools"))
    assert with_defaults(wants, "tool").admits_inherited("read_file")
    refuses = SubAgent("x", "D").with_run_config(SubAgentRunConfig.isolated())
    assert not with_defaults(refuses, "roster").admits_inherited("read_file")


@pytest.mark.parametrize(
    ("workspace", "mode", "root", "base"),
    [
        pytest.param("./defs/r", "isolated", "/main/defs/r", "/main/defs/r/AGENTS.md", marks=pytest.mark.contract("A-08")),
        pytest.param("defs/r", "shared", "/main", "/main/defs/r/AGENTS.md", marks=pytest.mark.contract("A-09")),
        pytest.param(None, "isolated", "/main/agents/team%2Fx/workspace", None, marks=pytest.mark.contract("A-10")),
        pytest.param(None, "shared", "/main", None, marks=pytest.mark.contract("A-11")),
        pytest.param("../o/./r", "isolated", "/o/r", "/o/r/AGENTS.md", marks=pytest.mark.contract("A-16")),
        pytest.param("/abs/r", "isolated", "/abs/r", "/abs/r/AGENTS.md", marks=pytest.mark.contract("A-16")),
    ],
)
def test_the_workspace_table(workspace: str | None, mode: Any, root: str, base: str | None) -> None:
    resolved = with_defaults(SubAgent("team/x", "D", workspace=workspace, workspace_mode=mode), "roster")
    plan = workspace_plan(resolved, MAIN)
    assert plan.root == Path(root)
    assert plan.base_file == (None if base is None else Path(base))
    assert plan.create is (workspace is None and mode == "isolated")


@pytest.mark.contract("A-07")
def test_general_purpose_works_in_the_main_workspace_without_a_base() -> None:
    plan = workspace_plan(with_defaults(general_purpose(), "roster"), MAIN)
    assert (plan.root, plan.base_file, plan.create) == (MAIN, None, False)


@pytest.mark.contract("A-15")
def test_two_declarations_may_share_one_definition_workspace() -> None:
    plans = [workspace_plan(with_defaults(SubAgent(name, "D", workspace="defs"), "roster"), MAIN) for name in ("a", "b")]
    assert plans[0] == plans[1]


@pytest.mark.contract("A-16")
@pytest.mark.case("B090")
def test_inside_refuses_what_leaves_the_workspace_links_followed(tmp_path: Path) -> None:
    main, outside = tmp_path / "main", tmp_path / "main-not"
    (main / "defs").mkdir(parents=True)
    outside.mkdir()
    (main / "link").symlink_to(outside)
    assert workspace_plan(_at("defs"), main, inside=True).root == main / "defs"
    for path in ("..", "../main-not", str(outside), "link", "link/x"):
        with pytest.raises(ConfigurationError, match="workspace"):
            workspace_plan(_at(path), main, inside=True)


def _at(workspace: str) -> ResolvedDeclaration:
    return with_defaults(SubAgent("x", "D", workspace=workspace), "roster")
