"""Known secrets taken out of everything that is written: of each op, whoever makes it (invariant 10).

It goes by what a field is not: all text is cleaned but the names of places, without which a row would lead nowhere. So a field
that is added later is clean as well.
"""

from enum import Enum
from typing import Any, Final, cast

import msgspec

from retinue.messages import CallRef
from retinue.ops import Append, NewEvent, Op, PutBlob, PutState
from retinue.rows import ForkPoint, ThreadKey
from retinue.secrets import Redactor

__all__ = ["PLACES", "clean_op"]

PLACES: Final = frozenset(
    (
        *("run_id", "run", "root_run", "parent_run", "child_run", "lineage", "invocation_id", "invocations"),
        *("message_id", "mail_id", "request_id", "owner", "owner_id", "agent_key", "path", "workspace", "type", "digest"),
        *("agent_id", "default_agent_id", "child_agent_id", "definition_hash"),
    )
)
"""Fields of ops and rows that hold names of places: ids that are made here, checked ids of agents, the workspace's folder."""


def clean_op(redactor: Redactor, op: Op) -> Op:
    """The op without known secrets, the same object if it has none.

    A blob stays as it is, because its name is its hash: who makes one cleans it before. So does the name of a state.
    """
    if isinstance(op, PutBlob):
        return op
    if isinstance(op, PutState):
        value = redactor.body(bytes(op.value))
        return msgspec.structs.replace(op, value=msgspec.Raw(value)) if value != bytes(op.value) else op
    if not isinstance(op, Append) and not _suspicious(redactor, op):
        return op
    return cast("Op", _clean(redactor, op))


def _suspicious(redactor: Redactor, op: Op) -> bool:
    try:
        return redactor.found(msgspec.json.encode(op))
    except UnicodeEncodeError:  # half a character
        return True


def _clean(redactor: Redactor, value: Any) -> Any:
    match value:
        case None | Enum() | ThreadKey() | ForkPoint() | CallRef():
            return value
        case str():
            return redactor.text(value)
        case NewEvent():
            body = redactor.record(value.body)
            return value if body is value.body else msgspec.structs.replace(value, body=body)
        case msgspec.Raw():
            return msgspec.Raw(redactor.body(bytes(value)))
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in PLACES}
            changed = {name: new for name, old in fields.items() if (new := _clean(redactor, old)) is not old}
            return msgspec.structs.replace(value, **changed) if changed else value
        case tuple():
            items = cast("tuple[Any, ...]", value)
            new_items = tuple(_clean(redactor, item) for item in items)
            return items if all(new is old for new, old in zip(new_items, items, strict=True)) else new_items
        case dict():
            return redactor.value(value)
        case _:
            return value
