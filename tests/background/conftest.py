"""A runtime on each store, whose trees are audited when the test is over, and looks at what the ledger holds of tasks."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import Runtime
from retinue.events import decode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.rows import ThreadKey
from retinue.testing.audit import audit


async def audited(ledger: Ledger) -> None:
    """Every tree in the ledger is sound."""
    found = {run.agent_id: await audit(ledger, run.run_id) for run in await ledger.runs(roots_only=True)}
    assert {agent: faults for agent, faults in found.items() if faults} == {}


@pytest.fixture
def sound() -> Callable[[Ledger], Awaitable[None]]:
    """Audit every tree of a ledger."""
    return audited


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """A ledger of each kind."""
    return MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.sqlite3")


@pytest.fixture
async def runtime(store: Ledger, anyio_backend: str) -> AsyncGenerator[Runtime]:
    """A runtime on each store; whatever its trees have come to, they are sound."""
    async with Runtime(ledger=store) as opened:
        yield opened
        await audited(opened.ledger)


@pytest.fixture
def events() -> Callable[[Runtime], Awaitable[list[Any]]]:
    """Read the journal of the thread `main` of session `s`."""

    async def read(opened: Runtime) -> list[Any]:
        """Its events in order."""
        journal = await opened.ledger.journal(ThreadKey("", "s", "main"))
        return [] if journal is None else [decode(record) for record in journal.own]

    return read
