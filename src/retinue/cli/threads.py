"""`retinue threads list | show | tree`: what the ledger holds. Only reads; starts, resumes and sweeps nothing."""

import json
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.cli.exits import Exit
from retinue.cli.jsonl import cost_json, record_line, usage_json
from retinue.cli.live_tree import ROOT, NodeState, TreeView
from retinue.cli.places import existing_ledger, find_run, find_thread
from retinue.cli.replay import replay_tree
from retinue.cli.running import Session
from retinue.cli.states import INTERRUPTED, shown_state
from retinue.cli.text import bounded, clean, counted, describe_call, duration, one_line
from retinue.cli.wrapping import fitted
from retinue.events import MessageEvent, RunFinishedEvent, ToolCallResultEvent, decode
from retinue.messages import AssistantMessage
from retinue.states import RequestState

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger
    from retinue.ops import Record
    from retinue.rows import RunRow, ThreadRow

__all__ = ["list_threads", "show_thread", "show_tree"]

Row = dict[str, str]
RESULT_LIMIT = 1_200
LINE_LIMIT = 400
LEAST_ROOM = 20
"""Columns that a task needs to say anything."""
FIRST = 5
"""Records of a thread among which its first message is."""


@asynccontextmanager
async def opened(ledger_option: str | None, workspace: Path) -> AsyncGenerator["Ledger", None]:
    """The existing ledger, open for as long as the command lasts."""
    ledger = existing_ledger(ledger_option, workspace)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def list_threads(
    ledger_option: str | None, workspace: Path, *, session: str | None, hidden: bool, limit: int, as_json: bool
) -> Exit:
    """The threads, newest first, with the state of the last run of each."""
    async with opened(ledger_option, workspace) as ledger:
        rows = await ledger.threads(session=session, hidden=hidden, limit=limit)
        entries = [await _entry(ledger, row) for row in rows]
    if as_json:
        print(json.dumps(entries, ensure_ascii=True))
        return Exit.COMPLETED
    if not entries:
        print("no threads yet", file=sys.stderr)
    else:
        print("\n".join(_table(entries, now=time.time_ns() // 1_000_000)))
    return Exit.COMPLETED


def _table(entries: list[dict[str, Any]], *, now: int) -> list[str]:
    """The entries in columns, each with its task: beside them, or below where a terminal has no room for that."""
    head: Row = {"user": "USER", "session": "SESSION", "thread": "THREAD", "agent": "AGENT", "state": "STATE"}
    head |= {"events": "EVENTS", "last": "LAST", "task": "TASK"}
    rows: list[Row] = [head]
    for entry in entries:
        told = {"user": entry["user"] or "-", "state": entry["state"] or "no run", "events": str(entry["events"])}
        told["last"] = f"{duration(now - entry['updatedAt'])} ago"
        rows.append({name: one_line(str((entry | told)[name]), LINE_LIMIT) for name in head})
    names = [name for name in head if name != "task" and (name != "user" or any(entry["user"] for entry in entries))]
    widths = {name: max(len(row[name]) for row in rows) for name in names}
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    room = LINE_LIMIT if width is None else width - sum(widths.values()) - 2 * len(names)
    cells = ["  ".join(row[name].ljust(widths[name]) for name in names) for row in rows]
    if width is None or room >= LEAST_ROOM:
        return [f"{cell}  {one_line(row['task'], room)}".rstrip() for cell, row in zip(cells, rows, strict=True)]
    below = [f"  {one_line(row['task'], width - 2)}" for row in rows[1:]]
    return [cells[0], *(line.rstrip() for pair in zip(cells[1:], below, strict=True) for line in pair if line.strip())]


async def _entry(ledger: "Ledger", row: "ThreadRow") -> dict[str, Any]:
    run = await ledger.last_run(row.key)
    return {
        "user": row.key.user,
        "session": row.key.session,
        "thread": row.key.thread,
        "agent": row.default_agent_id,
        "agentKey": row.agent_key or None,
        "generation": row.generation,
        "events": row.head,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at or row.created_at,
        "hidden": row.hidden,
        "depth": row.depth,
        "parent": list(row.parent) if row.parent else None,
        "run": run.run_id if run else None,
        "state": await shown_state(ledger, run) if run else None,
        "task": await _task(ledger, row),
        "metadata": row.metadata,
    }


async def _task(ledger: "Ledger", row: "ThreadRow") -> str:
    """The first line of what the thread was begun with."""
    if row.title is None:
        for record in await ledger.records(row.key, generation=row.generation, limit=FIRST):
            event = decode(record)
            if isinstance(event, MessageEvent) and not isinstance(event.message, AssistantMessage):
                return _first_line(event.message.text)
    return _first_line(row.title or "")


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0], LINE_LIMIT)


async def show_thread(ledger_option: str | None, workspace: Path, *, session: str, thread: str | None, as_json: bool) -> Exit:
    """The conversation of one thread; with JSON, its records."""
    async with opened(ledger_option, workspace) as ledger:
        row = await find_thread(ledger, session, thread)
        journal = await ledger.journal(row.key)
        last = await ledger.last_run(row.key)
        standing = [] if last is None else await _standing(ledger, last, Session(workspace=workspace, ledger=ledger_option))
    records = (*journal.inherited, *journal.own) if journal else ()
    if as_json:
        print(json.dumps([record_line(record) for record in records], ensure_ascii=True))
        return Exit.COMPLETED
    _show(one_line(f"session {row.key.session}, thread {row.key.thread}, agent {row.default_agent_id}", 400))
    if journal is not None and journal.inherited:
        first = counted(len(journal.inherited), "event")
        _show(f"(inherited from the thread that this one was forked from: {first})")
    for record in records:
        _print_record(record)
    if standing:
        _show("\n".join(standing))
    return Exit.COMPLETED


async def _standing(ledger: "Ledger", run: "RunRow", session: Session) -> list[str]:
    """What the thread is at, where its last run has not ended, and what moves it on."""
    state = await shown_state(ledger, run)
    if run.state.terminal:
        return []
    asked = await ledger.requests(root_run=run.root, state=RequestState.OPEN)
    asked = [one for one in asked if one.key == run.key] or asked
    lines = [f"\n[{state}]"]
    if state == "waiting":
        for one in asked:
            lines.append(f"  {one_line(one.agent_id, 60)} asks for {describe_call(one.tool, one.arguments, 160)}")
            lines.append(f"    {session.command('answer', one.request_id, 'allow')}    (or deny)")
    if state == INTERRUPTED or (state == "waiting" and not asked):
        lines.append(f"  go on with it: {session.command('resume', run.root)}")
    return lines


def _show(text: str) -> None:
    print(fitted(text, sys.stdout))


def _print_record(record: "Record") -> None:
    """One event of a conversation, if it is part of one."""
    match decode(record):
        case MessageEvent(message=message):
            who = "assistant" if isinstance(message, AssistantMessage) else (message.notice or "user")
            if message.text:
                _show(f"\n{clean(who)}:\n{_indented(message.text)}")
            for call in message.calls if isinstance(message, AssistantMessage) else ():
                _show(f"  -> {describe_call(call.name, call.arguments, 160)}")
        case ToolCallResultEvent() as result:
            status = "" if result.status == "ok" else f" ({result.status})"
            lines = clean(bounded(result.content, RESULT_LIMIT)).splitlines()
            _show(f"  <- {one_line(result.name, 60)}{status}:" + (f" {lines[0]}" if len(lines) == 1 else ""))
            for line in lines if len(lines) > 1 else ():
                _show(f"     | {line}")
        case RunFinishedEvent() as finished:
            _show(f"\n[{finished.status}{f': {one_line(finished.reason, 120)}' if finished.reason else ''}]")
        case _:
            pass


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text).splitlines())


