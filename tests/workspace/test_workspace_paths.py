"""Paths and globs as pure functions."""

import os
import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.workspace.errors import FileError
from retinue.workspace.paths import glob_matches, normalise, shown

ROOTS = ("/ws/root", "/link/root")


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("a/b.txt", "a/b.txt"),
        ("./a//b.txt/", "a/b.txt"),
        ("a/../b", "b"),
        (".", "."),
        ("a/..", "."),
        ("/ws/root/a", "a"),
        ("/ws/root", "."),
        ("//ws//root/./x/../a", "a"),
        ("/link/root/a", "a"),
        ("a b/ü\n.txt", "a b/ü\n.txt"),
        ("...", "..."),
        ("a\\b", "a\\b"),
    ],
)
def test_accepted(path: str, clean: str) -> None:
    assert normalise(path, ROOTS) == clean


@pytest.mark.case("B082", "B090")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "invalid_path"),
        ("   ", "invalid_path"),
        ("a\0b", "invalid_path"),
        ("x" * 256, "invalid_path"),
        ("é" * 128, "invalid_path"),
        ("a/" * 3_000, "invalid_path"),
        ("\ud800", "invalid_path"),
        ("..", "outside"),
        ("../x", "outside"),
        ("a/../../x", "outside"),
        ("/etc/passwd", "outside"),
        ("/ws/rootx/a", "outside"),
        ("/ws/root/../x", "outside"),
        ("/ws/root/../../etc/passwd", "outside"),
        ("~/x", "outside"),
        ("~", "outside"),
    ],
)
def test_refused_with_a_clear_text(path: str, code: str) -> None:
    with pytest.raises(FileError) as caught:
        normalise(path, ROOTS)
    assert caught.value.code == code
    assert caught.value.remedy
    assert len(str(caught.value)) < 400
    assert "\0" not in str(caught.value)
    str(caught.value).encode()


def test_a_root_of_everything() -> None:
    assert normalise("/etc/x", ("/",)) == "etc/x"


PARTS = st.sampled_from(["..", ".", "", "a", "b", "...", ".. ", "..\u200b", "‥", "．．", "~", "%2e%2e", "..\\..", "ws", "root"])


@pytest.mark.case("B090")
@given(st.lists(PARTS, min_size=1, max_size=8).map("/".join) | st.text(alphabet="./a~\0\n\ud800é", max_size=12))
def test_what_is_accepted_is_below_the_root(path: str) -> None:
    try:
        clean = normalise(path, ROOTS)
    except FileError:
        return
    assert not clean.startswith("/")
    assert ".." not in clean.split("/")
    assert clean == posixpath.normpath(clean)
    assert os.path.normpath(os.path.join("/ws/root", clean)).startswith("/ws/root")


def test_shown_is_one_bounded_line() -> None:
    assert shown("a\nb\x1b") == "`a\\nb\\x1b`"
    assert len(shown("x" * 10_000)) < 300


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a/b/c.py", "*.py", True),
        ("c.py", "*.PY", False),
        ("a/b/c.py", "a/*.py", False),
        ("a/b/c.py", "a/**/*.py", True),
        ("a/c.py", "a/**/*.py", True),
        ("a/b/c.py", "**/c.py", True),
        ("c.py", "**/c.py", True),
        ("a/b/c.py", "a/**", True),
        ("a/b/c.py", "./a/b/*", True),
        ("a/b/c.py", "**", True),
        ("a/b/c.py", "**/b", False),
        ("x.tsx", "*.{ts,tsx}", True),
        ("x.js", "*.{ts,tsx}", False),
        ("src/x.ts", "{src,lib}/*.{ts,js}", True),
        ("a{b", "a{b", True),
        ("[x", "[x", True),
        ("C:\\Users\\x", "C:\\Users\\x", True),
    ],
)
@pytest.mark.case("B178")
def test_globs(path: str, pattern: str, fits: bool) -> None:
    assert glob_matches(path, pattern) is fits


@given(st.text(alphabet="a*/{},[]?", max_size=30))
def test_any_glob_ends(pattern: str) -> None:
    glob_matches("a/" * 30 + "a", pattern)
    glob_matches("a/" * 30 + "b", "**/a/" * 30 + "b" + pattern)
