"""`docs/reference/errors.md` is what the source says: every code, its texts, what to do, where it is raised."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from retinue.models.faults import CODES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """`docs/generate_errors.py`."""
    spec = importlib.util.spec_from_file_location("generate_errors", ROOT / "docs" / "generate_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(generator: ModuleType) -> str:
    """The page as it should be."""
    return generator.page()


def test_the_page_is_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert written == page, "the texts of errors have changed: run `python docs/generate_errors.py`"


def test_every_code_in_the_source_is_on_the_page(generator: ModuleType, page: str) -> None:
    listed = set(re.findall(r"^### `([a-z_:]+)`$", page, re.MULTILINE))
    source = [path for path in generator.SOURCE.rglob("*.py") if "testing" not in path.parts]
    written = {code for path in source for code in re.findall(r'\bcode="([a-z_]+)"', path.read_text(encoding="utf-8"))}
    assert written - listed == set()
    assert set(CODES) <= listed


def test_every_model_error_says_what_to_do(page: str) -> None:
    section = page.partition("## `ModelError`")[2].partition("\n## ")[0]
    entries = section.split("### ")[1:]
    assert {entry.partition("`")[2].partition("`")[0] for entry in entries} >= set(CODES)
    assert all("to do: " in entry and "From `retinue." in entry for entry in entries)
