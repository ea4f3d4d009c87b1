"""The tree of a run as a person sees it: a reducer over events, without clock or I/O (H-26).

`TreeView.apply` takes the events of `stream()` as well as those read back from journals and builds the same picture from both
(H-21). Each delegation is one entry that goes preparing → running → completed, failed, cancelled or waiting. All text in it is
bounded; it is as the model wrote it, so whoever shows it cleans it (`cli.text`).
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from retinue.cli.nodes import LINE_LIMIT, TEXT_LIMIT, Node, NodeState
from retinue.cli.text import describe_call, one_line, tail
from retinue.events import (
    CancelSeenEvent,
    Event,
    MessageEvent,
    ModelCalledEvent,
    PermissionRequest,
    RequestClosedEvent,
    RunFinishedEvent,
    RunStartedEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    TextDeltaEvent,
    ThreadCreatedEvent,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolProgressEvent,
    derived,
)
from retinue.messages import AssistantMessage, CallRef, Usage
from retinue.rows import ThreadKey
from retinue.states import ResultStatus

__all__ = ["ROOT", "Node", "NodeState", "TreeView"]

ROOT: Final = ""
ROSTER_CALLS: Final = frozenset({"agent_spawn", "agent_send"})

TerminalEvent = SubAgentInvocationCompletedEvent | SubAgentInvocationFailedEvent | SubAgentInvocationCancelledEvent


class TreeView:
    """The whole tree. `delegating` are the names of tools that are known to be subagents, beside those of the roster."""

    __slots__ = ("_delegating", "_preparing", "_seen", "nodes")

    def __init__(self, delegating: frozenset[str] = frozenset()) -> None:
        self.nodes: dict[str, Node] = {}
        self._delegating = ROSTER_CALLS | delegating
        self._preparing: dict[CallRef, str] = {}
        self._seen: set[tuple[ThreadKey, int]] = set()

    @property
    def root(self) -> Node | None:
        """The root's entry, once an event of it was seen."""
        return self.nodes.get(ROOT)

    def walk(self) -> Iterator[tuple[Node, int]]:
        """Every entry with its depth below the root, parents first, in the order in which they began."""
        stack = [(ROOT, 0)] if ROOT in self.nodes else []
        while stack:
            node_id, depth = stack.pop()
            node = self.nodes[node_id]
            yield node, depth
            stack.extend((child, depth + 1) for child in reversed(node.children))

    def children(self) -> int:
        """How many delegations have begun, in the whole tree."""
        asked = sum(node.refused or node.state is NodeState.PREPARING for node in self.nodes.values())
        return max(len(self.nodes) - 1 - asked, 0)

    def totals(self) -> tuple[Usage, Decimal | None]:
        """Usage and cost of all entries together."""
        usage, cost = Usage(), Decimal(0)
        known = True
        for node in self.nodes.values():
            usage += node.usage
            known = known and node.cost is not None
            cost += node.cost or 0
        return usage, cost if known else None

    def apply(self, event: Event) -> Node:
        """Take one event in; returns the entry that it changed. Applying a stored event twice changes nothing."""
        node = self._node_of(event)
        if self.knows(event):
            return node
        self._note(event)
        node.last_at = max(node.last_at, event.at)
        match event:
            case MessageEvent():
                return self._message(node, event)
            case TextDeltaEvent():
                fresh = event.message_id != node.text_of
                if fresh:  # a new turn: all calls of the one before have their results, which are shown when they are stored
                    node.calls.clear()
                node.text = tail(event.text if fresh else node.text + event.text, TEXT_LIMIT)
                node.text_of = event.message_id
            case ToolCallStartEvent() | ToolCallArgsEvent() | ToolCallResultEvent():
                return self._call(node, event)
            case ToolProgressEvent():
                if event.call in node.calls:
                    node.calls[event.call] = one_line(f"{event.name}: {event.text}", LINE_LIMIT)
            case ModelCalledEvent():
                node.count_anew()
                node.usage += event.usage
                node.cost = None if node.cost is None or event.cost is None else node.cost + event.cost
            case SubAgentInvocationStartedEvent():
                return self._started(node, event)
            case SubAgentInvocationCompletedEvent() | SubAgentInvocationFailedEvent() | SubAgentInvocationCancelledEvent():
                return self._ended(node, event)
            case _:
                self._run_event(node, event)
        return node

    def knows(self, event: Event) -> bool:
        """Whether this stored event was taken in before: a resumed run is replayed, and its stream may overlap."""
        return not event.live and event.key is not None and (event.key, event.seq) in self._seen

    def _note(self, event: Event) -> None:
        if event.live or event.key is None:
            return
        if isinstance(event, ThreadCreatedEvent):  # a new generation counts anew
            self._seen = {place for place in self._seen if place[0] != event.key}
        self._seen.add((event.key, event.seq))

    def _node_of(self, event: Event) -> Node:
        """The entry of the run that an event belongs to; entries above it are made where they are missing."""
        node = self._ensure(ROOT, event.path[0] if event.path else "agent", None, event)
        for index, invocation in enumerate(event.invocations, start=1):
            agent = event.path[index] if index < len(event.path) else "agent"
            node = self._ensure(invocation, agent, node, event)
        if node.key is None and event.key is not None:
            node.key = event.key
        return node

    def _ensure(self, node_id: str, agent: str, parent: Node | None, event: Event) -> Node:
        node = self.nodes.get(node_id)
        if node is None:
            node = Node(node_id=node_id, agent=agent, parent=parent.node_id if parent else None, started_at=event.at)
            self.nodes[node_id] = node
            if parent is not None:
                parent.children.append(node_id)
        return node

    def _message(self, node: Node, event: MessageEvent) -> Node:
        message = event.message
        if isinstance(message, AssistantMessage):
            if message.text:
                node.text, node.text_of = tail(message.text, TEXT_LIMIT), message.id
            for made in derived(event):
                if isinstance(made, ToolCallStartEvent | ToolCallArgsEvent):
                    self._call(node, made)
        return node

    def _call(self, node: Node, event: ToolCallStartEvent | ToolCallArgsEvent | ToolCallResultEvent) -> Node:
        ref = event.call
        if isinstance(event, ToolCallResultEvent):
            node.calls.pop(ref, None)
            node.call_names.setdefault(ref, event.name)
            return self._refused(node, event)
        if isinstance(event, ToolCallStartEvent):
            if ref in node.call_names:
                return node
            node.call_names[ref] = event.name
            node.calls[ref] = one_line(event.name, LINE_LIMIT)
            if event.name in self._delegating:
                self._prepare(node, event)
        elif ref in node.calls:
            node.calls[ref] = describe_call(node.call_names[ref], event.arguments, LINE_LIMIT)
            waiting = self.nodes.get(self._preparing.get(ref, ROOT)) if ref in self._preparing else None
            if waiting is not None and waiting.state is NodeState.PREPARING:
                waiting.note = node.calls[ref]
        return node

    def _prepare(self, parent: Node, event: ToolCallStartEvent) -> None:
        """An entry for a delegation that was asked for and has not begun."""
        node_id = f"{event.call.message_id}:{event.call.index}"
        node = self._ensure(node_id, event.name, parent, event)
        node.state = NodeState.PREPARING
        self._preparing[event.call] = node_id

    def _refused(self, parent: Node, event: ToolCallResultEvent) -> Node:
        """A result for a call whose delegation never began: denied, refused by a limit, or cancelled (H-29)."""
        node_id = self._preparing.pop(event.call, None)
        if node_id is None:
            return parent
        node = self.nodes[node_id]
        if event.status is ResultStatus.OK:  # a delegation made elsewhere, a receipt: nothing to show here
            parent.children.remove(node_id)
            del self.nodes[node_id]
            return parent
        node.state = NodeState.CANCELLED if event.status is ResultStatus.CANCELLED else NodeState.FAILED
        node.refused = True
        node.note = one_line(f"{event.status}: {_said_of(event.content)}", LINE_LIMIT)
        node.ended_at = event.at
        return node

    def _started(self, parent: Node, event: SubAgentInvocationStartedEvent) -> Node:
        """The delegation began: what was preparing becomes its entry, in the same place."""
        parent.count_anew()
        before = self._preparing.pop(event.call, None)
        if before is not None and event.invocation_id not in self.nodes:
            node = self.nodes.pop(before)
            node.node_id = event.invocation_id
            self.nodes[event.invocation_id] = node
            parent.children[parent.children.index(before)] = event.invocation_id
        elif before is not None:
            parent.children.remove(before)
            del self.nodes[before]
        node = self._ensure(event.invocation_id, event.child_agent_id, parent, event)
        node.agent = event.child_agent_id
        node.key = ThreadKey(event.key.user if event.key else "", event.child_session_id, event.child_thread_id)
        if node.state is NodeState.PREPARING:
            node.state, node.note, node.started_at = NodeState.RUNNING, "", event.at or node.started_at
        parent.calls.pop(event.call, None)  # from here on the child's own entry shows it
        parent.at_work.add(event.invocation_id)
        return node

    def _ended(self, parent: Node, event: TerminalEvent) -> Node:
        node = self._ensure(event.invocation_id, event.child_agent_id, parent, event)
        parent.at_work.discard(event.invocation_id)
        node.ended_at = event.at
        node.calls.clear()
        node.questions.clear()
        if not node.usage.calls and not node.children:  # only the parent's journal is at hand
            node.usage, node.cost, node.summed = event.usage, event.cost, True
        match event:
            case SubAgentInvocationCompletedEvent():
                node.state, node.note = NodeState.COMPLETED, ""
                node.text = tail(event.summary, TEXT_LIMIT)
            case SubAgentInvocationFailedEvent():
                node.state, node.note = NodeState.FAILED, one_line(f"{event.error_type}: {event.message}", LINE_LIMIT)
                node.text = tail(event.partial_text, TEXT_LIMIT)
            case SubAgentInvocationCancelledEvent():
                node.state, node.note = NodeState.CANCELLED, one_line(event.reason or "cancelled", LINE_LIMIT)
                node.text = tail(event.partial_text, TEXT_LIMIT)
        return node

    def _run_event(self, node: Node, event: Event) -> None:
        match event:
            case RunStartedEvent():
                node.agent, node.attempt = event.agent_id, max(node.attempt, event.attempt)
                if node.ended_at and event.at <= node.ended_at:  # told late
                    return
                if node.node_id == ROOT and event.attempt == 1:  # a new run on the same thread counts from its own start
                    node.started_at = event.at
                node.state, node.note, node.ended_at = NodeState.RUNNING, "", 0
            case PermissionRequest():
                node.questions[event.request_id] = describe_call(event.tool, event.arguments, LINE_LIMIT)
                node.state = NodeState.WAITING
            case RequestClosedEvent():
                node.questions.pop(event.request_id, None)
                if node.state is NodeState.WAITING and not node.questions:
                    node.state, node.note = NodeState.RUNNING, ""
            case CancelSeenEvent():
                node.note = one_line(event.reason or "stopping", LINE_LIMIT)
            case RunFinishedEvent():
                self._finished(node, event)
            case _:  # THREAD_CREATED, STATE_SET, reasoning, types of a later version: nothing to show
                pass

    def _finished(self, node: Node, event: RunFinishedEvent) -> None:
        """The end of a run. A child's own says nothing that its parent's lifecycle event does not say better."""
        if node.state.ended:
            return
        node.state = NodeState(event.status)
        node.ended_at = 0 if node.state is NodeState.WAITING else event.at
        node.note = "" if event.status == "completed" else one_line(event.message or event.reason or "", LINE_LIMIT)
        node.calls.clear()
        if node.state.ended:
            node.questions.clear()


def _said_of(content: str) -> str:
    """What a refusal says, without the words that only repeat that it is one."""
    return content.removeprefix("status: error").lstrip().removeprefix("error: ")
