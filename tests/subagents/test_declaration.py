"""`SubAgent`: the ways to declare one, the checks, immutability, the fingerprint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.config import (
    UNSET,
    AgentConfig,
    ChatClientConfig,
    Limits,
    PermissionRules,
    RuntimeContext,
    SubAgentContextPolicy,
    WorkspaceMode,
)
from retinue.errors import ConfigurationError
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.declaration import SubAgent
from retinue.subagents.run_config import SubAgentRunConfig
from retinue.tools.harness import ToolHarness

CONFIG = AgentConfig(name="Reviewer", instructions="Review the work.")


class Search(ToolHarness):
    """A harness without members."""


def search(query: str) -> str:
    return query


def make(context: RuntimeContext) -> object:
    return context


@pytest.mark.contract("D-01", "A-05")
def test_one_type_serves_every_way_to_declare() -> None:
    declared = [
        SubAgent("a", "A", instructions="Do."),
        SubAgent.from_config("team/b", "b", "B", CONFIG),
        SubAgent.from_parent("team/c", "c", "C"),
        SubAgent.from_agent_id("team/d", "d", "D"),
        SubAgent.from_factory("e", make, description="E"),
    ]
    assert [entry.source for entry in declared] == ["declaration", "config", "parent", "agent_id", "factory"]
    assert [entry.id for entry in declared] == ["a", "team/b", "team/c", "team/d", "e"]
    assert declared[1].origin.config is CONFIG
    assert declared[4].origin.factory is make


@pytest.mark.contract("D-26")
def test_what_is_left_out_stays_unset() -> None:
    declaration = SubAgent.from_config("x", "x", "X", CONFIG, context_policy=None, requires_permission=None)
    left_out = ("context_policy", "requires_permission", "max_iters", "leaf", "surface", "workspace_mode", "builtin_tools")
    assert all(getattr(declaration, field) is UNSET for field in left_out)


@pytest.mark.contract("A-04")
@pytest.mark.parametrize("description", [None, "", "  "])
def test_a_factory_without_description_is_described_by_its_name(description: str | None) -> None:
    assert SubAgent.from_factory("translator", make, description).description == "translator"


@pytest.mark.contract("A-06")
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SubAgent("", "D"), ["name", "blank"]),
        (lambda: SubAgent(" ", "D"), ["name", "blank"]),
        (lambda: SubAgent("x", " "), ["`x`", "description"]),
        (lambda: SubAgent("x", "D", url="http://h", workspace="w"), ["`x`", "`url`", "`workspace`"]),
        (lambda: SubAgent("x", "D", url="http://h", instructions="Do."), ["`x`", "`url`", "`instructions`"]),
        (lambda: SubAgent("x", "D", workspace="w", instructions="Do."), ["`x`", "`workspace`", "`instructions`"]),
        (lambda: SubAgent("x", "D", workspace=" "), ["`x`", "`workspace`"]),
        (lambda: SubAgent("x", "D", headers={"a": "b"}), ["`x`", "`headers`"]),
        (lambda: SubAgent("x", "D", url="ftp://h"), ["`x`", "`url`"]),
        (lambda: SubAgent("x", "D", url="http://me:secret@h"), ["`x`", "`url`", "headers"]),
        (lambda: SubAgent("x", "D", url="http://h", headers={"a": "b\nc"}), ["`x`", "`headers`"]),
        (lambda: SubAgent("x", "D", model=" "), ["`x`", "`model`"]),
        (lambda: SubAgent("x", "D", max_iters=0), ["`x`", "`max_iters`"]),
        (lambda: SubAgent("x", "D", timeout_seconds=float("nan")), ["`x`", "`timeout_seconds`"]),
        (lambda: SubAgent("x", "D", tools="read_file"), ["`x`", "`tools`", "list"]),
        (lambda: SubAgent("x", "D", tools=["a", " "]), ["`x`", "`tools`"]),
        (lambda: SubAgent("x", "D", metadata={"a": object()}), ["`x`", "`metadata`"]),
        (lambda: SubAgent("x", "D", builtin_tools="some"), ["`x`", "`all`", "`named`"]),  # type: ignore[arg-type]
        (lambda: SubAgent("x", "D", tool_harnesses=[search]), ["`x`", "`tool_harnesses`", "@tool"]),  # type: ignore[list-item]
    ],
)
def test_what_cannot_work_is_refused_at_once_naming_the_declaration(build: Callable[[], SubAgent], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build()
    assert caught.value.remedy
    assert "secret" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.contract("A-06")
def test_blank_instructions_beside_a_workspace_or_url_are_none() -> None:
    assert SubAgent("x", "D", workspace="w", instructions=" \n").workspace == Path("w")
    assert SubAgent("x", "D", url="https://h", instructions="").url == "https://h"


@pytest.mark.contract("D-27")
@pytest.mark.parametrize(
    ("parameter", "allowed"),
    [
        ("context_policy", "`fork`, `fresh`, `isolated`, `model_choice`"),
        ("invocation_mode_policy", "`synchronous_only`, `background_only`, `model_choice`"),
        ("workspace_mode", "`isolated`, `shared`"),
        ("surface", "`tool`, `roster`, `both`"),
        ("on_timeout", "`promote`, `cancel`"),
        ("mode", "`all`, `subagent`, `primary`"),
    ],
)
def test_a_wrong_choice_lists_the_allowed_ones(parameter: str, allowed: str) -> None:
    wrong: dict[str, Any] = {parameter: "forked"}
    with pytest.raises(ConfigurationError) as caught:
        SubAgent("x", "D", **wrong)
    assert f"`{parameter}`" in str(caught.value)
    assert allowed in str(caught.value)


def test_plain_strings_become_members() -> None:
    declaration = SubAgent("x", "D", context_policy="fork", workspace_mode="shared")
    assert declaration.context_policy is SubAgentContextPolicy.FORK
    assert declaration.workspace_mode is WorkspaceMode.SHARED


@pytest.mark.contract("D-31")
@pytest.mark.case("B082", "B120")
@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/abs", "C:\\x", "..", "a\0b", "x" * 129, "a\nb", "a b", "a//b", "\u200bx", "x\u202e", " x", "é"],
)
def test_an_unsafe_agent_id_is_refused_and_quoted_on_one_line(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SubAgent(name, "D")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        SubAgent("fine", "D", agent_id=name)


@pytest.mark.contract("D-31", "H-02")
def test_a_name_on_the_tool_surface_must_be_a_tool_name() -> None:
    with pytest.raises(ConfigurationError, match=r"`team/x`.*tool"):
        SubAgent("team/x", "D", surface="tool")
    assert SubAgent("team/x", "D", surface="roster").id == "team/x"


def test_callables_in_tools_point_to_tool_harnesses() -> None:
    with pytest.raises(TypeError, match="tool_harnesses"):
        SubAgent("x", "D", tools=[search])  # type: ignore[list-item]


def test_tools_none_and_empty_are_not_the_same() -> None:
    assert SubAgent("x", "D").tools is None
    assert SubAgent("x", "D", tools=[]).tools == ()


@pytest.mark.contract("H-24")
@pytest.mark.parametrize("policy", ["fresh", "isolated"])
def test_fork_compaction_needs_a_fork(policy: Any) -> None:
    with pytest.raises(ConfigurationError, match="fork_compaction"):
        SubAgent.from_config("x", "x", "D", CONFIG, context_policy=policy, fork_compaction=object())
    with pytest.raises(ConfigurationError, match="fork_compaction"):
        SubAgent("x", "D", surface="roster", fork_compaction=object())
    assert SubAgent("x", "D", context_policy="model_choice", fork_compaction=object()).fork_compaction is not None


@pytest.mark.contract("D-01")
def test_copies_leave_the_original_unchanged() -> None:
    original = SubAgent.from_config("x", "x", "D", CONFIG, metadata={"team": {"name": "a"}})
    before = original.fingerprint()
    deeper = original.with_availability(SubAgentAvailability.through_depth(2))
    alone = original.with_run_config(SubAgentRunConfig.isolated())
    assert original.availability is UNSET
    assert original.run_config == SubAgentRunConfig.inherit()
    assert deeper.availability == SubAgentAvailability.through_depth(2)
    assert alone.run_config == SubAgentRunConfig.isolated()
    assert original.fingerprint() == before
    assert len({before, deeper.fingerprint(), alone.fingerprint()}) == 3
    with pytest.raises(AttributeError):
        original.name = "y"  # type: ignore[misc]


def test_what_was_passed_can_change_without_changing_the_declaration() -> None:
    metadata, tools, headers = {"a": [1]}, ["read_file"], {"Authorization": "x"}
    declaration = SubAgent("x", "D", metadata=metadata, tools=tools, url="http://h", headers=headers)
    metadata["a"].append(2)
    tools.append("execute")
    headers["More"] = "y"
    assert declaration.metadata == {"a": [1]}
    assert declaration.tools == ("read_file",)
    assert declaration.headers == {"Authorization": "x"}


@pytest.mark.contract("A-40")
def test_header_values_are_never_shown() -> None:
    declaration = SubAgent("far", "Far away", url="http://h:8080", headers={"Authorization": "Bearer xyz"})
    assert repr(declaration) == "SubAgent('far', 'Far away', url='http://h:8080', headers='***')"
    assert dict(declaration.__rich_repr__())["headers"] == "***"
    assert (
        declaration.fingerprint()
        == SubAgent("far", "Far away", url="http://h:8080", headers={"Authorization": "z"}).fingerprint()
    )


def test_it_is_a_value() -> None:
    declared = SubAgent("a", "A", metadata={"team": "x"}, chat=ChatClientConfig(extra={"seed": 1}))
    same = SubAgent(name="a", description="A", agent_id="a", metadata={"team": "x"}, chat=ChatClientConfig(extra={"seed": 1}))
    assert declared == same
    assert len({declared, same}) == 1
    changed = replace(declared, description="B", tools=["grep_files"])
    assert (changed.description, changed.tools, changed.metadata) == ("B", ("grep_files",), {"team": "x"})
    assert declared != changed
    with pytest.raises(ConfigurationError, match="max_iters"):
        replace(declared, max_iters=0)


def test_what_is_said_of_a_wrong_argument_names_the_class() -> None:
    """A struct by itself does not: `Unexpected keyword argument 'instruction'`, in whatever line makes ten values."""
    with pytest.raises(TypeError, match=r"^SubAgent\(\): extra positional arguments"):
        SubAgent("a", "A", "Only two may be given by position.")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^SubAgent\(\): missing required argument 'description'$"):
        SubAgent("a")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^SubAgent\(\): unexpected .*'instruction'; did you mean `instructions`\?$"):
        SubAgent("a", "A", instruction="Do.")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^Limits\(\): unexpected keyword argument 'colour'$"):
        Limits(colour="red")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^'int' object is not iterable$"):  # of code of the class: as it is
        PermissionRules(allow=5)  # pyright: ignore[reportArgumentType]


@pytest.mark.contract("H-01", "H-15")
def test_the_fingerprint_is_of_what_defines_it() -> None:
    def build(**changes: Any) -> str:
        return SubAgent("x", "D", instructions="Do.", tool_harnesses=[Search], **changes).fingerprint()

    assert build() == build()
    assert build() == SubAgent("x", "D", instructions="Do.", tool_harnesses=[Search()]).fingerprint()
    changed = [build(tools=[]), build(leaf=False), build(context_policy="fork"), build(metadata={"a": 1}), build(max_iters=3)]
    assert len({build(), *changed}) == 6
    assert build(context_policy="fork") == build(context_policy=SubAgentContextPolicy.FORK)
    assert SubAgent.from_parent("x", "x", "D").fingerprint() != SubAgent.from_agent_id("x", "x", "D").fingerprint()


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    known = SubAgent("x", "D", instructions="Do.", tools=["read_file"]).with_run_config(
        SubAgentRunConfig.inherit_only("context", "permissions", "tools")
    )
    assert known.fingerprint() == FINGERPRINT


FINGERPRINT = "9375cb65f646a9d1c89b46f45b01235d8f3d23ec3976b196890d039192c90c19"
