"""The parent that most of these tests have: everything is allowed, and its ledger is a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules
from retinue.testing import StrictProvider


@pytest.fixture
def parent(tmp_path: Path) -> Callable[..., Agent]:
    """Make an agent `parent` that asks this provider; `options` are those of `Agent`."""

    def make(provider: StrictProvider, **options: Any) -> Agent:
        options.setdefault("model", provider.model())
        return Agent("parent", permissions=PermissionRules(allow=["*"]), ledger=tmp_path / "l.sqlite3", **options)

    return make
