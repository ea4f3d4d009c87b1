"""A process that forks: each line on standard input is a case, and each case is a process of its own that can be killed.

Everything is imported once, before the first fork and before any event loop or thread. What became of a case's process is
told on standard output, one JSON document a line: `{"id": …, "pid": …}` when it was started, `{"id": …, "code": …}` at its end.
"""

import asyncio
import os
import select
import signal
import sys
import threading
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from retinue.config import AgentConfig, PermissionRules, RuntimeContext
from retinue.errors import RetinueError
from retinue.events import PermissionRequest
from retinue.harness.agent import Agent
from retinue.harness.results import RunResult
from retinue.ledger.sqlite import SqliteLedger
from retinue.models.openai import OpenAIChatModel
from retinue.ops import Append, Op
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.declaration import SubAgent
from retinue.subagents.decorator import subagent
from retinue.testing.failpoints import Failpoint, KillAt
from retinue.tools.decorator import tool
from retinue.tools.harness import ToolHarness
from retinue.tools.port import ToolContext


class Case(msgspec.Struct, kw_only=True):
    """What a process is to do. `failpoint`: `kill:before:3`, or `on:after:TOOL_CALL_RESULT:2` (the 2nd committed event or op of
    that name). `die_in`: the `step` tool with this place kills the process. `out`: where the outcome is written."""

    id: int
    case: str
    do: str
    ledger: str
    url: str
    out: str
    agent: str = "lead"
    run: str = ""
    request: str = ""
    allow: bool = True
    failpoint: str = ""
    die_in: int = -1
    take_over: bool = False
    answers: bool = True
    instructions: str = "You lead."
    session: str = "s1"


class KillOn(Failpoint):
    """SIGKILL around the commit in which the `count`-th event or op of this name is written."""

    def __init__(self, when: str, name: str, count: int) -> None:
        self._when = when
        self._name = name
        self._left = count

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """Count what the batch holds."""
        self._left -= sum(name == self._name for ops in commits for op in ops for name in _names(op))

    def before_commit(self, n: int) -> None:
        """Die here if it is the time."""
        if self._when == "before" and self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self, n: int) -> None:
        """Die here if it is the time."""
        if self._when == "after" and self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _names(op: Op) -> list[str]:
    return [event.type for event in op.events] if isinstance(op, Append) else [type(op).__name__]


class Hooks(Failpoint):
    """A failpoint, and how many results are committed: for tools that end in a given order."""

    def __init__(self, inner: Failpoint) -> None:
        self._inner = inner
        self._pending = 0
        self._results = 0
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.number = 0

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """See `CommitHooks`."""
        self._pending = sum(name == "TOOL_CALL_RESULT" for ops in commits for op in ops for name in _names(op))
        self._inner.batch(n, commits)

    def before_commit(self, n: int) -> None:
        """See `CommitHooks`."""
        self._inner.before_commit(n)

    def after_commit(self, n: int) -> None:
        """See `CommitHooks`."""
        self._inner.after_commit(n)
        self.number = n
        pending, self._pending = self._pending, 0
        self._loop.call_soon_threadsafe(self._add, pending)

    def _add(self, results: int) -> None:
        self._results += results
        self._changed.set()

    async def results(self, count: int) -> None:
        """Wait until so many results are committed."""
        while self._results < count:
            self._changed.clear()
            await self._changed.wait()


class Stage:
    """What a case's tools share: they report to the provider's process, and end in the order of their places."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.hooks = Hooks(_failpoint(case.failpoint))
        self._ended = [asyncio.Event() for _ in range(8)]
        self._started = 0
        self._all = asyncio.Event()

    def report(self, name: str, context: ToolContext) -> None:
        """Tell the provider's process of an effect, under the call's idempotency key. Blocks."""
        effect = {"key": context.idempotency_key, "name": name, "case": self.case.case, "attempt": context.attempt}
        body = msgspec.json.encode({**effect, "agent": context.agent_id})
        root = self.case.url.removesuffix("/v1")
        request = urllib.request.Request(f"{root}/__tool", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30):
            pass

    async def effect(self, name: str, context: ToolContext) -> None:
        """`report` for a coroutine."""
        await asyncio.to_thread(self.report, name, context)

    async def step(self, name: str, place: int, after: int, context: ToolContext) -> str:
        """One of three tools. In the first attempt all start before one ends, and they end in order: when the one before has
        ended and `after` results are committed."""
        await self.effect(name, context)
        if context.attempt > 1:
            return f"{name} {place}"
        self._started += 1
        if self._started == 3:
            self._all.set()
        await self._all.wait()
        if place:
            await self._ended[place - 1].wait()
        await self.hooks.results(after)
        if place == self.case.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        self._ended[place].set()
        return f"{name} {place}"


def _failpoint(text: str) -> Failpoint:
    match text.split(":"):
        case ["kill", ("before" | "after") as when, number]:
            return KillAt(int(number), when)
        case ["on", when, name, count]:
            return KillOn(when, name, int(count))
        case _:
            return Failpoint()


class Tools(ToolHarness):
    """Tools of every kind. Each reports its effect."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @tool(read_only=True)
    def look(self, where: str, context: ToolContext) -> str:
        """Look somewhere (in a thread)."""
        self._stage.report("look", context)
        return f"seen {where}"

    @tool
    async def note(self, text: str, context: ToolContext) -> str:
        """Write something down."""
        await self._stage.effect("note", context)
        return f"noted {text}"

    @tool(idempotent=True)
    async def put(self, text: str, context: ToolContext) -> str:
        """Put something somewhere."""
        await self._stage.effect("put", context)
        return f"put {text}"

    @tool(requires_permission=True)
    async def pay(self, amount: int, context: ToolContext) -> str:
        """Pay."""
        await self._stage.effect("pay", context)
        return f"paid {amount}"

    @tool
    async def step_plain(self, place: int, after: int, context: ToolContext) -> str:
        """Take a step."""
        return await self._stage.step("plain", place, after, context)

    @tool(read_only=True)
    async def step_read(self, place: int, after: int, context: ToolContext) -> str:
        """Take a step without effect."""
        return await self._stage.step("read", place, after, context)

    @tool(idempotent=True)
    async def step_idem(self, place: int, after: int, context: ToolContext) -> str:
        """Take a step that can be repeated."""
        return await self._stage.step("idem", place, after, context)


