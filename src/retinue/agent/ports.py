"""What the run loop needs from the floors above and beside it, in words and types.

A `CallHandler` stands for one tool name: a plain tool, or a delegation that floor 5 implements. The loop asks the `Gate`,
lets the handler prepare (what it stages rides with the commit of the call's intent), and then lets it run.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from retinue.agent.journal import Batch
from retinue.config import ValueType
from retinue.events import Event, SubAgentInvocationStartedEvent
from retinue.media import Media
from retinue.messages import BlobRef, CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall, Remembered
from retinue.permissions.rules import Decision
from retinue.states import ResultStatus

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["CallHandler", "CallOutcome", "Gate", "Prepared", "RunEnd"]


class RunEnd(msgspec.Struct, frozen=True):
    """How one attempt of a run ended. `waiting` is no terminal: it goes on when its requests are answered."""

    status: Literal["completed", "failed", "cancelled", "waiting"]
    reason: str | None = None
    message: str = ""
    remedy: str | None = None


class CallOutcome(msgspec.Struct, kw_only=True, metaclass=ValueType):
    """How a call ended. `events` go into the journal before its result, `batch` is what others let ride along. `blobs` are
    stored texts that `content` names, `media` pictures and files that it has lines for.

    `suspended`: it has not ended: a child waits for a person, and so does the run.
    """

    content: str = ""
    status: ResultStatus = ResultStatus.OK
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    blobs: tuple[BlobRef, ...] = ()
    media: tuple[Media, ...] = ()
    events: Sequence[Event] = ()
    batch: Batch | None = None
    suspended: bool = False


class Prepared(msgspec.Struct, kw_only=True):
    """A call that may start: `execute` runs it. `stop` asks it to stop (a delegation); None: cancel its task. `abandoned`
    is told when it did not end within the grace and is waited for no longer.

    `barrier`: the intent must be durable before it starts (M2). `blocking`: it runs in a thread and cannot be killed.
    `inline`: it may run in the caller's own task, because it heeds `stop`.
    """

    execute: Callable[[], Awaitable[CallOutcome]]
    stop: Callable[[str], None] | None = None
    abandoned: Callable[[], None] | None = None
    barrier: bool = True
    blocking: bool = False
    inline: bool = False


class Gate(Protocol):
    """Decides what may be called (M10). Evaluated for every call, also after a resume."""

    async def decide(self, call: GatedCall, remembered: Remembered) -> Decision:
        """The effective verdict for a call, remembered answers included."""
        ...

    def closes_place(self, tools: Sequence[str], place: str, asked: str) -> bool:
        """Whether a rule denies this place to one of these tools."""
        ...


class CallHandler(Protocol):
    """One tool name of an agent."""

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        ...

    @property
    def repeatable(self) -> bool:
        """A call without a recorded result may be made again."""
        ...

    @property
    def delegates(self) -> bool:
        """It makes a child; its call is found again by its identity."""
        ...

    async def gated(self, run: "Run", arguments: Mapping[str, Any]) -> GatedCall:
        """What to ask the gate for these arguments of a call of this run: who or what is meant is found out here."""
        ...

    async def refusal(self, run: "Run", call: ToolCall) -> CallOutcome | None:
        """Why the call cannot be, before anyone is asked whether it may be: an unknown agent, too deep, bad arguments."""
        ...

    async def prepare(self, run: "Run", ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """Check the call and stage what must be committed with its intent; an outcome if it ends here."""
        ...

    async def reattach(
        self, run: "Run", ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """Go on with the child that an earlier attempt of this run made. Only called if `delegates`."""
        ...
