"""What a ledger says of a tree of runs: its transcript without ids, and every invariant that its journals break.

For crash tests: two runs of one scenario have equal transcripts, and `audit` of any of them is empty.
"""

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from retinue.events import (
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
    ToolCallResultEvent,
    decode,
)
from retinue.ledger.port import Ledger
from retinue.messages import AssistantMessage, CallRef, Usage, UserMessage
from retinue.ops import Record
from retinue.rows import InvocationRow, RunRow
from retinue.states import InvocationState, RequestState
from retinue.testing.audit_tasks import audit_tasks

__all__ = ["Told", "audit", "spent", "told", "transcript"]

_IDS: Final = re.compile(r"\b(?:ses|thr|run|inv|task|req|msg|own|mail)_[0-9a-f]{32}|\bsub-[0-9a-f-]{12,}|:[0-9a-f]{12}\b")
_ENDED: Final = {
    "completed": SubAgentInvocationCompletedEvent.TYPE,
    "failed": SubAgentInvocationFailedEvent.TYPE,
    "cancelled": SubAgentInvocationCancelledEvent.TYPE,
}
_ENDS: Final = (SubAgentInvocationCompletedEvent, SubAgentInvocationFailedEvent, SubAgentInvocationCancelledEvent)


class Told(msgspec.Struct):
    """One run with what its thread's journal says of it: (record, event) in order."""

    row: RunRow
    events: list[tuple[Record, Event]]

    def of(self, kind: Any) -> list[Any]:
        """The events of one class."""
        return [event for _, event in self.events if isinstance(event, kind)]


async def told(ledger: Ledger, root_run: str) -> list[Told]:
    """Every run of a tree, the root first."""
    made: list[Told] = []
    for row in await ledger.tree(root_run):
        journal = await ledger.journal(row.key)
        own = () if journal is None else journal.own
        made.append(Told(row, [(record, decode(record)) for record in own if record.run == row.run_id]))
    return made


async def transcript(ledger: Ledger, root_run: str) -> dict[str, Any]:
    """The tree's conversation as plain data without ids: agent, status, reason, and messages; children stand at their call."""
    runs = {one.row.run_id: one for one in await told(ledger, root_run)}
    return _conversation(runs, root_run)


def _conversation(runs: dict[str, Told], run_id: str) -> dict[str, Any]:
    one = runs[run_id]
    results = {event.call: event for event in one.of(ToolCallResultEvent)}
    children: dict[CallRef, str] = {event.call: event.child_run_id for event in one.of(SubAgentInvocationStartedEvent)}
    messages: list[list[Any]] = []
    for event in one.of(MessageEvent):
        message: UserMessage | AssistantMessage = event.message
        if isinstance(message, UserMessage):
            messages.append(["user", _plain(message.text)])
            continue
        messages.append(["assistant", _plain(message.text)])
        for index, call in enumerate(message.calls):
            ref = CallRef(message.id, index)
            result = results.get(ref)
            ended = None if result is None else [result.status.value, _plain(result.content)]
            below = None if ref not in children else _conversation(runs, children[ref])
            messages.append(["call", call.name, call.arguments, below, ended])
    return {"agent": one.row.agent_id, "status": one.row.state.value, "reason": one.row.reason, "messages": messages}


def _plain(text: str) -> str:
    return _IDS.sub("<id>", text)


async def spent(ledger: Ledger, root_run: str) -> tuple[Usage, Decimal | None]:
    """What the MODEL_CALLED records of a tree add up to."""
    usage, cost, known = Usage(), Decimal(0), True
    for one in await told(ledger, root_run):
        for event in one.of(ModelCalledEvent):
            usage = usage + event.usage
            cost += event.cost or 0
            known = known and (event.cost is not None or not event.usage.calls)
    return usage, cost if known else None


async def audit(ledger: Ledger, root_run: str) -> list[str]:
    """Every invariant that a tree breaks, in words; an empty list for a sound one, whatever state it is in."""
    faults: list[str] = []
    runs = await told(ledger, root_run)
    faults += await _left_behind(ledger, root_run, runs)
    for one in runs:
        where = f"run of `{one.row.agent_id}`"
        found = [*_order(one), *_run(one), *_calls(one), *_requests(one), *_usage(one)]
        rows = await ledger.invocations(parent_run=one.row.run_id)
        journal = await ledger.journal(one.row.key)
        waited, tasks = [row for row in rows if row.task_id is None], [row for row in rows if row.task_id is not None]
        known = {run.row.run_id: run.row for run in runs}
        found += _started(one, rows)
        found += _invocations(one, waited, known)
        if tasks and journal is not None:
            found += audit_tasks(tasks, journal.own, await ledger.mail(one.row.key), known)
        faults += [f"{where}: {fault}" for fault in found]
        places = [] if journal is None else [record.seq for record in journal.own]
        if journal is None or places != list(range(1, journal.row.head + 1)):
            faults.append(f"{where}: its journal has gaps: {places}")
    return faults


