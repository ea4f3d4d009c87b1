"""Walking and searching: bounded, without what is skipped, and never stuck on a pattern."""

import os
from pathlib import Path

import pytest

from retinue.workspace import FileError, WorkspaceFiles
from retinue.workspace.matching import LiteralMatcher, RegexMatcher, matcher_for
from retinue.workspace.search import Match, grep, near_paths, walk


@pytest.fixture
def tree(files: WorkspaceFiles, root: Path) -> WorkspaceFiles:
    """A small project."""
    for path, text in {
        "b/two.py": "x = 2\r\nneedle = 3\n",
        "b/deep/three.txt": "a needle\nnothing\nNeedle",
        "a.py": "needle",
        ".git/config": "needle",
        "b/.git": "gitdir: needle",
        ".retinue/ledger": "needle",
        "agents/x/tasks/s.json": "needle",
        "agents/x/workspace/w.txt": "w",
        ".retinue-0011.tmp": "needle",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, newline="")
    (root / "binary").write_bytes(b"needle\0")
    (root / "link").symlink_to("b")
    (root / "out").symlink_to("../outside")
    return files


def test_walk_is_sorted_and_skips(tree: WorkspaceFiles) -> None:
    assert [entry.path for entry in walk(tree) if entry.kind == "file"] == [
        "a.py",
        "agents/x/workspace/w.txt",
        "b/deep/three.txt",
        "b/two.py",
        "binary",
    ]
    assert [entry.path for entry in walk(tree) if entry.kind == "link"] == ["link", "out"]
    assert len(list(walk(tree, most=3))) <= 3


@pytest.mark.parametrize("pattern", ["needle", "ne+dle", "need[l]e"])
def test_grep(tree: WorkspaceFiles, pattern: str) -> None:
    found = grep(tree, pattern)
    assert found.matches == [
        Match("a.py", 1, "needle"),
        Match("b/deep/three.txt", 1, "a needle"),
        Match("b/two.py", 2, "needle = 3"),
    ]
    assert found.complete
    assert [m.path for m in grep(tree, pattern, "b").matches] == ["b/deep/three.txt", "b/two.py"]
    assert [m.path for m in grep(tree, pattern, "b/two.py").matches] == ["b/two.py"]
    assert [m.path for m in grep(tree, pattern, glob="*.py").matches] == ["a.py", "b/two.py"]
    assert [m.path for m in grep(tree, pattern, "b", glob="deep/*").matches] == ["b/deep/three.txt"]
    some = grep(tree, pattern, most=2)
    assert (len(some.matches), some.complete) == (2, False)
    assert grep(tree, pattern, most=3).complete


def test_flags_and_anchors(tree: WorkspaceFiles) -> None:
    assert [m.line for m in grep(tree, "(?i)^needle$", "b").matches] == [3]
    assert grep(tree, "nowhere").matches == []


def test_refusals(tree: WorkspaceFiles) -> None:
    for pattern in ("(", "[a", "a{2,1}", "(?P<x", "*"):
        with pytest.raises(FileError, match="no regular expression") as caught:
            grep(tree, pattern)
        assert caught.value.code == "invalid_pattern"
    for path in ("../outside", ".retinue", "missing"):
        with pytest.raises(FileError):
            grep(tree, "x", path)


def test_a_pattern_that_never_ends_is_stopped() -> None:
    with RegexMatcher("(a+)+$", seconds=0.3) as matcher, pytest.raises(FileError, match="took too long") as caught:
        matcher.lines("a" * 60 + "b", 1)
    assert caught.value.code == "timeout"


def test_plain_text_needs_no_process() -> None:
    assert isinstance(matcher_for("C:/Users/x y"), LiteralMatcher)
    assert isinstance(matcher_for("a|b"), RegexMatcher)
    assert LiteralMatcher("x").lines("x\ny\nx\nx", 2) == [0, 2]


@pytest.mark.parametrize("text", ["", "\n", "😀 needle\n\ud800needle", "needle\n" * 100_000])
def test_both_matchers_agree(text: str) -> None:
    with RegexMatcher("needle") as matcher:
        assert matcher.lines(text, 7) == LiteralMatcher("needle").lines(text, 7)


def test_names_that_were_meant(tree: WorkspaceFiles) -> None:
    assert near_paths(tree, "b/twoo.py") == ["b/two.py"]
    assert near_paths(tree, "A.PY") == ["a.py"]
    assert near_paths(tree, "three.txt") == ["b/deep/three.txt"]
    assert near_paths(tree, "b/nowhere/two.py") == ["b/two.py"]
    assert near_paths(tree, ".retinue/ledge") == []


def test_large_files_are_counted(tree: WorkspaceFiles, root: Path) -> None:
    with open(root / "big", "wb") as file:
        os.truncate(file.fileno(), 11 * 1024 * 1024)
    assert grep(tree, "needle").skipped == 1


def test_unreadable_names_do_not_break_a_search(tree: WorkspaceFiles, root: Path) -> None:
    with open(os.fsencode(root) + b"/\xff.txt", "w") as file:
        file.write("needle")
    assert any(m.path == "\udcff.txt" for m in grep(tree, "needle").matches)
