"""What a run gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from retinue.events import PermissionRequest
from retinue.messages import Usage

__all__ = ["RunResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended and what it gave.

    `usage` and `cost` are of the whole tree, `own` holds those of this run alone; `cost` None means that a price is unknown.
    `requests` are the open questions of a run that is `waiting`.
    """

    status: Literal["completed", "failed", "cancelled", "waiting"]
    reason: str | None = None
    text: str = ""
    output: Any = None
    usage: Usage = Usage()
    cost: Decimal | None = None
    own: "RunResult | None" = None
    thread: Any = None
    tasks: Sequence[Any] = ()
    requests: Sequence[PermissionRequest] = ()
