"""Agent files that people have published, read with the strict loader. Skipped where they are absent."""

from pathlib import Path
from typing import cast

import pytest
import yaml

from retinue.subagents.loading import load_file

CORPUS = Path(__file__).parents[3] / "shared" / "agents-corpus"


def is_strict(path: Path) -> bool:
    """Whether the file has a header that plain YAML reads as a mapping with a description."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].rstrip() != "---" or "---" not in [line.rstrip() for line in lines[1:]]:
        return False
    end = [line.rstrip() for line in lines[1:]].index("---") + 1
    try:
        header: object = yaml.safe_load("\n".join(lines[1:end]))
    except yaml.YAMLError:
        return False
    return isinstance(header, dict) and bool(cast("dict[object, object]", header).get("description"))


@pytest.mark.shared
@pytest.mark.contract("A-18")
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus lies outside of the repository")
def test_published_files_load_or_are_reported() -> None:
    paths = sorted(path for path in CORPUS.rglob("*.md") if path.is_file() and path != CORPUS / "README.md")
    loaded = {path: load_file(path) for path in paths}
    assert len(loaded) > 100
    strict = [path for path in paths if is_strict(path)]
    good = [path for path in strict if loaded[path].declaration is not None]
    assert len(good) >= 0.9 * len(strict), [str(loaded[path].refusal) for path in strict if path not in good]
    for path, file in loaded.items():
        assert file.declaration is not None or file.diagnostics, path
        assert all(found.remedy and found.message and "\n" not in str(found) for found in file.diagnostics)
