"""Values and JSON schemas put into words for a model: what was given, and what is expected."""

from collections.abc import Mapping
from typing import Any, Final, cast

from retinue.tools.results import bounded, clean_text

__all__ = ["SHOWN", "form_of", "lowered", "shown", "syntax_fault", "without_titles"]

SHOWN: Final = 80
"""Characters of a wrong value that are given back to the model."""

_NAMED: Final = frozenset({"properties", "$defs", "patternProperties"})
_DATA: Final = frozenset({"default", "const", "enum", "examples"})


def without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes up, which only cost tokens."""
    if isinstance(schema, list):
        return [without_titles(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {name: without_titles(inner) for name, inner in cast("dict[str, Any]", value).items()}
        elif key in _DATA:
            kept[key] = value
        elif key != "title":
            kept[key] = without_titles(value)
    return kept


def syntax_fault(text: str, otherwise: str) -> str:
    """What is wrong with the JSON in `text`, and where; `otherwise` if Python's parser finds nothing."""
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - 20) : error.pos + 20]
        return clean_text(f"{lowered(error.msg)} at line {error.lineno}, column {error.colno}, near {shown(around)}")
    except RecursionError:
        return "it is nested too deeply"
    return lowered(otherwise)


def form_of(entry: Mapping[str, Any]) -> str:
    """What a schema asks for, short."""
    import json

    if "enum" in entry:
        return bounded("one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in entry["enum"]), 300)
    rest = {key: value for key, value in entry.items() if key not in ("description", "default")}
    if set(rest) == {"type"}:
        return str(rest["type"])
    if set(rest) == {"anyOf"}:
        return bounded(" or ".join(form_of(option) for option in rest["anyOf"]), 300)
    return bounded(json.dumps(rest, ensure_ascii=False), 300)


def shown(value: Any) -> str:
    """A value as JSON, at most `SHOWN` characters of it."""
    import json

    from pydantic_core import to_jsonable_python  # 20 ms, and only an error needs it

    return clean_text(bounded(json.dumps(to_jsonable_python(value, serialize_unknown=True), ensure_ascii=False), SHOWN))


def lowered(text: str) -> str:
    """A text that goes on a sentence."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
