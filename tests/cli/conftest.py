"""The command line as a process of its own, with pipes or with a terminal."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.testing import StrictProvider


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment_of(**extra: str) -> dict[str, str]:
    """The environment without what a developer's machine may have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETINUE_", "OPENAI_", "NO_COLOR"))}
    return {**kept, "PYTHONUTF8": "1", "TERM": "dumb", **extra}


COMMAND = (sys.executable, "-m", "retinue.cli")


class Process:
    """A running command with pipes. Killed at the end of the test if it is still there."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    async def ended(self) -> Ended:
        out, err = await self.process.communicate()
        return Ended(self.process.returncode or 0, (out or b"").decode(), err.decode())


class Terminal:
    """A running command whose three streams are one terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._more = asyncio.Event()

    def read(self) -> None:
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the other side has been closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self.shown += data.decode("utf-8", "replace")
        self._more.set()

    async def until(self, text: str) -> str:
        """Wait until `text` has been shown; gives what came before and takes it away."""
        while text not in self.shown:
            self._more.clear()
            await self._more.wait()
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def ended(self) -> int:
        return await self.process.wait()


class CommandLine:
    """Runs `retinue` in a workspace."""

    def __init__(self, workspace: Path, provider: StrictProvider) -> None:
        self.workspace = workspace
        self.provider = provider

    @property
    def model(self) -> tuple[str, str]:
        return ("--model", f"{self.provider.url}#fake")

    @asynccontextmanager
    async def started(
        self, *arguments: str, env: dict[str, str] | None = None, stdout: int = asyncio.subprocess.PIPE
    ) -> AsyncGenerator[Process, None]:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            cwd=self.workspace,
            env=environment_of(**(env or {})),
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield Process(process)
        finally:
            await end(process)

    async def __call__(self, *arguments: str, typed: str = "", env: dict[str, str] | None = None) -> Ended:
        async with self.started(*arguments, env=env) as running:
            out, err = await running.process.communicate(typed.encode())
            return Ended(running.process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def terminal(self, *arguments: str, env: dict[str, str] | None = None) -> AsyncGenerator[Terminal, None]:
        with terminal_pair() as (master, slave):
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *arguments,
                cwd=self.workspace,
                env=environment_of(**(env or {})),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
            os.close(slave)
            shown = Terminal(process, master)
            asyncio.get_running_loop().add_reader(master, shown.read)
            try:
                yield shown
            finally:
                asyncio.get_running_loop().remove_reader(master)
                await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


@contextmanager
def terminal_pair() -> Generator[tuple[int, int], None, None]:
    master, slave = pty.openpty()
    try:
        yield master, slave
    finally:
        os.close(master)


@pytest.fixture
async def provider() -> AsyncGenerator[StrictProvider, None]:
    async with StrictProvider() as running:
        yield running


@pytest.fixture
def command_line(tmp_path: Path, provider: StrictProvider) -> CommandLine:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return CommandLine(workspace, provider)
