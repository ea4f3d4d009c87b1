"""`retinue gc`: remove what no thread and no fork refers to, beside whoever else is at work."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from retinue.cli.exits import Exit
from retinue.cli.text import counted
from retinue.cli.threads import opened

if TYPE_CHECKING:
    from retinue.ledger.port import Collected

__all__ = ["collect_garbage"]

HOUR_MS = 3_600_000


async def collect_garbage(
    ledger_option: str | None, workspace: Path, *, dry_run: bool, grace_hours: float, quiet: bool, as_json: bool
) -> Exit:
    """Collect, and say what went."""
    told = time.monotonic()

    def progress(sums: "Collected") -> None:
        nonlocal told
        if not (quiet or as_json) and time.monotonic() - told >= 1:
            told = time.monotonic()
            print(f"… {_words(sums) or 'looking'}", file=sys.stderr)

    async with opened(ledger_option, workspace) as ledger:
        now = time.time_ns() // 1_000_000
        done = await ledger.collect(now=now, grace_ms=round(grace_hours * HOUR_MS), dry_run=dry_run, progress=progress)
    if as_json:
        print(json.dumps({**msgspec.to_builtins(done), "dryRun": dry_run}))
        return Exit.COMPLETED
    words = _words(done)
    print(f"{'would remove' if dry_run else 'removed'} {words}" if words else "nothing to remove")
    if done.condemned and not dry_run:
        when = f"{grace_hours:g} {'hour' if grace_hours == 1 else 'hours'}"
        print(f"{counted(done.condemned, 'more blob')} to go in {when}, unless somebody refers to it again", file=sys.stderr)
    return Exit.COMPLETED


def _words(sums: "Collected") -> str:
    parts = (
        (sums.threads, "thread", f" ({counted(sums.records, 'record')})"),
        (sums.blobs, "blob", f" ({counted(sums.blob_bytes, 'byte')})"),
        (sums.drafts, "draft", ""),
        (sums.mail, "mail", ""),
        (sums.owners, "owner", ""),
    )
    return ", ".join(f"{counted(count, name, 'mail' if name == 'mail' else '')}{more}" for count, name, more in parts if count)
