"""The roster: four sources, each id once, and finding one by an id that a model wrote."""

from pathlib import Path

import pytest

from retinue.config import RuntimeContext
from retinue.errors import ConfigurationError, UnknownId
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.declaration import Origin, SubAgent
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.loading import LoadReport, load_subagents
from retinue.subagents.registry import MergeReport, Roster, general_purpose, merge_subagents


def in_file(agent_id: str, path: str) -> SubAgent:
    return SubAgent(agent_id, f"From {path}", origin=Origin(kind="file", path=Path(path)))


def roster(*agent_ids: str) -> Roster:
    return merge_subagents(code=[SubAgent(agent_id, "D") for agent_id in agent_ids]).roster


def make(context: RuntimeContext) -> object:
    return context


def codes(report: MergeReport) -> list[tuple[str, str]]:
    return [(found.severity, found.code) for found in report.diagnostics]


@pytest.mark.contract("A-04", "D-13")
def test_four_sources_merge_in_a_fixed_order() -> None:
    report = merge_subagents(
        builtin=[general_purpose()],
        code=[SubAgent("z-code", "D")],
        user_files=LoadReport((in_file("m-user", "u/m-user.md"),)),
        shared_files=LoadReport((in_file("a-shared", "s/a-shared.md"),)),
        factories=[SubAgent.from_factory("made", make)],
    )
    assert report.roster.ids == ("general-purpose", "z-code", "made", "a-shared", "m-user")
    assert [entry.surface for entry in report.roster] == ["roster"] * 5
    assert report.diagnostics == ()
    assert merge_subagents().roster.ids == ()


@pytest.mark.contract("D-05")
def test_code_over_the_users_file_over_the_shared_file_over_the_builtin() -> None:
    user = LoadReport((in_file("a", "u/a.md"), in_file("b", "u/b.md"), in_file("general-purpose", "u/g.md")))
    shared = LoadReport((in_file("a", "s/a.md"), in_file("b", "s/b.md"), in_file("c", "s/c.md")))
    report = merge_subagents([general_purpose()], [SubAgent("a", "From code")], user, shared)
    found = {entry.agent_id: entry.description for entry in report.roster}
    assert found == {"general-purpose": "From u/g.md", "a": "From code", "b": "From u/b.md", "c": "From s/c.md"}
    assert report.roster.ids == ("general-purpose", "a", "b", "c")
    assert codes(report) == [("warning", "shadowed")] * 3 + [("info", "replaced_builtin")]
    assert all(diagnostic.path is not None for diagnostic in report.diagnostics)


@pytest.mark.contract("D-05")
def test_a_factory_outranks_files_too() -> None:
    report = merge_subagents(
        shared_files=LoadReport((in_file("made", "s/made.md"),)), factories=[SubAgent.from_factory("made", make, "Made")]
    )
    assert [entry.description for entry in report.roster] == ["Made"]


@pytest.mark.contract("D-05", "D-27")
def test_two_in_code_with_one_id_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="`a`"):
        merge_subagents(code=[SubAgent("a", "D"), SubAgent("b", "D", agent_id="a")])
    with pytest.raises(ConfigurationError, match="`a`"):
        merge_subagents(code=[SubAgent("a", "D")], factories=[SubAgent.from_factory("a", make)])


@pytest.mark.contract("D-02")
def test_a_tool_declaration_cannot_be_on_the_roster() -> None:
    with pytest.raises(ConfigurationError, match="surface"):
        merge_subagents(code=[SubAgent("a", "D", surface="tool")])


