"""The file API, by both ways of opening: contained, atomic, protected, without leaks."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.workspace import FileError, FileInfo, WorkspaceFiles, Written
from retinue.workspace.content import MAX_BYTES
from retinue.workspace.opening import Openat2Opener, Opener, StepwiseOpener, default_opener


def refused(code: str, action: Callable[[], object]) -> str:
    with pytest.raises(FileError) as caught:
        action()
    assert caught.value.code == code, str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def test_write_read_list_stat(files: WorkspaceFiles, root: Path) -> None:
    written = files.write_text("a/b/c.txt", "grüße\r\n")
    assert written == Written("a/b/c.txt", True, 9)
    assert files.read_text("./a//b/../b/c.txt") == "grüße\r\n"
    assert files.read_text(str(root / "a/b/c.txt")) == "grüße\r\n"
    assert files.read_bytes("a/b/c.txt") == "grüße\r\n".encode()
    assert not files.write_text("a/b/c.txt", "x").created
    files.write_text("z", "zz")
    assert files.children() == [FileInfo("a", "directory", 0), FileInfo("z", "file", 2)]
    assert files.children("a/b") == [FileInfo("a/b/c.txt", "file", 1)]
    assert files.stat("a/b/c.txt") == FileInfo("a/b/c.txt", "file", 1)
    assert files.stat(".").kind == "directory"
    assert os.listdir(root / "a/b") == ["c.txt"]  # no temporary file


@pytest.mark.case("B162")
@pytest.mark.parametrize("name", ["a b", 'qu"ote', "unicode ü☃", "dot.", "#hash", "%25", "-dash", "new\nline", "*"])
def test_unusual_names(tmp_path: Path, opener: Opener, name: str) -> None:
    (tmp_path / name).mkdir()
    files = WorkspaceFiles(tmp_path / name, opener=opener)
    files.write_text(f"{name}/{name}.txt", name)
    assert files.read_text(f"{name}/{name}.txt") == name


@pytest.mark.case("B090", "B084")
@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "a/../../secret.txt", "out/secret.txt", "out", "file", "abs"])
def test_nothing_outside_is_read_or_written(files: WorkspaceFiles, root: Path, path: str) -> None:
    (root / "out").symlink_to("../outside")
    (root / "file").symlink_to("../secret.txt")
    (root / "abs").symlink_to("/etc/passwd")
    refused("outside", lambda: files.read_text(path))
    refused("outside", lambda: files.stat(path))
    refused("outside", lambda: files.write_text(path, "x"))
    refused("outside", lambda: files.children(path))
    assert files.verdict(path, writing=False) is Verdict.DENY
    assert files.verdict(path, writing=True) is Verdict.DENY
    assert (root.parent / "secret.txt").read_text() == "SECRET"


def test_new_files_are_not_made_outside(files: WorkspaceFiles, root: Path) -> None:
    (root / "out").symlink_to("../outside")
    refused("outside", lambda: files.write_text("out/new/x.txt", "x"))
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


def test_inner_links_are_followed_by_the_kernel_only(root: Path, beneath: Opener) -> None:
    (root / "real").mkdir()
    (root / "real/x.txt").write_text("x")
    (root / "link").symlink_to("real")
    (root / "deep").symlink_to("link/../real")
    (root / "file").symlink_to("real/x.txt")
    files = WorkspaceFiles(root, opener=beneath)
    assert files.read_text("link/x.txt") == files.read_text("deep/x.txt") == files.read_text("file") == "x"
    assert files.stat("link/x.txt").path == "real/x.txt"
    assert files.write_text("file", "y").path == "real/x.txt"
    assert (root / "file").is_symlink()
    assert files.write_text("link/new/z.txt", "z").path == "real/new/z.txt"
    assert (root / "real/x.txt").read_text() == "y"
    careful = WorkspaceFiles(root, opener=StepwiseOpener())
    assert "symbolic link" in refused("outside", lambda: careful.read_text("link/x.txt"))
    refused("outside", lambda: careful.read_text("file"))
    refused("outside", lambda: careful.write_text("file", "n"))
    refused("outside", lambda: careful.write_text("link/x.txt", "n"))
    assert (root / "real/x.txt").read_text() == "y"


def test_loops_and_magic_links(files: WorkspaceFiles, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    (root / "magic").symlink_to("/proc/self/root/etc/passwd")
    refused("outside", lambda: files.read_text("loop"))
    refused("outside", lambda: files.read_text("magic"))


def test_a_dangling_link_becomes_a_file_inside(root: Path, beneath: Opener) -> None:
    (root / "dangling").symlink_to("nowhere")
    files = WorkspaceFiles(root, opener=beneath)
    files.write_text("dangling", "x")
    assert os.listdir(root) == ["dangling"]
    assert not (root / "dangling").is_symlink()
    (root / "folder").symlink_to("nowhere")
    refused("outside", lambda: files.write_text("folder/x", "x"))


@pytest.mark.contract("A-39")
@pytest.mark.parametrize(
    "path", [".retinue/ledger.sqlite3", ".RETINUE/ledger.sqlite3", "agents/a/tasks/s.json", "./x/../.retinue"]
)
def test_state_is_closed(files: WorkspaceFiles, root: Path, path: str) -> None:
    (root / ".retinue").mkdir()
    (root / ".retinue/ledger.sqlite3").write_text("L")
    (root / "agents/a/tasks").mkdir(parents=True)
    (root / "agents/a/tasks/s.json").write_text("{}")
    refused("protected", lambda: files.read_text(path))
    refused("protected", lambda: files.stat(path))
    refused("protected", lambda: files.children(path))
    refused("protected", lambda: files.write_text(path, "x"))
    assert files.verdict(path, writing=False) is Verdict.DENY
    assert files.verdict(path, writing=True) is Verdict.DENY
    assert files.children() == [FileInfo("agents", "directory", 0)]
    assert files.children("agents/a") == []
    assert (root / ".retinue/ledger.sqlite3").read_text() == "L"


def test_a_link_does_not_get_around_protection(root: Path, beneath: Opener) -> None:
    (root / ".retinue").mkdir()
    (root / ".retinue/x").write_text("L")
    (root / "subagents").mkdir()
    (root / "AGENTS.md").write_text("A")
    (root / "state").symlink_to(".retinue")
    (root / "subs").symlink_to("subagents")
    (root / "notes.md").symlink_to("AGENTS.md")
    files = WorkspaceFiles(root, opener=beneath)
    refused("protected", lambda: files.read_text("state/x"))
    refused("protected", lambda: files.children("state"))
    refused("protected", lambda: files.write_text("state/y", "y"))
    assert "`subagents/y.md`" in refused("protected", lambda: files.write_text("subs/y.md", "y"))
    refused("protected", lambda: files.write_text("subs/new/y.md", "y"))
    refused("protected", lambda: files.write_text("notes.md", "y"))
    assert files.read_text("notes.md") == "A"
    for path in ("state/x", "state/new"):
        assert files.verdict(path, writing=True) is Verdict.DENY
    assert files.verdict("state/x", writing=False) is Verdict.DENY
    assert files.verdict("subs/y.md", writing=True) is Verdict.DENY  # it would be refused: the real path is asked for
    assert files.verdict("notes.md", writing=True) is Verdict.DENY
    assert files.verdict("subagents/y.md", writing=True) is Verdict.ASK
    assert files.verdict("subs/y.md", writing=False) is Verdict.ALLOW
    assert os.listdir(root / "subagents") == []
    assert os.listdir(root / ".retinue") == ["x"]


def test_a_hard_link_does_not_get_around_protection(files: WorkspaceFiles, root: Path) -> None:
    (root / ".retinue/owners").mkdir(parents=True)
    (root / "agents/a/tasks").mkdir(parents=True)
    for number, name in enumerate((".retinue/owners/x", "agents/a/tasks/s.json")):
        (root / name).write_text("L")
        os.link(root / name, root / f"other{number}")
        refused("protected", lambda number=number: files.read_text(f"other{number}"))
        assert files.verdict(f"other{number}", writing=False) is Verdict.DENY
        files.write_text(f"other{number}", "x")  # takes the name, not the file
        assert (root / name).read_text() == "L"
    (root / "one").write_text("1")
    os.link(root / "one", root / "two")
    assert files.read_text("two") == "1"


def test_faults_have_codes(files: WorkspaceFiles, root: Path) -> None:
    (root / "dir").mkdir()
    (root / "file").write_text("x")
    (root / "bin").write_bytes(b"a\0b")
    (root / "latin").write_bytes(b"caf\xe9")
    os.mkfifo(root / "pipe")
    refused("missing", lambda: files.read_text("nope"))
    refused("missing", lambda: files.read_text("nope/deeper"))
    refused("not_a_file", lambda: files.read_text("dir"))
    refused("not_a_file", lambda: files.write_text("dir", "x"))
    refused("not_a_file", lambda: files.write_text(".", "x"))
    refused("not_a_file", lambda: files.read_text("pipe"))  # and does not wait for a writer
    refused("not_a_file", lambda: files.write_text("pipe", "x"))
    refused("not_a_directory", lambda: files.read_text("file/x"))
    refused("not_a_directory", lambda: files.write_text("file/x", "x"))
    refused("not_a_directory", lambda: files.children("file"))
    refused("binary", lambda: files.read_text("bin"))
    refused("binary", lambda: files.edit_text("latin", str.upper))
    assert files.read_text("latin") == "caf\ufffd"
    refused("too_large", lambda: files.read_bytes("file", max_bytes=0))
    assert files.read_bytes("file", max_bytes=1) == b"x"
    refused("too_large", lambda: files.write_text("file", "x" * (MAX_BYTES + 1)))
    refused("failed", lambda: files.write_text("file", "\ud800"))
    assert (root / "file").read_text() == "x"
    assert sorted(os.listdir(root)) == ["bin", "dir", "file", "latin", "pipe"]


def test_the_mode_is_kept(files: WorkspaceFiles, root: Path) -> None:
    files.write_text("run.sh", "1")
    (root / "run.sh").chmod(0o751)
    files.write_text("run.sh", "2")
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o751


def test_an_edit_starts_again_if_the_file_has_changed(files: WorkspaceFiles, root: Path) -> None:
    (root / "x").write_text("a")
    seen: list[str] = []

    def change(text: str) -> str:
        seen.append(text)
        if len(seen) == 1:
            (root / "x").write_text("other")  # somebody else
        return text + "!"

    files.edit_text("x", change)
    assert seen == ["a", "other"]
    assert (root / "x").read_text() == "other!"

    def never(text: str) -> str:
        (root / "x").write_text(text + "?")
        return text

    refused("changed", lambda: files.edit_text("x", never))


def test_edits_at_once_are_not_lost(files: WorkspaceFiles, root: Path) -> None:
    (root / "x").write_text("")

    def edit() -> None:
        files.edit_text("x", lambda text: text + "x")

    workers = [threading.Thread(target=edit) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (root / "x").read_text() == "x" * 8


def test_another_root_in_its_place_is_refused(files: WorkspaceFiles, root: Path) -> None:
    root.rename(root.parent / "moved")
    refused("changed", lambda: files.read_text("x"))
    (root.parent / "outside").rename(root)
    refused("changed", lambda: files.read_text("secret.txt"))
    root.rename(root.parent / "outside")
    root.symlink_to("outside")
    refused("changed", lambda: files.read_text("secret.txt"))


def test_roots_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / ".retinue/x").mkdir(parents=True)
    for path in ("missing", "file", ".retinue/x"):
        with pytest.raises(ConfigurationError):
            WorkspaceFiles(tmp_path / path)


def test_a_root_behind_a_link_is_known_by_both_names(tmp_path: Path, opener: Opener) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_text("x")
    (tmp_path / "link").symlink_to("real")
    files = WorkspaceFiles(tmp_path / "link", opener=opener)
    assert files.read_text(str(tmp_path / "link/x")) == files.read_text(str(tmp_path / "real/x")) == "x"


def test_the_default_is_the_safest_there_is() -> None:
    assert isinstance(default_opener(), (Openat2Opener, StepwiseOpener))


SPELLINGS = st.lists(
    st.sampled_from(["..", ".", "", "in", "out", "up", "secret.txt", "root", ".retinue", ".Retinue", "x", "file", "\u2025"]),
    min_size=1,
    max_size=7,
).map("/".join)


@pytest.mark.case("B090")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=SPELLINGS)
def test_no_spelling_reads_or_writes_what_is_not_below(files: WorkspaceFiles, root: Path, path: str) -> None:
    if not (root / "in").exists():
        (root / "in").mkdir()
        (root / ".retinue").mkdir()
        (root / ".retinue/secret.txt").write_text("SECRET")
        (root / "out").symlink_to("../outside")
        (root / "in/up").symlink_to("../..")
        (root / "in/root").symlink_to("..")
        (root / "file").symlink_to("../secret.txt")
    try:
        assert files.read_text(path) != "SECRET"
    except FileError:
        pass
    if not path.endswith(("in", "up", "root")):
        try:
            files.write_text(path, "WRITTEN")
        except FileError:
            pass
    assert (root.parent / "secret.txt").read_text() == "SECRET"
    assert sorted(os.listdir(root.parent)) == ["outside", "root", "secret.txt"]
    assert os.listdir(root.parent / "outside") == ["secret.txt"]
    assert (root.parent / "outside/secret.txt").read_text() == "SECRET"
    assert (root / ".retinue/secret.txt").read_text() == "SECRET"
    assert os.listdir(root / ".retinue") == ["secret.txt"]
