"""The Python of the guides runs as it stands: each block alone, in an empty folder, and every `test_…` that it defines."""

import asyncio
import gc
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

GUIDES = sorted((Path(__file__).parents[1] / "docs" / "guides").glob("*.md"))
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
    for name, made in list(names.items()):
        if name.startswith("test_") and inspect.isfunction(made):
            known = {"tmp_path": tmp_path}
            given = made(*(known[parameter] for parameter in inspect.signature(made).parameters))
            if inspect.iscoroutine(given):
                asyncio.run(given)
    names.clear()
    gc.collect()  # what was not closed is said here, and not in a later test


def test_the_guides_have_blocks() -> None:
    assert {guide.stem for guide in GUIDES} >= {"first-agent", "testing"}
    assert len(BLOCKS) > 10