@pytest.mark.case("B099")
def test_a_refused_file_blocks_its_id_for_lower_sources(tmp_path: Path) -> None:
    for folder, text in (("user", "---\ndescription: a: b\n---\n"), ("shared", "---\ndescription: Powerful\n---\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.md").write_text(text)
    user, shared = load_subagents(tmp_path / "user"), load_subagents(tmp_path / "shared")
    report = merge_subagents(user_files=user, shared_files=shared)
    assert report.roster.ids == ()
    assert codes(report) == [("warning", "blocked")]
    with pytest.raises(UnknownId, match=r"x\.md.*line 2") as caught:
        report.roster.find("X")
    assert caught.value.code == "refused_agent"
    assert merge_subagents(code=[SubAgent("x", "D")], user_files=user, shared_files=shared).roster.find("x").description == "D"
    assert merge_subagents(user_files=shared, shared_files=user).roster.find("x").description == "Powerful"


@pytest.mark.case("B099")
def test_a_refused_id_is_not_taken_for_its_look_alike(tmp_path: Path) -> None:
    (tmp_path / "Code-Review.md").write_text("---\ndescription: a: b\n---\n")
    merged = merge_subagents(code=[SubAgent("code_review", "D")], shared_files=load_subagents(tmp_path)).roster
    assert merged.find("code_review").agent_id == "code_review"
    with pytest.raises(UnknownId, match=r"Code-Review\.md"):
        merged.find("Code-Review")


@pytest.mark.case("B099")
def test_a_refused_file_blocks_the_builtin_of_its_id() -> None:
    why = Diagnostic(severity="error", code="invalid_yaml", message="bad", remedy="mend it", path=Path("g.md"))
    report = merge_subagents([general_purpose()], shared_files=LoadReport((), (why,), (("general-purpose", why),)))
    assert report.roster.ids == ()


@pytest.mark.case("B091")
@pytest.mark.parametrize(
    "written",
    [
        "senior-research-analyst",
        "Senior Research Analyst",
        "senior_research_analyst\n",
        '"senior-research-analyst"',
        "SENIOR  RESEARCH\u00a0ANALYST",
        "seniorresearchanalyst",
        "\u200bsenior-research-analyst",
    ],
)
def test_an_id_is_found_in_the_spellings_of_models(written: str) -> None:
    assert roster("senior-research-analyst", "other").find(written).agent_id == "senior-research-analyst"


@pytest.mark.case("B091", "B120")
def test_look_alikes_are_told_and_need_the_exact_id() -> None:
    report = merge_subagents(code=[SubAgent("code-review", "D"), SubAgent("Code_Review", "D")])
    assert codes(report) == [("warning", "look_alike_ids")]
    assert report.roster.find("Code_Review").agent_id == "Code_Review"
    with pytest.raises(UnknownId, match=r"`code-review` and `Code_Review`") as caught:
        report.roster.find("code review")
    assert caught.value.code == "ambiguous_agent"


@pytest.mark.case("B062", "B097")
def test_an_unknown_id_names_what_is_near_and_what_there_is() -> None:
    with pytest.raises(UnknownId, match=r"did you mean `reviewer`") as caught:
        roster("reviewer", "researcher-of-law").find("reviewr")
    assert caught.value.remedy == "use one of `reviewer`, `researcher-of-law`"
    assert caught.value.code == "unknown_agent"
    with pytest.raises(UnknownId, match="no subagents"):
        roster().find("x")
    with pytest.raises(UnknownId) as caught:
        roster("a").find("x\n" * 400)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.contract("A-18")
def test_hidden_ones_can_be_spawned_but_are_not_listed_primary_ones_neither() -> None:
    merged = merge_subagents(
        code=[SubAgent("a", "D"), SubAgent("h", "D", hidden=True), SubAgent("p", "D", mode="primary")]
    ).roster
    assert [entry.agent_id for entry in merged.listed()] == ["a"]
    assert merged.find("h").agent_id == "h"
    with pytest.raises(UnknownId, match="primary"):
        merged.find("p")


@pytest.mark.contract("H-06", "D-03")
def test_what_is_available_depends_on_the_depth() -> None:
    limited = SubAgent("one", "D").with_availability(SubAgentAvailability.ROOT_ONLY)
    merged = merge_subagents(code=[limited, SubAgent("all", "D")]).roster
    assert merged.available(0, 3).ids == ("one", "all")
    assert merged.available(1, 3).ids == ("all",)
    assert merged.available(3, 3).ids == ()
    with pytest.raises(UnknownId):
        merged.available(1, 3).find("one")
