"""Schemas as the fake provider takes them: what is well-formed, what fits, a turn in the form that was asked for."""

from typing import Any

import pytest

from retinue.models.form import FORM_NAME, form_of
from retinue.models.script import ScriptCall, Turn
from retinue.testing.provider_schema import fits, form_asked, formed, malformed
from retinue.testing.requests import tool_spec

FORM = form_of([tool_spec("add", a={"type": "integer"})])


@pytest.mark.parametrize(
    "schema",
    [
        "x",
        {"type": "text"},
        {"type": ["string", "nothing"]},
        {"properties": []},
        {"properties": {"a": 1}},
        {"required": "a"},
        {"required": ["a"]},
        {"enum": []},
        {"anyOf": []},
        {"anyOf": [{"type": "text"}]},
        {"items": {"$ref": "#/$defs/Gone"}},
        {"$ref": "http://elsewhere.example/schema"},
        {"$defs": {"A": {"type": "text"}}},
    ],
)
def test_what_is_no_schema(schema: Any) -> None:
    assert malformed(schema) is not None


FITTING: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer"}, [1], [True, 1.5, "1"]),
    ({"type": ["string", "null"], "maxLength": 2}, ["ab", None], ["abc", 1]),
    ({"enum": [1, "a"]}, [1, "a"], [2]),
    ({"const": None}, [None], [0]),
    (
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        [["a"], ["a", "b"]],
        [[], ["a", "b", "c"], [1]],
    ),
    ({"properties": {"a": True}, "required": ["a"]}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ({"type": "object"}, [{"any": 1}], [[]]),
    ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
    ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, ["a"], ["ab", 1]),
    ({"anyOf": [{"$ref": "#/$defs/a~1b"}, False], "$defs": {"a/b": {"type": "null"}}}, [None], [0]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), FITTING)
def test_what_fits(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert malformed(schema) is None
    assert [fits(value, schema) for value in good] == [True] * len(good)
    assert [fits(value, schema) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (Turn(text="Hello"), '{"answer":"Hello"}'),
        (Turn(text='{"answer": "x"}'), '{"answer": "x"}'),
        (
            Turn(text="I add.", calls=(ScriptCall(name="add", arguments={"a": 1}),)),
            '{"calls":[{"name":"add","arguments":{"a":1}}]}',
        ),
    ],
)
def test_a_turn_takes_the_form(turn: Turn, text: str) -> None:
    made = formed(turn, FORM, 1)
    assert (made.text, made.calls) == (text, ())


def test_a_turn_that_has_no_such_form_stays_as_it_is() -> None:
    turn = Turn(calls=(ScriptCall(name="gone"),))
    assert formed(turn, FORM, 1) is turn


@pytest.mark.parametrize("name", [FORM_NAME, "Sum"])
def test_only_our_form_is_filled_in(name: str) -> None:
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": FORM}}}
    assert form_asked(body) == (FORM if name == FORM_NAME else None)
    assert form_asked({"response_format": {"type": "text"}}) is None
