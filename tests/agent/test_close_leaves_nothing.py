"""After `close()` no task, thread, file or socket is left; before, every task has a name and an owner."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    HarnessAgent,
    Limits,
    PermissionRequest,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolHarness,
    tool,
)
from retinue.ledger.memory import MemoryLedger
from retinue.testing import RecordingModel, StrictProvider, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ENDS = ("completed", "failed", "cancelled", "waiting", "left", "interrupted")


class Tools(ToolHarness):
    """A tool in a thread, one that hangs, and one that asks."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    @tool
    def threaded(self) -> str:
        """Work in a thread."""
        return threading.current_thread().name

    @tool
    async def hang(self) -> str:
        """Wait for ever."""
        self.arrived.set()
        await asyncio.Event().wait()
        return "never"

    @tool
    async def asks(self) -> str:
        """Ask first."""
        return "asked"


def open_files() -> dict[str, str]:
    """The open descriptors of this process and what they are."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that listed them
    return found


def ours() -> set[threading.Thread]:
    """Our threads; those of tests that left some behind too."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("retinue")}


def script(end: str) -> dict[str, list[Any]]:
    """A child whose end is this one; all do the same before."""
    call = {"calls": [{"name": "threaded"}]}
    lasts: dict[str, Any] = {
        "completed": "helped",
        "failed": {"text": "", "calls": []},
        "waiting": {"calls": [{"name": "asks"}]},
    }
    last = lasts.get(end, {"calls": [{"name": "hang"}]})
    root: list[Any] = [call, {"calls": [{"name": "helper", "arguments": {"input": "x"}}, {"name": "threaded"}]}]
    return {"root": [*root, "" if end == "failed" else "done"], "helper": [call, last, "helped"]}


async def live(agent: Agent, tools: Tools, end: str) -> str:
    """One run to this end, as its user would have it."""
    if end in ("completed", "failed", "waiting"):
        return (await agent.run("go", context=HERE, check=False)).status
    if end == "left":
        async for _event in agent.stream("go", context=HERE):
            if tools.arrived.is_set():
                break
            await asyncio.sleep(0)
        return "left"
    run = asyncio.create_task(agent.run("go", context=HERE, check=False))
    await tools.arrived.wait()
    if end == "interrupted":
        return "interrupted"  # closed while it runs
    await agent.cancel()
    return (await run).status


@pytest.mark.parametrize("entered", [True, False])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.case("B026")
async def test_nothing_left_open_after_close(end: str, entered: bool, tmp_path: Path) -> None:
    tasks, files, threads = asyncio.all_tasks(), open_files(), ours()
    async with StrictProvider(script(end)) as provider:
        tools = Tools()
        agent = HarnessAgent(
            "root",
            model=f"{provider.url}#fake",
            workspace=tmp_path,
            tool_harnesses=[tools],
            subagents=[SubAgent("helper", "Helps.", instructions="Help.", surface="tool", tool_harnesses=[tools])],
            permissions=PermissionRules(allow=["helper", "threaded", "hang"], ask=["asks"]),
        )
        served = asyncio.all_tasks() - tasks
        if entered:
            async with agent:
                assert await live(agent, tools, end) == end
        else:
            assert await live(agent, tools, end) == end
            await agent.close()
        await agent.close()  # idempotent
        left = asyncio.all_tasks() - tasks - served
        assert [task.get_name() for task in left if "retinue" in task.get_name() or "Agent." in str(task)] == []
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    assert ours() <= threads
    assert sorted(open_files().values()) == sorted(files.values())


async def test_an_agent_that_was_closed_can_be_used_again(tmp_path: Path) -> None:
    files, threads = open_files(), ours()
    agent = Agent("root", model=RecordingModel({"root": [calls(("threaded", {})), "done"]}), tool_harnesses=[Tools()])
    for _ in range(3):
        assert (await agent.run("go")).text == "done"
        await agent.close()
    assert ours() <= threads
    assert sorted(open_files().values()) == sorted(files.values())


