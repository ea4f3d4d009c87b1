"""What parents and children are told (A-03, A-13)."""

import pytest

from retinue.subagents.declaration import SubAgent
from retinue.subagents.prompts import child_instructions, roster_section
from retinue.subagents.registry import Roster, merge_subagents


def roster(*declarations: SubAgent) -> Roster:
    return merge_subagents(code=declarations).roster


def many(count: int, size: int) -> Roster:
    return roster(*(SubAgent(f"agent-{number:03}", "d" * size) for number in range(count)))


@pytest.mark.contract("A-03")
def test_the_section_explains_the_tools_and_lists_each_id_once() -> None:
    text = roster_section(roster(SubAgent("reviewer", "Reviews a\n  change"), SubAgent("writer", "Writes")))
    assert text.startswith("## Subagents\n")
    for word in ("agent_spawn", "agent_send", "agent_list", "agent_key", "task_output", "Prefer answering the user"):
        assert word in text
    assert text.endswith("Available agent ids:\n\n- `reviewer`: Reviews a change\n- `writer`: Writes")
    assert text.count("`reviewer`") == 1


@pytest.mark.contract("A-03")
def test_without_background_no_task_tool_is_spoken_of() -> None:
    assert "task_" not in roster_section(roster(SubAgent("a", "D")), background=False)


@pytest.mark.case("B097", "B100")
def test_nothing_is_said_where_there_is_nobody() -> None:
    assert roster_section(roster()) == ""
    assert roster_section(roster(SubAgent("a", "D", hidden=True))) == ""


@pytest.mark.case("B097")
def test_only_real_ids_appear() -> None:
    lines = roster_section(roster(SubAgent("only-one", "D"))).splitlines()
    assert [line for line in lines if line.startswith("- `") and not line.startswith("- `agent_")] == ["- `only-one`: D"]


@pytest.mark.contract("A-17")
def test_the_name_for_people_is_not_in_the_prompt() -> None:
    declared = SubAgent("team/lawyer", "Checks licences")
    assert "`team/lawyer`: Checks licences" in roster_section(roster(declared))


def test_a_description_is_cut_and_kept_on_one_line() -> None:
    text = roster_section(roster(SubAgent("a", "word\n\n## Heading " * 200)), description_characters=50)
    line = text.splitlines()[-1]
    assert line.startswith("- `a`: word ## Heading")
    assert line.endswith("…")
    assert len(line) <= len("- `a`: ") + 50


@pytest.mark.parametrize(("count", "size"), [(3, 10), (100, 300), (400, 300), (900, 10)])
def test_the_catalogue_is_capped_as_a_whole_ids_outlive_descriptions(count: int, size: int) -> None:
    text = roster_section(many(count, size), catalogue_characters=6_000)
    catalogue = text.partition("Available agent ids:\n\n")[2]
    assert len(catalogue) <= 6_000
    shown = catalogue.count("- `agent-")
    assert shown == count or f"({count - shown} more" in catalogue
    if count == 100:
        assert shown == count


@pytest.mark.contract("A-13")
def test_a_child_is_told_that_it_is_one() -> None:
    text = child_instructions("Review.\n\n", leaf=False)
    assert text.startswith("Review.\n\n## Subagent context\n")
    for word in ("subagent", "Stay on the task", "final message is your report"):
        assert word in text
    assert child_instructions(None, leaf=False) == child_instructions("  ", leaf=False) == text.removeprefix("Review.\n\n")


@pytest.mark.contract("A-13", "A-23")
def test_only_a_leaf_is_told_not_to_spawn() -> None:
    assert "cannot start subagents" in child_instructions("B", leaf=True)
    assert "cannot start subagents" not in child_instructions("B", leaf=False)
    assert child_instructions("B", leaf=True).startswith(child_instructions("B", leaf=False))


@pytest.mark.contract("A-03")
def test_the_same_roster_gives_the_same_bytes() -> None:
    assert roster_section(many(5, 20)) == roster_section(many(5, 20))