async def _left_behind(ledger: Ledger, root_run: str, runs: Sequence[Told]) -> list[str]:
    """Under the lead of a branch that has ended nothing of that branch goes on: no run, no open question, no delegation but one
    that cannot be stopped. A root's tasks are branches of their own."""
    over = {one.row.run_id for one in runs if one.row.state.terminal and one.row.lead == one.row.run_id}
    below = {one.row.run_id: one.row for one in runs if one.row.lead in over}
    faults = [
        f"run of `{row.agent_id}` is {row.state} under a lead that has ended" for row in below.values() if not row.state.terminal
    ]
    for row in await ledger.invocations(root_run=root_run):
        stays = row.task_id is not None or row.state.terminal or row.state is InvocationState.STOPPING
        if row.parent_run in below and not stays:
            faults.append(f"delegation to `{row.child_agent_id}` is {row.state} under a lead that has ended")
    for request in await ledger.requests(root_run=root_run, state=RequestState.OPEN):
        if request.run_id in below:
            faults.append(f"a request of `{request.agent_id}` is open under a lead that has ended")
    return faults


def _order(one: Told) -> list[str]:
    """Attempts only rise, and nothing follows a terminal."""
    attempts = [record.attempt for record, _ in one.events]
    faults = [] if attempts == sorted(attempts) else [f"an older attempt wrote after a newer one: {attempts}"]
    types = [record.type for record, _ in one.events]
    if "RUN_FINISHED" in types[:-1]:
        faults.append(f"events after its end: {types}")
    return faults


def _run(one: Told) -> list[str]:
    faults: list[str] = []
    started = [event.attempt for event in one.of(RunStartedEvent)]
    if started != list(range(1, one.row.attempt + 1)):
        faults.append(f"RUN_STARTED for attempts {started}, and its row is at {one.row.attempt}")
    ends = [event.status for event in one.of(RunFinishedEvent)]
    if ends != ([one.row.state.value] if one.row.state.terminal else []):
        faults.append(f"its row is `{one.row.state}`, its journal says {ends}")
    return faults


def _calls(one: Told) -> list[str]:
    """Each call has one result at most, and exactly one once its message is followed by another, or the run has ended."""
    faults: list[str] = []
    ids = [event.message.id for event in one.of(MessageEvent)]
    faults += _doubled("message", ids)
    results = [event.call for event in one.of(ToolCallResultEvent)]
    faults += _doubled("result", results)
    asked: list[CallRef] = []
    open_calls: set[CallRef] = set()
    for _, event in one.events:
        if isinstance(event, MessageEvent) and isinstance(event.message, AssistantMessage):
            if open_calls:
                faults.append(f"a message follows calls without results: {list(open_calls)}")
            calls = [CallRef(event.message.id, index) for index in range(len(event.message.calls))]
            asked += calls
            open_calls = set(calls)
        elif isinstance(event, ToolCallResultEvent):
            open_calls.discard(event.call)
    if one.row.state.terminal and open_calls:
        faults.append(f"it ended with calls without results: {list(open_calls)}")
    faults += [f"a result without a call: {ref}" for ref in results if ref not in asked]
    return faults


def _requests(one: Told) -> list[str]:
    opened = [event.request_id for event in one.of(PermissionRequest)]
    closed = [event.request_id for event in one.of(RequestClosedEvent)]
    faults = [*_doubled("request", opened), *_doubled("answer", closed)]
    faults += _doubled("request for one call", [event.call for event in one.of(PermissionRequest)])
    if one.row.state.terminal and set(opened) != set(closed):
        faults.append(f"requests {opened}, closed {closed}")
    return faults


def _started(one: Told, rows: Sequence[InvocationRow]) -> list[str]:
    """One row and one start for each delegation."""
    started = [event.invocation_id for event in one.of(SubAgentInvocationStartedEvent)]
    if sorted(started) != sorted(row.invocation_id for row in rows):
        return [f"delegations in its journal: {started}, rows: {[row.invocation_id for row in rows]}"]
    return []


def _usage(one: Told) -> list[str]:
    """An end says the sum of what it and everything told to it used, each counted once."""
    faults: list[str] = []
    used, seen = Usage(), set[str]()
    for _, event in one.events:
        if isinstance(event, ModelCalledEvent):
            used = used + event.usage
        elif isinstance(event, _ENDS) and event.invocation_id not in seen:
            seen.add(event.invocation_id)
            used = used + event.usage
        elif isinstance(event, RunFinishedEvent) and event.usage != used:
            faults.append(f"its end says {event.usage}, its journal {used}")
    return faults


def _invocations(one: Told, rows: Sequence[InvocationRow], runs: dict[str, RunRow]) -> list[str]:
    """One terminal that agrees with the row and with the child's own end."""
    faults: list[str] = []
    for row in rows:
        ends: list[str] = [event.TYPE for event in one.of(_ENDS) if event.invocation_id == row.invocation_id]
        if row.state is InvocationState.STOPPING:  # the parent is told; what does not stop can write nothing
            ended, expected = True, [end for end in ends[:1] if end != _ENDED["completed"]] or ["an end"]
        else:
            ended, expected = row.state.terminal, [_ENDED[row.state.value]] if row.state.terminal else []
        if ends != expected:
            faults.append(f"invocation of `{row.name}` is `{row.state}`, its journal says {ends}")
        child = runs.get(row.child_run)
        if child is None or child.state.terminal != ended:
            faults.append(f"invocation of `{row.name}` is `{row.state}`, its child `{child and child.state}`")
    return faults


def _doubled(what: str, values: Sequence[Any]) -> list[str]:
    return [f"{what} {value} is there {times} times" for value, times in Counter(values).items() if times > 1]
