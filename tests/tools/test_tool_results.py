"""Return values and exceptions as text for a model."""

import dataclasses
import json
from collections import deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from retinue.states import ResultStatus
from retinue.tools import ToolError, ToolOutput
from retinue.tools.results import MAX_ERROR, NO_OUTPUT, clean_text, error_text, result_of


class Model(BaseModel):
    when: date
    raw: bytes


class Record(msgspec.Struct, rename="camel"):
    some_field: Decimal


@dataclasses.dataclass
class Data:
    inner: Any


class Letter(StrEnum):
    A = "a"


class Number(Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, NO_OUTPUT),
        (b"bytes \xff", "bytes \ufffd"),
        (Letter.A, "a"),
        (Number.ONE, "1"),
        (True, "true"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        ({"ä": [1, (2, 3)], 4: None, None: 1}, '{"ä": [1, [2, 3]], "4": null, "null": 1}'),
        ({"b", "a"}, '["a", "b"]'),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (timedelta(seconds=5), "0:00:05"),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        ([Path("a/b")], '["a/b"]'),
        (Model(when=date(2026, 1, 2), raw=b"\xff"), '{"when": "2026-01-02", "raw": "\ufffd"}'),
        (Record(some_field=Decimal(2)), '{"someField": "2"}'),
        (Data(inner=Data(inner=[b"x"])), '{"inner": {"inner": ["x"]}}'),
        (10**30, "1" + "0" * 30),
    ],
)
def test_values_become_text(value: object, text: str) -> None:
    assert result_of(value) == ToolOutput(content=text)


@pytest.mark.case("B215")
def test_an_empty_text_is_said_to_be_empty() -> None:
    assert result_of("").content == NO_OUTPUT
    assert result_of(ToolOutput(content="")).content == NO_OUTPUT


@pytest.mark.case("B175")
def test_lone_surrogates_are_replaced() -> None:
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text("😀") == "😀"
    for value in ("\udfff", ["\ud800"], {"\ud800": 1}, ToolOutput(content="\ud800"), Data(inner="\ud800")):
        result_of(value).content.encode()


def test_an_output_keeps_its_status_and_metadata() -> None:
    output = ToolOutput(content="no", status=ResultStatus.LIMIT, metadata={"a": 1})
    assert result_of(output) == output


def test_cycles_and_depth_end() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert result_of(cycle).content == '[1, "…"]'
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert "…" in result_of(deep).content


def test_a_shared_value_is_no_cycle() -> None:
    shared = [1]
    assert result_of([shared, shared]).content == "[[1], [1]]"


def test_queues_and_other_objects_are_shown_as_they_print() -> None:
    assert result_of(deque([1])).content == "deque([1])"


@given(st.recursive(st.text(alphabet=st.characters()) | st.integers() | st.binary(), lambda x: st.lists(x) | st.tuples(x)))
def test_the_text_is_always_valid(value: Any) -> None:
    text = result_of(value).content
    text.encode()
    if isinstance(value, (list, tuple)):
        assert len(json.loads(text)) == len(value)  # pyright: ignore[reportUnknownArgumentType]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_errors_have_type_and_bounded_message() -> None:
    assert error_text("t", ValueError("bad")) == "`t` failed: ValueError: bad"
    assert error_text("t", KeyError()) == "`t` failed: KeyError"
    assert error_text("t", Unprintable()) == "`t` failed: Unprintable"
    long = error_text("t", ValueError("x" * 100_000))
    assert len(long) < MAX_ERROR + 100
    assert "100,000 characters" in long


def test_a_tool_error_is_told_exactly() -> None:
    assert error_text("t", ToolError("no such booking")) == "no such booking"
    assert error_text("t", ToolError("no", remedy="ask again")) == "no. Ask again."
