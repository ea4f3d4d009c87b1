"""One entry of a run's tree: which agent, how far, what it does. Plain data without clock or I/O."""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final

from retinue.cli.text import one_line
from retinue.messages import ZERO_USAGE, CallRef, Usage
from retinue.rows import ThreadKey

__all__ = ["LINE_LIMIT", "TEXT_LIMIT", "Node", "NodeState"]

TEXT_LIMIT: Final = 2_000
LINE_LIMIT: Final = 200


class NodeState(StrEnum):
    """Where an entry is."""

    PREPARING = "preparing"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True for completed, failed and cancelled."""
        return self in (NodeState.COMPLETED, NodeState.FAILED, NodeState.CANCELLED)


@dataclass(slots=True, kw_only=True)
class Node:
    """One agent at work: the root run, or one delegation.

    `node_id` is the invocation id, `""` for the root, or a call's place while the delegation is still preparing. Times
    are milliseconds since the epoch (0: not known). `note` is the reason of an end or of a wait. `cost` is None once a
    price is unknown. `at_work` are the invocations of its children that have not ended. `refused` is a delegation that
    was asked for and never began. `summed`: usage and cost are those of its end, as its parent was told, and none of its
    own was seen. `text` is the newest message, its last 2,000 characters.
    """

    node_id: str
    agent: str
    parent: str | None = None
    state: NodeState = NodeState.RUNNING
    children: list[str] = field(default_factory=list[str])
    started_at: int = 0
    ended_at: int = 0
    last_at: int = 0
    text: str = ""
    text_of: str = ""
    note: str = ""
    calls: dict[CallRef, str] = field(default_factory=dict[CallRef, str])
    questions: dict[str, str] = field(default_factory=dict[str, str])
    at_work: set[str] = field(default_factory=set[str])
    call_names: dict[CallRef, str] = field(default_factory=dict[CallRef, str])
    usage: Usage = ZERO_USAGE
    cost: Decimal | None = Decimal(0)
    attempt: int = 1
    refused: bool = False
    summed: bool = False
    key: ThreadKey | None = None

    @property
    def activity(self) -> str:
        """What it is doing, on one bounded line."""
        if self.questions:
            return f"asks: {next(iter(self.questions.values()))}"
        if self.state.ended or self.state in (NodeState.WAITING, NodeState.INTERRUPTED):
            return self.note or _last_line(self.text)
        if self.calls:
            newest = next(reversed(self.calls.values()))
            return newest if len(self.calls) == 1 else f"(+{len(self.calls) - 1}) {newest}"
        if self.at_work:
            return "waits for a subagent" if len(self.at_work) == 1 else f"waits for {len(self.at_work)} subagents"
        return _last_line(self.text) or ("asks the model" if self.state is NodeState.RUNNING else "")

    def count_anew(self) -> None:
        """Forget the sum of its end: what it is a sum of is coming after all."""
        if self.summed:
            self.usage, self.cost, self.summed = ZERO_USAGE, Decimal(0), False

    def elapsed(self, now: int) -> int:
        """Milliseconds from the start to the end, or to `now`."""
        return max((self.ended_at or now) - self.started_at, 0) if self.started_at else 0


def _last_line(text: str) -> str:
    return one_line(text.rstrip().rpartition("\n")[2], LINE_LIMIT)
