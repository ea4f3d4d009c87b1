"""What permission rules see of a file tool's path: no spelling and no link hides the place that a call touches."""

import errno
import os
from pathlib import Path

import pytest

from retinue.workspace import WorkspaceFiles, file_tools
from retinue.workspace.errors import FileError
from retinue.workspace.opening import Opener


@pytest.fixture
def linked(root: Path) -> Path:
    """A root with `src/deep` and `notes`, where `notes/l` leads to `src` and `notes/f` to `src/x`."""
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "x").write_text("x")
    (root / "notes").mkdir()
    (root / "notes" / "l").symlink_to("../src")
    (root / "notes" / "f").symlink_to("../src/x")
    return root


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("src/x", ("src/x",)),
        ("./notes/../src//new/er", ("src/new/er",)),
        ("{root}/src/x", ("src/x",)),
        ("{root}/./src/../src/new", ("src/new",)),
        ("{root}", (".",)),
        ("notes/l", ("notes/l", "src")),
        ("notes/f", ("notes/f", "src/x")),
        ("notes/l/new/er", ("notes/l/new/er", "src/new/er")),
        ("{root}/notes/l/deep/new", ("notes/l/deep/new", "src/deep/new")),
        ("src/x/below", ("src/x/below",)),
        ("../secret.txt", ()),
        ("/etc/passwd", ()),
        ("", ()),
    ],
)
def test_the_names_of_a_place(linked: Path, beneath: Opener, path: str, places: tuple[str, ...]) -> None:
    assert WorkspaceFiles(linked, opener=beneath).places(path.format(root=linked)) == places


def test_a_root_named_through_a_link(linked: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(linked)
    files = WorkspaceFiles(tmp_path / "alias")
    assert files.places(f"{tmp_path}/alias/src/x") == files.places(f"{linked}/src/x") == ("src/x",)


def test_a_link_out_of_the_root_is_refused_elsewhere(linked: Path, files: WorkspaceFiles) -> None:
    (linked / "out").symlink_to("../outside")
    assert files.places("out/secret.txt") == ("out/secret.txt",)
    with pytest.raises(FileError):
        files.read_text("out/secret.txt")


def test_where_the_place_cannot_be_found_out_now_the_call_fails(linked: Path) -> None:
    class Exhausted:
        follows_links = True

        def open(self, root: int, path: str, flags: int, *, links: bool = True) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with pytest.raises(FileError, match="open files"):
        WorkspaceFiles(linked, opener=Exhausted()).places("notes/l/x")


@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file", "list_files", "grep_files"])
def test_every_file_tool_tells_its_places(linked: Path, beneath: Opener, name: str) -> None:
    made = {one.name: one for one in file_tools(WorkspaceFiles(linked, opener=beneath))}
    assert made[name].places({"path": "notes/l/x"}) == ("notes/l/x", "src/x")
    assert made[name].places({"path": f"{linked}/src/x"}) == ("src/x",)
    assert made[name].places({}) == (".",)
    assert made[name].places({"path": 3}) == ()