class Workers(ToolHarness):
    """The child."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @subagent
    def worker(self) -> SubAgent:
        """At depth 1; it delegates further."""
        config = AgentConfig(name="Worker", instructions="You work.")
        below = [Tools(self._stage), Helpers(self._stage)]
        return SubAgent.from_config("worker", "worker", "Works.", config, context_policy="fresh", tool_harnesses=below)


class Helpers(ToolHarness):
    """The grandchild."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @subagent
    def helper(self) -> SubAgent:
        """At depth 2; one of its tools asks."""
        config = AgentConfig(name="Helper", instructions="You help.")
        below = [Tools(self._stage)]
        made = SubAgent.from_config("helper", "helper", "Helps.", config, context_policy="fork", tool_harnesses=below)
        return made.with_availability(SubAgentAvailability.ANY_ALLOWED_DEPTH)


def make_agent(case: Case, stage: Stage) -> Agent:
    """The agent of a case: the script of the provider decides what it does."""

    async def yes(_request: PermissionRequest) -> bool:
        return case.allow

    return Agent(
        case.agent,
        model=OpenAIChatModel(case.case, base_url=case.url, headers={"X-Process": str(case.id)}),
        instructions=case.instructions,
        tool_harnesses=[Tools(stage), Workers(stage)],
        ledger=SqliteLedger(case.ledger, durability="process", hooks=stage.hooks),
        permissions=PermissionRules(allow=["worker", "helper"]),
        on_request=yes if case.answers else None,
    )


async def run_case(case: Case) -> dict[str, Any]:
    """Do it, and say what came of it."""
    stage = Stage(case)
    agent = make_agent(case, stage)
    outcome: dict[str, Any] = {}
    try:
        async with agent:
            result = await _done(agent, case)
            outcome = _told(result)
    except RetinueError as error:
        outcome = {"error": type(error).__name__, "code": error.code, "message": str(error)}
    outcome["commits"] = stage.hooks.number
    outcome["left"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("retinue")]
    return outcome


async def _done(agent: Agent, case: Case) -> RunResult | None:
    match case.do:
        case "run":
            return await agent.run("Go.", context=RuntimeContext(session_id=case.session), check=False)
        case "resume":
            return await agent.resume(case.run or await _newest(agent), take_over=case.take_over, check=False)
        case "answer":
            return await agent.answer(case.request, allow=case.allow, by=case.case)
        case "cancel":
            await agent.cancel(case.run or await _newest(agent), reason="enough")
            return None
        case _:
            raise AssertionError(case.do)


async def _newest(agent: Agent) -> str:
    """The newest root run, or an id that is not there."""
    rows = await agent.runtime.ledger.runs(roots_only=True)
    return rows[0].run_id if rows else "run_none"


def _told(result: RunResult | None) -> dict[str, Any]:
    if result is None:
        return {"status": None}
    return {
        "status": result.status,
        "reason": result.reason,
        "text": result.text,
        "usage": msgspec.to_builtins(result.usage),
        "requests": [request.request_id for request in result.requests],
    }


def one_process(case: Case) -> None:
    """The life of a forked process: one case, its outcome in a file."""
    try:
        outcome = asyncio.run(run_case(case))
    except BaseException as error:  # noqa: BLE001  # told to the test, whatever it is
        outcome = {"error": type(error).__name__, "code": "bug", "message": "".join(traceback.format_exception(error))}
    path = Path(case.out)
    path.with_suffix(".part").write_bytes(msgspec.json.encode(outcome))
    path.with_suffix(".part").rename(path)


def serve() -> None:
    """Fork for each line, tell of each end, and end with standard input and the last case."""
    ears, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth)
    signal.signal(signal.SIGCHLD, _noticed)
    running: dict[int, int] = {}
    buffer, open_ = b"", True
    while open_ or running:
        if not open_:
            for pid in running:  # nobody is there any more to hear of them
                os.kill(pid, signal.SIGKILL)
        readable, _, _ = select.select([ears, *([0] if open_ else [])], [], [])
        if 0 in readable:
            data = os.read(0, 65_536)
            open_ = bool(data)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                _fork(msgspec.json.decode(line, type=Case), running)
        if ears in readable:
            os.read(ears, 1024)
            _reap(running)


def _noticed(_number: int, _frame: object) -> None:
    """That there is a handler is enough: the wake-up pipe tells the loop."""


def _fork(case: Case, running: dict[int, int]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(lambda: one_process(case))
    running[pid] = case.id
    _say({"id": case.id, "pid": pid})


def _become(work: Callable[[], None]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        work()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _reap(running: dict[int, int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _say({"id": running.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def _say(what: dict[str, int]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
