"""A run's questions to a person (D-28): opened with the call that needs a permission, closed by an answer or by a stop."""

from typing import TYPE_CHECKING

import msgspec

from retinue.agent.next_step import CallAction
from retinue.agent.texts import bounded
from retinue.events import PermissionRequest, RequestClosedEvent, encode
from retinue.ids import new_id
from retinue.ops import PutRequest
from retinue.permissions.gate import GatedCall
from retinue.rows import RequestRow
from retinue.states import RequestState

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["close_request", "open_request"]


def open_request(run: "Run", action: CallAction, gated: GatedCall, description: str) -> None:
    """Ask a person whether a call may be made: event and row in one commit, and only then is anybody told."""
    row, now = run.row, run.journal.clock.now_ms()
    request = PermissionRequest(
        request_id=new_id("req"),
        call=action.ref,
        tool=action.call.name,
        agent_id=gated.subject,
        arguments=bounded(action.call.arguments, 4_000),
        description=_described(description, gated),
    )
    if run.tree.services.redactor.active:
        request, _ = run.tree.services.redactor.event(request, encode(request))
    run.journal.stage(request)
    stored = RequestRow(
        request_id=request.request_id,
        kind=request.kind,
        key=row.key,
        run_id=row.run_id,
        root_run=row.root,
        root=run.tree.root_key,
        call=action.ref,
        tool=request.tool,
        agent_id=request.agent_id,
        path=row.path,
        invocations=row.invocations,
        arguments=request.arguments,
        description=request.description,
        state=RequestState.OPEN,
        opened_at=now,
    )
    run.journal.stage_op(PutRequest(stored))
    placed = run.placed(request, run.journal.head, now)
    run.journal.then(lambda: run.tree.asked(placed))
    run.journal.flush_soon()


async def close_request(run: "Run", action: CallAction) -> None:
    """A run that is stopped cancels the question that it has open for this call."""
    batch = run.projection.open
    request = batch.requests.get(action.ref.index) if batch is not None else None
    if batch is None or request is None or action.ref.index in batch.closed:
        return
    await run.journal.settle()  # the request may still be on its way
    row = await run.tree.services.ledger.request(request.request_id)
    run.journal.stage(RequestClosedEvent(request_id=request.request_id, call=action.ref, answer="cancelled"))
    if row is not None and row.state is RequestState.OPEN:
        closed = msgspec.structs.replace(row, state=RequestState.CANCELLED, answered_at=run.journal.clock.now_ms())
        run.journal.stage_op(PutRequest(closed, RequestState.OPEN))


def _described(description: str, gated: GatedCall) -> str:
    """What a person reads of the tool; before it, where the path really leads if that is another place than is written."""
    text = bounded(description.strip().split("\n", 1)[0], 200)
    if gated.main_argument is not None and len(gated.forms) > 1:  # the path from the root, and where that leads through links
        text = f"`{bounded(gated.forms[0], 300)}` is really `{bounded(gated.forms[-1], 300)}`. {text}"
    return text
