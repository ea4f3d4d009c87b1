"""One run in front of a person: its events into a viewer, permissions asked, Ctrl-C, and what is said at the end.

`run`, `resume` and `demo` all go through `drive`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Self

from retinue.cli.exits import Exit, exit_of_run
from retinue.cli.keyboard import is_interactive
from retinue.cli.logs import reported_to
from retinue.cli.permission import Asker
from retinue.cli.places import program
from retinue.cli.replay import replay_tree, up_to_take_over
from retinue.cli.text import clean, counted, duration, money, one_line, tail, tokens
from retinue.cli.viewers import JsonViewer, Viewer, is_last, write_line
from retinue.errors import RetinueError
from retinue.events import Event, PermissionRequest, RunFinishedEvent, RunStartedEvent

if TYPE_CHECKING:
    from retinue.harness import Agent
    from retinue.harness.tasks import Task

__all__ = ["Session", "can_ask", "drive", "run_async", "tell_waiting"]

PARTIAL_LIMIT: Final = 2_000
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Session:
    """What the command line was given, as far as hints to the person need it: `retinue run …` as they would type it."""

    def __init__(self, *, workspace: Path, ledger: str | None = None, can_go_on: bool = True) -> None:
        self.workspace = workspace
        self.ledger = ledger
        self.can_go_on = can_go_on

    def command(self, *words: str) -> str:
        """A command that reaches the same ledger."""
        where: list[str] = []
        if self.workspace.resolve() != Path.cwd():
            where += ["--workspace", str(self.workspace)]
        if self.ledger:
            where += ["--ledger", self.ledger]
        return " ".join([quote(program()), *(quote(word) for word in (*words, *where))])


async def drive(
    agent: "Agent",
    events: AsyncGenerator[Event, None],
    viewer: Viewer,
    session: Session,
    *,
    resumed: str | None = None,
    task: str | None = None,
) -> Exit:
    """Show a run to its end and say how it ended. `events` are those of `agent.stream` or `agent.resume_stream`.

    `resumed` is the root run that is gone on with, or whose `task`, another run, is: what was done before is shown first, where a
    tree is shown. A request is
    asked where a person sits at the terminal. Elsewhere it is passed over, and the run ends `waiting` (D-28).
    """
    last: RunFinishedEvent | None = None
    told = False
    asker = Asker(viewer) if can_ask(viewer) else None
    async with viewer, contextlib.aclosing(events):
        with reported_to(viewer.say), _Interrupts(agent, viewer) as interrupts:
            async for event in events:
                if not interrupts.started and resumed is not None:
                    viewer.catch_up(up_to_take_over(await replay_tree(agent.runtime.ledger, resumed), task or resumed))
                interrupts.started = True
                if last is not None and isinstance(event, RunStartedEvent) and len(event.path) == 1:
                    interrupts.resting = False  # it was woken by the end of a task
                viewer.show(event)
                if isinstance(event, PermissionRequest) and asker is not None:
                    await _ask(agent, asker, event, interrupts)
                if is_last(event) and isinstance(event, RunFinishedEvent):
                    last, told = event, False
                    if at_work := await _at_work(event.result.tasks):
                        told, interrupts.resting = True, True
                        _say_so_far(event, at_work, viewer)
    if last is None:
        return Exit.FAILED
    if not told:
        _say_end(last, viewer, session)
    return await _exit(last, viewer, session, left=interrupts.leaving)


async def _at_work(tasks: "Sequence[Task]") -> int:
    """How many of the tasks go on in the background."""
    states = [(await task.result()).status for task in tasks]
    return sum(state in ("pending", "running", "stopping") for state in states)


def _say_so_far(event: RunFinishedEvent, at_work: int, viewer: Viewer) -> None:
    """The answer of a run whose tasks are still at work, and that they are waited for."""
    if not isinstance(viewer, JsonViewer) and event.result.status == "completed" and event.result.text:
        viewer.pause()
        write_line(sys.stdout, clean(event.result.text))
        viewer.resume()
    if viewer.talks:
        viewer.say(f"{counted(at_work, 'task')} at work in the background, which is waited for (Ctrl-C leaves what is not done)")


async def _exit(last: RunFinishedEvent, viewer: Viewer, session: Session, *, left: bool) -> Exit:
    """What is left in the background when nothing of it is at work here any more, and the exit code."""
    code, waiting, open_ones = exit_of_run(last.status, last.reason), 0, 0
    for task in last.result.tasks:
        end = await task.result()
        waiting += end.status == "waiting"
        open_ones += not end.ended and end.status != "waiting"
        for request in end.requests:
            viewer.say(f"task {task.task_id} (`{one_line(task.name, 60)}`) waits for an answer to {request.request_id}")
            viewer.say(f"  {session.command('tasks', 'answer', task.task_id)}")
    if open_ones:
        words = "is not done, and is kept" if open_ones == 1 else "are not done, and are kept"
        viewer.say(f"{counted(open_ones, 'task')} {words}. Go on with: {session.command('resume', '--all')}")
    if left:
        return Exit.INTERRUPTED
    return Exit.WAITING if waiting and code is Exit.COMPLETED else code


def can_ask(viewer: Viewer) -> bool:
    """Whether a person sits here who can be asked."""
    return is_interactive() and not isinstance(viewer, JsonViewer)


def tell_waiting(before: Sequence[Event], last: RunFinishedEvent, viewer: Viewer, session: Session) -> Exit:
    """Say of a run that waits, and that nothing was done for, what it waits for. Its events are known, and not shown again."""
    for event in before:
        viewer.view.apply(event)
        if isinstance(viewer, JsonViewer):
            viewer.describe(event)
    if isinstance(viewer, JsonViewer):
        viewer.show(last)
    viewer.view.apply(last)
    _say_end(last, viewer, session)
    return exit_of_run(last.status, last.reason)


async def _ask(agent: "Agent", asker: Asker, request: PermissionRequest, interrupts: "_Interrupts") -> None:
    """Ask, unless the run is being stopped; Ctrl-C ends the question too."""
    if interrupts.stopping:
        return
    asking = asyncio.create_task(asker.ask(request), name="retinue-permission")
    interrupts.question = asking
    try:
        answer = await asking
    except asyncio.CancelledError:
        if not interrupts.stopping:
            raise
        return
    finally:
        interrupts.question = None
        asking.cancel()
    if answer is not None:
        try:
            await agent.answer(request, allow=answer.allow, text=answer.text, remember=answer.remember, by="terminal")
        except RetinueError as error:  # answered elsewhere meanwhile, or closed by a cancel
            if error.code != "already_answered":
                raise


class _Interrupts:
    """Ctrl-C and SIGTERM: the first stops the whole tree in good order, the second exits at once; both can be resumed."""

    def __init__(self, agent: "Agent", viewer: Viewer) -> None:
        self._agent = agent
        self._viewer = viewer
        self._cancelling: asyncio.Task[None] | None = None
        self._main = asyncio.current_task()
        self.question: asyncio.Task[Any] | None = None
        self.started = False
        self.resting = False
        """Whether the run has ended, and only tasks in the background are at work."""
        self.leaving = False

    @property
    def stopping(self) -> bool:
        """Whether the person has asked to stop."""
        return self._cancelling is not None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self.stopping:
            self._viewer.pause()
            self._viewer.say("Left at once. What was recorded is kept; `retinue resume` brings the run to its end.")
            os._exit(Exit.INTERRUPTED)
        if not self.started:
            if self._main is not None:
                self._main.cancel()
            return
        self.leaving = self.resting
        if self.resting:
            from retinue.harness.tasks import end_tasks

            self._cancelling = asyncio.create_task(end_tasks(self._agent, "detach"), name="retinue-interrupt")
        else:
            self._cancelling = asyncio.create_task(self._agent.cancel(reason="Ctrl-C or a signal"), name="retinue-interrupt")
        if self.question is not None:
            self.question.cancel()
        if self.resting:
            return
        self._viewer.say("Stopping the whole tree … (Ctrl-C again leaves at once)")


def _say_end(event: RunFinishedEvent, viewer: Viewer, session: Session) -> None:
    """The answer to stdout; how it ended, what is kept and how to go on to stderr."""
    if isinstance(viewer, JsonViewer):
        return
    result = event.result
    if result.status == "completed" and result.text:
        write_line(sys.stdout, clean(result.text))  # also where stdout is a pipe: it may end in a terminal
    if viewer.talks and result.text:
        viewer.say("")
    if viewer.talks or result.status != "completed":
        for line in _end_lines(event, viewer, session):
            viewer.say(line)


def _end_lines(event: RunFinishedEvent, viewer: Viewer, session: Session) -> list[str]:
    result = event.result
    say: list[str] = [_summary(event, viewer)]
    place = _place(event)
    go_on = session.command("run", "--session", place[0], *(("--thread", place[1]) if place[1] != "main" else ()))
    match result.status:
        case "failed":
            if result.message:
                say.append(f"  {one_line(result.message, 600)}")
            if result.remedy:
                say.append(f"  to do: {one_line(result.remedy, 600)}")
            say += _partial(result.text)
        case "cancelled":
            if result.message:
                say.append(f"  {one_line(result.message, 600)}")
            say += _partial(result.text)
            say.append(f"Kept: session {place[0]}, thread {place[1]}, with all that was done.")
        case "waiting":
            for request in result.requests:
                say.append(
                    f"  open: {one_line(request.agent_id, 60)} asks for {one_line(request.tool, 60)} ({request.request_id})"
                )
                say.append(f"    {session.command('answer', request.request_id, 'allow')}    (or deny)")
            say.append(f"Answer on a terminal with: {session.command('resume', event.run_id)}")
            say.append(f"Stop it with: {session.command('cancel', event.run_id)}")
            return say
        case _:
            pass
    if session.can_go_on:
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
    children = viewer.view.children()
    facts = [str(event.status) + (f" ({one_line(event.reason, 80)})" if event.reason else "")]
    if node is not None:
        facts.append(duration(node.elapsed(event.at)))
    if children:
        facts.append(counted(children, "subagent"))
    if usage.calls:
        facts += [tokens(usage.input_tokens + usage.output_tokens), money(cost)]
    place = _place(event)
    return ", ".join(facts) + (f"  (session {place[0]})" if place[0] else "")


def run_async(work: Callable[[], Coroutine[Any, Any, Exit]]) -> Exit:
    """Run a command's coroutine; an interrupt before a run began is an interrupt.

    What the library logs goes to stderr, cleaned, also before and after there is a viewer.
    """
    try:
        with reported_to(partial(print, file=sys.stderr)):
            return asyncio.run(work())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
