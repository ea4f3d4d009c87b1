"""What an interrupted attempt left behind in the ledger beside the journal, and what the next attempt makes of it.

The journal itself needs no recovery: `next_step` goes on from it.
"""

from typing import TYPE_CHECKING

from retinue.events import MessageEvent
from retinue.messages import AssistantMessage
from retinue.ops import DropDraft

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["recover"]


async def recover(run: "Run") -> None:
    """Carry out an intent to stop that an earlier attempt did not, and settle the draft of the message that it was in (D-33).

    A cancel is finished, never resumed (M8); what had been streamed by then is the run's partial text. A run that goes on
    asks its model again, and the draft is dropped.
    """
    ledger = run.tree.services.ledger
    intent = await ledger.cancel_intent(run.row.lineage)
    draft = await ledger.draft(run.row.key)
    if draft is not None:
        stops = intent is not None or run.stop_reason is not None
        if stops and run.projection.open is None and draft.text.strip():
            run.journal.stage(MessageEvent(message=AssistantMessage(id=draft.message_id, text=draft.text)))
        run.journal.stage_op(DropDraft(run.row.key, draft.message_id))
    if intent is not None:
        run.stopping.ask(intent)
    elif run.projection.fault and run.projection.cancel is not None:  # it was being stopped for that
        run.stopping.ask(run.projection.cancel, fault=run.projection.fault)
