"""A search or a listing that begins above a denied place does not show what is there."""

from pathlib import Path
from typing import Any

import pytest

from retinue import HarnessAgent, PermissionRules, SubAgent
from retinue.models.port import ModelRequest
from retinue.testing import ScriptedModel, calls, results_of

pytestmark = pytest.mark.anyio

WORD = "the-word"
CALLS: list[tuple[str, dict[str, str]]] = [
    ("grep_files", {"pattern": WORD}),
    ("list_files", {"pattern": "*.txt"}),
    ("list_files", {"path": "secret"}),
    ("read_file", {"path": "plans.tx"}),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with the word in an open file and in secret ones, and a link to the secret folder."""
    (tmp_path / "secret" / "deep").mkdir(parents=True)
    for name in ("open.txt", "secret/plans.txt", "secret/deep/more.txt"):
        (tmp_path / name).write_text(f"{WORD} of {name}\n")
    (tmp_path / "link").symlink_to("secret")
    return tmp_path


async def said(place: Path, by: str, rules: PermissionRules, made: list[tuple[str, dict[str, str]]]) -> list[str]:
    """What these calls of the agent `by` gave."""
    got: list[str] = []

    def reply(request: ModelRequest) -> Any:
        mine = request.agent_id == by
        if request.step > 1:
            got.extend(results_of(request) if mine else [])
            return "done"
        return calls(*(made if mine else [("agent_spawn", {"agent_id": by, "task": "t"})]))

    worker = SubAgent("worker", "D.", instructions="…", tools=[], workspace_mode="shared", requires_permission=False)
    async with HarnessAgent(
        "lead", model=ScriptedModel(reply), workspace=place, ledger="memory", subagents=[worker], permissions=rules
    ) as agent:
        assert (await agent.run("go")).status == "completed"
    return got


@pytest.mark.contract("D-29")
@pytest.mark.parametrize("by", ["lead", "worker"])
@pytest.mark.parametrize("glob", ["secret/*", "SECRET/*", "secret", "*/plans.txt"])
async def test_hits_in_denied_places_are_left_out_and_counted(place: Path, by: str, glob: str) -> None:
    rules = PermissionRules(deny=[f"grep_files({glob})", f"list_files({glob})"])
    found, fitting, below, near = await said(place, by, rules, CALLS)
    count = "2 paths were" if glob in ("secret/*", "SECRET/*") else "1 path was"
    assert "open.txt:1" in found
    assert "open.txt" in fitting
    assert "plans.txt" not in found + fitting + below + near
    for text in (found, fitting):
        assert f"{count} left out by permission rules" in text
    if glob != "*/plans.txt":
        assert "more.txt" not in found + fitting + below


async def test_a_search_leaves_out_what_may_not_be_read_and_a_listing_shows_the_names(place: Path) -> None:
    found, fitting, *_ = await said(place, "lead", PermissionRules(deny=["read_file(secret/*)"]), CALLS)
    assert "secret" not in found
    assert "secret/plans.txt" in fitting


async def test_a_tool_that_is_denied_as_a_whole_hides_nothing_from_others(place: Path) -> None:
    found, *_ = await said(place, "lead", PermissionRules(deny=["read_file"]), CALLS)
    assert "secret/plans.txt:1" in found
    assert "left out" not in found


async def test_nothing_found_still_says_what_was_left_out(place: Path) -> None:
    rules = PermissionRules(deny=["grep_files(secret/*)", "list_files(secret/*)"])
    made: list[tuple[str, dict[str, str]]] = [("grep_files", {"pattern": "plans"}), ("list_files", {"path": "link"})]
    found, listed = await said(place, "lead", rules, made)
    assert found == "[no line matches; 2 paths were left out by permission rules]"
    assert listed == "[`link` shows nothing; 2 paths were left out by permission rules]"


@pytest.mark.contract("D-29")
@pytest.mark.parametrize("by", ["lead", "worker"])
async def test_hits_in_places_that_would_have_to_be_asked_for_are_left_out_and_counted(place: Path, by: str) -> None:
    rules = PermissionRules(ask=["read_file(secret/*)", "list_files(secret/*)"])
    found, fitting, below, near = await said(place, by, rules, CALLS)
    assert "open.txt:1" in found
    assert "plans.txt" not in found + fitting + below + near
    for text in (found, fitting):
        assert "2 paths were left out by permission rules" in text


async def test_a_tool_that_is_asked_for_as_a_whole_hides_nothing_from_others(place: Path) -> None:
    found, *_ = await said(place, "lead", PermissionRules(ask=["read_file"]), CALLS[:2])
    assert "secret/plans.txt:1" in found
    assert "left out" not in found


async def test_a_place_that_was_asked_for_by_name_is_shown(place: Path) -> None:
    shown: list[str] = []

    def reply(request: ModelRequest) -> Any:
        if request.step > 1:
            shown.extend(results_of(request))
            return "done"
        return calls(("grep_files", {"pattern": WORD, "path": "secret"}), ("grep_files", {"pattern": WORD}))

    rules = PermissionRules(ask=["grep_files(secret*)"])
    async with HarnessAgent(
        "lead", model=ScriptedModel(reply), workspace=place, ledger="memory", permissions=rules, on_request=lambda _: True
    ) as agent:
        assert (await agent.run("go")).status == "completed"
    assert "secret/plans.txt:1" in shown[0]
    assert "secret" not in shown[1]
