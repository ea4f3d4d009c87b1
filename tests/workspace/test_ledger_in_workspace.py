"""A ledger that lies in the workspace, outside of `.retinue/`, is closed to every file tool, by whatever name or way."""

import os
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, HarnessAgent, PermissionRules, SubAgent
from retinue.config import Verdict
from retinue.models.port import ModelRequest
from retinue.testing import ScriptedModel, calls, results_of
from retinue.workspace import FileError, WorkspaceFiles, file_tools, protection
from retinue.workspace.protect import folded

pytestmark = pytest.mark.anyio

LIST: tuple[str, dict[str, str]] = ("list_files", {})
ALLOW = PermissionRules(allow=["*"])
WORD = "the-word-of-another-session"
NAMES = ("l.db", "l.db-wal", "l.db-shm", "l.db-journal", "l.db.owners", "l.db.owners/turn", "l.db.bak", "L.DB", "./x/../l.db")


def tries(name: str) -> list[tuple[str, dict[str, str]]]:
    """A call of each file tool that would touch this path."""
    return [
        ("read_file", {"path": name}),
        ("write_file", {"path": name, "content": "broken"}),
        ("edit_file", {"path": name, "old": "SQLite", "new": "broken"}),
        ("list_files", {"path": name}),
        ("grep_files", {"path": name, "pattern": "."}),
    ]


class Trier(ScriptedModel):
    """A model where the agent `by` makes these calls, and any other spawns it. Keeps what the calls gave."""

    def __init__(self, by: str, made: list[tuple[str, dict[str, str]]]) -> None:
        super().__init__(self._reply)
        self._by = by
        self._made = made
        self.results: list[str] = []

    def _reply(self, request: ModelRequest) -> Any:
        mine = request.agent_id == self._by
        if request.step > 1:
            if mine:
                self.results = results_of(request)
            return "done"
        return calls(*(self._made if mine else [("agent_spawn", {"agent_id": self._by, "task": "t"})]))


SHARED = SubAgent("shared", "D.", instructions="…", tools=[], workspace_mode="shared")
BELOW = SubAgent("below", "D.", workspace="data", workspace_mode="isolated")


@pytest.mark.contract("A-39")
@pytest.mark.parametrize("by", ["lead", "shared"])
@pytest.mark.parametrize("relative", [False, True])
async def test_no_tool_reads_writes_lists_or_searches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "free.txt").write_text(WORD)
    made = [call for name in NAMES for call in tries(name)]
    made += [
        LIST,
        ("list_files", {"pattern": "*"}),
        ("grep_files", {"pattern": "."}),
        ("read_file", {"path": "l.d"}),
    ]
    recorded = Trier(by, made)
    ledger = Path("l.db") if relative else tmp_path / "l.db"
    agent = HarnessAgent("lead", model=recorded, workspace=tmp_path, ledger=ledger, permissions=ALLOW, subagents=[SHARED])
    async with agent:
        assert (await agent.run(WORD)).status == "completed"
        assert (await agent.threads.list())[0].session_id  # still a ledger
    *refused, listed, fitting, found, near = recorded.results
    assert all("Denied" in one or "denied" in one or "no tool may" in one for one in refused), refused
    assert "l.db" not in listed + fitting + found + near
    assert "free.txt" in listed
    assert "free.txt" in fitting
    assert WORD in found
    assert not (tmp_path / "l.db.bak").exists()


@pytest.mark.parametrize("place", ["l.db", "link/l.db", "link.db"])
async def test_links_and_folders_of_children_do_not_lead_around_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "AGENTS.md").write_text("You look around.")
    (tmp_path / "data" / "free.txt").write_text("x")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "link.db").symlink_to("data/l.db")
    ledger = tmp_path / ("data/l.db" if place == "l.db" else place)
    made = [*tries("l.db"), LIST, ("grep_files", {"pattern": "."})]
    recorded = Trier("below", made)
    agent = HarnessAgent("lead", model=recorded, workspace=tmp_path, ledger=ledger, permissions=ALLOW, subagents=[BELOW])
    async with agent:
        assert (await agent.run("go")).status == "completed"
    *refused, listed, found = recorded.results
    assert all("enied" in one for one in refused), refused
    assert "free.txt" in listed
    assert "l.db" not in listed + found
    top = Trier("lead", [call for name in ("data/l.db", "link/l.db", "link.db", "link.db.owners/x") for call in tries(name)])
    async with HarnessAgent("lead", model=top, workspace=tmp_path, ledger=ledger, permissions=ALLOW) as agent:
        await agent.run("go")
    told = top.results
    protected = told if place == "link.db" else told[:15]
    assert all("enied" in one for one in protected), told


async def test_it_is_closed_to_a_plain_agent_and_to_a_child_of_a_factory(tmp_path: Path) -> None:
    ledger, made_calls = tmp_path / "l.db", [*tries("l.db"), LIST]
    plain = Trier("lead", made_calls)
    tools = file_tools(WorkspaceFiles(tmp_path))
    async with Agent("lead", model=plain, tools=tools, ledger=ledger, permissions=ALLOW) as agent:
        await agent.run("go")
    *refused, listed = plain.results
    assert all("enied" in one for one in refused)
    assert "l.db" not in listed

    made = Trier("worker", made_calls)
    worker = SubAgent.from_factory("worker", lambda _: HarnessAgent("w", model=made, workspace=tmp_path, ledger="memory"))
    async with Agent("lead", model=made, subagents=[worker], ledger=ledger, permissions=ALLOW) as agent:
        await agent.run("go")
    *refused, listed = made.results
    assert all("enied" in one for one in refused)
    assert "l.db" not in listed


def test_another_hard_link_is_another_name(root: Path) -> None:
    for folder in (root, root.parent):
        (folder / "l.db").write_text("SQLite")
        os.link(folder / "l.db", root / f"other-{folder.name}")
        files = WorkspaceFiles(root)
        files.reserve([folder / "l.db"])
        with pytest.raises(FileError, match="another name"):
            files.read_text(f"other-{folder.name}")


def test_a_workspace_among_the_ledgers_own_files_is_refused(root: Path) -> None:
    (root / "l.db.owners").mkdir()
    with pytest.raises(ConfigurationError, match="belongs to the ledger"):
        WorkspaceFiles(root / "l.db.owners").reserve([root / "l.db"])


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("a/l.db", Verdict.DENY), ("A/L.db-WAL", Verdict.DENY), ("a/l.db.owners/x", Verdict.DENY), ("a/l.dbx", Verdict.ALLOW)]
    + [(free, Verdict.ALLOW) for free in ("a", ".", "l.db", "b/a/l.db", "a/ml.db")],
)
def test_what_belongs_to_a_reserved_place(path: str, verdict: Verdict) -> None:
    assert protection(path, writing=True, reserved=[folded("a/l.db")]) is verdict


def test_names_that_begin_with_dots_are_below(root: Path) -> None:
    files = WorkspaceFiles(root)
    files.reserve([root / "..l.db"])
    assert files.verdict("..l.db", writing=True) is Verdict.DENY
