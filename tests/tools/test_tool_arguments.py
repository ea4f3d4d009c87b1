"""Checked arguments: what passes, and errors that a model can act on."""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from retinue.tools import BadArguments
from retinue.tools.arguments import Arguments
from retinue.tools.schema import REQUIRED, Parameter, read_signature


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def sample(
    query: str,
    limit: int = 10,
    mode: Literal["fast", "slow"] = "fast",
    colour: Colour = Colour.RED,
    points: Sequence[Point] = (),
    schema: dict[str, int] | None = None,
    model_config: bool = False,
) -> None: ...


@pytest.fixture(scope="module")
def arguments() -> Arguments:
    return Arguments("sample", read_signature(sample, {}).parameters, where="here:sample")


def fault(arguments: Arguments, text: str) -> str:
    with pytest.raises(BadArguments) as caught:
        arguments.parse(text)
    return str(caught.value)


def test_values_are_converted_and_what_is_left_out_stays_out(arguments: Arguments) -> None:
    parsed = arguments.parse('{"query": "q", "limit": "3", "colour": "blue", "points": [{"x": 1}], "schema": {"a": 1}}')
    assert parsed == {"query": "q", "limit": 3, "colour": Colour.BLUE, "points": [Point(x=1)], "schema": {"a": 1}}
    assert arguments.parse('{"query": "q", "model_config": true}') == {"query": "q", "model_config": True}


def test_the_schema_is_closed_and_has_no_titles(arguments: Arguments) -> None:
    schema = arguments.schema
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["query"]
    assert list(schema["properties"]) == ["query", "limit", "mode", "colour", "points", "schema", "model_config"]
    assert '"title"' not in json.dumps(schema)
    assert schema["properties"]["colour"]["default"] == "red"


def test_a_parameter_called_title_is_kept() -> None:
    made = Arguments("t", [Parameter("title", str, REQUIRED, "")], where="t")
    assert made.schema["properties"] == {"title": {"type": "string"}}


@pytest.mark.parametrize("text", ["", "  ", "null", "{}"])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    assert Arguments("t", [], where="t").parse(text) == {}


def test_all_faults_are_listed_with_field_value_and_form(arguments: Arguments) -> None:
    text = fault(arguments, '{"limit": "many", "mode": "warp", "colour": 3, "qerry": "q", "points": [{"x": 1}, {"x": "a"}]}')
    assert "`query`: is missing (expected: string)" in text
    assert '"many" was given (expected: integer)' in text
    assert 'one of "fast", "slow"' in text
    assert 'one of "red", "blue"' in text
    assert "`points.1.x`" in text
    assert "`qerry`: there is no such argument. Known: `query`, `limit`, `mode`" in text


def test_long_values_are_bounded(arguments: Arguments) -> None:
    text = fault(arguments, json.dumps({"query": "q", "limit": "x" * 100_000}))
    assert len(text) < 1_000
    many = fault(arguments, json.dumps({"query": "q"} | {f"a{i}": i for i in range(1_000)}))
    assert len(many) < 6_000
    assert "more" in many


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"query": }', "line 1, column 11"),
        ('{"query": "q"', "line 1, column 14"),
        ("{'query': 'q'}", "double quotes"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "must be one JSON object, not [1]"),
        ('"{}"', "must be one JSON object"),
    ],
)
def test_syntax_errors_say_where(arguments: Arguments, text: str, words: str) -> None:
    assert words in fault(arguments, text)


@pytest.mark.case("B175")
def test_lone_surrogates_do_not_get_through(arguments: Arguments) -> None:
    assert arguments.parse('{"query": "a\ud800"}') == {"query": "a\ufffd"}
    assert "not valid JSON" in fault(arguments, '{"query": "a\\ud800"}')
    fault(arguments, '{"query": "q", "\ud800": 1}').encode()


def test_a_default_that_is_no_json_is_left_out_of_the_schema() -> None:
    made = Arguments("t", [Parameter("x", str, object(), "")], where="t")
    assert made.schema["properties"] == {"x": {"type": "string"}}
    assert "required" not in made.schema
    assert made.parse("{}") == {}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(value=JSON | st.fixed_dictionaries({}, optional={"query": JSON, "limit": JSON, "mode": JSON, "points": JSON}))
def test_any_json_is_parsed_or_explained(value: Any) -> None:
    made = Arguments("sample", read_signature(sample, {}).parameters, where="here:sample")
    try:
        parsed = made.parse(json.dumps(value))
    except BadArguments as error:
        str(error).encode()
    else:
        assert set(parsed) <= set(made.schema["properties"])
        assert value is None or isinstance(parsed.get("query"), str)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters()))
def test_any_text_is_parsed_or_explained(text: str) -> None:
    made = Arguments("t", [Parameter("x", str, "", "")], where="t")
    try:
        made.parse(text)
    except BadArguments as error:
        str(error).encode()
