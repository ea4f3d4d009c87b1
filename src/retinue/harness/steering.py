"""What is done to runs from outside: their questions answered, and their stopping."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Literal

from retinue.agent.messages_sent import message_to
from retinue.agent.nobody import nobody
from retinue.agent.tree import Tree
from retinue.errors import ThreadBusy, UnknownId
from retinue.events import PermissionRequest
from retinue.harness.driving import Driver
from retinue.harness.requests import answer_request, find_request, given_answer
from retinue.harness.running import go_on
from retinue.harness.runtime import Runtime
from retinue.harness.takeover import find_lead
from retinue.rows import RunRow
from retinue.states import RequestState, RunState

if TYPE_CHECKING:
    from retinue.harness.agent import Agent
    from retinue.harness.results import RunResult

__all__ = ["answer", "cancel", "send"]


async def answer(
    agent: "Agent",
    request: PermissionRequest | str,
    *,
    allow: bool | None,
    text: str | None,
    remember: Literal["once", "session"],
    note: str,
    by: str,
    user_id: str | None,
) -> "RunResult | None":
    """See `Agent.answer`."""
    runtime = agent.runtime
    if isinstance(request, str):
        request_id, user = request, user_id or ""
    else:
        request_id, user = request.request_id, "" if request.key is None else request.key.user
    asked = await find_request(runtime, request_id, user=user)
    given = given_answer(asked, allow=allow, text=text, note=note)
    root = await find_lead(runtime, asked.run_id)
    here = asked.state is RequestState.OPEN and runtime._branch(root) is None and not root.state.terminal
    if here and not await _driven_elsewhere(runtime, root):
        await agent._definition_of(root)  # before anything is recorded: it will have to be gone on with here
    row = await answer_request(runtime, request_id, user=user, given=given, remember=remember, by=by)
    root = await find_lead(runtime, row.run_id)
    branch = runtime._branch(root)
    if branch is not None:
        branch.tree.answer_came(request_id, row.run_id, row.invocations)
        return None
    if root.state.terminal or await _driven_elsewhere(runtime, root):
        return None
    try:
        return await agent.resume(root.run_id, check=False)
    except ThreadBusy:
        return None  # another answer, or another process, goes on with it


async def send(agent: "Agent", run_id: str, text: str, *, by: str, user_id: str | None) -> None:
    """See `Agent.send`."""
    runtime = agent.runtime
    live = next((tree.runs[run_id] for tree in runtime._trees.values() if run_id in tree.runs), None)
    if live is not None and not live.journal.known:
        live.journal.flush_soon()  # a letter needs a thread that the ledger knows
        await live.journal.settle()
    row = await runtime.ledger.run(run_id) if run_id.isascii() else None
    if row is None or row.key.user != (user_id or ""):
        raise UnknownId(f"there is no run `{run_id}` in this ledger", remedy="`retinue threads list` shows what there is")
    if row.state.terminal:
        raise UnknownId(
            f"run `{run_id}` has ended ({row.state.value})",
            code="run_ended",
            remedy="run its thread with a new message instead",
        )
    redactor = runtime._redactor
    op = message_to(row.key, redactor.text(text), by=redactor.text(by), at=runtime.clock.now_ms())
    await runtime.ledger.commit([op])
    run = runtime._driven_on(row.key)
    if run is not None:
        run.mail_came()


async def cancel(agent: "Agent", run_id: str | None, *, reason: str, user_id: str | None) -> None:
    """See `Agent.cancel`."""
    runtime = agent.runtime
    if run_id is None:
        trees = [(root, tree) for root, tree in runtime._trees.items() if tree in agent._own_trees]
        roots = [root for root, tree in trees if user_id in (None, _user_of(tree))]
        for driver in list(runtime._drivers):
            if driver.begins_for(agent, user_id):  # it has no tree yet: the stop travels with its first commit
                driver.stop(reason, by="user")
        await asyncio.gather(*(runtime._cancel(root, reason, by="user") for root in roots))
        return
    user = user_id or ""
    live = next((root for root, tree in runtime._trees.items() if run_id in tree.runs and _user_of(tree) == user), None)
    root_id = live or (await find_lead(runtime, run_id, user=user)).root
    await runtime._cancel(root_id, reason, by="user", run_id=run_id)
    below = [row for row in await runtime.ledger.tree(root_id) if run_id in row.lineage and not row.state.terminal]
    for lead in {row.lead for row in below}:
        await _end(agent, await find_lead(runtime, lead), whole=run_id in (await find_lead(runtime, lead)).lineage)


async def _end(agent: "Agent", lead: RunRow, *, whole: bool) -> None:
    """Bring a branch to the end that it was asked for, if nobody drives it. `whole`: all of it is to end, and for that none of
    its code is needed."""
    runtime = agent.runtime
    if lead.state.terminal or runtime._branch(lead) is not None or await _driven_elsewhere(runtime, lead):
        return
    try:
        if whole:
            end = partial(go_on, agent, lead, viewer=None, force=False, context=None, definition=nobody(lead.agent_id))
            await Driver(agent, end).result()
        else:
            await agent.resume(lead.run_id, check=False)
    except ThreadBusy:
        return  # somebody else goes on with it, and finds the intent


async def _driven_elsewhere(runtime: Runtime, root: RunRow) -> bool:
    """Whether another process that is alive holds the run."""
    if root.state is not RunState.RUNNING or root.owner is None or root.owner == runtime._owner_id:
        return False
    return await runtime.ledger.owner_alive(root.owner)


def _user_of(tree: Tree) -> str:
    return next((run.row.key.user for run in tree.runs.values()), "")
