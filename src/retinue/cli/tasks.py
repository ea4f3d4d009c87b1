"""`retinue tasks list | show | wait | cancel | answer`: work in the background, read from the ledger whoever does it."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retinue.cli.exits import Exit
from retinue.cli.jsonl import cost_json, usage_json
from retinue.cli.keyboard import is_interactive, read_line
from retinue.cli.permission import describe_request
from retinue.cli.places import existing_ledger
from retinue.cli.running import Session
from retinue.cli.states import INTERRUPTED
from retinue.cli.text import bounded, clean, counted, duration, money, one_line, tokens
from retinue.cli.threads import opened
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError, UnknownId

if TYPE_CHECKING:
    from retinue.agent.projection import Projection
    from retinue.ledger.port import Ledger
    from retinue.rows import InvocationRow, OwnerRow, RequestRow

__all__ = ["STATES", "answer_task", "cancel_tasks", "list_tasks", "show_task", "wait_for_tasks"]

STATES: Final = ("running", "waiting", "completed", "failed", "cancelled", "all")
MOST: Final = 10_000
POLL_SECONDS: Final = 0.2
TEXT_LIMIT: Final = 4_000
LINE_LIMIT: Final = 400
LEAST_ROOM: Final = 20
"""Columns that a task's text needs to say anything."""

Row = dict[str, str]


