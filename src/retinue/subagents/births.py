"""Where a child comes from: its thread and metadata, its place, the history that it begins with."""

from typing import Any

from retinue.agent.definition import AgentDefinition
from retinue.agent.middleware import Fork, overriding
from retinue.agent.projection import Projection, inherited_history
from retinue.agent.run import Run
from retinue.config import SubAgentContextPolicy
from retinue.events import (
    ThreadCreatedEvent,
    encode,
)
from retinue.ids import new_sub_session, tool_child_thread
from retinue.messages import Entry, ToolCall
from retinue.ops import Append, CreateThread, NewEvent
from retinue.rows import ForkPoint, ThreadKey, ThreadRow
from retinue.subagents.delegation import Delegation

__all__ = ["before_fork_commit", "child_key", "child_thread", "create_idle_child", "fork_projection"]


def fork_projection(parent: Projection, policy: SubAgentContextPolicy) -> Projection:
    """A child's projection before its first event: the parent's history without the message in flight, or nothing (D-14)."""
    projection = Projection()
    batch = parent.open
    if policy is SubAgentContextPolicy.FORK and batch is not None:
        projection.history = inherited_history(parent)
        projection.call_ids = parent.call_ids - {call.id for call in batch.message.calls}
        projection.state = dict(batch.state)
        projection.cut = parent.cut
        projection.media = parent.media
        projection.size = parent.size
    return projection


def _fork_point(run: Run) -> ForkPoint | None:
    batch = run.projection.open
    if batch is None or not run.projection.history:
        return None
    return ForkPoint(run.row.key, run.journal.generation, batch.seq - 1)


def child_thread(run: Run, call: ToolCall, wanted: Delegation, key: ThreadKey, invocation_id: str) -> ThreadRow:
    """A new child thread and its metadata (H-19). What is documented cannot be overwritten by the author's own."""
    now = run.journal.clock.now_ms()
    policy = wanted.context_policy
    base = _fork_point(run) if policy is SubAgentContextPolicy.FORK else None
    if policy is SubAgentContextPolicy.FORK and base is None:
        policy = SubAgentContextPolicy.FRESH  # a fork of an empty thread says what it is (D-14)
    parent = run.row.key
    metadata: dict[str, Any] = {
        **(wanted.metadata or {}),
        "kind": "subagent",
        "defaultAgentId": wanted.definition.agent_id,
        "subAgentName": wanted.name,
        "subAgentSourceKind": wanted.source,
        "parentSessionId": parent.session,
        "parentThreadId": parent.thread,
        "parentToolCallId": call.id,
        "contextPolicy": policy.value,
        "visibility": "hidden",
        "createdBy": "subagent",
    }
    if invocation_id:
        metadata["invocationId"] = invocation_id
    return ThreadRow(
        key=key,
        default_agent_id=wanted.definition.agent_id,
        created_at=now,
        updated_at=now,
        base=base,
        hidden=True,
        parent=parent,
        depth=run.row.depth + 1,
        agent_key=wanted.agent_key,
        label=wanted.label,
        metadata=metadata,
    )


def create_idle_child(run: Run, call: ToolCall, wanted: Delegation, key: ThreadKey) -> None:
    """Stage a child that has nothing to do yet: its thread and the thread's first event (A-26)."""
    row = child_thread(run, call, wanted, key, "")
    event = ThreadCreatedEvent(default_agent_id=row.default_agent_id, base=row.base, metadata=dict(row.metadata))
    run.journal.stage_op(CreateThread(row))
    first = NewEvent(event.TYPE, encode(event), "", 1, row.created_at)
    run.journal.stage_op(Append(key, 1, 0, (first,)))


def child_key(run: Run, wanted: Delegation, invocation_id: str) -> ThreadKey:
    """Where the child's conversation lives: in the parent's session, or in a new one (A-25, H-03, H-17)."""
    parent = run.row.key
    if wanted.surface == "roster" or wanted.context_policy is SubAgentContextPolicy.ISOLATED:
        return ThreadKey(parent.user, new_sub_session(), "main")
    return ThreadKey(parent.user, parent.session, tool_child_thread(invocation_id))


async def before_fork_commit(
    run: Run, definition: AgentDefinition, projection: Projection, policy: SubAgentContextPolicy
) -> list[Entry] | None:
    """Let middleware see a fork before it is committed (H-24). The history that it wants instead, or None."""
    if policy is not SubAgentContextPolicy.FORK or not run.definition.middleware:
        return None
    fork = Fork(parent_run=run.row.run_id, child_agent_id=definition.agent_id, history=list(projection.history))
    for one in overriding(run.definition.middleware, "before_fork_commit"):
        await one.before_fork_commit(fork)
    same = len(fork.history) == len(projection.history) and all(
        mine is theirs for mine, theirs in zip(fork.history, projection.history, strict=True)
    )
    return None if same else list(fork.history)
