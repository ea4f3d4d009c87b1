"""The ledgers that every ledger test runs on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.ledger import Ledger, MemoryLedger
from retinue.ledger.sqlite import SqliteLedger


@pytest.fixture(params=["memory", "process", "full"])
def make_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ledger]:
    """A factory of the memory ledger and of SQLite in both durabilities."""
    kind: str = request.param
    if kind == "memory":
        return MemoryLedger
    return lambda: SqliteLedger(tmp_path / "ledger.sqlite3", durability="full" if kind == "full" else "process")
