"""The bytes of a run's pictures and files: staged with what refers to them, and given to a model that asks for them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from retinue.agent.journal import RunJournal
from retinue.damage import damaged
from retinue.media import Media
from retinue.messages import MediaRef
from retinue.models.port import LoadMedia
from retinue.ops import PutBlob

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["loader", "stage_media"]


def stage_media(journal: RunJournal, media: Iterable[Media]) -> tuple[MediaRef, ...]:
    """Let the bytes ride with the next commit; what is to stand in the event that rides with them."""
    refs: list[MediaRef] = []
    for one in media:
        ref = one.ref()
        journal.stage_op(PutBlob(ref.digest, one.data))  # also where it is there: it may be condemned (`Ledger.collect`)
        refs.append(ref)
    return tuple(refs)


def loader(run: "Run") -> LoadMedia:
    """How a model gets the bytes of what the run's history refers to, also of what is not committed yet."""

    async def load(ref: MediaRef) -> bytes:
        for op in run.journal.pending():
            if isinstance(op, PutBlob) and op.digest == ref.digest:
                return op.data
        data = await run.tree.services.ledger.blob(ref.digest)
        if data is None:
            raise damaged(f"the row `{ref.digest}` of table `blob`", f"{ref.line} is not there")
        return data

    return load
