"""A run's requests (D-28): opened with the call that needs a permission or asks a question, closed by an answer or by a stop.

A permission is a person's to give. A question is for whoever gave the run its task: its parent where that can be told of it
(a mail for a task's parent, the receipt for one that waits), else a person.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from retinue.agent.next_step import CallAction
from retinue.agent.texts import bounded
from retinue.events import PermissionRequest, RequestClosedEvent, encode
from retinue.ids import new_id
from retinue.messages import CallRef
from retinue.ops import PutRequest
from retinue.permissions.gate import GatedCall
from retinue.rows import RequestRow
from retinue.states import RequestState

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["answer_to", "close_request", "open_questions", "open_request", "show_request"]

QUESTION_CHARACTERS: Final = 4_000
PERMISSION_OPTIONS: Final = ("allow", "deny")


def open_request(run: "Run", action: CallAction, gated: GatedCall, description: str) -> None:
    """Ask whether a call may be made, or what it asks: event and row in one commit, and only then is anybody told."""
    row, now = run.row, run.journal.clock.now_ms()
    question = gated.kind == "question"
    request = PermissionRequest(
        request_id=new_id("req"),
        kind=gated.kind,
        call=action.ref,
        tool=action.call.name,
        agent_id=gated.subject,
        arguments=bounded(action.call.arguments, 4_000),
        description=_asked(gated) if question else _described(description, gated),
        options=("text",) if question else PERMISSION_OPTIONS,
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
        options=request.options,
        state=RequestState.OPEN,
        opened_at=now,
    )
    run.journal.stage_op(PutRequest(stored))
    placed = run.placed(request, run.journal.head, now)
    if question and run.asks is not None:
        run.asks(request)
    run.journal.then(lambda: show_request(run, placed))
    run.journal.flush_soon()


def show_request(run: "Run", placed: PermissionRequest) -> None:
    """Hand a request that is in the ledger to the people who are there, unless the run's parent answers it."""
    if placed.kind != "question" or not run.has_parent_to_ask:
        run.tree.asked(placed)


def open_questions(run: "Run") -> list[PermissionRequest]:
    """The questions of a run that wait for an answer."""
    batch = run.projection.open
    if batch is None:
        return []
    requests = batch.requests.items()
    return [one for index, one in requests if one.kind == "question" and index not in batch.closed and index not in batch.results]


def answer_to(run: "Run", ref: CallRef) -> str | None:
    """The answer to the question of this call, None if it has none."""
    batch = run.projection.open
    closed = None if batch is None else batch.closed.get(ref.index)
    return None if closed is None else closed[0].note


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


def _asked(gated: GatedCall) -> str:
    return bounded((gated.main_argument or "").strip(), QUESTION_CHARACTERS)


def _described(description: str, gated: GatedCall) -> str:
    """What a person reads of the tool; before it, where the path really leads if that is another place than is written."""
    text = bounded(description.strip().split("\n", 1)[0], 200)
    if gated.main_argument is not None and len(gated.forms) > 1:  # the path from the root, and where that leads through links
        text = f"`{bounded(gated.forms[0], 300)}` is really `{bounded(gated.forms[-1], 300)}`. {text}"
    return text
