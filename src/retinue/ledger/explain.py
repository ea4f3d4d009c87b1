"""`explain`: finds what an id names, reads what is known of it, and says it in a sentence (see `sentences`)."""

from typing import TypedDict

import msgspec

from retinue.errors import UnknownId
from retinue.ids import kind_of
from retinue.ledger.port import Ledger
from retinue.ledger.processes import is_stopped
from retinue.ledger.sentences import (
    Explanation,
    Facts,
    explain_invocation,
    explain_owner,
    explain_request,
    explain_run,
    explain_thread,
)
from retinue.rows import OwnerRow, RunRow, ThreadKey
from retinue.states import RequestState, RunState

__all__ = ["Explanation", "explain"]


class _Owned(TypedDict):
    owner: OwnerRow | None
    alive: bool
    stopped: bool


async def explain(ledger: Ledger, wanted: str) -> Explanation:
    """Explain what an id names: run, delegation, task, request, owner, session, `session/thread`, thread or agent key.

    Raises:
        UnknownId: there is no such thing in this ledger; says which kind of id was given.
    """
    for look in (_run, _invocation, _task, _request, _owner, _thread):
        found = await look(ledger, wanted)
        if found is not None:
            return found
    kind = kind_of(wanted)
    raise UnknownId(
        f"there is nothing named `{wanted}` in `{ledger.url}`" + (f" (it looks like {_article(kind)} {kind})" if kind else ""),
        remedy="give the id of a run, delegation, task, request, owner, session or thread; `retinue threads list --all` lists",
    )


async def _run(ledger: Ledger, wanted: str) -> Explanation | None:
    row = await ledger.run(wanted)
    return None if row is None else explain_run(row, await _facts(ledger, row))


async def _invocation(ledger: Ledger, wanted: str) -> Explanation | None:
    row = await ledger.invocation(wanted)
    if row is None:
        return None
    child = await ledger.run(row.child_run)
    if row.owner is not None:  # the child has ended, and something of it has not stopped
        return explain_invocation(row, None, Facts(**await _owned(ledger, row.owner)))
    return explain_invocation(row, child, Facts() if child is None else await _facts(ledger, child))


async def _task(ledger: Ledger, wanted: str) -> Explanation | None:
    row = await ledger.task(wanted) if wanted.isascii() else None
    said = None if row is None else await _invocation(ledger, row.invocation_id)
    if said is None:
        return None
    return msgspec.structs.replace(said, id=wanted, kind="task", stop=("cancel", wanted) if said.stop else said.stop)


async def _request(ledger: Ledger, wanted: str) -> Explanation | None:
    row = await ledger.request(wanted)
    if row is None:
        return None
    root = await ledger.run(row.root_run)
    return explain_request(row, Facts() if root is None else await _facts(ledger, root))


async def _owner(ledger: Ledger, wanted: str) -> Explanation | None:
    row = await ledger.owner(wanted)
    if row is None:
        return None
    runs = await ledger.runs(states=(RunState.RUNNING,), limit=10_000)
    alive = await ledger.owner_alive(wanted)
    held = tuple(run for run in runs if run.owner == wanted)
    return explain_owner(row, alive, held, stopped=alive and is_stopped(row))


async def _thread(ledger: Ledger, wanted: str) -> Explanation | None:
    """A session, by what is unfinished in it or else its newest; `session/thread`; a thread's own id; an agent key."""
    session, slash, name = wanted.rpartition("/")
    rows = await ledger.threads(session=session, hidden=True, limit=1_000) if slash and not wanted.startswith("agent:") else []
    rows = [row for row in rows if row.key.thread == name]
    if not rows:
        rows = await ledger.threads(session=wanted, hidden=True, limit=1_000)
    if not rows:
        every = await ledger.threads(hidden=True, limit=10_000)
        rows = [row for row in every if wanted in (row.key.thread, row.agent_key) and wanted != "main"]
    if not rows:
        return None
    rows.sort(key=lambda row: row.hidden)  # what a person began before what was delegated
    lasts = [(row, await ledger.last_run(row.key)) for row in rows]
    row, last = next(((row, last) for row, last in lasts if last is not None and not last.state.terminal), lasts[0])
    others = tuple(_name(other.key) for other, _ in lasts if other is not row)
    said = explain_thread(row, last, Facts() if last is None else await _facts(ledger, last))
    return msgspec.structs.replace(said, related=(*said.related, *others[:20]))


async def _facts(ledger: Ledger, row: RunRow) -> Facts:
    unfinished = tuple(one for one in await ledger.tree(row.root) if not one.state.terminal)
    below = {one.run_id for one in unfinished if row.run_id in one.lineage}
    requests = await ledger.requests(root_run=row.root, state=RequestState.OPEN)
    return Facts(
        **await _owned(ledger, row.owner),
        intent=await ledger.cancel_intent(row.lineage),
        requests=tuple(one for one in requests if one.run_id in below or row.run_id == row.root),
        unfinished=unfinished,
    )


async def _owned(ledger: Ledger, owner_id: str | None) -> _Owned:
    owner = None if owner_id is None else await ledger.owner(owner_id)
    alive = owner_id is not None and await ledger.owner_alive(owner_id)
    return {"owner": owner, "alive": alive, "stopped": alive and owner is not None and is_stopped(owner)}


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _name(key: ThreadKey) -> str:
    return f"{key.session}/{key.thread}"
