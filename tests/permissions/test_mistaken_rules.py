"""Rules that cannot do what they say are told to who wrote them; a question says where a path really leads."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, HarnessAgent, PermissionRules, ScriptedModel, SubAgent, ToolHarness, tool
from retinue.testing import calls

pytestmark = pytest.mark.anyio


class Pays(ToolHarness):
    """Has a tool."""

    @tool
    async def pay(self) -> str:
        """Pay."""
        return "paid"


def agent(place: Path, rules: PermissionRules, turns: Any = ("done",), **options: Any) -> HarnessAgent:
    model = ScriptedModel({"lead": list(turns)})
    return HarnessAgent("lead", model=model, workspace=place, ledger="memory", permissions=rules, **options)


@pytest.mark.parametrize(
    ("glob", "told"),
    [
        ("{root}/secret/*", "write `read_file(secret/*)`"),
        ("./secret/*", "write `read_file(secret/*)`"),
        ("/etc/*", "below the workspace"),
        ("~/x", "below the workspace"),
        ("../x/*", "below the workspace"),
        ("secret/../x", "below the workspace"),
    ],
)
@pytest.mark.parametrize("kind", ["allow", "ask", "deny"])
def test_a_glob_that_no_path_matches_is_refused(tmp_path: Path, kind: str, glob: str, told: str) -> None:
    rule = f"read_file({glob.format(root=tmp_path)})"
    with pytest.raises(ConfigurationError, match="can never match") as caught:
        agent(tmp_path, PermissionRules(**{kind: [rule]}))
    assert caught.value.code == "invalid_permission_rule"
    assert told in (caught.value.remedy or "")


@pytest.mark.parametrize("rule", ["read_file(secret/*)", "read_file(.env)", "read_file(*/..x)", "execute(/bin/ls)", "*(/etc/*)"])
def test_other_globs_are_taken(tmp_path: Path, rule: str) -> None:
    agent(tmp_path, PermissionRules(deny=[rule]))


@pytest.mark.parametrize("options", [{}, {"disable_subagents": True}])
async def test_a_rule_for_a_tool_that_nobody_has_is_told_with_near_names(tmp_path: Path, options: dict[str, Any]) -> None:
    async with agent(tmp_path, PermissionRules(deny=["wrte_file(src/*)", "read_*", "execute"]), **options) as made:
        await made.run("go")
        (found,) = made.diagnostics
    assert (found.code, found.severity) == ("unknown_tool_in_rule", "warning")
    assert "`wrte_file(src/*)`" in found.message
    assert "`write_file`" in found.remedy


async def test_tools_of_children_are_known_and_those_of_factories_are_not(tmp_path: Path) -> None:
    worker = SubAgent("worker", "D.", instructions="…", tool_harnesses=[Pays])
    async with agent(tmp_path, PermissionRules(ask=["pay", "agent_spawn", "read_result"]), subagents=[worker]) as made:
        assert (await made.run("go")).status == "completed"
        assert made.diagnostics == ()
    factory = SubAgent.from_factory("made", lambda _: agent(tmp_path, PermissionRules()))
    async with agent(tmp_path, PermissionRules(ask=["anything"]), subagents=[factory]) as made:
        await made.run("go")
        assert made.diagnostics == ()


async def test_a_plain_agent_is_told_as_well(caplog: pytest.LogCaptureFixture) -> None:
    worker = SubAgent("worker", "D.", instructions="…", tools=["pya", "pay"])
    rules = PermissionRules(deny=["pya", "write_file", "pay"], allow=["agent_spawn"])
    model = ScriptedModel({"lead": ["done", "done"]})
    async with Agent("lead", model=model, tool_harnesses=[Pays], subagents=[worker], permissions=rules) as made:
        found = [(one.code, one.severity, one.remedy) for one in made.diagnostics]  # when it is built
        await made.run("go")
        await made.run("go")
    assert found == [
        ("unknown_tool_in_rule", "warning", "write `pay`"),
        ("unknown_tool_in_rule", "warning", "correct the tool's name, or leave the rule out"),  # it has no file tools
        ("unknown_tool_named", "warning", "write `pay`"),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3  # once
    assert "subagent `worker`: `tools` names `pya`" in caplog.text


async def test_an_agent_that_a_factory_made_has_its_parents_tools_too(caplog: pytest.LogCaptureFixture) -> None:
    def made(_context: object) -> Agent:
        return Agent("made", permissions=PermissionRules(deny=["pay"]))

    child = SubAgent.from_factory("made", made, "D.")
    model = ScriptedModel({"lead": [calls(("agent_spawn", {"agent_id": "made", "task": "t"})), "done"], "made": ["ok"]})
    async with Agent("lead", model=model, tool_harnesses=[Pays], subagents=[child]) as lead:
        assert (await lead.run("go")).text == "done"
    assert caplog.records == []


@pytest.mark.contract("D-28")
async def test_the_question_says_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "notes").symlink_to("src")
    turn = calls(*(("write_file", {"path": path, "content": "x"}) for path in ("notes/a", "src/b")))
    async with agent(tmp_path, PermissionRules(), [turn, "done"]) as made:
        result = await made.run("go")
        linked, plain = result.requests
    assert linked.description.startswith("`notes/a` is really `src/a`.")
    assert "is really" not in plain.description
