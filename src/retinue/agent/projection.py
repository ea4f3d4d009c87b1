"""The projection of a thread's journal: what is known of the conversation and of its current run.

It is built by `apply` from events in order and by nothing else, so a process that has only the stored rows builds the same
one. `next_step` decides from it; nobody else keeps state of a run.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from retinue.events import (
    CancelSeenEvent,
    Event,
    MessageEvent,
    ModelCalledEvent,
    OutputCheckedEvent,
    PermissionRequest,
    RequestClosedEvent,
    RunFinishedEvent,
    RunStartedEvent,
    StateSetEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
    decode,
)
from retinue.messages import (
    ZERO_USAGE,
    AssistantMessage,
    Entry,
    MediaRef,
    OutputSpec,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from retinue.ops import Record

__all__ = ["OUTPUT_NOTICE", "OpenCalls", "Projection", "inherited_history", "project"]

OUTPUT_NOTICE: Final = "output"
"""The kind of the notice that gives an answer back whose form is not the one that the run asks for."""

TASK_NOTICE: Final = "background-task"
"""The kind of the notice that tells how tasks in the background ended (D-20)."""

Terminal = SubAgentInvocationCompletedEvent | SubAgentInvocationFailedEvent | SubAgentInvocationCancelledEvent


class OpenCalls:
    """The calls of the last assistant message, while not all of them have a result.

    `seq` and `attempt` are those of the message's event: a call asked for in an earlier attempt counts as started. `state`
    is the thread's as it was then: what a fork begins with.
    """

    __slots__ = ("attempt", "closed", "invocations", "message", "requests", "results", "seq", "state", "terminals")

    def __init__(self, message: AssistantMessage, seq: int, attempt: int, state: Mapping[str, Any]) -> None:
        self.message = message
        self.seq = seq
        self.attempt = attempt
        self.state = state
        self.results: dict[int, ToolCallResultEvent] = {}
        self.requests: dict[int, PermissionRequest] = {}
        self.closed: dict[int, tuple[RequestClosedEvent, int]] = {}
        self.invocations: dict[int, SubAgentInvocationStartedEvent] = {}
        self.terminals: dict[int, Terminal] = {}

    def pending(self) -> list[tuple[int, ToolCall]]:
        """The calls without a result, in call order."""
        return [(index, call) for index, call in enumerate(self.message.calls) if index not in self.results]


class Projection:
    """What a journal says. Fields of the run are those of the last run: they begin anew with each RUN_STARTED of attempt 1."""

    __slots__ = (
        "agent_id",
        "answered",
        "attempt",
        "bound",
        "call_ids",
        "cancel",
        "checked",
        "cost_known",
        "cut",
        "depth",
        "envelope_hash",
        "error",
        "fault",
        "finished",
        "history",
        "last",
        "max_iters",
        "media",
        "open",
        "output",
        "own_cost",
        "own_cost_known",
        "own_usage",
        "repairing",
        "repairs",
        "run_id",
        "size",
        "state",
        "tasks",
        "tree_cost",
        "tree_usage",
        "turns",
    )

    def __init__(self) -> None:
        self.history: list[Entry] = []
        self.state: dict[str, Any] = {}
        self.call_ids: set[str] = set()
        self.open: OpenCalls | None = None
        self.tasks: dict[str, tuple[str, str]] = {}
        """Task id and name by invocation: what was given in this thread, and whose end it has not been told."""
        self.run_id = ""
        self.agent_id = ""
        self.attempt = 0
        self.depth = 0
        self.max_iters = 10
        self.envelope_hash = ""
        self.output: OutputSpec | None = None
        self.size = 0
        """Characters of the history's texts."""
        self.bound = False
        """Whether a message of the history holds reasoning or extras, which only its own provider takes back."""
        self.cut = False
        """Whether a result of the history was cut, so that there is something to read on in."""
        self.media = False
        """Whether the history holds pictures or files, whose bytes a model may have to be given."""
        self._reset_run()

    def _reset_run(self) -> None:
        self.turns = 0
        self.repairs = 0
        self.repairing = False
        self.checked: OutputCheckedEvent | None = None
        self.last: AssistantMessage | None = None
        self.answered: ModelCalledEvent | None = None
        self.error: ModelCalledEvent | None = None
        self.cancel: str | None = None
        self.fault = ""
        """The code of its author's fault that the run was stopped for, if it was."""
        self.finished: RunFinishedEvent | None = None
        self.own_usage: Usage = ZERO_USAGE
        self.tree_usage: Usage = ZERO_USAGE
        self.own_cost = Decimal(0)
        self.tree_cost = Decimal(0)
        self.cost_known = True
        self.own_cost_known = True

    @property
    def text(self) -> str:
        """The text of the run's last assistant message: its answer, or as far as it came."""
        return self.last.text if self.last is not None else ""

    @property
    def turns_used(self) -> int:
        """The turns that count against `max_iters`: what was only asked again for its form does not."""
        return self.turns - self.repairs

    @property
    def cost(self) -> Decimal | None:
        """What the run and everything below it cost so far; None if a price is unknown."""
        return self.tree_cost if self.cost_known else None

    def apply(self, event: Event, seq: int, attempt: int) -> None:
        """Take in the next event. Types that are not known here are skipped."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, seq, attempt)

    def _on_run_started(self, event: RunStartedEvent, _seq: int, attempt: int) -> None:
        if attempt == 1:
            self._reset_run()
        self.agent_id = event.agent_id
        self.attempt = attempt
        self.depth = event.depth
        self.max_iters = event.max_iters
        self.envelope_hash = event.envelope_hash
        self.output = event.output

    def _on_message(self, event: MessageEvent, seq: int, attempt: int) -> None:
        message = event.message
        self.size += len(message.text)
        if isinstance(message, UserMessage):
            self.history.append(Entry(message))
            if message.parts:
                self._add_media(message.parts)
            self.cut = self.cut or bool(message.blobs)
            self.answered = None  # there is something to answer again
            if message.notice == OUTPUT_NOTICE and self.output is not None:
                self.repairs += 1
                self.repairing = True
            return
        self.last = message
        if message.reasoning is not None or message.extras:
            self.bound = True
        if message.calls:
            self.call_ids.update(call.id for call in message.calls)
            self.open = OpenCalls(message, seq, attempt, self.state)
        else:
            self.history.append(Entry(message))

    def _on_result(self, event: ToolCallResultEvent, _seq: int, _attempt: int) -> None:
        batch = self.open
        if batch is None or event.call.message_id != batch.message.id:
            return
        batch.results[event.call.index] = event
        if (task_id := event.metadata.get("taskId")) and event.call.index in batch.invocations:
            started = batch.invocations[event.call.index]
            self.tasks[started.invocation_id] = (str(task_id), started.name)
        if len(batch.results) == len(batch.message.calls):
            self.history.append(Entry(batch.message))
            for index in range(len(batch.message.calls)):  # in call order, whatever the order they ended in (M4)
                result = batch.results[index]
                self.size += len(result.content)
                self.cut = self.cut or bool(result.blobs)
                self.history.append(
                    Entry(
                        ToolResult(
                            call=result.call,
                            call_id=result.call_id,
                            name=result.name,
                            content=result.content,
                            status=result.status,
                            blobs=result.blobs,
                            parts=result.parts,
                        )
                    )
                )
                if result.parts:
                    self._add_media(result.parts)
            if self.media:
                self._show_media(len(batch.message.calls))
            self.open = None

    def _add_media(self, parts: tuple[MediaRef, ...]) -> None:
        self.media = True
        self.size += sum(ref.size * 4 // 3 for ref in parts)  # as long as an adapter's bytes of it

    def _show_media(self, results: int) -> None:
        """Say at the end of a batch what its results hold."""
        messages = [entry.message for entry in self.history[-results:]]
        self.history[-1].shows = tuple(one for one in messages if isinstance(one, ToolResult) and one.parts)

    def _on_request(self, event: PermissionRequest, _seq: int, _attempt: int) -> None:
        if self.open is not None:
            self.open.requests[event.call.index] = event

    def _on_request_closed(self, event: RequestClosedEvent, _seq: int, attempt: int) -> None:
        if self.open is not None:
            self.open.closed[event.call.index] = (event, attempt)

    def _on_invocation(self, event: SubAgentInvocationStartedEvent, _seq: int, _attempt: int) -> None:
        if self.open is not None and event.call.message_id == self.open.message.id:
            self.open.invocations[event.call.index] = event

    def _on_terminal(self, event: Terminal, _seq: int, _attempt: int) -> None:
        if self.open is not None and event.call.message_id == self.open.message.id:
            self.open.terminals[event.call.index] = event
        self.tasks.pop(event.invocation_id, None)
        self.tree_usage = self.tree_usage + event.usage
        self._spend(event.cost, event.usage)

    def _on_model_called(self, event: ModelCalledEvent, _seq: int, _attempt: int) -> None:
        self.turns += 1
        self.repairing = False
        if event.error:
            self.error = event
        else:
            self.answered = event
        self.own_usage = self.own_usage + event.usage
        self.tree_usage = self.tree_usage + event.usage
        if event.cost is not None:
            self.own_cost += event.cost
        elif event.usage.calls:
            self.own_cost_known = False
        self._spend(event.cost, event.usage)

    def _spend(self, cost: Decimal | None, usage: Usage) -> None:
        if cost is not None:
            self.tree_cost += cost
        elif usage.calls:
            self.cost_known = False

    def _on_checked(self, event: OutputCheckedEvent, _seq: int, _attempt: int) -> None:
        self.checked = event

    def _on_state(self, event: StateSetEvent, _seq: int, _attempt: int) -> None:
        self.state = {**self.state, event.name: event.value}  # a new one: forks keep what they began with

    def _on_cancel(self, event: CancelSeenEvent, _seq: int, _attempt: int) -> None:
        self.cancel, self.fault = event.reason or "cancelled", event.fault

    def _on_finished(self, event: RunFinishedEvent, _seq: int, _attempt: int) -> None:
        self.finished = event


_HANDLERS: Final[dict[type[Event], Callable[[Projection, Any, int, int], None]]] = {
    RunStartedEvent: Projection._on_run_started,
    MessageEvent: Projection._on_message,
    ToolCallResultEvent: Projection._on_result,
    PermissionRequest: Projection._on_request,
    RequestClosedEvent: Projection._on_request_closed,
    SubAgentInvocationStartedEvent: Projection._on_invocation,
    SubAgentInvocationCompletedEvent: Projection._on_terminal,
    SubAgentInvocationFailedEvent: Projection._on_terminal,
    SubAgentInvocationCancelledEvent: Projection._on_terminal,
    ModelCalledEvent: Projection._on_model_called,
    OutputCheckedEvent: Projection._on_checked,
    StateSetEvent: Projection._on_state,
    CancelSeenEvent: Projection._on_cancel,
    RunFinishedEvent: Projection._on_finished,
}


def inherited_history(parent: Projection) -> list[Entry]:
    """The history of a fork (D-14): the same messages, without reasoning and extras that are bound to a provider's state.

    Entries that hold none are shared, and with them the bytes that an adapter made.
    """
    if not parent.bound:
        return list(parent.history)
    made: list[Entry] = []
    for entry in parent.history:
        message = entry.message
        if isinstance(message, AssistantMessage) and (message.reasoning is not None or message.extras):
            plain = AssistantMessage(id=message.id, text=message.text, calls=message.calls, provider=message.provider)
            made.append(Entry(plain))
        else:
            made.append(entry)
    return made


def project(own: Iterable[Record], inherited: Iterable[Record] = ()) -> Projection:
    """The projection of stored rows: what a fork inherits first, then the thread's own events."""
    base = Projection()
    for record in inherited:
        base.apply(decode(record), record.seq, record.attempt)
    projection = Projection()
    projection.history = inherited_history(base)
    projection.call_ids = base.call_ids
    projection.size = base.size
    projection.cut = base.cut
    projection.media = base.media
    projection.state = base.state
    for record in own:
        if record.run != projection.run_id:
            projection.run_id = record.run
        projection.apply(decode(record), record.seq, record.attempt)
    return projection
