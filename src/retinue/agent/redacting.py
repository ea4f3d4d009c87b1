"""Known secrets taken out of what a run writes beside its events: ops with texts of their own."""

import msgspec

from retinue.ops import Op, PutDraft, PutInvocation, PutState
from retinue.secrets import Redactor

__all__ = ["clean_op"]


def clean_op(redactor: Redactor, op: Op) -> Op:
    """The op without known secrets. Rows of requests and runs are made of texts that are clean already."""
    match op:
        case PutDraft():
            draft = msgspec.structs.replace(op.draft, text=redactor.text(op.draft.text))
            return msgspec.structs.replace(op, draft=draft)
        case PutState():
            return msgspec.structs.replace(op, value=msgspec.Raw(redactor.body(bytes(op.value))))
        case PutInvocation() if op.row.reason is not None:
            return msgspec.structs.replace(op, row=msgspec.structs.replace(op.row, reason=redactor.text(op.row.reason)))
        case _:
            return op
