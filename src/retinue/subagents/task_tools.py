"""The roster's tools for tasks in the background: `task_output`, `task_cancel`, `task_list`, `task_wait` (A-29 to A-31).

What they say is read from the ledger, so that any process says the same (A-35, A-36). A wait polls nothing: it looks again when
a task has ended, here or in another process.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.agent.call_arguments import fault, read
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.projection import project
from retinue.agent.run import Run
from retinue.agent.texts import bounded
from retinue.config import Verdict
from retinue.events import SubAgentInvocationStartedEvent
from retinue.ids import kind_of
from retinue.ledger.port import Ledger
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.rows import InvocationRow
from retinue.states import InvocationState, RequestState, ResultStatus
from retinue.subagents.child import answer_text

__all__ = ["TASK_TOOLS", "TaskTool", "find_task", "task_handlers"]

TASK_TOOLS: Final = ("task_output", "task_wait", "task_cancel", "task_list")
"""The names of the tools for tasks."""

OUTPUT_MS: Final = 30_000
MOST_MS: Final = 600_000
LISTED: Final = 50

_RUNNING: Final = "running"
_FILTERS: Final = ("running", "waiting", "completed", "failed", "cancelled", "all")


class _Output(msgspec.Struct, frozen=True):
    task_id: str
    block: bool = True
    timeout: float = OUTPUT_MS


class _Wait(msgspec.Struct, frozen=True):
    task_ids: list[str] | None = None
    mode: str = "all"
    timeout: float = OUTPUT_MS


class _Cancel(msgspec.Struct, frozen=True):
    task_id: str


class _List(msgspec.Struct, frozen=True):
    status_filter: str = "all"


class TaskTool:
    """What they have in common."""

    repeatable = True
    delegates = False
    spec: ToolSpec

    async def gated(self, run: Run, arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`. Roster tools are allowed by default."""
        named = arguments.get("task_id")
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=named if isinstance(named, str) else None,
            need=Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=run.definition.agent_id,
        )

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        return None

    async def reattach(
        self, run: Run, ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`: never called, there is no child."""
        raise NotImplementedError


class OutputTool(TaskTool):
    """`task_output`: how far a task is, or its result (A-29)."""

    spec = ToolSpec(
        name="task_output",
        description="How far a task in the background is, and its result if it has ended. Results also reach you by themselves.",
        parameters={
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "description": "The `task_id` of the receipt."},
                "block": {"type": "boolean", "description": "Wait for its end (default true)."},
                "timeout": {"type": "number", "description": "How long to wait, in milliseconds (default 30000, most 600000)."},
            },
            "required": ["task_id"],
            "additionalProperties": False,
        },
    )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        form = '{"task_id": "task_…", "block": true, "timeout": 30000}'
        given = read(call, _Output, ("task_id", "block", "timeout"), form)
        if isinstance(given, CallOutcome):
            return given
        row = await find_task(run, given.task_id)
        if isinstance(row, CallOutcome):
            return row

        async def execute() -> CallOutcome:
            left = min(max(given.timeout, 0), MOST_MS) / 1_000 if given.block else 0
            (now,) = await _ends(run, [row], left, wanted=1)
            return CallOutcome(content=await _told(run.tree.services.ledger, now))

        return Prepared(execute=execute, barrier=True)


class WaitTool(TaskTool):
    """`task_wait`: wait for several tasks at once, all of them or the first."""

    spec = ToolSpec(
        name="task_wait",
        description="Wait for tasks in the background: for all of them, or until the first of them has ended.",
        parameters={
            "type": "object",
            "properties": {
                "task_ids": {"type": "array", "items": {"type": "string"}, "description": "Left out: all that have not ended."},
                "mode": {"type": "string", "enum": ["all", "any"], "description": "all (default), or any: the first end."},
                "timeout": {"type": "number", "description": "How long to wait, in milliseconds (default 30000, most 600000)."},
            },
            "required": [],
            "additionalProperties": False,
        },
    )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        form = '{"task_ids": ["task_…"], "mode": "all", "timeout": 30000}'
        given = read(call, _Wait, ("task_ids", "mode", "timeout"), form)
        if isinstance(given, CallOutcome):
            return given
        if given.mode not in ("all", "any"):
            return fault(call.name, f"`mode` was `{bounded(given.mode, 40)}`", "Expected `all` or `any`")
        rows: list[InvocationRow] = []
        if given.task_ids is None:
            rows = [row for row in await _of_session(run) if not row.state.terminal]
        for task_id in given.task_ids or ():
            row = await find_task(run, task_id)
            if isinstance(row, CallOutcome):
                return row
            rows.append(row)
        if not rows:
            return CallOutcome(content="There is no task in the background to wait for.")

        async def execute() -> CallOutcome:
            left = min(max(given.timeout, 0), MOST_MS) / 1_000
            now = await _ends(run, rows, left, wanted=1 if given.mode == "any" else len(rows))
            ledger = run.tree.services.ledger
            return CallOutcome(content="\n\n".join([await _told(ledger, row) for row in now]))

        return Prepared(execute=execute, barrier=True)


class CancelTool(TaskTool):
    """`task_cancel`: stop a task (A-30)."""

    spec = ToolSpec(
        name="task_cancel",
        description="Stop a task in the background and everything below it.",
        parameters={
            "type": "object",
            "properties": {"task_id": {"type": "string", "description": "The `task_id` of the receipt."}},
            "required": ["task_id"],
            "additionalProperties": False,
        },
    )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        given = read(call, _Cancel, ("task_id",), '{"task_id": "task_…"}')
        if isinstance(given, CallOutcome):
            return given
        row = await find_task(run, given.task_id)
        if isinstance(row, CallOutcome):
            return row
        if row.state.terminal:
            return CallOutcome(content=f"Task {row.task_id} has ended already: {row.state.value}.")

        async def execute() -> CallOutcome:
            await run.tree.cancel(row.child_run, "cancelled by its parent")
            (now,) = await _ends(run, [row], run.tree.limits.stop_grace, wanted=1)
            said = "is stopped" if now.state.terminal else "is being stopped"
            return CallOutcome(content=f"Task {row.task_id} {said}: {now.state.value}.")

        return Prepared(execute=execute, barrier=True)


class ListTool(TaskTool):
    """`task_list`: the tasks of this session (A-31)."""

    spec = ToolSpec(
        name="task_list",
        description="List the tasks in the background of this session, with their states.",
        parameters={
            "type": "object",
            "properties": {"status_filter": {"type": "string", "enum": list(_FILTERS), "description": "Default: all."}},
            "required": [],
            "additionalProperties": False,
        },
    )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        given = read(call, _List, ("status_filter",), '{"status_filter": "running"}')
        if isinstance(given, CallOutcome):
            return given
        wanted = given.status_filter.strip().lower() or "all"
        if wanted not in _FILTERS:
            return fault(call.name, f"`status_filter` was `{bounded(wanted, 40)}`", f"Expected one of {', '.join(_FILTERS)}")
        await run.journal.flush()  # what this turn gave is listed as well
        rows = [row for row in await _of_session(run) if _matches(row, wanted)]
        if not rows:
            return CallOutcome(content="No tasks in the background" + ("." if wanted == "all" else f" are {wanted}."))
        lines = [f"{len(rows)} tasks, the newest first:" if len(rows) > 1 else "1 task:"]
        lines += [f"- task_id: {row.task_id}  agent: {row.name}  status: {_status(row)}" for row in rows[:LISTED]]
        if len(rows) > LISTED:
            lines.append(f"… and {len(rows) - LISTED} more")
        return CallOutcome(content="\n".join(lines))


def _matches(row: InvocationRow, wanted: str) -> bool:
    """`running` is every state that is not the last, `waiting` only that one (A-31)."""
    if wanted == "all":
        return True
    return not row.state.terminal if wanted == _RUNNING else row.state.value == wanted


def _status(row: InvocationRow) -> str:
    """The five documented words, and how far it is within `running` (A-33)."""
    if row.state in (InvocationState.WAITING, InvocationState.STOPPING):
        return f"running ({row.state.value})"
    return row.state.value + (f" ({row.reason})" if row.reason else "")


async def _of_session(run: Run) -> list[InvocationRow]:
    key = run.row.key
    return await run.tree.services.ledger.tasks(user=key.user, session=key.session, limit=1_000)


async def find_task(run: Run, task_id: str) -> InvocationRow | CallOutcome:
    """A task that was given in this session (invariant 8)."""
    name = task_id.strip()
    await run.journal.flush()  # it may have been given in this turn
    row = await run.tree.services.ledger.task(name) if name.isascii() else None
    key = run.row.key
    if row is not None and (row.parent.user, row.parent.session) == (key.user, key.session):
        return row
    kind = kind_of(name)
    given = "" if kind in (None, "task id") else f", and `{bounded(name, 60)}` is {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    text = f"Error: there is no task `{bounded(name, 60)}` in this session{given}. `task_list` shows them."
    return CallOutcome(content=text, status=ResultStatus.ERROR)


async def _ends(run: Run, rows: Sequence[InvocationRow], seconds: float, *, wanted: int) -> list[InvocationRow]:
    """The rows as they are when `wanted` of them have ended, or the time is over."""
    services = run.tree.services
    until = run.journal.clock.monotonic() + seconds
    while True:
        changed = services.next_end()
        found = [await services.ledger.invocation(row.invocation_id) for row in rows]
        now = [row if new is None else new for row, new in zip(rows, found, strict=True)]
        left = until - run.journal.clock.monotonic()
        if sum(row.state.terminal for row in now) >= wanted or left <= 0 or run.stop_reason is not None:
            return now
        timer = asyncio.create_task(run.journal.clock.sleep(left), name="retinue timer of a wait for tasks")
        try:
            await asyncio.wait((changed, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)


async def _told(ledger: Ledger, row: InvocationRow) -> str:
    """A task in lines: `task_id:`, `agent_id:`, `status:`, then what it gave."""
    lines = [f"task_id: {row.task_id}", f"agent_id: {row.child_agent_id}", f"status: {_status(row)}"]
    if row.state is InvocationState.WAITING:
        requests = await ledger.requests(root_run=row.root_run, state=RequestState.OPEN)
        mine = [one for one in requests if row.invocation_id in one.invocations]
        asked = [one.description for one in mine if one.kind == "question" and one.run_id == row.child_run]
        lines += ["It asks, and waits for `task_answer`:", *asked] if asked else ["It waits for a person to allow something."]
    if row.state.terminal:
        journal = await ledger.journal(row.child)
        if journal is not None:
            last = max((record.seq for record in journal.own if record.run == row.child_run), default=0)
            projection = project(journal.own[:last], journal.inherited)
            completed = row.state is InvocationState.COMPLETED
            text = answer_text(projection) if completed else projection.text
            if text.strip():
                lines += ["result:" if completed else "partial result:", text]
    return "\n".join(lines)


def task_handlers() -> list[CallHandler]:
    """The tools for tasks (A-02)."""
    return [OutputTool(), WaitTool(), CancelTool(), ListTool()]
