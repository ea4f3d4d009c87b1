"""No public fault is forgotten: each of these groups has a test marked with it, or a row in the decision that says why not."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FAULTS: Final = ROOT.parent / "shared" / "cases" / "bugs.md"
DECISION: Final = ROOT / "docs" / "decisions" / "0017-public-faults-without-a-test.md"

GROUPS: Final = (
    "context/history",
    "tool-call/result pairing",
    "empty result from child",
    "child error swallowed",
    "encoding",
    "hang",
    "concurrency/race on shared state",
)

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not FAULTS.is_file(), reason="the public faults lie outside of the repository"),
]


def faults() -> dict[str, list[str]]:
    """The numbers of the public faults by group, in their order."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", FAULTS.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        found[section.partition("\n")[0].strip()] = re.findall(r"^### (B\d{3}) ", section, re.MULTILINE)
    return found


def marked() -> set[str]:
    """The numbers that tests are marked with."""
    return {number for path in sorted((ROOT / "tests").rglob("test_*.py")) for number in marks(path)}


def marks(path: Path) -> Iterator[str]:
    """What the tests of a file are marked with by `pytest.mark.case`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="case"), args=args):
                yield from (str(one.value) for one in args if isinstance(one, ast.Constant))
            case _:
                pass


def rows() -> list[str]:
    """The numbers that the decision has a row for, those without any test first."""
    return re.findall(r"^\| (B\d{3}) \|", DECISION.read_text("utf-8"), re.MULTILINE)


def test_the_groups_are_those_of_the_list() -> None:
    known = faults()
    assert [group for group in GROUPS if not known.get(group)] == []


def test_each_fault_of_these_groups_has_a_test_or_a_row_that_says_why_not() -> None:
    known, tested, told = faults(), marked(), set(rows())
    assert [number for group in GROUPS for number in known[group] if number not in tested | told] == []


def test_a_row_is_about_a_fault_of_the_list_and_stands_there_once() -> None:
    known = {number for group in GROUPS for number in faults()[group]}
    assert [number for number, count in Counter(rows()).items() if count > 1 or number not in known] == []


def test_a_fault_without_a_test_stands_under_those_and_one_with_a_test_does_not() -> None:
    without, _, partly = DECISION.read_text("utf-8").partition("Of these a part is tested")
    number = re.compile(r"^\| (B\d{3}) \|", re.MULTILINE)
    tested = marked()
    assert [one for one in number.findall(without) if one in tested] == []
    assert [one for one in number.findall(partly) if one not in tested] == []
