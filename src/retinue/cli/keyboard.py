"""Reading lines from a terminal inside the event loop, so that a signal or the end of a run can end the wait."""

import asyncio
import os
import sys
from typing import TextIO

from retinue.cli.wrapping import fitted

__all__ = ["is_interactive", "read_line"]


def is_interactive() -> bool:
    """Whether a person can be asked: stdin and stderr are terminals."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed, or not there at all
        return False


async def read_line(prompt: str, *, source: TextIO | None = None, out: TextIO | None = None) -> str | None:
    """The line that a person types, without its end; None at the end of input (Ctrl-D)."""
    stream, shown = source or sys.stdin, out or sys.stderr
    shown.write(fitted(prompt, shown))
    shown.flush()
    loop, descriptor = asyncio.get_running_loop(), stream.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def ready() -> None:
        if not typed.done():
            typed.set_result(_read(descriptor))

    loop.add_reader(descriptor, ready)
    try:
        data = await typed
    finally:
        loop.remove_reader(descriptor)
    if not data:
        shown.write("\n")  # the cursor stands behind the question, and no end of a line was typed
        shown.flush()
        return None
    return data.decode("utf-8", "replace").strip()


def _read(descriptor: int) -> bytes:
    """A terminal hands over one line at a time; one that has gone away (EIO) is at its end."""
    try:
        return os.read(descriptor, 4_096)
    except OSError:
        return b""
