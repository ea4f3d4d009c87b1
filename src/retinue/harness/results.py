"""What a run gives back, and the errors that carry it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec

from retinue.agent.budget import Left
from retinue.errors import RetinueError
from retinue.events import PermissionRequest
from retinue.harness.threads import Thread  # not for type checkers alone: `inspect.signature` looks the names of fields up
from retinue.messages import ZERO_USAGE, Usage

__all__ = ["RunCancelled", "RunFailed", "RunResult"]


class RunResult(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How a run ended and what it gave.

    `text` is the answer, or as far as it came; `output` its value where the run asked for a type and completed. `reason` is
    an error's code or `limit:<name>`; `message` and `remedy` say it to a person. `usage` and `cost` are of the whole tree,
    `own` holds those of this run alone; `cost` None means that a price is unknown. `requests` are the open questions of a
    run that is `waiting`, `left` what its own budget leaves.
    """

    status: Literal["completed", "failed", "cancelled", "waiting"]
    reason: str | None = None
    message: str = ""
    remedy: str | None = None
    text: str = ""
    output: Any = None
    usage: Usage = ZERO_USAGE
    cost: Decimal | None = None
    own: "RunResult | None" = None
    thread: Thread | None = None
    run_id: str = ""
    tasks: Sequence[Any] = ()
    requests: Sequence[PermissionRequest] = ()
    left: Left | None = None

    def __str__(self) -> str:
        """For people: how it ended, why, what to do, and the text. Not for programs."""
        reason = f" ({self.reason})" if self.reason else ""
        lines = [f"{self.status}{reason}" + (f": {self.message}" if self.message else "")]
        if self.remedy and self.status == "failed":
            lines.append(f"to do: {self.remedy}")
        lines += [f"open: `{one.agent_id}` asks for `{one.tool}` ({one.request_id})" for one in self.requests]
        return "\n".join([*lines, self.text] if self.text else lines)


class RunFailed(RetinueError):
    """A run ended failed. `result` has the reason, the partial text, usage and thread."""

    default_code = "run_failed"

    def __init__(self, message: str, *, result: RunResult, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.result = result


class RunCancelled(RetinueError):
    """A run ended cancelled. `result` has the partial text, usage and thread."""

    default_code = "run_cancelled"

    def __init__(self, message: str, *, result: RunResult, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.result = result
