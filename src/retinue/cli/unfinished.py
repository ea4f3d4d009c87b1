"""Which run `retinue resume` goes on with, and whether it should: one that is at work is taken over only after a yes, and one
that waits for an answer is not started where nobody can give one."""

import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from retinue.cli.keyboard import is_interactive, read_line
from retinue.cli.live_tree import TreeView
from retinue.cli.places import find_run
from retinue.cli.replay import replay_tree
from retinue.cli.text import duration, one_line
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError, UnknownId
from retinue.events import RunFinishedEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from retinue.events import Event
    from retinue.ledger.port import Ledger
    from retinue.rows import RequestRow, RunRow

__all__ = ["Idle", "opened", "still_waiting", "unfinished", "unfinished_run", "was_confirmed"]

MOST: Final = 10_000
"""Tasks that are looked at."""


class Idle:
    """A run that waits, with nothing that could be done for it: its events so far, and the end that a stream would give it."""

    def __init__(self, before: "list[Event]", last: RunFinishedEvent) -> None:
        self.before = before
        self.last = last


@asynccontextmanager
async def opened(ledger: "Ledger") -> "AsyncGenerator[Ledger, None]":
    """The ledger, open for as long as the block lasts."""
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def unfinished_run(ledger: "Ledger", wanted: str | None, *, take_over: bool) -> "RunRow | None":
    """The run that `wanted` means, else the newest one that can be gone on with. Those that are left aside are told.

    Raises:
        UnknownId: there is no such run, or it has ended.
    """
    if wanted is not None:
        row = await find_run(ledger, wanted)
        if row.state.terminal:
            raise UnknownId(
                f"run `{row.run_id}` has ended: {row.state}",
                code="run_ended",
                remedy=f"go on with its conversation: `retinue run --session {row.key.session} TASK`",
            )
        return row
    found = await unfinished(ledger, take_over=take_over)
    for row in found[1:]:
        print(fitted(one_line(f"also unfinished: {_described(row)}", 300), sys.stderr), file=sys.stderr)
    return found[0] if found else None


async def unfinished(ledger: "Ledger", *, take_over: bool) -> "list[RunRow]":
    """Root runs, and then tasks in the background, that wait for an answer or whose process is gone, newest first.
    `take_over`: of one that lives too."""
    from retinue.states import RunState

    found: list[RunRow] = []
    rows = await ledger.runs(states=(RunState.RUNNING, RunState.WAITING), roots_only=True)
    tasks = [await ledger.run(task.child_run) for task in await ledger.tasks(unfinished=True, limit=MOST)]
    for row in (*rows, *(one for one in tasks if one is not None and not one.state.terminal)):
        if take_over or row.state is RunState.WAITING or row.owner is None or not await ledger.owner_alive(row.owner):
            found.append(row)
    return found


def _described(row: "RunRow") -> str:
    ago = duration(time.time_ns() // 1_000_000 - row.started_at)
    return f"{row.run_id} (session {row.key.session}, {row.state}, begun {ago} ago)"


async def was_confirmed(ledger: "Ledger", row: "RunRow", *, yes: bool) -> bool:
    """Whether a run may be taken over: at once from a process that is dead or stopped, else after a yes.

    Raises:
        ConfigurationError: `not_confirmed`, nobody is here to say it.
    """
    from retinue.ledger.processes import is_stopped
    from retinue.states import RunState

    if yes or row.state is not RunState.RUNNING or row.owner is None or not await ledger.owner_alive(row.owner):
        return True
    owner = await ledger.owner(row.owner)
    if owner is not None and is_stopped(owner):
        return True
    who = f"process {owner.pid} on {owner.host}" if owner is not None else "its process"
    if not is_interactive():
        raise ConfigurationError(
            f"run `{row.run_id}` is at work in {who}, which is not stopped, and nobody is here to confirm that it be taken away",
            code="not_confirmed",
            remedy=f"wait for it, end it with `retinue cancel {row.run_id}`, or pass `--yes` if that process is stuck",
        )
    print(fitted(one_line(f"{_described(row)} is at work in {who}, which is not stopped.", 300), sys.stderr), file=sys.stderr)
    typed = await read_line("Take it away from that process? What it is about to do may be done twice. [y/N] ")
    return (typed or "").casefold() in ("y", "yes")


async def still_waiting(ledger: "Ledger", row: "RunRow") -> Idle | None:
    """The run as it waits, if nothing has come that it could go on with: no answer, no stop. None if it can go on."""
    from retinue.harness.requests import request_view
    from retinue.harness.results import RunResult
    from retinue.states import RequestState, RunState

    open_ones: list[RequestRow] = await ledger.requests(root_run=row.root, state=RequestState.OPEN)
    open_ones = [one for one in open_ones if one.invocations[: len(row.invocations)] == row.invocations]
    if row.state is not RunState.WAITING or not open_ones or await ledger.cancel_intent(row.lineage) is not None:
        return None
    for run in await ledger.tree(row.root):
        if (
            row.run_id in run.lineage
            and not run.state.terminal
            and (run.state is not RunState.WAITING or await ledger.mail(run.key))
        ):
            return None
    events = await replay_tree(ledger, row.root)
    view = TreeView()
    for event in events:
        view.apply(event)
    usage, cost = view.totals()
    asked = [request_view(one) for one in open_ones]
    last = RunFinishedEvent(
        path=row.path,
        invocations=row.invocations,
        key=row.key,
        run_id=row.run_id,
        at=row.updated_at,
        status="waiting",
        reason=row.reason or "permission",
        usage=usage,
        cost=cost,
        result=RunResult(status="waiting", reason="permission", usage=usage, cost=cost, run_id=row.run_id, requests=asked),
    )
    return Idle(events, last)
