"""How a model is told of the form that its answer must have: in the request's `response_format`, and in words. Pure."""

from collections.abc import Mapping
from typing import Any, Final, cast

from retinue.json_text import dumps
from retinue.messages import OutputSpec

__all__ = ["is_strict", "output_words", "response_format"]

_STRICT_KEYS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs", "description"}
)
"""What a schema may consist of where a server is to enforce it to the letter; others are refused or ignored."""
_SAYS_SOMETHING: Final = frozenset({"type", "anyOf", "enum", "const", "$ref"})


def response_format(spec: OutputSpec) -> dict[str, Any]:
    """The value of `response_format`. `strict` where the schema is one that every server can enforce."""
    form = {"name": spec.name, "strict": is_strict(spec.schema), "schema": spec.schema}
    return {"type": "json_schema", "json_schema": form}


def output_words(spec: OutputSpec) -> str:
    """What stands after the conversation where the server alone does not see to it."""
    return (
        f"When you give your final answer, write it as JSON that fits this schema (`{spec.name}`), "
        f"and nothing but the JSON:\n{dumps(spec.schema).decode()}"
    )


def is_strict(schema: Any) -> bool:
    """Whether every object in a schema is closed and has no optional fields, and nothing is said that is often not known."""
    if not isinstance(schema, Mapping):
        return False
    node = cast("Mapping[str, Any]", schema)
    if not _STRICT_KEYS.issuperset(node) or not _SAYS_SOMETHING.intersection(node):
        return False
    properties: Mapping[str, Any] = node.get("properties", {})
    if node.get("type") == "object" and (
        node.get("additionalProperties") is not False or set(node.get("required", ())) != set(properties)
    ):
        return False
    inner = [*properties.values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
    if "items" in node:
        inner.append(node["items"])
    return all(is_strict(one) for one in inner)
