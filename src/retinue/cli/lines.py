"""The same run as plain lines, one per lifecycle event: for logs, pipes and terminals that cannot draw. Pure."""

from retinue.cli.live_tree import TreeView
from retinue.cli.text import clean, describe_call, duration, money, one_line, tokens
from retinue.events import (
    CancelSeenEvent,
    Event,
    PermissionRequest,
    RequestClosedEvent,
    RunFinishedEvent,
    RunStartedEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    UnknownEvent,
)

__all__ = ["lifecycle_line"]

LIMIT = 160


def lifecycle_line(event: Event, view: TreeView) -> str | None:
    """The line for `event`, which `view` has taken in already; None for what is no lifecycle event."""
    said = _what(event, view)
    if said is None:
        return None
    where = " > ".join(one_line(agent, 40) for agent in event.path) or "agent"
    root = view.root
    since = max(event.at - root.started_at, 0) if root and root.started_at and event.at else 0
    return f"[{duration(since):>7}] {where}: {said}"


def _what(event: Event, view: TreeView) -> str | None:
    match event:
        case RunStartedEvent():
            if event.attempt > 1:
                return f"goes on (attempt {event.attempt})"
            return "started" if not event.invocations else None
        case SubAgentInvocationStartedEvent():
            return f"{one_line(event.child_agent_id, 40)} started"
        case SubAgentInvocationCompletedEvent() | SubAgentInvocationFailedEvent() | SubAgentInvocationCancelledEvent():
            return _ended(event, view)
        case PermissionRequest():
            return f"asks for permission: {describe_call(event.tool, event.arguments, LIMIT)}"
        case RequestClosedEvent():
            return f"permission: {event.answer}" + (f" by {one_line(event.by, 40)}" if event.by else "")
        case CancelSeenEvent():
            return f"stopping ({one_line(event.reason, LIMIT)})" if event.reason else "stopping"
        case RunFinishedEvent() if not event.invocations:
            reason = one_line(event.reason or event.message or "", LIMIT)  # what it means is said at the end
            return f"{event.status}: {reason}" if reason and event.status != "completed" else event.status
        case UnknownEvent():
            return f"{one_line(event.type, 40)} (of a version that this one does not know)"
        case _:
            return None


def _ended(
    event: SubAgentInvocationCompletedEvent | SubAgentInvocationFailedEvent | SubAgentInvocationCancelledEvent, view: TreeView
) -> str:
    node = view.nodes[event.invocation_id]
    used = event.usage.input_tokens + event.usage.output_tokens
    facts = [duration(node.elapsed(event.at))] if node.started_at else []
    if event.usage.calls:
        facts += [tokens(used), money(event.cost)]
    line = f"{one_line(event.child_agent_id, 40)} {node.state}" + (f" ({', '.join(facts)})" if facts else "")
    said = clean(node.activity)
    return f"{line}: {one_line(said, LIMIT)}" if said else line
