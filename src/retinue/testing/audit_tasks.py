"""What a parent's journal and mailbox must say of its tasks in the background (H-20, D-20, invariant 2). Part of `audit`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.events import (
    MessageEvent,
    SubAgentInvocationCancelledEvent,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallResultEvent,
    decode,
)
from retinue.messages import UserMessage
from retinue.ops import Record
from retinue.rows import InvocationRow, Mail, RunRow

__all__ = ["audit_tasks"]

TASK_MAIL: Final = "task"
"""The kind of the mail that tells an end."""
TASK_NOTICE: Final = "background-task"
"""The kind of the notice that a model is told ends by."""

_ENDED: Final = {
    "completed": SubAgentInvocationCompletedEvent,
    "failed": SubAgentInvocationFailedEvent,
    "cancelled": SubAgentInvocationCancelledEvent,
}
_ENDS: Final = tuple(_ENDED.values())


def audit_tasks(
    tasks: Sequence[InvocationRow], journal: Sequence[Record], mail: Sequence[Mail], runs: Mapping[str, RunRow]
) -> list[str]:
    """The faults of tasks whose parent's thread has this journal, in whatever run of it, and this mailbox.

    A task that has ended lies in the mailbox, or was taken from there: then its end stands in the journal once, after its
    receipt, and one notice tells the model, if it is to be told.
    """
    events = [decode(record) for record in journal]
    letters = [msgspec.json.decode(letter.body)["taskId"] for letter in mail if letter.kind == TASK_MAIL]
    faults: list[str] = []
    for row in tasks:
        lying = letters.count(row.task_id)
        found = [*_end(row, events, lying), *_notices(row, events, lying), *_receipt(row, events)]
        child = runs.get(row.child_run)
        if child is None or child.state.terminal != row.state.terminal:
            found.append(f"its child is `{child and child.state}`")
        faults += [f"task of `{row.name}`, which is `{row.state}`: {fault}" for fault in found]
    return faults


def _end(row: InvocationRow, events: Sequence[Any], lying: int) -> list[str]:
    ends = [event for event in events if isinstance(event, _ENDS) and event.invocation_id == row.invocation_id]
    if len(ends) + lying != int(row.state.terminal):
        return [f"told {len(ends)} times, and {lying} times in the mailbox"]
    wrong = [event for event in ends if (event.TYPE, event.mode) != (_ENDED[row.state.value].TYPE, "background")]
    return [f"its end is told as {event.TYPE}, {event.mode}" for event in wrong]


def _notices(row: InvocationRow, events: Sequence[Any], lying: int) -> list[str]:
    """The model is told once, in the commit of the lifecycle event, which stands before the notice."""
    wanted = int(row.state.terminal and row.state.value in row.notify and not lying)
    texts = [event.message.text for event in events if isinstance(event, MessageEvent) and _is_notice(event)]
    told = sum(f"Background task {row.task_id} " in text for text in texts)
    return [] if told == wanted else [f"its model was told {told} times instead of {wanted}"]


def _is_notice(event: MessageEvent) -> bool:
    return isinstance(event.message, UserMessage) and event.message.notice == TASK_NOTICE


def _receipt(row: InvocationRow, events: Sequence[Any]) -> list[str]:
    """STARTED, the receipt as the call's result, then the end."""
    kinds = (SubAgentInvocationStartedEvent, ToolCallResultEvent, *_ENDS)
    order = [type(event) for event in events if isinstance(event, kinds) and event.call == row.call]
    if order[:2] not in ([kinds[0]], [kinds[0], kinds[1]]) or len(order) > 3:
        return [f"its call stands in the journal as {[kind.TYPE for kind in order]}"]
    return []
