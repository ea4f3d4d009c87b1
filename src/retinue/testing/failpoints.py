"""Places to fail: hooks for `SqliteLedger(hooks=…)` that kill the process or fill the disk at the COMMIT of batch `n`.

Batches are counted from 1 since `open`. A subprocess is told by its environment: `RETINUE_FAILPOINT=kill:before:3`.
"""

import os
import signal
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from retinue.errors import ConfigurationError
from retinue.ledger.sqlite import CommitHooks
from retinue.ops import Op

__all__ = ["VARIABLE", "Failpoint", "FullDiskAt", "KillAt", "Record", "from_env", "parse"]

VARIABLE: Final = "RETINUE_FAILPOINT"


class Failpoint:
    """Does nothing, at every place where something can be done. See `CommitHooks` for the meaning of the methods."""

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """See `CommitHooks`."""

    def before_commit(self, n: int) -> None:
        """See `CommitHooks`."""

    def after_commit(self, n: int) -> None:
        """See `CommitHooks`."""


class KillAt(Failpoint):
    """SIGKILL to this process: before the COMMIT of batch `n`, or after it and before anybody has the receipt."""

    def __init__(self, n: int, when: Literal["before", "after"] = "before") -> None:
        self.n = n
        self.when = when

    def before_commit(self, n: int) -> None:
        """Die here if it is the time."""
        if n == self.n and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self, n: int) -> None:
        """Die here if it is the time."""
        if n == self.n and self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


class FullDiskAt(Failpoint):
    """The disk is full at the COMMIT of batch `n`, once: the batch that is tried next has the same number, and room."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.failed = False

    def before_commit(self, n: int) -> None:
        """Raise what SQLite raises."""
        if n == self.n and not self.failed:
            self.failed = True
            raise sqlite3.OperationalError("database or disk is full")


class Record(Failpoint):
    """Keeps what was committed: `log` has ("before" | "after", n), `batches` the ops of each call of each batch."""

    def __init__(self) -> None:
        self.log: list[tuple[Literal["before", "after"], int]] = []
        self.batches: list[tuple[tuple[Op, ...], ...]] = []

    @property
    def commits(self) -> int:
        """How many COMMITs have returned."""
        return sum(1 for when, _ in self.log if when == "after")

    def batch(self, n: int, commits: Sequence[Sequence[Op]]) -> None:
        """Keep the ops."""
        self.batches.append(tuple(tuple(ops) for ops in commits))

    def before_commit(self, n: int) -> None:
        """Keep the place."""
        self.log.append(("before", n))

    def after_commit(self, n: int) -> None:
        """Keep the place."""
        self.log.append(("after", n))


def parse(text: str) -> CommitHooks:
    """The failpoint that a text names: `kill:before:3`, `kill:after:3`, `full:3`.

    Raises:
        ConfigurationError: it names none.
    """
    match text.split(":"):
        case ["kill", "before" | "after" as when, number] if number.isdecimal():
            return KillAt(int(number), when)
        case ["full", number] if number.isdecimal():
            return FullDiskAt(int(number))
        case _:
            raise ConfigurationError(
                f"failpoint `{text}` cannot be read",
                code="invalid_failpoint",
                remedy="write `kill:before:3`, `kill:after:3` or `full:3`",
            )


def from_env(environment: Mapping[str, str] | None = None) -> CommitHooks | None:
    """The failpoint that `RETINUE_FAILPOINT` names, or None where it is not set."""
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    return parse(text) if text else None
