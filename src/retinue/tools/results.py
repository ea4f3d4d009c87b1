"""How a tool's return value or exception becomes text for a model. Always valid UTF-8, never raises for odd values."""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any, Final, cast

import msgspec

from retinue.media import Media, composed
from retinue.tools.errors import ToolError
from retinue.tools.port import ToolOutput

__all__ = ["NO_OUTPUT", "bounded", "clean_text", "error_text", "result_of"]

NO_OUTPUT: Final = "(no output)"
"""What stands for None and for an empty text: some providers refuse an empty result, some models wait for more (B215)."""

MAX_ERROR: Final = 2_000
"""Characters of an exception's message that a model is shown."""

_MAX_DEPTH: Final = 60


def clean_text(text: str) -> str:
    """`text` with lone surrogates replaced, so that it can be stored and sent (B175)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, saying how many there were if it is cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text):,} characters in all)"


def result_of(value: object) -> ToolOutput:
    """The output of a call that returned `value`: texts as they are, other values as JSON, media beside the text."""
    if isinstance(value, ToolOutput):
        return msgspec.structs.replace(value, content=clean_text(value.content) or NO_OUTPUT)
    if value is None:
        return ToolOutput(content=NO_OUTPUT)
    items = _with_media(value)
    if items:
        content, media = composed(item if isinstance(item, Media) else _text(item) for item in items if item is not None)
        return ToolOutput(content=content, media=media)
    return ToolOutput(content=_text(value) or NO_OUTPUT)


def _with_media(value: object) -> Sequence[object]:
    """The items of a value that is or holds pictures and files to be shown; nothing for any other."""
    if isinstance(value, Media):
        return (value,)
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return items if any(isinstance(item, Media) for item in items) else ()


def _text(value: object) -> str:
    import json

    plain = _plain(value, ())
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def error_text(tool: str, error: BaseException) -> str:
    """What the model reads when the tool raised `error`."""
    if isinstance(error, ToolError):
        return clean_text(str(error)) or NO_OUTPUT
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken `__str__` must not hide the error itself
        message = ""
    kind = type(error).__name__
    return clean_text(f"`{tool}` failed: {kind}: {bounded(message, MAX_ERROR)}" if message else f"`{tool}` failed: {kind}")


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    """`value` in terms of JSON. `above` are the containers around it: a cycle is cut."""
    match value:
        case Enum():
            return _plain(value.value, above)
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return clean_text(str(value))
        case bytes() | bytearray():
            return value.decode("utf-8", "replace")
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case Media():
            return value.ref().told("shown only where a tool returns it alone or in a list")
        case _:
            return _plain_container(value, above)


def _plain_container(value: Any, above: tuple[int, ...]) -> Any:
    import json

    if id(value) in above or len(above) >= _MAX_DEPTH:
        return "…"
    inner = (*above, id(value))
    fields = _fields(value)
    if fields is not None:
        return {_key(name): _plain(item, inner) for name, item in fields.items()}
    if isinstance(value, AbstractSet):  # sorted, because the order of a set changes from process to process
        items = [_plain(item, inner) for item in cast("AbstractSet[Any]", value)]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, (list, tuple)):
        return [_plain(item, inner) for item in cast("list[Any]", value)]
    return clean_text(str(value))


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The named parts of a mapping, a struct, a dataclass or a pydantic model."""
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {encoded: getattr(value, name) for encoded, name in names}
    if hasattr(cast("object", type(value)), "__dataclass_fields__"):
        from dataclasses import fields

        return {field.name: getattr(value, field.name) for field in fields(value)}
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if callable(dump) and not isinstance(value, type):
        dumped: object = dump()
        return cast("Mapping[Any, Any]", dumped) if isinstance(dumped, Mapping) else {"root": dumped}
    return None


def _key(key: object) -> str:
    import json

    plain = _plain(key, ())
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
