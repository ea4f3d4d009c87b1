"""A stable hash of plain values, declarations and code references: the same in every process (H-01, H-15)."""

import inspect
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

import msgspec

from retinue.ids import sha256_hex

__all__ = ["digest"]


def digest(value: object) -> str:
    """64 hex digits over what `value` says. Code counts by its import name, not by its body."""
    import json

    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_hex(text.encode())


def _plain(value: object) -> Any:
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case PurePath():
            return value.as_posix()
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {str(key): _plain(item) for key, item in items}
        case Set():
            import json

            return sorted(json.dumps(_plain(item), sort_keys=True) for item in cast("Set[object]", value))
        case Sequence():
            return [_plain(item) for item in cast("Sequence[object]", value)]
        case type():
            return _reference(value)
        case msgspec.Struct():
            return [_reference(type(value)), {name: _plain(getattr(value, name)) for name in value.__struct_fields__}]
        case _ if hasattr(type(value), "__dataclass_fields__"):
            from dataclasses import fields

            return [
                _reference(type(value)),
                {item.name: _plain(getattr(value, item.name)) for item in fields(cast("Any", value))},
            ]
        case _ if inspect.isroutine(value):
            return _reference(value)
        case _:
            return _reference(type(value))


def _reference(code: Any) -> str:
    return f"{code.__module__}:{code.__qualname__}"
