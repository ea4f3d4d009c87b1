"""`retinue threads list | show | tree`: what the ledger holds. Only reads; starts, resumes and sweeps nothing."""

import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.cli.exits import Exit
from retinue.cli.jsonl import cost_json, record_line, usage_json
from retinue.cli.live_tree import TreeView
from retinue.cli.places import existing_ledger, find_run, find_thread
from retinue.cli.replay import replay_tree
from retinue.cli.text import bounded, clean, counted, describe_call, duration, one_line
from retinue.events import MessageEvent, RunFinishedEvent, ToolCallResultEvent, decode
from retinue.messages import AssistantMessage

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger
    from retinue.ops import Record
    from retinue.rows import ThreadRow

__all__ = ["list_threads", "show_thread", "show_tree"]

RESULT_LIMIT = 300


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
    now = time.time_ns() // 1_000_000
    for entry in entries:
        place = f"{entry['session']} {entry['thread']}" + (f" (user {entry['user']})" if entry["user"] else "")
        ago = f"{duration(now - entry['updatedAt'])} ago"
        state = entry["state"] or "no run"
        print(one_line(f"{place}  {entry['agent']}  {state}  {counted(entry['events'], 'event')}  {ago}", 400))
    return Exit.COMPLETED


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
        "state": str(run.state) if run else None,
        "metadata": row.metadata,
    }


async def show_thread(ledger_option: str | None, workspace: Path, *, session: str, thread: str | None, as_json: bool) -> Exit:
    """The conversation of one thread; with JSON, its records."""
    async with opened(ledger_option, workspace) as ledger:
        row = await find_thread(ledger, session, thread)
        journal = await ledger.journal(row.key)
    records = (*journal.inherited, *journal.own) if journal else ()
    if as_json:
        print(json.dumps([record_line(record) for record in records], ensure_ascii=True))
        return Exit.COMPLETED
    print(one_line(f"session {row.key.session}, thread {row.key.thread}, agent {row.default_agent_id}", 400))
    if journal is not None and journal.inherited:
        first = counted(len(journal.inherited), "event")
        print(f"(inherited from the thread that this one was forked from: {first})")
    for record in records:
        _print_record(record)
    return Exit.COMPLETED


def _print_record(record: "Record") -> None:
    """One event of a conversation, if it is part of one."""
    match decode(record):
        case MessageEvent(message=message):
            who = "assistant" if isinstance(message, AssistantMessage) else (message.notice or "user")
            if message.text:
                print(f"\n{clean(who)}:\n{_indented(message.text)}")
            for call in message.calls if isinstance(message, AssistantMessage) else ():
                print(f"  -> {describe_call(call.name, call.arguments, 160)}")
        case ToolCallResultEvent() as result:
            status = "" if result.status == "ok" else f" ({result.status})"
            print(f"  <- {one_line(result.name, 60)}{status}: {one_line(bounded(result.content, RESULT_LIMIT), RESULT_LIMIT)}")
        case RunFinishedEvent() as finished:
            print(f"\n[{finished.status}{f': {one_line(finished.reason, 120)}' if finished.reason else ''}]")
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
    if as_json:
        print(json.dumps({"run": run.run_id, "state": str(run.state), "nodes": _nodes(view)}, ensure_ascii=True))
    else:
        _draw(view)
    return Exit.COMPLETED


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
