"""`retinue explain`: why something is in its state, who holds it, what it waits for, and the command that moves it on."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.cli.exits import Exit
from retinue.cli.running import Session
from retinue.cli.text import clean, duration, one_line
from retinue.cli.threads import opened
from retinue.cli.wrapping import fitted

if TYPE_CHECKING:
    from retinue.ledger.sentences import Explanation

__all__ = ["explain_id"]

OR_DENY = "    (or deny)"


async def explain_id(ledger_option: str | None, workspace: Path, *, wanted: str, as_json: bool) -> Exit:
    """Explain what an id names."""
    from retinue.ledger.explain import explain

    async with opened(ledger_option, workspace) as ledger:
        said = await explain(ledger, wanted)
    session = Session(workspace=workspace, ledger=ledger_option)
    command = session.command(*said.command) if said.command else ""
    stop = session.command(*said.stop) if said.stop else ""
    stuck = session.command(*said.stuck) if said.stuck else ""
    if as_json:
        print(json.dumps(_document(said, command, stop, stuck), ensure_ascii=True))
        return Exit.COMPLETED
    now = time.time_ns() // 1_000_000
    since = f"  since      {duration(now - said.since)} ago" if said.since else ""
    lines = [
        f"{clean(one_line(said.text, 1_000)).rstrip('.')}.",
        f"  state      {said.state}",
        since,
        f"  held by    {one_line(said.held_by, 400)}" if said.held_by else "",
        f"  waits for  {one_line(said.waits_for, 1_000)}" if said.waits_for else "",
        f"  command    {command}{OR_DENY if said.command[0] == 'answer' else ''}" if command else "",
        f"  stop it    {stop}" if stop else "",
        f"  if stuck   {stuck}    (only where that process does nothing any more)" if stuck else "",
        f"  from code  {said.python}" if said.python else "",
        f"  see also   {one_line(', '.join(said.related), 1_000)}" if said.related else "",
    ]
    print(fitted("\n".join(line for line in lines if line), sys.stdout))
    return Exit.COMPLETED


def _document(said: "Explanation", command: str, stop: str, stuck: str) -> dict[str, Any]:
    return {
        "id": said.id,
        "kind": said.kind,
        "state": said.state,
        "reason": said.reason,
        "text": said.text,
        "since": said.since or None,
        "heldBy": said.held_by or None,
        "waitsFor": said.waits_for or None,
        "command": command or None,
        "stop": stop or None,
        "stuck": stuck or None,
        "python": said.python or None,
        "related": list(said.related),
    }
