"""Finding the lines that a pattern matches, in bounded time whatever the pattern is."""

import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from retinue.tools.results import bounded
from retinue.workspace.errors import FileError

__all__ = ["LineMatcher", "LiteralMatcher", "RegexMatcher", "matcher_for"]

SECONDS: Final = 10.0
"""How long a whole search may take."""

_SPECIAL: Final = frozenset(".^$*+?{}[]\\|()")
_CHILD: Final = Path(__file__).with_name("grep_child.py")


class LineMatcher(Protocol):
    """Tells which lines match; a context manager that frees what it uses."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def lines(self, text: str, most: int) -> list[int]:
        """The indexes of the first `most` lines of `text` (split at `\\n`) that match.

        Raises:
            FileError: it takes too long.
        """

        ...


def matcher_for(pattern: str, *, seconds: float = SECONDS) -> LineMatcher:
    """A matcher for a regular expression; plain texts need no process."""
    return RegexMatcher(pattern, seconds=seconds) if _SPECIAL & set(pattern) else LiteralMatcher(pattern)


class LiteralMatcher:
    """Lines that contain a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def lines(self, text: str, most: int) -> list[int]:
        """See `LineMatcher`."""
        if self._text not in text:
            return []
        found = (index for index, line in enumerate(text.split("\n")) if self._text in line)
        return [index for index, _ in zip(found, range(most), strict=False)]


class RegexMatcher:
    """Lines that match a regular expression, tried in a child process that is killed when the time is over.

    Raises (on entering):
        FileError: the expression cannot be read.
    """

    def __init__(self, pattern: str, *, seconds: float = SECONDS) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._deadline = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        import json

        self._deadline = time.monotonic() + self._seconds
        command = [sys.executable, "-I", "-S", str(_CHILD), str(int(self._seconds) + 5)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        try:
            fault = self._ask(json.dumps(self._pattern).encode() + b"\n")
            if fault is not None:
                raise FileError(
                    f"the pattern `{bounded(self._pattern, 200)}` is no regular expression: {bounded(str(fault), 200)}",
                    code="invalid_pattern",
                    remedy="correct it; put `\\` before a special character that is meant literally",
                )
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def lines(self, text: str, most: int) -> list[int]:
        """See `LineMatcher`."""
        data = text.encode("utf-8", "replace")
        answer = self._ask(b"%d %d\n" % (len(data), most) + data)
        return [index for index in answer if isinstance(index, int)] if isinstance(answer, list) else []  # pyright: ignore[reportUnknownVariableType]

    def _ask(self, frame: bytes) -> object:
        """Send one frame, and wait for one line of answer until the deadline."""
        import json

        assert self._child is not None
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            view = memoryview(frame)
            while view:  # the child reads a frame before it works on it, so this never waits for the pattern
                view = view[stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise _took_too_long(self._pattern) from None
        poll = select.poll()
        poll.register(stdout, select.POLLIN | select.POLLHUP)
        answer = b""
        while not answer.endswith(b"\n"):
            left = self._deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise _took_too_long(self._pattern)
            chunk = stdout.read(1 << 16)
            if not chunk:
                raise _took_too_long(self._pattern)
            answer += chunk
        return json.loads(answer)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _took_too_long(pattern: str) -> FileError:
    return FileError(
        f"the search for `{bounded(pattern, 200)}` took too long and was stopped",
        code="timeout",
        remedy="use a simpler pattern (no repetition inside of a repetition), or narrow `path` or `glob`",
    )
