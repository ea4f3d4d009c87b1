"""The floors hold, and the watchman over them is awake: a forbidden import makes it fail, for each contract."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = "Floors: a file imports only from its own floor or from floors below it"
LEDGER = "A ledger knows neither models nor tools"
KIT = "The test kit stands on floors 1 and 2"
PRODUCT = "The product does not import its test kit"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the package that lies in `folder/src`, with the project's own contracts."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONUTF8": "1", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source and its contracts, to be spoilt."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "sample"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_floors_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_module_without_a_floor_is_found(copy: Path) -> None:
    (copy / "src" / "retinue" / "somewhere.py").write_text('"""On no floor."""\n')
    done = lint(copy)
    assert done.returncode != 0
    assert "somewhere" in done.stdout


def test_an_import_for_types_alone_is_one_too(copy: Path) -> None:
    with (copy / "src" / "retinue" / "ids.py").open("a") as source:
        source.write("\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import retinue.harness\n")
    assert lint(copy).returncode != 0


def test_the_table_of_floors_in_the_docs_is_the_one_that_is_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [set(layer.split(" : ")) for layer in contracts[0]["layers"]]
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Floors")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == checked


def test_the_files_that_the_docs_name_are_there_and_none_of_the_run_loop_is_forgotten() -> None:
    named = set(re.findall(r"`((?:agent|cli)/\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    package = ROOT / "src" / "retinue"
    assert sorted(name for name in named if not (package / name).exists()) == []
    there = {f"agent/{file.name}" for file in (package / "agent").glob("*.py")}
    assert sorted(there - named) == ["agent/__init__.py"], "say in docs/architecture.md what it is for"


def test_each_contract_is_tried_below() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in configured} == {FLOORS, LEDGER, KIT, PRODUCT}


@pytest.mark.parametrize(
    ("module", "forbidden", "contract"),
    [
        ("ids", "retinue.models", FLOORS),
        ("tools", "retinue.workspace", FLOORS),
        ("ledger", "retinue.permissions", FLOORS),
        ("permissions", "retinue.agent", FLOORS),
        ("agent", "retinue.subagents", FLOORS),
        ("subagents", "retinue.harness", FLOORS),
        ("harness", "retinue.cli", FLOORS),
        ("ledger", "retinue.tools", LEDGER),
        ("testing", "retinue.agent", KIT),
        ("harness", "retinue.testing", PRODUCT),
    ],
)
def test_a_forbidden_import_is_found(copy: Path, module: str, forbidden: str, contract: str) -> None:
    package = copy / "src" / "retinue"
    file = package / f"{module}.py"
    if not file.exists():
        file = package / module / "spoilt.py"
    with file.open("a") as source:
        source.write(f"\nimport {forbidden}\n")
    done = lint(copy)
    assert done.returncode != 0
    assert f"{contract} BROKEN" in " ".join(done.stdout.split())
