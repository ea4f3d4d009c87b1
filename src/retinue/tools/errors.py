"""The exception with which a tool's author tells the model something in exact words."""

import asyncio

from retinue.errors import RetinueError

__all__ = ["BadArguments", "ToolError", "cancel_requested", "is_fault"]


class ToolError(RetinueError):
    """Raise it in a tool: the model reads exactly this message (and remedy), without a type name before it.

    >>> raise ToolError("no booking under that number", remedy="ask the customer for it again")
    """

    default_code = "tool"


class BadArguments(ToolError):
    """The arguments of a call do not fit the tool's parameters; the message says what to correct."""

    default_code = "bad_arguments"


def cancel_requested() -> bool:
    """Whether somebody cancels this task; else a `CancelledError` comes from inside the code that raised it."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def is_fault(error: BaseException) -> bool:
    """Whether what an author's code raised is a fault of that code (`SystemExit` too): it must not end the host's loop.

    Ctrl-C, a cancellation that somebody asked for, and the closing of a coroutine whose loop has ended are none.
    """
    if isinstance(error, asyncio.CancelledError):
        return not cancel_requested()
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, GeneratorExit):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
    return True
