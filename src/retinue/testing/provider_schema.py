"""JSON schemas as the fake provider takes them: whether one is well-formed, whether a value fits, a turn in its form. Pure."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from retinue.json_text import dumps, loads
from retinue.models.form import FORM_NAME
from retinue.models.script import Turn

__all__ = ["fits", "form_asked", "formed", "malformed"]

Schema = Mapping[str, Any]

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "object": lambda value: isinstance(value, dict),
        "array": lambda value: isinstance(value, list),
        "string": lambda value: isinstance(value, str),
        "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
        "boolean": lambda value: isinstance(value, bool),
        "null": lambda value: value is None,
    }
)
_SCHEMAS_BY_NAME: Final = ("properties", "$defs", "definitions")
_SCHEMA_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS: Final = ("items", "additionalProperties", "not")


def form_asked(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in the `response_format` of a request if it is the form in which calls travel as JSON."""
    form: Any = body.get("response_format")
    inner: Any = cast("dict[str, Any]", form).get("json_schema") if isinstance(form, dict) else None
    named: dict[str, Any] = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    return named.get("schema") if named.get("name") == FORM_NAME else None


def malformed(schema: Any, root: Schema | None = None, at: str = "#") -> str | None:
    """What is wrong with a schema, None if nothing is."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{at} is not a schema"
    node = cast("dict[str, Any]", schema)
    root = node if root is None else root
    return _wrong_keywords(node, root, at) or next(
        (wrong for place, inner in _inner(node, at) if (wrong := malformed(inner, root, place)) is not None), None
    )


def _wrong_keywords(node: Schema, root: Schema, at: str) -> str | None:
    kinds: Any = node.get("type", [])
    for kind in cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            return f"{at}: `{kind}` is not a type"
    if (ref := node.get("$ref")) is not None and _target(root, ref) is None:
        return f"{at}: `{ref}` leads nowhere"
    for key, kind in (
        ("properties", dict),
        ("$defs", dict),
        ("required", list),
        ("enum", list),
        *((k, list) for k in _SCHEMA_LISTS),
    ):
        if key in node and (not isinstance(node[key], kind) or (kind is list and key != "required" and not node[key])):
            return f"{at}: `{key}` is not a filled {kind.__name__}"
    if missing := sorted(set(node.get("required", ())) - set(node.get("properties", ()))):
        return f"{at}: `{missing[0]}` is required but no property"
    return None


def _inner(node: Schema, at: str) -> list[tuple[str, Any]]:
    """The schemas inside of a schema, and where."""
    inner = [(f"{at}/{key}/{name}", one) for key in _SCHEMAS_BY_NAME for name, one in node.get(key, {}).items()]
    inner += [(f"{at}/{key}/{place}", one) for key in _SCHEMA_LISTS for place, one in enumerate(node.get(key, ()))]
    return inner + [(f"{at}/{key}", node[key]) for key in _SCHEMAS if key in node]


def _target(root: Schema, ref: Any) -> Any:
    """What a reference leads to, None if to nothing."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    found: Any = root
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = cast("dict[str, Any]", found)[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(name)]
        else:
            return None
    return found


def fits(value: Any, schema: Any, root: Schema | None = None) -> bool:
    """Whether a JSON value fits a well-formed schema. As a grammar does it: properties that are not named are refused."""
    if isinstance(schema, bool):
        return schema
    node = cast("dict[str, Any]", schema)
    root = node if root is None else root
    if "$ref" in node:
        return fits(value, _target(root, node["$ref"]), root)
    if value != node.get("const", value) or value not in node.get("enum", [value]):
        return False
    kinds: Any = node.get("type", list(_TYPES))
    if not any(_TYPES[kind](value) for kind in (cast("list[str]", kinds) if isinstance(kinds, list) else [kinds])):
        return False
    for key in ("anyOf", "oneOf"):
        if key in node and not any(fits(value, one, root) for one in node[key]):
            return False
    if not all(fits(value, one, root) for one in node.get("allOf", ())):
        return False
    if isinstance(value, dict):
        return _object_fits(cast("dict[str, Any]", value), node, root)
    if isinstance(value, list):
        return _list_fits(cast("list[Any]", value), node, root)
    return not isinstance(value, str) or node.get("minLength", 0) <= len(value) <= node.get("maxLength", len(value))


def _object_fits(value: dict[str, Any], node: Schema, root: Schema) -> bool:
    properties: Schema = node.get("properties", {})
    others = node.get("additionalProperties", "properties" not in node)
    return set(node.get("required", ())) <= set(value) and all(
        fits(inner, properties.get(name, others), root) for name, inner in value.items()
    )


def _list_fits(value: list[Any], node: Schema, root: Schema) -> bool:
    if not node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value)):
        return False
    return all(fits(item, node.get("items", True), root) for item in value)


def formed(turn: Turn, schema: Schema, step: int) -> Turn:
    """The turn in the form: its text if that fits, else `{"answer": text}` or `{"calls": […]}`.

    A turn that has no such form stays as it is: not every server holds its model to the schema.
    """
    calls = turn.tool_calls(step)
    for value in _candidates(turn.text, [(call.name, call.arguments) for call in calls]):
        if fits(value, schema):
            text = turn.text if value == _parsed(turn.text) and not calls else dumps(value).decode()
            return msgspec.structs.replace(turn, text=text, calls=())
    return turn


def _candidates(text: str, calls: Sequence[tuple[str, str]]) -> list[Any]:
    if calls:
        asked = [{"name": name, "arguments": _parsed(arguments)} for name, arguments in calls]
        return [{"calls": asked}, {"answer": text, "calls": asked}]
    return [_parsed(text), {"answer": text}, {"answer": _parsed(text)}]


def _parsed(text: str) -> Any:
    try:
        return loads(text.encode("utf-8", "replace"))
    except ValueError:
        return None
