"""No promise is forgotten: every row of the contract has a test, or stands in the table of what comes later."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS = Path(__file__).parent
CONTRACT = TESTS.parents[1] / "shared" / "CONTRACT.md"

LATER: Final[dict[str, str]] = {
    "D-04": "the agent store",
    "D-17": "task files",
    "D-22": "foreign declaration files",
    "D-24": "remote subagents",
    "A-21": "files are re-read in a run",
    "A-42": "background work",
    "H-07": "tools that are added in a run",
    "H-25": "compaction",
    "H-30": "workflows",
    "H-31": "runtimes of children",
}
"""Rows that no test shows yet, and the work that brings them."""

FIRST_STEP: Final = frozenset(
    [f"A-{n:02}" for n in (1, 2, *range(4, 14), 15, 17, *range(23, 29))]
    + [f"H-{n:02}" for n in (1, 2, 3, 4, 5, 10, 14, 16, 17, 19, 20, 28, 29)]
    + [f"D-{n:02}" for n in (1, 2, 3, 5, 7, 14, *range(25, 34))]
)
"""The rows of the durable kernel: these must never be in the table above."""

SITUATION: Final = re.compile(r"(HPD|AS)-[1-9]\d*|B\d{3}")


def marks(name: str) -> Iterator[tuple[str, str]]:
    """The ids that tests are marked with by `pytest.mark.<name>`, each with the place."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=attr), args=args) if attr == name:
                    for argument in args:
                        assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: an id is not a plain text"
                        yield str(argument.value), f"{path.relative_to(TESTS)}:{node.lineno}"
                case _:
                    pass


@cache
def parsed(path: Path) -> ast.Module:
    """The module of a test file."""
    return ast.parse(path.read_text("utf-8"))


def rows() -> list[str]:
    """The ids of the contract's rows, in its order."""
    return re.findall(r"^\| ([ADH]-\d\d) \|", CONTRACT.read_text("utf-8"), re.MULTILINE)


shared = pytest.mark.skipif(not CONTRACT.is_file(), reason="the contract lies outside of the repository")


@pytest.mark.shared
@shared
def test_every_row_has_a_test_or_is_known_to_come_later() -> None:
    marked = {row for row, _ in marks("contract")}
    without = [row for row in rows() if row not in marked]
    assert without == [row for row in rows() if row in LATER], "rows without a test, against the table of what comes later"


@pytest.mark.shared
@shared
def test_the_contract_and_the_tables_name_the_same_rows() -> None:
    known = rows()
    assert [row for row, count in Counter(known).items() if count > 1] == []
    assert set(known) >= FIRST_STEP
    assert set(LATER) <= set(known)


def test_the_rows_of_the_kernel_are_shown() -> None:
    assert FIRST_STEP - {row for row, _ in marks("contract")} == set()
    assert not FIRST_STEP & set(LATER)


@pytest.mark.shared
@shared
def test_no_test_is_marked_with_a_row_that_is_not_there() -> None:
    known = set(rows())
    assert [f"{row} at {place}" for row, place in marks("contract") if row not in known] == []


def test_situations_are_named_in_the_agreed_form() -> None:
    assert [f"{case} at {place}" for case, place in marks("case") if not SITUATION.fullmatch(case)] == []
