"""`@tool`: what it takes from a function, what it refuses, and when."""

import enum
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import pytest

from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.tools import CAPABILITY, FunctionTool, ToolContext, ToolHarness, function_tool, tool


@tool(read_only=True, requires_permission=True)
async def look_up(context: ToolContext, query: str, limit: int = 10) -> list[str]:
    """Look something up.

    It is quick.

    Args:
        query: what to look for,
            in words
        limit: how many
    """
    return [query] * limit


def test_name_description_schema_and_flags_come_from_the_function() -> None:
    made = function_tool(look_up)
    assert made.name == "look_up"
    assert made.description == "Look something up.\n\nIt is quick."
    assert made.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in words"},
            "limit": {"type": "integer", "description": "how many", "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert made.flags.read_only
    assert made.flags.repeatable
    assert made.flags.need is Verdict.ASK
    assert made.flags.main_argument == "query"
    assert not made.blocking
    assert made.spec is function_tool(look_up).spec


async def plain() -> None: ...


def test_a_plain_tool_is_allowed_and_not_repeatable() -> None:
    flags = function_tool(tool(plain)).flags
    assert flags.need is Verdict.ALLOW
    assert not flags.repeatable
    assert flags.main_argument is None


def test_given_name_and_description_win() -> None:
    @tool(name="find", description="Finds.", main_argument="b", idempotent=True, replayable=True)
    def other(a: int, b: int) -> int:
        """Not this."""
        return a + b

    made = function_tool(other)
    assert (made.name, made.description, made.flags.main_argument) == ("find", "Finds.", "b")
    assert made.flags.idempotent
    assert made.flags.replayable
    assert made.blocking
    assert made.reference is None  # made inside a function
    assert other(1, 2) == 3


def test_reference_of_a_module_function() -> None:
    assert function_tool(look_up).reference == f"{__name__}:look_up"


def no_hint(query: str) -> None: ...


NO_HINT: Any = no_hint
del NO_HINT.__annotations__["query"]


def star(*queries: str) -> None: ...
def keywords(**queries: str) -> None: ...
def positional(query: str, /) -> None: ...
def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


class Opaque:
    """A class that says nothing of how it is written."""


class Told(enum.Enum):
    YES = "yes"


@dataclass
class Fields:
    text: str


def opaque(query: list[Opaque] | None) -> None: ...
def fine(told: Told, fields: Fields, when: datetime, where: Path, both: dict[str, int | float]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (NO_HINT, "no type hint for `query`"),
        (star, "`*queries: str`"),
        (keywords, "`**queries: str`"),
        (positional, "`query: str`"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (opaque, "takes `query: Opaque`, a class that a model cannot write as JSON"),
    ],
)
def test_unsupported_signatures_fail_at_declaration(function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tool(function)
    assert words in str(caught.value)
    assert f"{__name__}:{function.__name__}" in str(caught.value)
    assert caught.value.code == "invalid_tool"
    assert caught.value.remedy


def test_classes_with_a_form_of_their_own_are_taken() -> None:
    assert set(function_tool(fine).spec.parameters["properties"]) == {"told", "fields", "when", "where", "both"}


def test_what_is_no_function_is_refused() -> None:
    for thing in (staticmethod(plain), len, ToolHarness, object()):
        with pytest.raises(ConfigurationError, match="`@tool` is for functions"):
            tool(cast("Any", thing))


@pytest.mark.contract("D-31")
def test_names_that_providers_refuse_fail_at_declaration() -> None:
    with pytest.raises(ConfigurationError, match="`1st` is not valid"):
        tool(name="1st")(plain)


def test_main_argument_must_be_a_parameter() -> None:
    with pytest.raises(ConfigurationError, match="has no parameter `nope`"):
        tool(main_argument="nope")(look_up)


def test_hints_that_cannot_be_resolved_or_expressed_name_the_function() -> None:
    def unresolved(query: "NotThere") -> None: ...  # pyright: ignore # noqa: F821

    def opaque(query: Callable[[], None]) -> None: ...
    def twice(a: ToolContext, b: ToolContext) -> None: ...

    cases: list[tuple[Any, str]] = [(unresolved, "cannot be resolved"), (opaque, "no JSON schema"), (twice, "twice")]
    for function, words in cases:
        made = function_tool(function)
        with pytest.raises(ConfigurationError, match=words) as caught:
            _ = made.spec
        assert function.__name__ in str(caught.value)


def test_a_field_as_default_is_refused() -> None:
    from pydantic import Field

    def wrong(limit: int = Field(default=3, ge=1)) -> None: ...
    def right(limit: Annotated[int, Field(ge=1, description="how many")] = 3) -> None:
        """Do.

        Args:
            limit: not this one
        """

    with pytest.raises(ConfigurationError, match="Annotated"):
        _ = function_tool(wrong).spec
    assert function_tool(right).spec.parameters["properties"] == {
        "limit": {"type": "integer", "minimum": 1, "description": "how many", "default": 3}
    }


def test_what_another_decorator_marked_is_no_tool() -> None:
    def other() -> None: ...

    def factory(owner: object, attribute: str) -> object:
        return object()

    setattr(other, CAPABILITY, factory)
    with pytest.raises(TypeError):
        function_tool(other)
    assert isinstance(function_tool(plain), FunctionTool)


def test_importing_tools_does_not_import_pydantic() -> None:
    code = """
import sys
from retinue.tools import ToolHarness, collect, tool

class H(ToolHarness):
    @tool
    def f(self, x: int) -> int:
        return x

made = collect([H])
print("pydantic" in sys.modules)
made[0].spec
print("pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
