"""Fixtures of the tests of the workspace: a root with a secret beside it, files by either way of opening, descriptor counts."""

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from retinue.clock import SystemClock
from retinue.messages import CallRef
from retinue.tools import ToolContext, ToolOutput, ToolThreads
from retinue.workspace import WorkspaceFiles, file_tools
from retinue.workspace.opening import Openat2Opener, Opener, StepwiseOpener, default_opener


def make_opener(name: str) -> Opener:
    """The opener of a test parameter; skips where the kernel lacks it."""
    if name == "stepwise":
        return StepwiseOpener()
    if not isinstance(default_opener(), Openat2Opener):
        pytest.skip("no openat2 here")
    return Openat2Opener()


@pytest.fixture(params=["openat2", "stepwise"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Each way of opening paths."""
    return make_opener(request.param)


@pytest.fixture
def beneath() -> Opener:
    """The kernel's way, for what only it allows."""
    return make_opener("openat2")


@pytest.fixture(autouse=True)
def no_open_descriptors() -> Generator[None, None, None]:
    """No test may leave a descriptor open."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    left = {name for name in set(os.listdir("/proc/self/fd")) - before if os.path.exists(f"/proc/self/fd/{name}")}
    assert not {os.readlink(f"/proc/self/fd/{name}") for name in left if _is_file(name)}


def _is_file(name: str) -> bool:
    target = os.readlink(f"/proc/self/fd/{name}")
    return target.startswith("/") and not target.startswith(("/dev", "/proc"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty root; `secret.txt` lies beside it."""
    (tmp_path / "secret.txt").write_text("SECRET")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("SECRET")
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def files(root: Path, opener: Opener) -> WorkspaceFiles:
    """The root's files, by each way of opening."""
    return WorkspaceFiles(root, opener=opener)


@pytest.fixture
def call_tool(root: Path) -> Generator[Callable[..., ToolOutput], None, None]:
    """Calls a file tool by name with JSON text, on the root, and returns its output."""
    made = {one.name: one for one in file_tools(WorkspaceFiles(root))}
    threads = ToolThreads(1)

    async def run(name: str, arguments: str) -> ToolOutput:
        context = ToolContext(
            agent_id="a",
            user_id="",
            session_id="s",
            run_id="r",
            path=("a",),
            call=CallRef("m", 0),
            attempt=1,
            threads=threads,
        )
        return await made[name].run(arguments, context)

    def call(name: str, arguments: str = "") -> ToolOutput:
        return asyncio.run(run(name, arguments))

    yield call
    asyncio.run(threads.close(5, SystemClock()))