class SlowlyOpened(MemoryLedger):
    """The first to open it is through at once, the next ones take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.gate = asyncio.Event()

    async def open(self) -> None:
        """See `Ledger`."""
        self.opened += 1
        await super().open()
        await asyncio.sleep(0)
        if self.opened > 1:
            await self.gate.wait()


async def test_runs_that_begin_together_open_the_store_once() -> None:
    threads, ledger = ours(), SlowlyOpened()
    model = RecordingModel({"root": [calls(("threaded", {})), "done"]})
    agent = Agent("root", model=model, tool_harnesses=[Tools()], ledger=ledger)
    runs = [asyncio.create_task(agent.run("go")) for _ in range(3)]
    await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
    ledger.gate.set()
    assert {result.text for result in await asyncio.gather(*runs)} == {"done"}
    assert ledger.opened == 1
    assert ours() - threads
    await agent.close()
    assert ours() <= threads


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def test_while_it_runs_every_task_has_a_name() -> None:
    before, clock, tools = asyncio.all_tasks(), VirtualClock(), Tools()
    asked = asyncio.Event()

    async def on_request(_request: PermissionRequest) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    model = RecordingModel(
        {
            "root": [calls(("helper", {"input": "x"}), ("slow", {"input": "y"}), ("asks", {}))],
            "helper": [calls(("hang", {}))],
            "slow": [calls(("hang", {}))],
        }
    )
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    children = [
        SubAgent("helper", "Helps.", instructions="Help.", surface="tool", tool_harnesses=[tools]),
        SubAgent("slow", "Slow.", instructions="Be slow.", surface="tool", tool_harnesses=[tools], timeout_seconds=60),
    ]
    agent = Agent(
        "root",
        model=model,
        tool_harnesses=[tools],
        subagents=children,
        runtime=runtime,
        permissions=PermissionRules(allow=["helper", "slow", "hang"], ask=["asks"]),
        on_request=on_request,
    )
    run = asyncio.create_task(agent.run("go", check=False), name="the caller")
    await tools.arrived.wait()
    await asked.wait()
    await clock.settle()
    names = sorted(task.get_name() for task in asyncio.all_tasks() - before - {run})
    assert [name for name in names if not name.startswith("retinue ")] == []
    assert len(names) >= 6
    stopping = asyncio.create_task(runtime.close(), name="the closer")
    await _until(lambda: run.done())
    names = [task.get_name() for task in asyncio.all_tasks() - before - {run, stopping}]
    assert [name for name in names if not name.startswith("retinue ")] == []
    await stopping
    assert asyncio.all_tasks() == before
    assert (await run).status == "cancelled"


@pytest.mark.parametrize("stuck", ["task", "thread"])
async def test_what_is_stuck_is_named_and_does_not_hold_up_the_close(stuck: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, leave, here = VirtualClock(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Stuck(ToolHarness):
        @tool
        async def task(self) -> str:
            """Heed nothing."""
            here.set()
            while not leave.is_set():
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
            return "left"

        @tool
        def thread(self) -> str:
            """Heed nothing, in a thread."""
            loop.call_soon_threadsafe(here.set)
            leave.wait(20)
            return "left"

    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    agent = Agent("root", model=RecordingModel({"root": [calls((stuck, {}))]}), tool_harnesses=[Stuck()], runtime=runtime)
    run = asyncio.create_task(agent.run("go", check=False))
    await here.wait()
    closing = asyncio.create_task(runtime.close())
    await clock.advance(5)
    await _until(run.done)
    assert run.result().message == f"still stopping: `{stuck}`"
    await clock.advance(5)
    await closing
    assert f"still running after close: {'retinue call task' if stuck == 'task' else 'thread'}" in caplog.text
    leave.set()
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("retinue call")]
    for task in left:
        task.cancel()
    await asyncio.gather(*left)


SNIPPETS = {
    "run": """
import asyncio, sys
from retinue import HarnessAgent, SubAgent

agent = HarnessAgent("orchestrator", model=sys.argv[1], workspace=sys.argv[2], subagents=[
    SubAgent("reviewer", "Reviews a change and lists defects", instructions="Review.", tools=["read_file", "grep_files"]),
])
async def main():
    result = await agent.run("Review the last commit")
    print(result.text)
asyncio.run(main())
""",
    "stream": """
import asyncio, sys
from retinue import HarnessAgent

agent = HarnessAgent("orchestrator", model=sys.argv[1], workspace=sys.argv[2])
async def main():
    async for event in agent.stream("Review the last commit"):
        last = event
    print(last.result.text)
asyncio.run(main())
""",
    "twice": """
import asyncio, sys
from retinue import HarnessAgent

agent = HarnessAgent("orchestrator", model=sys.argv[1], workspace=sys.argv[2])
asyncio.run(agent.run("Review the last commit"))
print(asyncio.run(agent.run("Review the last commit")).text)
""",
    "left": """
import asyncio, sys
from retinue import HarnessAgent

agent = HarnessAgent("orchestrator", model=sys.argv[1], workspace=sys.argv[2])
async def main():
    async for event in agent.stream("Review the last commit"):
        break
    print("reviewed")
asyncio.run(main())
""",
    "sync": """
import sys
from retinue import HarnessAgent

agent = HarnessAgent("orchestrator", model=sys.argv[1], workspace=sys.argv[2])
print(agent.run_sync("Review the last commit").text)
""",
}


@pytest.mark.parametrize("name", list(SNIPPETS))
@pytest.mark.crash
async def test_the_five_lines_end_without_a_warning(name: str, tmp_path: Path) -> None:
    spawn = {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "reviewer", "task": "x"}}]}
    script = {"orchestrator": [spawn, "reviewed"] if name == "run" else ["reviewed"], "reviewer": ["no defects"]}
    async with StrictProvider(script) as provider:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-X", "dev", "-W", "error", "-c", SNIPPETS[name], f"{provider.url}#fake", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]  # what asyncio finds slow
    assert (done.returncode, done.stdout, said) == (0, "reviewed\n", [])
