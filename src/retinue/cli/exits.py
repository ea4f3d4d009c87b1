"""What the command's exit codes mean, and which one an end or an error has."""

import contextlib
import json
import os
import sys
import traceback
from enum import IntEnum
from typing import Final

from retinue.cli.text import clean
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError, ModelError, RetinueError, ThreadBusy, UnknownId

__all__ = ["Exit", "exit_of_error", "exit_of_run", "report"]


class Exit(IntEnum):
    """The exit codes of `retinue`."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    LIMIT = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


UNREACHABLE: Final = frozenset({"unreachable", "timeout", "stream_broken", "overloaded", "rate_limited"})
"""Codes of `ModelError` that say: the model did not answer, and might later."""
CONFIGURATION: Final = frozenset({"missing_key", "authentication", "model_not_found", "configuration"})


def exit_of_run(status: str, reason: str | None) -> Exit:
    """The code for a run that ended with this status and reason."""
    if status == "completed":
        return Exit.COMPLETED
    if status == "waiting":
        return Exit.WAITING
    if status == "cancelled":
        return Exit.INTERRUPTED
    return _of_code(reason or "")


def exit_of_error(error: BaseException) -> Exit:
    """The code for an error that ended the command."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, ConfigurationError | UnknownId):
        return Exit.USAGE
    if isinstance(error, ThreadBusy) and error.code == "waiting_for_answer":
        return Exit.WAITING
    if isinstance(error, ModelError):
        return _of_code(error.code)
    return Exit.FAILED


def _of_code(code: str) -> Exit:
    if code.startswith("limit:"):
        return Exit.LIMIT
    if code in UNREACHABLE:
        return Exit.UNREACHABLE
    return Exit.USAGE if code in CONFIGURATION else Exit.FAILED


def report(error: Exception, *, as_json: bool = False) -> Exit:
    """Say on stderr what was wrong and what to do, on one line each; a traceback only with RETINUE_DEBUG=1.

    `as_json`: the command was to write JSON, and whoever reads it gets the error on stdout too, as one line of that.
    """
    if as_json:
        _tell(error)
    if os.environ.get("RETINUE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    elif isinstance(error, RetinueError):
        _say(f"retinue: {error.message}")
        if error.remedy:
            _say(f"  to do: {error.remedy}")
    else:
        _say(f"retinue: {type(error).__name__}: {error}")
        _say("  to do: this is a fault of Retinue; run again with RETINUE_DEBUG=1 and report what it prints")
    return exit_of_error(error)


def _say(text: str) -> None:
    print(fitted(clean(text), sys.stderr), file=sys.stderr)


def _tell(error: Exception) -> None:
    known = isinstance(error, RetinueError)
    document = {
        "type": "ERROR",
        "code": error.code if known else type(error).__name__,
        "message": error.message if known else str(error),
        "remedy": error.remedy if known else None,
        "exit": int(exit_of_error(error)),
    }
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(document, ensure_ascii=True), flush=True)
