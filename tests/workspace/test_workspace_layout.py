"""The workspace folder: opening, its own state, instructions, trust."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from retinue.errors import ConfigurationError
from retinue.workspace import Workspace


def invalid(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Workspace.open(path)
    assert caught.value.code == "invalid_workspace"
    assert caught.value.remedy
    return str(caught.value)


def test_opening_makes_nothing(root: Path) -> None:
    workspace = Workspace.open(root)
    assert workspace.root == root
    assert workspace.ledger_path == root / ".retinue/ledger.sqlite3"
    assert workspace.subagents_dir == root / "subagents"
    assert workspace.instructions_path == root / "AGENTS.md"
    assert workspace.read_instructions() == ""
    assert not workspace.is_trusted()
    assert os.listdir(root) == []


def test_folders_that_cannot_be(root: Path) -> None:
    (root / "file").write_text("")
    assert "does not exist" in invalid(root / "missing")
    assert not (root / "missing").exists()
    assert "is not a directory" in invalid(root / "file")
    assert "cannot be reached" in invalid(root / "file/x")
    assert "no path" in invalid(Path("a\0b"))


@pytest.fixture
def as_nobody() -> Generator[Path, None, None]:
    """A folder below /tmp that belongs to nobody in particular, seen without root's rights."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    before = os.geteuid()
    if before == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(before)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_rights_are_checked(as_nobody: Path) -> None:
    Workspace.open(as_nobody)
    as_nobody.chmod(0o300)
    assert "cannot be read" in invalid(as_nobody)
    as_nobody.chmod(0o500)
    assert "cannot be written" in invalid(as_nobody)
    as_nobody.chmod(0)
    assert "cannot be reached" in invalid(as_nobody / "x")


def test_state_is_private_and_ignored(root: Path) -> None:
    workspace = Workspace.open(root)
    for _ in range(2):
        assert workspace.ensure_state() == root / ".retinue"
        assert stat.S_IMODE((root / ".retinue").stat().st_mode) == 0o700
        assert (root / ".retinue/.gitignore").read_text() == "*\n"
        (root / ".retinue").chmod(0o755)


@pytest.mark.case("B084")
def test_state_that_leads_elsewhere_is_refused(root: Path) -> None:
    (root / ".retinue").symlink_to("../outside")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        Workspace.open(root).ensure_state()
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


@pytest.mark.contract("A-10", "D-31")
@pytest.mark.case("B082", "B086")
def test_workspaces_of_agents(root: Path) -> None:
    workspace = Workspace.open(root)
    assert workspace.agent_workspace("team/writer") == root / "agents/team%2Fwriter/workspace"
    assert (root / "agents/team%2Fwriter/workspace").is_dir()
    assert workspace.tasks_dir("a") == root / "agents/a/tasks"
    for name in ("../x", "a/../../x", "/abs", "C:\\x", "..", "", "a\0b", "x" * 200, "a\nb"):
        with pytest.raises(ConfigurationError):
            workspace.agent_workspace(name)
    (root / "agents/b").symlink_to("../../outside")
    (root / "agents/c").write_text("")
    for name in ("b", "c"):
        with pytest.raises(ConfigurationError):
            workspace.agent_workspace(name)
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


@pytest.mark.case("B178", "B108")
def test_instructions(root: Path) -> None:
    workspace = Workspace.open(root)
    (root / "AGENTS.md").write_bytes(b"\xef\xbb\xbfBe br\xc3\xa4v. \xff")
    assert workspace.read_instructions() == "Be bräv. \ufffd"


def test_instructions_that_cannot_be_used(root: Path) -> None:
    workspace = Workspace.open(root)
    (root / "AGENTS.md").symlink_to("../secret.txt")
    with pytest.raises(ConfigurationError, match=r"out of the workspace|not followed"):
        workspace.read_instructions()
    (root / "AGENTS.md").unlink()
    (root / "AGENTS.md").write_text("x" * 2_000_000)
    with pytest.raises(ConfigurationError, match="larger"):
        workspace.read_instructions()


@pytest.mark.contract("D-23")
def test_trust_is_of_this_folder_and_these_files(root: Path) -> None:
    workspace = Workspace.open(root)
    workspace.trust("f1")
    assert Workspace.open(root).is_trusted()
    assert workspace.is_trusted("f1")
    assert not workspace.is_trusted("f2")
    workspace.trust("f2")
    assert workspace.is_trusted("f2")
    assert (root / ".retinue/.gitignore").exists()


@pytest.mark.contract("D-23")
def test_trust_does_not_travel_with_a_folder(root: Path) -> None:
    Workspace.open(root).trust()
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    assert not Workspace.open(copy).is_trusted()
    shutil.rmtree(root)
    copy.rename(root)  # even under the old path
    assert not Workspace.open(root).is_trusted()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"place": null}', "\xff", json.dumps({"version": 1})])
def test_a_damaged_record_is_no_trust(root: Path, text: str) -> None:
    workspace = Workspace.open(root)
    workspace.ensure_state()
    (root / ".retinue/trust.json").write_text(text, encoding="latin-1")
    assert not workspace.is_trusted()