async def list_tasks(
    ledger_option: str | None, workspace: Path, *, session: str | None, status: str, limit: int, as_json: bool
) -> Exit:
    """The tasks, the newest first. `running` are all that have not ended, as for the model (A-31)."""
    async with opened(ledger_option, workspace) as ledger:
        rows = await ledger.tasks(unfinished=status in ("running", "waiting"), limit=MOST)
        rows = [row for row in rows if session in (None, row.parent.session) and _matches(row, status)][:limit]
        entries = [await _entry(ledger, row) for row in rows]
    if as_json:
        print(json.dumps(entries, ensure_ascii=True))
    elif not entries:
        print("no tasks in the background" if status == "all" else f"no tasks that are {status}", file=sys.stderr)
    else:
        print("\n".join(_table(entries, now=time.time_ns() // 1_000_000)))
    return Exit.COMPLETED


def _matches(row: "InvocationRow", status: str) -> bool:
    if status == "all":
        return True
    return not row.state.terminal if status == "running" else row.state.value == status


async def _entry(ledger: "Ledger", row: "InvocationRow") -> dict[str, Any]:
    thread = await ledger.thread(row.child)
    owner = await _owner(ledger, row)
    return {
        "taskId": row.task_id,
        "name": row.name,
        "agent": row.child_agent_id,
        "agentKey": None if thread is None else thread.agent_key,
        "label": None if thread is None else thread.label,
        "state": await _state(ledger, row),
        "reason": row.reason,
        "attempts": (await _attempt(ledger, row)),
        "user": row.parent.user,
        "session": row.parent.session,
        "thread": row.parent.thread,
        "childSession": row.child.session,
        "childThread": row.child.thread,
        "run": row.child_run,
        "invocationId": row.invocation_id,
        "startedAt": row.started_at,
        "updatedAt": row.updated_at,
        "heldBy": None if owner is None else {"pid": owner.pid, "host": owner.host},
        "task": one_line(await _given(ledger, row), LINE_LIMIT),
    }


async def _state(ledger: "Ledger", row: "InvocationRow") -> str:
    """The task's state, or `interrupted` where the process that drove it is gone."""
    if row.state.terminal or row.state.value == "waiting":
        return row.state.value
    run = await ledger.run(row.child_run)
    alive = run is not None and run.owner is not None and await ledger.owner_alive(run.owner)
    return row.state.value if alive else INTERRUPTED


async def _owner(ledger: "Ledger", row: "InvocationRow") -> "OwnerRow | None":
    """The process that works on it, if it lives."""
    run = None if row.state.terminal else await ledger.run(row.child_run)
    if run is None or run.owner is None or not await ledger.owner_alive(run.owner):
        return None
    return await ledger.owner(run.owner)


async def _attempt(ledger: "Ledger", row: "InvocationRow") -> int:
    run = await ledger.run(row.child_run)
    return 1 if run is None else run.attempt


async def _given(ledger: "Ledger", row: "InvocationRow") -> str:
    """What the child was told first in this delegation."""
    from retinue.events import MessageEvent, decode
    from retinue.messages import UserMessage

    journal = await ledger.journal(row.child)
    for record in () if journal is None else journal.own:
        if record.run == row.child_run:
            event = decode(record)
            if isinstance(event, MessageEvent) and isinstance(event.message, UserMessage) and not event.message.notice:
                return event.message.text
    return ""


def _table(entries: Sequence[dict[str, Any]], *, now: int) -> list[str]:
    """The entries in columns; what each was given stands beside them, or below where a terminal has no room for that."""
    head: Row = {"task": "TASK", "agent": "AGENT", "state": "STATE", "session": "SESSION", "begun": "BEGUN"}
    rows: list[Row] = [head]
    for entry in entries:
        told = {"task": entry["taskId"], "agent": entry["name"], "state": entry["state"], "session": entry["session"]}
        told["begun"] = f"{duration(now - entry['startedAt'])} ago"
        rows.append({name: one_line(str(told[name]), LINE_LIMIT) for name in head})
    widths = {name: max(len(row[name]) for row in rows) for name in head}
    cells = ["  ".join(row[name].ljust(widths[name]) for name in head) for row in rows]
    texts = ["GIVEN", *(entry["task"] for entry in entries)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    room = LINE_LIMIT if width is None else width - len(cells[0]) - 2
    if room >= LEAST_ROOM:
        return [f"{cell}  {one_line(text, room)}".rstrip() for cell, text in zip(cells, texts, strict=True)]
    assert width is not None
    below = [f"  {one_line(text, width - 2)}".rstrip() for text in texts[1:]]
    pairs = zip((cell.rstrip() for cell in cells[1:]), below, strict=True)
    return [cells[0].rstrip(), *(line for pair in pairs for line in pair if line.strip())]


async def find_task(ledger: "Ledger", wanted: str) -> "InvocationRow":
    """The task that `wanted` means: its id, or the agent key, label or name of its child where only one fits, of those that have
    not ended first.

    Raises:
        UnknownId: there is none, or several.
    """
    if wanted.startswith("task_"):
        row = await ledger.task(wanted) if wanted.isascii() else None
        if row is None:
            raise _unknown(wanted)
        return row
    rows = await ledger.tasks(limit=MOST)
    named = [row for row in rows if await _is_called(ledger, row, wanted)]
    found = [row for row in named if not row.state.terminal] or named[:1]
    if not found:
        raise _unknown(wanted)
    if len(found) > 1:
        listed = ", ".join(f"`{row.task_id}`" for row in found[:10])
        raise UnknownId(f"`{one_line(wanted, 80)}` is not one task: {listed}", remedy="give the id of the one that is meant")
    return found[0]


async def _is_called(ledger: "Ledger", row: "InvocationRow", wanted: str) -> bool:
    if wanted in (row.name, row.child_agent_id):
        return True
    thread = await ledger.thread(row.child)
    return thread is not None and wanted in (thread.agent_key, thread.label)


def _unknown(wanted: str) -> UnknownId:
    return UnknownId(
        f"there is no task `{one_line(wanted, 80)}` in this ledger",
        remedy="`retinue tasks list` shows what there is",
    )


async def show_task(ledger_option: str | None, workspace: Path, *, task: str, as_json: bool) -> Exit:
    """How far a task is: who works on it, what it waits for, what it has said and cost."""
    session = Session(workspace=workspace, ledger=ledger_option)
    async with opened(ledger_option, workspace) as ledger:
        row = await find_task(ledger, task)
        entry = await _entry(ledger, row)
        requests = await _requests(ledger, row)
        projection = await _projection(ledger, row)
    text = "" if projection is None else _text(projection, row)
    if as_json:
        more = {
            "text": text,
            "usage": None if projection is None else usage_json(projection.tree_usage),
            "cost": None if projection is None else cost_json(projection.cost),
            "requests": [{"requestId": one.request_id, "kind": one.kind, "text": one.description} for one in requests],
        }
        print(json.dumps({**entry, **more}, ensure_ascii=True))
        return Exit.COMPLETED
    print(fitted("\n".join(_shown(entry, projection)), sys.stdout))
    for request in requests:
        print(fitted(_asked(request), sys.stdout))
        print(f"  {session.command('tasks', 'answer', str(row.task_id))}")
    if text.strip():
        print("result:" if row.state.value == "completed" else "text so far:")
        print("\n".join(f"  | {line}" for line in clean(bounded(text, TEXT_LIMIT)).splitlines()))
    if entry["state"] == INTERRUPTED:
        print(f"Nobody works on it. Go on with: {session.command('resume', str(row.task_id))}")
    return Exit.COMPLETED


def _shown(entry: dict[str, Any], projection: "Projection | None") -> list[str]:
    now = time.time_ns() // 1_000_000
    ended = entry["state"] in ("completed", "failed", "cancelled")
    held = entry["heldBy"]
    lines = [
        f"{entry['taskId']}: {one_line(entry['name'], 60)}, {one_line(entry['task'], 200)}",
        f"  state      {entry['state']}" + (f" ({one_line(entry['reason'], 200)})" if entry["reason"] else ""),
        f"  elapsed    {duration((entry['updatedAt'] if ended else now) - entry['startedAt'])}",
        f"  given in   session {one_line(entry['session'], 100)}, thread {one_line(entry['thread'], 100)}",
        f"  works in   session {one_line(entry['childSession'], 100)}, thread {one_line(entry['childThread'], 100)}",
    ]
    if entry["label"]:
        lines.append(f"  label      {one_line(entry['label'], 100)}")
    if held is not None:
        lines.append(f"  held by    process {held['pid']} on {one_line(held['host'], 100)}")
    if entry["attempts"] > 1:
        lines.append(f"  attempts   {entry['attempts']}")
    if projection is not None and projection.tree_usage.calls:
        usage = projection.tree_usage
        spent = (
            f"{counted(usage.calls, 'model call')}, {tokens(usage.input_tokens + usage.output_tokens)}, {money(projection.cost)}"
        )
        lines.append(f"  used       {spent}")
    return lines


def _asked(request: "RequestRow") -> str:
    from retinue.harness.requests import request_view

    return describe_request(request_view(request))


async def _requests(ledger: "Ledger", row: "InvocationRow") -> "list[RequestRow]":
    """The open requests of a task and of what it waits for."""
    from retinue.states import RequestState

    if row.state.terminal:
        return []
    rows = await ledger.requests(root_run=row.root_run, state=RequestState.OPEN)
    return [one for one in rows if row.invocation_id in one.invocations]


async def _projection(ledger: "Ledger", row: "InvocationRow") -> "Projection | None":
    """The child's journal up to the last event of this delegation."""
    from retinue.agent.projection import project

    journal = await ledger.journal(row.child)
    if journal is None:
        return None
    last = max((record.seq for record in journal.own if record.run == row.child_run), default=0)
    return project(journal.own[:last], journal.inherited)


def _text(projection: "Projection", row: "InvocationRow") -> str:
    from retinue.subagents.child import answer_text

    return answer_text(projection) if row.state.value == "completed" else projection.text


async def wait_for_tasks(
    ledger_option: str | None, workspace: Path, *, tasks: Sequence[str], first: bool, timeout: float | None, as_json: bool
) -> Exit:
    """Wait until all of the tasks have ended (`first`: one of them), or wait for a person, and say so as it happens.

    The exit code is that of the worst end: failed or cancelled 1, still at work or waiting 3.
    """
    import asyncio

    session = Session(workspace=workspace, ledger=ledger_option)
    until = None if timeout is None else time.monotonic() + timeout
    told: dict[str, str] = {}
    async with opened(ledger_option, workspace) as ledger:
        rows = [await find_task(ledger, wanted) for wanted in tasks]
        if not tasks:
            rows = await ledger.tasks(unfinished=True, limit=MOST)
        while True:
            entries: list[tuple[InvocationRow, str]] = []
            for row in rows:
                now = await ledger.invocation(row.invocation_id) or row
                entries.append((now, await _state(ledger, now)))
            for row, state in entries:
                if told.get(row.invocation_id) != state and not as_json:
                    told[row.invocation_id] = state
                    _say_state(row, state, session)
            ended = sum(row.state.terminal for row, _ in entries)
            standing = all(row.state.terminal or state in ("waiting", INTERRUPTED) for row, state in entries)
            left = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
            if standing or (first and ended) or left <= 0:
                break
            await asyncio.sleep(left)
        documents = [await _entry(ledger, row) for row, _ in entries] if as_json else []
        for document, (row, _) in zip(documents, entries, strict=False):
            projection = await _projection(ledger, row)
            document["text"] = "" if projection is None else _text(projection, row)
    if as_json:
        print(json.dumps(documents, ensure_ascii=True))
    if not rows:
        print("no tasks that are running", file=sys.stderr)
    return _worst([state for _, state in entries], first=first)


def _say_state(row: "InvocationRow", state: str, session: Session) -> None:
    line = f"{row.task_id} ({one_line(row.name, 60)}): {state}" + (f" ({one_line(row.reason, 200)})" if row.reason else "")
    if state == "waiting":
        line += f"; answer it: {session.command('tasks', 'answer', str(row.task_id))}"
    elif state == INTERRUPTED:
        line += f"; go on with it: {session.command('resume', str(row.task_id))}"
    print(fitted(line, sys.stdout), flush=True)


def _worst(states: Sequence[str], *, first: bool) -> Exit:
    if any(state in ("failed", "cancelled") for state in states):
        return Exit.FAILED
    if first and "completed" in states:
        return Exit.COMPLETED
    return Exit.COMPLETED if all(state == "completed" for state in states) else Exit.WAITING


async def cancel_tasks(ledger_option: str | None, workspace: Path, *, tasks: Sequence[str], reason: str, as_json: bool) -> Exit:
    """Stop tasks and everything below them. Of one that another process works on the stop is recorded, and that is waited for."""
    from retinue.cli.steer import cancelled
    from retinue.harness import Runtime

    entries: list[dict[str, Any]] = []
    async with Runtime(ledger=existing_ledger(ledger_option, workspace)) as runtime:
        rows = [await find_task(runtime.ledger, wanted) for wanted in tasks]
        for row in rows:
            if not row.state.terminal:
                run = await runtime.ledger.run(row.child_run)
                assert run is not None
                await cancelled(runtime, run, reason)
            now = await runtime.ledger.invocation(row.invocation_id) or row
            entries.append({"taskId": row.task_id, "name": row.name, "before": row.state.value, "state": now.state.value})
    if as_json:
        print(json.dumps(entries, ensure_ascii=True))
        return Exit.COMPLETED
    for entry in entries:
        had = f"had ended: {entry['before']}" if entry["before"] in ("completed", "failed", "cancelled") else ""
        stopped = "is cancelled" if entry["state"] == "cancelled" else f"is {entry['state']}; the stop is recorded"
        print(f"{entry['taskId']} ({one_line(entry['name'], 60)}) {had or stopped}")
    return Exit.COMPLETED


async def answer_task(ledger_option: str | None, workspace: Path, *, task: str, answer: str | None) -> tuple[str, str] | None:
    """The request that a task waits for, and the answer to it: as given, or as typed here. None: nothing was typed.

    Raises:
        UnknownId: it waits for nothing. ConfigurationError: there are several requests, or nobody is here to be asked.
    """
    async with opened(ledger_option, workspace) as ledger:
        row = await find_task(ledger, task)
        requests = await _requests(ledger, row)
    if not requests:
        state = f"has ended: {row.state.value}" if row.state.terminal else f"is {row.state.value}"
        raise UnknownId(
            f"task `{row.task_id}` {state}, and waits for no answer",
            remedy=f"`retinue tasks show {row.task_id}` says how far it is",
        )
    if len(requests) > 1 and answer is not None:
        listed = ", ".join(f"`{one.request_id}`" for one in requests[:10])
        raise ConfigurationError(
            f"task `{row.task_id}` waits for {len(requests)} answers: {listed}",
            code="ambiguous_request",
            remedy="answer each by its id: `retinue answer REQUEST allow|deny|TEXT`",
        )
    request = requests[0]
    if answer is not None:
        return request.request_id, answer
    if not is_interactive():
        raise ConfigurationError(
            "there is no terminal to ask on",
            code="no_terminal",
            remedy=f"give the answer: `retinue tasks answer {row.task_id} allow|deny|TEXT`",
        )
    print(fitted(_asked(request), sys.stderr), file=sys.stderr)
    typed = await read_line("  answer: " if request.kind == "question" else "  allow? [y] yes, once  [n] no: ")
    if typed is None or not typed.strip():
        print("nothing was answered", file=sys.stderr)
        return None
    if request.kind == "question":
        return request.request_id, typed
    return request.request_id, "allow" if typed.strip().casefold() in ("y", "yes", "allow") else "deny"
