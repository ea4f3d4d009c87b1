"""The Python of the guides runs as it stands: each block alone, in an empty folder. The blocks of the guide to testing are
test files of a fresh project, which pytest runs with the settings that the guide gives."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.models.script import ScriptCall, ScriptError, ScriptUsage, Turn

GUIDES = sorted((Path(__file__).parents[1] / "docs" / "guides").glob("*.md"))
TESTING = Path(__file__).parents[1] / "docs" / "guides" / "testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(guide, text.count("\n", 0, found.start()) + 1, found[1], id=f"{guide.stem}-{number}")
    for guide in GUIDES
    for text in [guide.read_text(encoding="utf-8")]
    for number, found in enumerate(BLOCK.finditer(text), 1)
]


@pytest.mark.parametrize(("guide", "line", "source"), BLOCKS)
def test_block_of_a_guide(guide: Path, line: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile("\n" * line + source, str(guide), "exec"), names)  # our own text
    names.clear()
    gc.collect()  # what was not closed is said here, and not in a later test


def test_the_guide_to_testing_passes_in_a_fresh_project(tmp_path: Path) -> None:
    text = TESTING.read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings)
    tests = [found[1] for found in BLOCK.finditer(text)]
    (tmp_path / "conftest.py").write_text(next(block for block in tests if "def anyio_backend" in block))
    tests = [block for block in tests if "def test_" in block]
    for number, block in enumerate(tests):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    command = (sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(block.count('def test_') for block in tests)} passed" in done.stdout


def test_the_guide_to_testing_names_every_field_of_a_turn() -> None:
    text = TESTING.read_text(encoding="utf-8")
    for kind in (Turn, ScriptCall, ScriptUsage, ScriptError):
        assert [name for name in kind.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_guides_have_blocks() -> None:
    assert {guide.stem for guide in GUIDES} >= {"first-agent", "middleware", "testing"}
    assert len(BLOCKS) > 10
