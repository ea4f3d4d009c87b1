"""Reading the arguments of delegation tools, with errors that a model can act on: field, given value, expected form."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from retinue.agent.ports import CallOutcome
from retinue.agent.texts import bounded
from retinue.messages import ToolCall
from retinue.states import ResultStatus

__all__ = ["fault", "read"]

T = TypeVar("T")

_objects: Final = msgspec.json.Decoder(dict[str, Any])


def fault(tool: str, problem: str, expected: str) -> CallOutcome:
    """A call whose arguments do not fit."""
    return CallOutcome(content=f"The arguments of `{tool}` do not fit: {problem}. {expected}", status=ResultStatus.ERROR)


def read(call: ToolCall, kind: type[T], known: Sequence[str], form: str) -> T | CallOutcome:
    """The arguments as a `kind`, or the outcome that says what does not fit. Numbers given as text are accepted."""
    text = call.arguments.strip()
    try:
        given = _objects.decode("{}" if text in ("", "null") else text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        shown = bounded(text, 120)
        return fault(call.name, f"{bounded(str(error), 200)} in `{shown}`", f"Send one JSON object: {form}")
    for name in given:
        if name not in known:
            listing = ", ".join(f"`{one}`" for one in known)
            return fault(call.name, f"there is no argument `{bounded(name, 60)}`", f"Known: {listing}. Expected: {form}")
    present = {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(present, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`") if place else ""
        value = f", `{name}` was {bounded(msgspec.json.encode(present.get(name)).decode(), 120)}" if name else ""
        return fault(call.name, message.replace("Object missing required field", "missing") + value, f"Expected: {form}")
