"""Events: what a journal holds, and what a viewer of a tree sees.

A stored event is an `ops.Record` whose body is the JSON of one of these classes; `decode` gives the object back, and an
`UnknownEvent` for a type that this version does not know, so that old readers survive new writers. The fields of `Event`
itself are not stored: they are filled in where an event is handed to a viewer.

Journal order of a delegation (H-20): MESSAGE with the call, SUBAGENT_INVOCATION_STARTED, exactly one of _COMPLETED, _FAILED
and _CANCELLED with the same invocation id, TOOL_CALL_RESULT. TOOL_CALL_START, _ARGS and _END are derived from MESSAGE.
"""

from decimal import Decimal
from typing import Any, ClassVar, Final, Literal

import msgspec

from retinue.damage import UNREADABLE, damaged
from retinue.messages import AssistantMessage, BlobRef, CallRef, MediaRef, OutputSpec, Usage, UserMessage
from retinue.ops import Record
from retinue.rows import ForkPoint, ThreadKey
from retinue.states import ResultStatus

__all__ = [
    "CancelSeenEvent",
    "Event",
    "EventsDroppedEvent",
    "MessageEvent",
    "ModelCalledEvent",
    "OutputCheckedEvent",
    "PermissionRequest",
    "ReasoningDeltaEvent",
    "RequestClosedEvent",
    "RunFinishedEvent",
    "RunStartedEvent",
    "StateSetEvent",
    "SubAgentInvocationCancelledEvent",
    "SubAgentInvocationCompletedEvent",
    "SubAgentInvocationFailedEvent",
    "SubAgentInvocationStartedEvent",
    "TextDeltaEvent",
    "ThreadCreatedEvent",
    "ToolCallArgsEvent",
    "ToolCallEndEvent",
    "ToolCallResultEvent",
    "ToolCallStartEvent",
    "ToolProgressEvent",
    "UnknownEvent",
    "decode",
    "derived",
    "encode",
]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base. What stands here is where the event belongs; it is empty in a stored body and filled in for viewers.

    `path` is the tuple of agent ids from the root, `invocations` the invocation ids along it, `key` the thread,
    `seq` the place in its journal (0 for a live event), `at` milliseconds since the epoch.
    """

    TYPE: ClassVar[str] = ""

    path: tuple[str, ...] = ()
    invocations: tuple[str, ...] = ()
    key: ThreadKey | None = None
    run_id: str = ""
    seq: int = 0
    at: int = 0

    @property
    def live(self) -> bool:
        """True for an event that is not in any journal (text deltas, tool progress, derived call events)."""
        return self.seq == 0


class ThreadCreatedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The first event of a thread, or of a new generation. `base` is what its history begins with."""

    TYPE: ClassVar[str] = "THREAD_CREATED"
    default_agent_id: str
    base: ForkPoint | None = None
    metadata: dict[str, Any] = {}


class RunStartedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A run begins, or another owner goes on with it (`attempt` > 1).

    `max_iters` and `output` (the form that the answer must have) hold for this run, so that a resumed run keeps them.
    `rules` (of a root run, where it has any) are the lists `allow`, `ask` and `deny` that it was started under.
    """

    TYPE: ClassVar[str] = "RUN_STARTED"
    agent_id: str
    owner: str
    attempt: int
    definition_hash: str = ""
    envelope_hash: str = ""
    model: str = ""
    depth: int = 0
    max_iters: int = 10
    invocation_id: str | None = None
    output: OutputSpec | None = None
    rules: dict[str, tuple[str, ...]] = {}


class MessageEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message of a user, an assistant, or the harness (a user message with `notice`)."""

    TYPE: ClassVar[str] = "MESSAGE"
    message: UserMessage | AssistantMessage


class ToolCallResultEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The one result of a call. `metadata` carries what H-10 names for a subagent's call.

    A result that was too long is cut in `content`; `blobs` refers to the whole text, and to those that a child names.
    `parts` are the pictures and files that the call gave.
    """

    TYPE: ClassVar[str] = "TOOL_CALL_RESULT"
    call: CallRef
    call_id: str
    name: str
    content: str
    status: ResultStatus = ResultStatus.OK
    metadata: dict[str, Any] = {}
    blobs: tuple[BlobRef, ...] = ()
    parts: tuple[MediaRef, ...] = ()


class PermissionRequest(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A question to a person (REQUEST_OPENED): may `tool` be called with `arguments` (redacted JSON text)?

    The frozen view of a request row; the same object in `stream`, `result.requests` and `agent.requests()`. Answer it with
    `agent.answer(request, allow=…)`.
    """

    TYPE: ClassVar[str] = "REQUEST_OPENED"
    request_id: str
    kind: str = "permission"
    call: CallRef
    tool: str
    agent_id: str
    arguments: str = "{}"
    description: str = ""
    options: tuple[str, ...] = ("allow", "deny")


class RequestClosedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The answer to a request, or why none will come (`expired`, `cancelled`, `abandoned`)."""

    TYPE: ClassVar[str] = "REQUEST_CLOSED"
    request_id: str
    call: CallRef
    answer: Literal["allow", "deny", "expired", "cancelled", "abandoned"]
    by: str = ""
    remember: str = "once"
    note: str = ""


class SubAgentInvocationStartedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A delegation began. In the parent's journal."""

    TYPE: ClassVar[str] = "SUBAGENT_INVOCATION_STARTED"
    invocation_id: str
    call: CallRef
    parent_tool_call_id: str
    name: str
    child_agent_id: str
    child_session_id: str
    child_thread_id: str
    child_run_id: str
    context_policy: str
    mode: str = "synchronous"
    depth: int = 1


