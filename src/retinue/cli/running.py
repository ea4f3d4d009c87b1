"""One run in front of a person: its events into a viewer, permissions asked, Ctrl-C, and what is said at the end.

`run`, `resume` and `demo` all go through `drive`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from retinue.cli.exits import Exit, exit_of_run
from retinue.cli.keyboard import is_interactive
from retinue.cli.permission import Answer, Asker
from retinue.cli.text import clean, duration, money, one_line, tail, tokens
from retinue.cli.viewers import JsonViewer, Viewer, is_last, write_line
from retinue.events import Event, PermissionRequest, RunFinishedEvent

if TYPE_CHECKING:
    from retinue.harness import Agent

__all__ = ["Session", "drive"]

PARTIAL_LIMIT: Final = 2_000
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Session:
    """What the command line was given, as far as hints to the person need it: `retinue run …` as they would type it."""

    def __init__(self, *, workspace: Path, ledger: str | None = None, model: str | None = None) -> None:
        self.workspace = workspace
        self.ledger = ledger
        self.model = model

    def command(self, *words: str) -> str:
        """A command that reaches the same ledger."""
        where: list[str] = []
        if self.workspace.resolve() != Path.cwd():
            where += ["--workspace", str(self.workspace)]
        if self.ledger:
            where += ["--ledger", self.ledger]
        return " ".join(["retinue", *(quote(word) for word in (*words, *where))])


async def drive(agent: "Agent", events: AsyncIterator[Event], viewer: Viewer, session: Session) -> Exit:
    """Show a run to its end and say how it ended. `events` are those of `agent.stream` or `agent.resume_stream`."""
    last: RunFinishedEvent | None = None
    async with viewer, contextlib.AsyncExitStack() as stack:
        interrupts = stack.enter_context(_Interrupts(agent, viewer))
        asker = await _asker(agent, viewer, stack)
        async for event in events:
            interrupts.started = True
            viewer.show(event)
            if asker is not None:
                asker.take(event)
            elif isinstance(event, PermissionRequest):
                await agent.leave()
            if is_last(event) and isinstance(event, RunFinishedEvent):
                last = event
    if last is None:  # the stream was cut before its end: a lost lease raises, so this is an interrupt before the start
        return Exit.INTERRUPTED
    _say_end(last, viewer, session)
    return exit_of_run(last.status, last.reason)


async def _asker(agent: "Agent", viewer: Viewer, stack: contextlib.AsyncExitStack) -> Asker | None:
    """Somebody to ask: only where a person sits at a terminal, and stdout is not being read by a program."""
    if isinstance(viewer, JsonViewer) or not is_interactive():
        return None

    async def answer(request: PermissionRequest, said: Answer) -> None:
        await agent.answer(request, allow=said.allow, remember=said.remember)

    asker = Asker(viewer, answer, agent.leave)
    await stack.enter_async_context(_running(asker.run(), "retinue-permissions"))
    return asker


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None], name: str) -> AsyncGenerator[None, None]:
    """A task for as long as the block lasts. Its fault ends the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        finally:
            task.cancel()


class _Interrupts:
    """Ctrl-C and SIGTERM: the first stops the whole tree in good order, the second exits at once; both can be resumed."""

    def __init__(self, agent: "Agent", viewer: Viewer) -> None:
        self._agent = agent
        self._viewer = viewer
        self._stopping: asyncio.Task[Any] | None = None
        self._main = asyncio.current_task()
        self.started = False

    def __enter__(self) -> "_Interrupts":
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._stopping is not None:
            self._viewer.pause()
            self._viewer.say("Left at once. Everything that was recorded is kept: `retinue resume` finishes it.")
            sys.stdout.flush()
            os._exit(Exit.INTERRUPTED)
        if not self.started:
            if self._main is not None:
                self._main.cancel()
            return
        self._viewer.say("Stopping the whole tree … (Ctrl-C again leaves at once)")
        self._stopping = asyncio.create_task(self._agent.cancel(reason="interrupted"), name="retinue-interrupt")


def _say_end(event: RunFinishedEvent, viewer: Viewer, session: Session) -> None:
    """The answer to stdout; how it ended, what is kept and how to go on to stderr."""
    if isinstance(viewer, JsonViewer):
        return
    result = event.result
    if result.status == "completed" and result.text:
        _out(result.text)
    for line in _end_lines(event, viewer, session):
        viewer.say(line)


def _end_lines(event: RunFinishedEvent, viewer: Viewer, session: Session) -> list[str]:
    result = event.result
    say: list[str] = [_summary(event, viewer)]
    place = _place(event)
    go_on = session.command("run", "--session", place[0], *(("--thread", place[1]) if place[1] != "main" else ()))
    match result.status:
        case "failed":
            if event.message:
                say.append(f"  {one_line(event.message, 600)}")
            if event.remedy:
                say.append(f"  to do: {one_line(event.remedy, 600)}")
            say += _partial(result.text)
        case "cancelled":
            say += _partial(result.text)
            say.append(f"Kept: session {place[0]}, thread {place[1]}, with all that was done.")
        case "waiting":
            for request in result.requests:
                say.append(
                    f"  open: {one_line(request.agent_id, 60)} asks for {one_line(request.tool, 60)} ({request.request_id})"
                )
            say.append(f"Answer on a terminal with: {session.command('resume', event.run_id)}")
            return say
        case _:
            pass
    say.append(f"Go on with: {go_on} 'TASK'")
    return say


def _partial(text: str) -> list[str]:
    if not text:
        return []
    return ["Partial text:", *(f"  | {line}" for line in clean(tail(text, PARTIAL_LIMIT)).splitlines())]


def _place(event: RunFinishedEvent) -> tuple[str, str]:
    return (event.key.session, event.key.thread) if event.key is not None else ("", "main")


def _summary(event: RunFinishedEvent, viewer: Viewer) -> str:
    """One line of figures: of the whole tree."""
    usage, cost = event.result.usage, event.result.cost
    node = viewer.view.root
    children = max(len(viewer.view.nodes) - 1, 0)
    facts = [str(event.status) + (f" ({one_line(event.reason, 80)})" if event.reason else "")]
    if node is not None:
        facts.append(duration(node.elapsed(event.at)))
    if children:
        facts.append(f"{children} subagent{'s' if children > 1 else ''}")
    if usage.calls:
        facts += [tokens(usage.input_tokens + usage.output_tokens), money(cost)]
    place = _place(event)
    return ", ".join(facts) + (f"  (session {place[0]})" if place[0] else "")


def _out(text: str) -> None:
    """The answer, harmless for a terminal, also where stdout is a pipe into one."""
    write_line(sys.stdout, clean(text))


def run_async(work: Callable[[], Coroutine[Any, Any, Exit]]) -> Exit:
    """Run a command's coroutine; an interrupt before a run began is an interrupt."""
    try:
        return asyncio.run(work())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
