"""Whether a JSON value fits a JSON schema: for a run whose answer's Python type is not there, in another process, say. Pure.

It knows what the schemas of Python types consist of. What it does not know it lets pass, formats too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

__all__ = ["Misfit", "misfits", "node_at"]

MAX_DEPTH: Final = 200


class Misfit(NamedTuple):
    """Something that does not fit: where, what was given, and what should be there, in words."""

    path: tuple[str | int, ...]
    given: Any
    problem: str


def misfits(schema: Mapping[str, Any], value: Any) -> list[Misfit]:
    """Everything in `value` that does not fit; empty if it does."""
    return list(_Check(schema).at(schema, value, ()))


def node_at(schema: Mapping[str, Any], path: Sequence[str | int]) -> Mapping[str, Any] | None:
    """The part of a schema that describes the place `path`; None where that depends on the value."""
    check = _Check(schema)
    node: Any = schema
    for step in path:
        node = check.resolved(node)
        if isinstance(step, int):
            node = node.get("items")
        else:
            node = cast("dict[str, Any]", node.get("properties", {})).get(step)
        if not isinstance(node, Mapping):
            return None
    return check.resolved(node)


class _Check:
    """One schema with its definitions."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = root.get("$defs", {})

    def resolved(self, node: Any) -> Mapping[str, Any]:
        """The node that a `$ref` means."""
        for _ in range(MAX_DEPTH):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name not in self._definitions:
                break
            node = self._definitions[name]
        return cast("Mapping[str, Any]", node)

    def at(self, schema: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Misfit]:
        if not isinstance(schema, Mapping) or len(path) > MAX_DEPTH:
            if schema is False:
                yield Misfit(path, value, "nothing may stand here")
            return
        node = self.resolved(schema)
        kinds = node.get("type")
        if kinds is not None and not any(
            _TYPES.get(kind, _any)(value) for kind in ([kinds] if isinstance(kinds, str) else kinds)
        ):
            yield Misfit(path, value, f"it should be {kinds if isinstance(kinds, str) else ' or '.join(kinds)}")
            return
        yield from self._values(node, value, path)
        yield from self._alternatives(node, value, path)
        if isinstance(value, dict):
            yield from self._object(node, cast("dict[str, Any]", value), path)
        elif isinstance(value, list):
            yield from self._list(node, cast("list[Any]", value), path)

    def _values(self, node: Mapping[str, Any], value: Any, path: tuple[str | int, ...]) -> Iterator[Misfit]:
        if "enum" in node and not any(_same(value, one) for one in node["enum"]):
            yield Misfit(path, value, "it is none of the allowed values")
        if "const" in node and not _same(value, node["const"]):
            yield Misfit(path, value, f"it should be {node['const']!r}")
        for key, (fits, words) in _BOUNDS.items():
            if key in node and not fits(value, node[key]):
                yield Misfit(path, value, f"{words} {node[key]}")

    def _alternatives(self, node: Mapping[str, Any], value: Any, path: tuple[str | int, ...]) -> Iterator[Misfit]:
        for one in node.get("allOf", ()):
            yield from self.at(one, value, path)
        for key in ("anyOf", "oneOf"):
            options = [list(self.at(one, value, path)) for one in node.get(key, ())]
            if options and all(options):
                deepest = max(options, key=lambda found: max(len(misfit.path) for misfit in found))
                if max(len(misfit.path) for misfit in deepest) > len(path):
                    yield from deepest  # the option that it was most likely meant to be
                else:
                    yield Misfit(path, value, "it fits none of the alternatives")

    def _object(self, node: Mapping[str, Any], value: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Misfit]:
        properties: Mapping[str, Any] = node.get("properties", {})
        for name in node.get("required", ()):
            if name not in value:
                yield Misfit((*path, name), None, "is missing")
        extra = node.get("additionalProperties") or True  # closed is what a model is told; most types ignore further fields
        for name, item in value.items():
            if name in properties:
                yield from self.at(properties[name], item, (*path, name))
            else:
                yield from self.at(extra, item, (*path, name))

    def _list(self, node: Mapping[str, Any], value: list[Any], path: tuple[str | int, ...]) -> Iterator[Misfit]:
        first: Sequence[Any] = node.get("prefixItems", ())
        for index, item in enumerate(value):
            schema = first[index] if index < len(first) else node.get("items", True)
            yield from self.at(schema, item, (*path, index))
        if node.get("uniqueItems") and len({msgspec.json.encode(item, order="sorted") for item in value}) < len(value):
            yield Misfit(path, value, "its items should all be different")


def _any(_value: Any) -> bool:
    return True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _number,
    "integer": lambda value: _number(value) and (isinstance(value, int) or value.is_integer()),
}


def _same(value: Any, other: Any) -> bool:
    return value == other and (type(value) is type(other) or (_number(value) and _number(other)))


def _matches(value: Any, pattern: str) -> bool:
    try:
        return not isinstance(value, str) or re.search(pattern, value) is not None
    except re.error:  # another dialect
        return True


_BOUNDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, bound: not _number(value) or value >= bound, "it should be at least"),
    "maximum": (lambda value, bound: not _number(value) or value <= bound, "it should be at most"),
    "exclusiveMinimum": (lambda value, bound: not _number(value) or value > bound, "it should be more than"),
    "exclusiveMaximum": (lambda value, bound: not _number(value) or value < bound, "it should be less than"),
    "minLength": (lambda value, bound: not isinstance(value, str) or len(value) >= bound, "its characters should be at least"),
    "maxLength": (lambda value, bound: not isinstance(value, str) or len(value) <= bound, "its characters should be at most"),
    "minItems": (
        lambda value, bound: not isinstance(value, list) or len(cast("list[Any]", value)) >= bound,
        "its items should be at least",
    ),
    "maxItems": (
        lambda value, bound: not isinstance(value, list) or len(cast("list[Any]", value)) <= bound,
        "its items should be at most",
    ),
    "pattern": (_matches, "it should match"),
}
