"""`retinue demo --kill`: one process is killed with SIGKILL midway, another goes on, and the answers are counted.

This process only watches: it starts the two others, reads their JSON lines and, between them, the ledger.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from retinue.cli.demo.stages import MODEL_ASKED
from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines, event_of_line
from retinue.cli.places import existing_ledger
from retinue.cli.replay import replay_tree
from retinue.cli.text import clean
from retinue.cli.viewers import Viewer, choose_viewer, write_line
from retinue.errors import RetinueError
from retinue.events import Event, ModelCalledEvent, SubAgentInvocationStartedEvent, ToolCallResultEvent

__all__ = ["Asked", "kill_and_resume"]

Asked = tuple[str, int]
"""A question to the model: agent id and turn."""
LINE_LIMIT: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Watched:
    """What was seen of one process."""

    pid: int = 0
    asked: list[Asked] = field(default_factory=list[Asked])
    result: dict[str, Any] | None = None
    killed_after: str = ""


async def kill_and_resume(folder: Path, *, fast: bool) -> Exit:
    """Start, kill, resume, compare."""
    viewer = choose_viewer(as_json=False, quiet=False, describe=EventLines().describe)
    async with viewer:
        first = await _start_and_kill(folder, viewer, fast=fast)
        at_kill = recorded_answers(await _shown(folder, viewer))
        viewer.say(f"Process {first.pid} was killed with SIGKILL, after the first tool result of {first.killed_after}.")
        viewer.say(f"The ledger holds {at_kill.total()} answers of the model. Another process goes on from there.")
        second = await _resume(folder, viewer, fast=fast)
        at_end = recorded_answers(await _shown(folder, viewer))
    if second.result is not None:
        write_line(sys.stdout, clean(second.result["text"]))
    repeated = [question for question in second.asked if question in at_kill]
    for line in _account(first, second, at_kill, at_end, repeated):
        viewer.say(line)
    good = second.result is not None and second.result["status"] == "completed" and not repeated
    return Exit.COMPLETED if good else Exit.FAILED


async def _start_and_kill(folder: Path, viewer: Viewer, *, fast: bool) -> Watched:
    """Run the first stage in a process of its own, and kill it after the second child's first tool result."""
    watched, children = Watched(), list[SubAgentInvocationStartedEvent]()
    async with aclosing(_stage("start", folder, watched, fast=fast)) as events:
        async for process, event in events:
            viewer.show(event)
            if isinstance(event, SubAgentInvocationStartedEvent):
                children.append(event)
            if isinstance(event, ToolCallResultEvent) and len(children) > 1:
                second = children[1]
                if event.invocations == (second.invocation_id,):
                    process.kill()
                    watched.killed_after = second.child_agent_id
                    return watched
    raise RetinueError("the process ended before it could be killed", remedy="leave out `--fast`")


async def _resume(folder: Path, viewer: Viewer, *, fast: bool) -> Watched:
    """Run the second stage in a process of its own, to the end."""
    watched = Watched()
    async with aclosing(_stage("resume", folder, watched, fast=fast)) as events:
        async for _, event in events:
            viewer.show(event)
    return watched


async def _stage(
    stage: str, folder: Path, watched: Watched, *, fast: bool
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Event], None]:
    """The stored events of one stage's process; what it asks the model, and its result, go into `watched`."""
    command = [sys.executable, "-m", "retinue.cli", "demo", "--stage", stage, "--folder", str(folder)]
    async with aclosing(_lines([*command, *(["--fast"] if fast else [])])) as lines:
        async for process, line in lines:
            watched.pid = process.pid
            if line["type"] == MODEL_ASKED:
                watched.asked.append((line["agent"], line["turn"]))
                continue
            watched.result = line.get("result", watched.result)
            event = event_of_line(line)
            if event is not None:
                yield process, event


async def _lines(command: list[str]) -> AsyncGenerator[tuple[asyncio.subprocess.Process, dict[str, Any]], None]:
    """A process and its JSON lines. It does not outlive the watching."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=LINE_LIMIT
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield process, json.loads(line)
    except BaseException:  # left early, or what it said is not what was expected
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # not `process.kill`: that may reap it before the event loop does
        raise
    finally:
        await process.wait()


async def _shown(folder: Path, viewer: Viewer) -> list[Event]:
    """All that the ledger holds of the run; what the viewer has not seen yet is shown to it."""
    ledger = existing_ledger(None, folder)
    await ledger.open()
    try:
        (root,) = await ledger.runs(roots_only=True, limit=1)
        events = await replay_tree(ledger, root.run_id)
    finally:
        await ledger.close()
    for event in events:
        viewer.show(event)
    return events


def recorded_answers(events: Sequence[Event]) -> Counter[Asked]:
    """The model's answers in a tree's journals, by agent and turn."""
    turns: Counter[str] = Counter()
    found: Counter[Asked] = Counter()
    for event in events:
        if isinstance(event, ModelCalledEvent):
            turns[event.path[-1]] += 1
            found[event.path[-1], turns[event.path[-1]]] += 1
    return found


def _account(
    first: Watched, second: Watched, at_kill: Counter[Asked], at_end: Counter[Asked], repeated: list[Asked]
) -> list[str]:
    """The figures, and what they show."""
    lost = [question for question in first.asked if question not in at_kill]
    again = ", ".join(f"{agent} turn {turn}" for agent, turn in lost)
    return [
        "",
        "                            asked the model   answers in the ledger",
        f"  process {first.pid:<9} (killed) {len(first.asked):>14} {at_kill.total():>23}",
        f"  process {second.pid:<9} (resumed){len(second.asked):>14} {at_end.total():>23}",
        "",
        f"  Unanswered when the process died, so asked again: {len(lost)}" + (f" ({again})" if again else ""),
        f"  Answered before, and asked again all the same:    {len(repeated)}",
    ]
