"""Processes for crash tests: a provider that counts and survives, and a server that forks one process for each case."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import IO, Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from retinue.ledger.sqlite import SqliteLedger
from retinue.testing.provider import Gate, StrictProvider

PUT = {"name": "put", "arguments": {"text": "it"}}
LOOK = {"name": "look", "arguments": {"where": "here"}}
NOTE = {"name": "note", "arguments": {"text": "that"}}
PAY = {"name": "pay", "arguments": {"amount": 7}}
WORKER = {"name": "worker", "arguments": {"input": "Work."}}
HELPER = {"name": "helper", "arguments": {"input": "Help."}}

SCRIPT: dict[str, Any] = {
    "agents": {
        "lead": [{"calls": [LOOK, NOTE, PUT, WORKER]}, "Lead is done. {result.worker}"],
        "worker": [{"calls": [HELPER, LOOK]}, "Worker is done. {result.helper}"],
        "helper": [{"calls": [PAY]}, {"calls": [PUT]}, "Helper is done. {result.pay}"],
        "noter": [{"calls": [NOTE]}, {"calls": [NOTE]}, "Noter is done."],
    },
    "fallback": "ok",
}
KINDS = {"p": "step_plain", "r": "step_read", "i": "step_idem"}


def steps(kinds: str) -> list[Any]:
    """The script of an agent that takes three steps at once. Each ends when what the ones before wrote at once is committed."""
    calls = [
        {"name": KINDS[kind], "arguments": {"place": place, "after": place - kinds[:place].count("r")}}
        for place, kind in enumerate(kinds)
    ]
    return [{"calls": calls}, "The steps are taken."]


@pytest.fixture(scope="session")
def crash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the provider's process, one agent for each order of three tools too."""
    path = tmp_path_factory.mktemp("provider") / "script.json"
    agents = {**SCRIPT["agents"], **{f"steps-{kinds}": steps(kinds) for kinds in ("ppp", "pri", "rip")}}
    path.write_bytes(msgspec.json.encode({**SCRIPT, "agents": agents}))
    return path


class Provider:
    """The fake provider as a process. A case is told apart by the model's name."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def record(self, case: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The requests and the tool effects of one case."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(self.url.removesuffix("/v1") + "/__record") as response,
        ):
            seen: dict[str, Any] = msgspec.json.decode(await response.read())
        requests = [one for one in seen["requests"] if one["body"]["model"] == case]
        return requests, [one for one in seen["tools"] if one["case"] == case]


@pytest.fixture(scope="session")
def provider_process(crash_script: Path) -> Generator[Provider]:
    """A provider in a process of its own, which outlives every process that is tested."""
    command = [sys.executable, "-m", "retinue.testing.provider", "--script", str(crash_script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Provider(process.stdout.readline().decode().strip())
        process.terminate()


class Forked:
    """One case's process: its pid, and its exit code when it has ended. Its requests have `number` in the header `x-process`."""

    def __init__(self, number: int, out: Path) -> None:
        self.number = number
        self._out = out
        self.started: Future[int] = Future()
        self.ended: Future[int] = Future()

    async def pid(self) -> int:
        """Its process id, as soon as it runs."""
        return await asyncio.wrap_future(self.started)

    async def code(self) -> int:
        """Its exit code: 0, or minus the signal that ended it.

        Raises:
            TimeoutError: it hangs.
        """
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self.ended)), 20)

    async def outcome(self) -> dict[str, Any]:
        """What it wrote; it must have ended by itself."""
        code = await self.code()
        assert code == 0, f"it was ended by signal {-code}"
        outcome: dict[str, Any] = msgspec.json.decode(self._out.read_bytes())
        assert outcome.get("code") != "bug", outcome["message"]
        assert outcome["left"] == []
        return outcome


