"""Races: a folder that becomes a link between the check and the use must not lead out."""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.config import Verdict
from retinue.workspace import FileError, WorkspaceFiles
from retinue.workspace.opening import Opener
from retinue.workspace.search import grep, walk

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Meddler:
    """Opens as another opener does, but first lets somebody change the tree, at the n-th opening."""

    def __init__(self, inner: Opener, when: int, change: Callable[[], None]) -> None:
        self.follows_links = inner.follows_links
        self._inner = inner
        self._left = when
        self._change = change

    def open(self, root: int, path: str, flags: int, *, links: bool = True) -> int:
        self._left -= 1
        if self._left == 0:
            self._change()
        return self._inner.open(root, path, flags, links=links)


def swap(root: Path, target: str) -> Callable[[], None]:
    """Puts a link in the place of the folder `d`."""

    def change() -> None:
        (root / "d").rename(root / "d.old")
        (root / "d").symlink_to(target)

    return change


@pytest.fixture
def folder(root: Path) -> Path:
    """`d/secret.txt` and `d/sub/secret.txt`, harmless."""
    (root / "d/sub").mkdir(parents=True)
    (root / "d/secret.txt").write_text("harmless")
    (root / "d/sub/secret.txt").write_text("harmless")
    return root


@pytest.mark.parametrize("when", range(1, 7))
@pytest.mark.parametrize("absolute", [False, True])
def test_a_swap_at_any_moment_does_not_lead_out(folder: Path, opener: Opener, when: int, absolute: bool) -> None:
    target = str(folder.parent / "outside") if absolute else "../outside"
    files = WorkspaceFiles(folder, opener=Meddler(opener, when, swap(folder, target)))
    found: list[str] = []
    actions: list[Callable[[], object]] = [
        lambda: found.append(files.read_text("d/secret.txt")),
        lambda: files.write_text("d/secret.txt", "written"),
        lambda: files.write_text("d/new/x", "written"),
        lambda: found.extend(entry.path for entry in walk(files)),
        lambda: found.extend(match.text for match in grep(files, "SECRET").matches),
    ]
    for action in actions:
        try:
            action()
        except FileError:
            pass
    assert "SECRET" not in found
    assert os.listdir(folder.parent / "outside") == ["secret.txt"]
    assert (folder.parent / "outside/secret.txt").read_text() == "SECRET"


@pytest.mark.parametrize("when", range(1, 5))
def test_a_swap_after_the_permission_does_not_lead_to_protected_places(folder: Path, opener: Opener, when: int) -> None:
    (folder / "subagents").mkdir()
    (folder / ".retinue").mkdir()
    (folder / ".retinue/secret.txt").write_text("SECRET")
    for target in ("subagents", ".retinue"):
        plain = WorkspaceFiles(folder, opener=opener)
        assert plain.verdict("d/secret.txt", writing=True) is Verdict.ALLOW
        files = WorkspaceFiles(folder, opener=Meddler(opener, when, swap(folder, target)))
        try:
            files.write_text("d/secret.txt", "written")
        except FileError:
            pass
        try:
            assert files.read_text("d/secret.txt") != "SECRET"
        except FileError:
            pass
        assert os.listdir(folder / "subagents") == []
        assert (folder / ".retinue/secret.txt").read_text() == "SECRET"
        if (folder / "d").is_symlink():
            (folder / "d").unlink()
            (folder / "d.old").rename(folder / "d")


def exchange(one: Path, other: Path) -> None:
    """Let two names change places at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def test_a_folder_that_flickers_never_leads_out(folder: Path, opener: Opener) -> None:
    files = WorkspaceFiles(folder, opener=opener)
    stop = threading.Event()
    (folder / "link").symlink_to("../outside")
    try:
        exchange(folder / "d", folder / "link")
    except (AttributeError, OSError):
        pytest.skip("names cannot be exchanged here")

    def flicker() -> None:
        while not stop.is_set():
            exchange(folder / "d", folder / "link")

    meddler = threading.Thread(target=flicker)
    meddler.start()
    outcomes: set[str] = set()
    try:
        for number in range(100_000):
            try:
                outcomes.add(files.read_text("d/secret.txt"))
            except FileError as error:
                outcomes.add(error.code)
            try:
                if number < 500:
                    files.write_text("d/x", "written")
            except FileError:
                pass
            if number > 1_000 and {"harmless", "outside"} <= outcomes:
                break
    finally:
        stop.set()
        meddler.join()
    assert {"harmless", "outside"} <= outcomes  # it did flicker
    assert "SECRET" not in outcomes
    assert os.listdir(folder.parent / "outside") == ["secret.txt"]