class _Terminal(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What every end of a delegation says. `usage` and `cost` are of the child's whole tree."""

    invocation_id: str
    call: CallRef
    parent_tool_call_id: str
    child_agent_id: str
    child_session_id: str
    child_thread_id: str
    context_policy: str
    mode: str = "synchronous"
    depth: int = 1
    usage: Usage = Usage()
    cost: Decimal | None = None


class SubAgentInvocationCompletedEvent(_Terminal, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The child answered. `summary` is its text, at most 2,000 characters."""

    TYPE: ClassVar[str] = "SUBAGENT_INVOCATION_COMPLETED"
    summary: str = ""


class SubAgentInvocationFailedEvent(_Terminal, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The child failed (an error, a limit, an empty answer, a timeout)."""

    TYPE: ClassVar[str] = "SUBAGENT_INVOCATION_FAILED"
    error_type: str
    message: str
    partial_text: str = ""


class SubAgentInvocationCancelledEvent(_Terminal, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The child was stopped."""

    TYPE: ClassVar[str] = "SUBAGENT_INVOCATION_CANCELLED"
    reason: str = ""
    partial_text: str = ""


class ModelCalledEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One model call: usage, cost (None: price unknown), and the hash of the envelope it was sent with.

    A call that failed for good has the error's code in `error`, with `message` and `remedy`.
    """

    TYPE: ClassVar[str] = "MODEL_CALLED"
    provider: str
    model: str
    message_id: str = ""
    usage: Usage = Usage()
    cost: Decimal | None = None
    envelope_hash: str = ""
    finish_reason: str = "stop"
    duration_ms: int = 0
    error: str = ""
    message: str = ""
    remedy: str | None = None


class OutputCheckedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Whether an answer has the form that the run asks for. `fault` is empty, or says what does not fit."""

    TYPE: ClassVar[str] = "OUTPUT_CHECKED"
    message_id: str
    fault: str = ""


class StateSetEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A middleware's state of this thread changed; forks copy it (H-27)."""

    TYPE: ClassVar[str] = "STATE_SET"
    name: str
    value: Any


class CancelSeenEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The run has seen that it is to stop; after this it asks no model and starts no tool (M8).

    With a `fault`, a code, it is stopped because of what its author's own code did, and ends as failed with that code.
    """

    TYPE: ClassVar[str] = "CANCEL_SEEN"
    reason: str = ""
    fault: str = ""


class RunFinishedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A run's one terminal. `reason` is `limit:<name>`, an error's code, or why it was cancelled.

    `usage` and `cost` are of this run and everything below it; `result` is set on the last event of `stream()` only.
    """

    TYPE: ClassVar[str] = "RUN_FINISHED"
    status: Literal["completed", "failed", "cancelled", "waiting"]
    reason: str | None = None
    message: str = ""
    remedy: str | None = None
    usage: Usage = Usage()
    cost: Decimal | None = None
    result: Any = None


class TextDeltaEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Text as it is streamed, with its offset in the message. Live only (D-33)."""

    TYPE: ClassVar[str] = "TEXT_DELTA"
    message_id: str
    offset: int
    text: str


class ReasoningDeltaEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Reasoning as it is streamed. Live only."""

    TYPE: ClassVar[str] = "REASONING_DELTA"
    message_id: str
    offset: int
    text: str


class ToolCallStartEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A call begins. Derived from MESSAGE."""

    TYPE: ClassVar[str] = "TOOL_CALL_START"
    call: CallRef
    call_id: str
    name: str


class ToolCallArgsEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The arguments of a call, as JSON text. Derived from MESSAGE."""

    TYPE: ClassVar[str] = "TOOL_CALL_ARGS"
    call: CallRef
    call_id: str
    arguments: str


class ToolCallEndEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The call is complete (its result comes later). Derived from MESSAGE."""

    TYPE: ClassVar[str] = "TOOL_CALL_END"
    call: CallRef
    call_id: str


class ToolProgressEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a running tool reports of itself (`ToolContext.progress`). Live only."""

    TYPE: ClassVar[str] = "TOOL_PROGRESS"
    call: CallRef
    name: str
    text: str


class EventsDroppedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A stream that was not read in time has dropped `count` deltas of texts and reports of tools, since the one before. What is
    in a journal is never dropped. Live only."""

    TYPE: ClassVar[str] = "EVENTS_DROPPED"
    count: int


class UnknownEvent(Event, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An event of a type that this version does not know: kept, shown, and skipped by every decision."""

    TYPE: ClassVar[str] = ""
    type: str
    body: msgspec.Raw


STORED: Final[tuple[type[Event], ...]] = (
    ThreadCreatedEvent,
    RunStartedEvent,
    MessageEvent,
    ToolCallResultEvent,
    PermissionRequest,
    RequestClosedEvent,
    SubAgentInvocationStartedEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationCancelledEvent,
    ModelCalledEvent,
    OutputCheckedEvent,
    StateSetEvent,
    CancelSeenEvent,
    RunFinishedEvent,
)

_DECODERS: Final[dict[str, msgspec.json.Decoder[Event]]] = {
    event_type.TYPE: msgspec.json.Decoder(event_type) for event_type in STORED
}

encode = msgspec.json.Encoder().encode
"""The JSON of an event's own fields: the body of a record."""


def decode(record: Record) -> Event:
    """The event of a stored record, with its place in the journal filled in.

    Raises:
        LedgerUnavailable: `damaged`, if the body of a known type does not fit it.
    """
    decoder = _DECODERS.get(record.type)
    if decoder is None:
        event: Event = UnknownEvent(type=record.type, body=msgspec.Raw(record.body))
    else:
        try:
            event = decoder.decode(record.body)
        except UNREADABLE as error:
            key = record.key
            place = f"`{key.session}/{key.thread}`" + (f" of user `{key.user}`" if key.user else "")
            what = f"record {record.seq} of {place} (table `event`, generation {record.generation}, type `{record.type}`)"
            raise damaged(what, error) from error
    return msgspec.structs.replace(event, key=record.key, run_id=record.run, seq=record.seq, at=record.at)


def derived(event: MessageEvent) -> list[Event]:
    """TOOL_CALL_START, _ARGS and _END of every call of an assistant message, in call order (H-20)."""
    message = event.message
    if not isinstance(message, AssistantMessage):
        return []
    made: list[Event] = []
    place: dict[str, Any] = {
        "path": event.path,
        "invocations": event.invocations,
        "key": event.key,
        "run_id": event.run_id,
        "at": event.at,
    }
    for index, call in enumerate(message.calls):
        ref = CallRef(message.id, index)
        made.append(ToolCallStartEvent(call=ref, call_id=call.id, name=call.name, **place))
        made.append(ToolCallArgsEvent(call=ref, call_id=call.id, arguments=call.arguments, **place))
        made.append(ToolCallEndEvent(call=ref, call_id=call.id, **place))
    return made