class Forks:
    """The server that forks. `start` returns at once."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin: IO[bytes] = process.stdin
        self._stdout: IO[bytes] = process.stdout
        self._folder = folder
        self._ids = count(1)
        self._cases: dict[int, Forked] = {}
        self.thread = threading.Thread(target=self._listen, name="forks")
        self.thread.start()

    def _listen(self) -> None:
        for line in self._stdout:
            told: dict[str, int] = msgspec.json.decode(line)
            forked = self._cases[told["id"]]
            if "pid" in told:
                forked.started.set_result(told["pid"])
            else:
                forked.ended.set_result(told["code"])

    def start(self, do: str, case: str, ledger: Path, url: str, **fields: Any) -> Forked:
        """Start a process; see `worker.Case`."""
        number = next(self._ids)
        out = self._folder / f"{number}.json"
        forked = self._cases[number] = Forked(number, out)
        body = {"id": number, "case": case, "do": do, "ledger": str(ledger), "url": url, "out": str(out), **fields}
        self._stdin.write(msgspec.json.encode(body) + b"\n")
        self._stdin.flush()
        return forked


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Generator[Forks]:
    """A process that has everything imported and forks one process for each case."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    environment = {key: value for key, value in os.environ.items() if key != "RETINUE_FAILPOINT"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    server = Forks(process, tmp_path_factory.mktemp("forks"))
    yield server
    assert process.stdin is not None
    process.stdin.close()
    server.thread.join()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def stop_process(pid: int, ledger: Path) -> None:
    """SIGSTOP, and return when the system says that it stands still: at a moment when it does not hold the ledger's lock, for
    which everybody else would have to wait.
    """
    with closing(sqlite3.connect(ledger, timeout=0, isolation_level=None)) as db:
        while True:
            os.kill(pid, signal.SIGSTOP)
            while b"State:\tT" not in Path(f"/proc/{pid}/status").read_bytes():
                os.sched_yield()
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                os.sched_yield()
            else:
                db.execute("ROLLBACK")
                return


@pytest.fixture
def stand_still() -> Callable[[int, Path], None]:
    """Stop a process as SIGSTOP does; see `stop_process`."""
    return stop_process


@pytest.fixture
def read() -> Callable[[Path], Any]:
    """Open a ledger to look at it."""

    @asynccontextmanager
    async def opened(path: Path) -> AsyncGenerator[SqliteLedger]:
        ledger = SqliteLedger(path, durability="process")
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()

    return opened


class Theatre:
    """A provider in the test's own process: requests and effects can be held back while processes are stopped or killed."""

    def __init__(self) -> None:
        agents = {**SCRIPT["agents"], "steps-ppp": steps("ppp")}
        self.provider = StrictProvider({**SCRIPT, "agents": agents})
        self.effects: list[dict[str, Any]] = []
        self.held: dict[str, Gate] = {}
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Listen."""
        await self.provider.start(extra=[web.post("/__tool", self._effect)])

    async def _effect(self, request: web.Request) -> web.Response:
        effect: dict[str, Any] = await request.json()
        self.effects.append(effect)
        async with self._changed:
            self._changed.notify_all()
        gate = self.held.pop(effect["name"], None)
        if gate is not None:
            gate.arrived.set()
            await gate.opened.wait()
        return web.json_response({})

    def hold_effect(self, name: str) -> Gate:
        """Keep the next effect of this tool waiting: it has happened, and its caller does not know."""
        gate = self.held[name] = Gate()
        return gate

    async def happened(self, count: int) -> None:
        """Wait until there were so many effects."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.effects) >= count)

    async def reached(self, gate: Gate, forked: Forked) -> None:
        """Wait until something is held at a gate; the process must not have ended before."""
        arrival = asyncio.create_task(gate.arrived.wait())
        ended = asyncio.create_task(forked.code())
        try:
            await asyncio.wait({arrival, ended}, return_when=asyncio.FIRST_COMPLETED)
            assert gate.arrived.is_set(), await forked.outcome()
        finally:
            arrival.cancel()
            ended.cancel()
            await asyncio.gather(arrival, ended, return_exceptions=True)

    def names(self) -> list[tuple[str, int]]:
        """The effects so far: (tool, attempt)."""
        return [(effect["name"], effect["attempt"]) for effect in self.effects]

    def asked(self) -> list[tuple[str, int]]:
        """The requests so far: (agent, turn)."""
        return [(one.agent, one.step) for one in self.provider.requests]


@pytest.fixture
async def theatre() -> AsyncGenerator[Theatre]:
    """A provider here, whose answers can be held."""
    made = Theatre()
    await made.start()
    yield made
    for gate in made.held.values():
        gate.release()
    await made.provider.stop()
