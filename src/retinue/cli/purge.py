"""`retinue purge` and `retinue threads delete`: conversations that are to be gone, for good or from every list."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.cli.exits import Exit
from retinue.cli.keyboard import is_interactive, read_line
from retinue.cli.places import find_thread
from retinue.cli.text import counted, one_line
from retinue.cli.threads import opened
from retinue.errors import ConfigurationError, UnknownId

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger
    from retinue.rows import ThreadRow

__all__ = ["delete", "purge"]


async def purge(
    ledger_option: str | None, workspace: Path, *, session: str, thread: str | None, children: bool, yes: bool, as_json: bool
) -> Exit:
    """Remove a thread or all threads of a session for good, after a person has said yes."""
    from retinue.harness.care import purge_threads

    async with opened(ledger_option, workspace) as ledger:
        rows = await _wanted(ledger, session, thread, children)
        if not yes and not await _confirmed(rows, "Remove", "for good? This cannot be undone"):
            return Exit.INTERRUPTED
        removed = await purge_threads(ledger, rows)
    _tell(
        {"threads": len(rows), "records": removed},
        f"removed {counted(len(rows), 'thread')} ({counted(removed, 'record')}) for good",
        as_json,
    )
    return Exit.COMPLETED


async def delete(
    ledger_option: str | None, workspace: Path, *, session: str, thread: str | None, children: bool, yes: bool, as_json: bool
) -> Exit:
    """Hide a thread or all threads of a session from every list."""
    from retinue.harness.care import delete_threads

    async with opened(ledger_option, workspace) as ledger:
        rows = await _wanted(ledger, session, thread, children)
        if not yes and not await _confirmed(rows, "Delete", "from every list?"):
            return Exit.INTERRUPTED
        await delete_threads(ledger, rows)
    _tell({"threads": len(rows)}, f"deleted {counted(len(rows), 'thread')}; `retinue gc` frees the space", as_json)
    return Exit.COMPLETED


async def _wanted(ledger: "Ledger", session: str, thread: str | None, children: bool) -> "list[ThreadRow]":
    from retinue.harness.care import with_children

    if thread is not None:
        rows = [await find_thread(ledger, session, thread)]
    else:
        rows = await ledger.threads(session=session, hidden=True, limit=100_000)
        if not children:
            rows = [row for row in rows if row.parent is None]
        if len({row.key.user for row in rows}) > 1:
            raise UnknownId(f"`{session}` is a session of several users", remedy="name one thread at a time")
    if not rows:
        raise UnknownId(f"there is no session `{session}` in `{ledger.url}`", remedy="`retinue threads list` shows what there is")
    return await with_children(ledger, rows) if children else rows


async def _confirmed(rows: "list[ThreadRow]", verb: str, question: str) -> bool:
    if not is_interactive():
        raise ConfigurationError(
            f"{verb.lower()} {counted(len(rows), 'thread')}: nobody is here to confirm it",
            code="not_confirmed",
            remedy="pass `--yes`",
        )
    for row in rows[:10]:
        title = f"  {one_line(row.title, 60)}" if row.title else ""
        print(
            one_line(f"  {row.key.session} {row.key.thread}  {row.default_agent_id}  {counted(row.head, 'event')}{title}", 200),
            file=sys.stderr,
        )
    if len(rows) > 10:
        print(f"  and {len(rows) - 10} more", file=sys.stderr)
    typed = await read_line(f"{verb} {'this thread' if len(rows) == 1 else f'these {len(rows)} threads'} {question} [y/N] ")
    return (typed or "").casefold() in ("y", "yes")


def _tell(document: dict[str, int], words: str, as_json: bool) -> None:
    print(json.dumps(document) if as_json else words)
