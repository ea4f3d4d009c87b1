"""What a capability is, and how a tool is called.

A `Capability` is anything that a harness or an agent can be given under a name (a tool, a subagent). A `Tool` is one that
runs code. The loop above decides whether, when and how often; this floor only knows how.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import msgspec

from retinue.config import Verdict
from retinue.media import Media
from retinue.messages import CallRef
from retinue.models.port import ToolSpec
from retinue.secrets import SecretRef
from retinue.states import ResultStatus

if TYPE_CHECKING:  # only carried here
    from retinue.tools.pool import ToolThreads

__all__ = ["Capability", "Tool", "ToolContext", "ToolFlags", "ToolOutput"]

T = TypeVar("T")


@runtime_checkable
class Capability(Protocol):
    """Something with a name that a model can be offered."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def description(self) -> str:
        """What it is for, in words for the model."""
        ...


class ToolFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool's author says of it (ANSWERS, Terms).

    `read_only`: no effect. `idempotent`: repeating with the same key has the effect of once. `replayable`: may be run again
    from its start with recorded answers. `need`: the verdict where no rule has an opinion. `main_argument`: what a rule's
    glob is matched against (default: the first parameter).
    """

    read_only: bool = False
    idempotent: bool = False
    replayable: bool = False
    need: Verdict = Verdict.ALLOW
    main_argument: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a call without a recorded result may be made again (D-19)."""
        return self.read_only or self.idempotent or self.replayable


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave: the text for the model, and how it ended. `media` are pictures and files; the text has their lines
    (`retinue.media.composed`)."""

    content: str
    status: ResultStatus = ResultStatus.OK
    metadata: dict[str, Any] = {}
    media: tuple[Media, ...] = ()


class ToolContext:
    """What a running tool may know and do. A tool gets it through a parameter annotated `ToolContext`.

    `idempotency_key` is stable over attempts: hand it to the service you call. `progress` shows a line to viewers.
    After a cancel the context is closed and `progress` does nothing. `threads` is where synchronous tools run.
    """

    __slots__ = (
        "_attributes",
        "_closes_place",
        "_report",
        "agent_id",
        "attempt",
        "call",
        "cancelled",
        "idempotency_key",
        "path",
        "run_id",
        "session_id",
        "threads",
        "user_id",
    )

    def __init__(
        self,
        *,
        agent_id: str,
        user_id: str,
        session_id: str,
        run_id: str,
        path: tuple[str, ...],
        call: CallRef,
        attempt: int,
        attributes: Mapping[str, object] | None = None,
        report: Callable[[str], None] | None = None,
        threads: "ToolThreads | None" = None,
        closes_place: Callable[[Sequence[str], str, str], bool] | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.user_id = user_id
        self.session_id = session_id
        self.run_id = run_id
        self.path = path
        self.call = call
        self.attempt = attempt
        self.cancelled = False
        self.threads = threads
        self.idempotency_key = f"{call.message_id}:{call.index}"
        self._attributes: Mapping[str, object] = attributes or {}
        self._report = report
        self._closes_place = closes_place

    def closes_place(self, tools: Sequence[str], place: str, asked: str = "") -> bool:
        """Whether permission rules deny this place (as rules name places) to one of these tools, or would have somebody asked
        for it. For a tool that comes upon places which its arguments do not name, such as a search: it leaves them out.

        Args:
            tools: the tool itself, then others whose rules count as well.
            asked: the place that the call names; a rule that asks for it has been answered.
        """
        return self._closes_place is not None and self._closes_place(tools, place, asked)

    def get(self, name: str, kind: type[T] = object) -> T:
        """A value of the run's `RuntimeContext.attributes`. A `SecretRef` gives its value.

        Raises:
            KeyError: it was not given.
            TypeError: it is not of the wanted type.
            ConfigurationError: it is a `SecretRef` without a value.
        """
        given = self._attributes[name]
        value: Any = given.resolve() if isinstance(given, SecretRef) and kind is not SecretRef else given
        if not isinstance(value, kind):
            raise TypeError(f"context value `{name}` is {type(value).__name__}, not {kind.__name__}")
        return value

    def progress(self, text: str) -> None:
        """Show viewers how far the tool is. Not stored."""
        if self._report is not None and not self.cancelled:
            self._report(text)


class Tool(Capability, Protocol):
    """A capability that runs code."""

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        ...

    @property
    def flags(self) -> ToolFlags:
        """What its author says of it."""
        ...

    @property
    def blocking(self) -> bool:
        """True if it runs in the tool thread pool and so cannot be killed (M8)."""
        ...

    def always(self, arguments: Mapping[str, Any]) -> Verdict:
        """The most that any rule can grant for these arguments: ASK where a person must always be asked, DENY where the
        tool would refuse anyway. ALLOW for most tools."""
        ...

    def places(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Every name that permission rules shall see for what this call touches, besides the main argument as written: for
        a file, its path from the workspace's root, and where that leads. None for most tools."""
        return ()

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """Check the arguments (JSON text as the model sent it) and run.

        Bad arguments and errors of the tool come back as `ToolOutput` with status `error` and a text the model can act on;
        only cancellation is raised.
        """
        ...
