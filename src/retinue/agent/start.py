"""How a run begins: the first events of its thread, RUN_STARTED and its input, staged for one commit."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.agent.media import stage_media
from retinue.agent.run import Run
from retinue.errors import ConfigurationError
from retinue.events import (
    MessageEvent,
    RunStartedEvent,
    StateSetEvent,
    ThreadCreatedEvent,
    ToolCallResultEvent,
)
from retinue.ids import new_id
from retinue.media import Media
from retinue.messages import Entry, ToolResult, UserMessage
from retinue.ops import PutBlob
from retinue.rows import ThreadRow

__all__ = ["Copied", "stage_run"]


def stage_run(
    child: Run,
    text: str | None,
    *,
    created: ThreadRow | None,
    media: Sequence[Media] = (),
    copied: "Copied | None" = None,
    rules: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Stage the beginning of a run: the thread's first event, RUN_STARTED, its input, and its envelope's blob.

    `text` None: it begins with what lies in its mailbox.

    `media` are the pictures and files that `text` has lines for.
    `copied` is what the thread begins with where that is not a reference to another one, `rules` the set of a root.
    """
    journal, definition, services = child.journal, child.definition, child.tree.services
    if created is not None:
        journal.create(created)
        journal.stage(
            ThreadCreatedEvent(default_agent_id=created.default_agent_id, base=created.base, metadata=dict(created.metadata))
        )
    if copied is not None:
        _stage_copy(child, copied)
    journal.stage(
        RunStartedEvent(
            agent_id=definition.agent_id,
            owner=services.owner_id,
            attempt=journal.attempt,
            definition_hash=child.row.definition_hash or "",
            envelope_hash=child.envelope.digest,
            model=definition.model_reference,
            depth=child.row.depth,
            max_iters=definition.max_iters,
            invocation_id=child.row.invocation_id,
            output=None if child.output is None else child.output.bounded(child.tree.limits.max_output_repairs),
            rules=dict(rules or {}),
        )
    )
    digest = child.envelope.digest
    if services.blob_due(digest):
        journal.stage_op(PutBlob(digest, child.envelope_blob))
        journal.then(lambda: services.blob_put(digest))
    if text is None:
        return
    parts = stage_media(journal, media) if media else ()
    journal.stage(MessageEvent(message=UserMessage(id=new_id("msg"), text=text, parts=parts)))


class Copied(msgspec.Struct, frozen=True):
    """What a child's thread begins with after a middleware has changed the fork: no reference can stand for that."""

    history: Sequence[Entry]
    state: Mapping[str, Any]


def _stage_copy(child: Run, copied: Copied) -> None:
    for name, value in copied.state.items():
        child.journal.stage(StateSetEvent(name=name, value=value))
    for entry in copied.history:
        message = entry.message
        if isinstance(message, ToolResult):
            event = ToolCallResultEvent(
                call=message.call,
                call_id=message.call_id,
                name=message.name,
                content=message.content,
                status=message.status,
                blobs=message.blobs,
                parts=message.parts,
            )
            child.journal.stage(event)
        else:
            child.journal.stage(MessageEvent(message=message))
    if child.projection.open is not None or len(child.projection.history) != len(copied.history):
        raise ConfigurationError(
            "`before_fork_commit` left a history in which a call and its results are not together",
            code="invalid_history",
            remedy="leave out whole turns: an assistant message goes with all its results",
        )