async def show_tree(ledger_option: str | None, workspace: Path, *, wanted: str | None, as_json: bool) -> Exit:
    """The tree of a run, drawn from its journals: the newest run, or the one that `wanted` means."""
    async with opened(ledger_option, workspace) as ledger:
        if wanted is None:
            newest = await ledger.runs(roots_only=True, limit=1)
            if not newest:
                print("no runs yet", file=sys.stderr)
                return Exit.COMPLETED
            run = newest[0]
        else:
            run = await find_run(ledger, wanted)
        view = TreeView()
        for event in await replay_tree(ledger, run.run_id):
            view.apply(event)
        state = await _as_it_stands(ledger, run, view)
    if as_json:
        print(json.dumps({"run": run.run_id, "state": state, "nodes": _nodes(view)}, ensure_ascii=True))
    else:
        _draw(view)
    return Exit.COMPLETED


async def _as_it_stands(ledger: "Ledger", run: "RunRow", view: TreeView) -> str:
    """The root's state. Journals say how far each run of the tree came; its row says what it is at now, and so it is shown."""
    for row in await ledger.tree(run.run_id):
        node = view.nodes.get(row.invocation_id or ROOT)
        if node is not None and not node.state.ended:
            node.state = NodeState(await shown_state(ledger, row))
            if node.state is NodeState.INTERRUPTED:
                node.note = "its process is gone; `retinue resume` goes on with it"
                node.questions.clear()
    return await shown_state(ledger, run)


def _nodes(view: TreeView) -> list[dict[str, Any]]:
    return [
        {
            "invocation": node.node_id or None,
            "parent": node.parent or None,
            "agent": node.agent,
            "depth": depth,
            "state": str(node.state),
            "note": node.note,
            "session": node.key.session if node.key else None,
            "thread": node.key.thread if node.key else None,
            "startedAt": node.started_at,
            "endedAt": node.ended_at or None,
            "usage": usage_json(node.usage),
            "cost": cost_json(node.cost),
            "attempt": node.attempt,
        }
        for node, depth in view.walk()
    ]


def _draw(view: TreeView) -> None:
    from rich.console import Console

    from retinue.cli.render import draw_tree

    edge = sys.stdout.isatty()  # a file or a pipe has none
    console = Console(highlight=False, markup=False, emoji=False, width=None if edge else 100_000)
    latest = max((node.last_at for node, _ in view.walk()), default=0)
    ascii_only = not console.encoding.startswith("utf")
    width = console.width if edge else None
    console.print(draw_tree(view, now=latest, width=width, height=100_000, ascii_only=ascii_only))
