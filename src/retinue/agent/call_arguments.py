"""Reading the arguments of calls, once and for all who decide over them, with errors that a model can act on.

What the gate was asked about is what runs: a call goes on with the text that `canonical` made of what was read, so no two
parsers can read it differently (NaN, doubled keys, blank text).
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from retinue.agent.ports import CallOutcome
from retinue.agent.texts import bounded
from retinue.messages import ToolCall
from retinue.states import ResultStatus
from retinue.tools.forms import syntax_fault
from retinue.tools.results import clean_text

__all__ = ["canonical", "fault", "read"]

T = TypeVar("T")

_objects: Final = msgspec.json.Decoder(dict[str, Any])


def canonical(call: ToolCall) -> tuple[dict[str, Any], ToolCall] | CallOutcome:
    """The arguments of a call, and the call with exactly these; or the outcome that says why they are no JSON object.

    Blank text and `null` are no arguments. Numbers that JSON does not have are refused; what is no character is replaced.
    """
    text = call.arguments.strip()
    if text in ("", "null", "{}"):
        return {}, replace(call, arguments="{}")
    try:
        given = _decoded(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        problem = syntax_fault(text, str(error))
        return CallOutcome(
            content=f"The arguments of `{call.name}` are not valid JSON: {problem}. Send one JSON object.",
            status=ResultStatus.ERROR,
        )
    if not isinstance(given, dict):
        return CallOutcome(
            content=f"The arguments of `{call.name}` must be one JSON object, not {bounded(text, 80)}. Expected `object`.",
            status=ResultStatus.ERROR,
        )
    arguments = cast("dict[str, Any]", given)
    return arguments, replace(call, arguments=msgspec.json.encode(arguments).decode())


def _decoded(text: str) -> object:
    """Strict JSON. Where it holds half a surrogate pair, the character is replaced first."""
    import json

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        loose = json.loads(text, parse_constant=_refuse_constant)
        return msgspec.json.decode(clean_text(json.dumps(loose, ensure_ascii=False)))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON number")


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
