"""What the loader and the merge have to say about a file or a declaration: plain data for people and for `agents check`."""

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from retinue.errors import RetinueError

__all__ = ["Diagnostic", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "info"]
"""`error`: refused. `warning`: loaded, but not as it was meant. `info`: worth knowing."""


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One finding (invariant 11). `line` counts from 1, None where it is about the whole file; `path` is None for code."""

    severity: Severity
    code: str
    message: str
    remedy: str
    path: Path | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """`path:line`, as far as they are known."""
        return "" if self.path is None else f"{self.path}:{self.line}" if self.line else f"{self.path}"

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        return f"{place}{self.severity}: {RetinueError(self.message, remedy=self.remedy)}"
