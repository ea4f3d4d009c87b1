"""Where the events of a run go: a live tree, plain lines, JSON lines, or nowhere.

Progress is written to stderr, so that stdout holds the answer alone (with `--json`: the events alone). What a viewer cannot
write is not worth a run: a closed pipe silences it and the run goes on.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TextIO

from retinue.cli.lines import lifecycle_line
from retinue.cli.live_tree import TreeView
from retinue.cli.text import clean
from retinue.cli.wrapping import fitted
from retinue.events import Event, RunFinishedEvent, RunStartedEvent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = [
    "JsonViewer",
    "LiveViewer",
    "PlainViewer",
    "QuietViewer",
    "Viewer",
    "can_draw",
    "choose_viewer",
    "is_last",
    "write_line",
]

FRAME: Final = 0.1
MARGIN: Final = 4
"""Columns that stay free: a terminal echoes `^C` there, which must not begin a new line."""


class Viewer(Protocol):
    """Shows a run. Used as an async context manager around it."""

    view: TreeView
    talks: bool
    """Whether it shows more than the answer."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        """Take one event in."""
        ...

    def catch_up(self, events: Sequence[Event]) -> None:
        """Take in what a resumed run has in its journals."""
        ...

    def pause(self) -> None:
        """Leave the terminal to somebody else: a question to the person."""
        ...

    def resume(self) -> None:
        """Take it back."""
        ...

    def say(self, message: str) -> None:
        """Show a line of our own."""
        ...


class QuietViewer:
    """Shows nothing but what it is told to say."""

    talks = False

    def __init__(self, out: TextIO | None = None) -> None:
        self.view = TreeView()
        self.out = out or sys.stderr

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        """See `Viewer`."""
        self.view.apply(event)

    def catch_up(self, events: Sequence[Event]) -> None:
        """See `Viewer`."""
        for event in events:
            self.show(event)

    def pause(self) -> None:
        """See `Viewer`."""

    def resume(self) -> None:
        """See `Viewer`."""

    def say(self, message: str) -> None:
        """See `Viewer`."""
        write_line(self.out, fitted(clean(message), self.out))


class PlainViewer(QuietViewer):
    """One line per lifecycle event."""

    talks = True

    def show(self, event: Event) -> None:
        """See `Viewer`."""
        new = not self.view.knows(event)
        self.view.apply(event)
        line = lifecycle_line(event, self.view)
        if new and line is not None:
            write_line(self.out, fitted(line, self.out))


class JsonViewer(QuietViewer):
    """One event a line on stdout, as `describe` renders it; what it says goes to stderr."""

    def __init__(self, describe: Callable[[Event], dict[str, Any]], out: TextIO | None = None) -> None:
        super().__init__()
        self.describe = describe
        self.lines = out or sys.stdout

    def show(self, event: Event) -> None:
        """See `Viewer`. ASCII only, so that no byte of it can steer a terminal."""
        if self.view.knows(event):
            return
        self.view.apply(event)
        write_line(self.lines, json.dumps(self.describe(event), ensure_ascii=True, separators=(",", ":")))

    def catch_up(self, events: Sequence[Event]) -> None:
        """See `Viewer`. What was told before is not told again; the take-over itself is new."""
        newest = {event.run_id: event for event in events if isinstance(event, RunStartedEvent) and event.attempt > 1}
        for event in events:
            if newest.get(event.run_id) is event:
                self.show(event)
            else:
                self.view.apply(event)
                self.describe(event)


class LiveViewer(QuietViewer):
    """The tree, redrawn in place ten times a second by a task that ends with the viewer."""

    talks = True

    def __init__(self, out: TextIO | None = None, now: Callable[[], int] | None = None) -> None:
        super().__init__(out)
        from rich.console import Console

        self.console = Console(file=self.out, highlight=False, markup=False, emoji=False)
        self.now = now or (lambda: time.time_ns() // 1_000_000)
        self._live: Live | None = None
        self._drawing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.resume()
        self._drawing = asyncio.create_task(self._draw(), name="retinue-live-tree")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drawing
        if self._live is not None:
            self._live.stop()
            self._live = None

    async def _draw(self) -> None:
        while True:
            if self._live is not None:
                self._live.refresh()
            await asyncio.sleep(FRAME)

    def picture(self) -> "RenderableType":
        """The tree at this moment, in the size that the terminal has."""
        from rich.text import Text

        from retinue.cli.render import draw_tree

        if self.view.root is None:
            return Text("starting …", style="dim")
        width, height = self.console.size
        ascii_only = not self.console.encoding.startswith("utf")
        return draw_tree(self.view, now=self.now(), width=width - MARGIN, height=height - 2, ascii_only=ascii_only)

    def pause(self) -> None:
        """See `Viewer`. The tree is taken away, so that no copy of it stays above each question."""
        if self._live is not None:
            self._live.transient = True
            self._live.stop()
            self._live = None

    def resume(self) -> None:
        """See `Viewer`."""
        from rich.live import Live

        if self._live is None:
            self._live = Live(
                get_renderable=self.picture, console=self.console, auto_refresh=False, redirect_stdout=False, transient=False
            )
            self._live.start(refresh=True)

    def say(self, message: str) -> None:
        """See `Viewer`. The line appears above the tree."""
        from rich.text import Text

        self.console.print(Text(fitted(clean(message), self.out)), soft_wrap=True)


def can_draw(stream: TextIO) -> bool:
    """Whether a tree can be redrawn in place here: a terminal that moves its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def choose_viewer(
    *, as_json: bool, quiet: bool, describe: Callable[[Event], dict[str, Any]], out: TextIO | None = None
) -> Viewer:
    """The viewer for these options and this terminal."""
    if as_json:
        return JsonViewer(describe)
    if quiet:
        return QuietViewer(out)
    return LiveViewer(out) if can_draw(out or sys.stderr) else PlainViewer(out)


def is_last(event: Event) -> bool:
    """Whether this is the end of the whole stream: the root's RUN_FINISHED with the result."""
    return isinstance(event, RunFinishedEvent) and event.result is not None


def write_line(stream: TextIO, line: str) -> None:
    """One line, at once. A reader that has gone away must not end the run."""
    try:
        stream.write(f"{line.encode(stream.encoding or 'utf-8', 'replace').decode(stream.encoding or 'utf-8')}\n")
        stream.flush()
    except BrokenPipeError:
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Nobody reads this stream any more: send what follows into the void, also at the interpreter's end."""
    with contextlib.suppress(OSError, ValueError):
        void = os.open(os.devnull, os.O_WRONLY)
        os.dup2(void, stream.fileno())
        os.close(void)
