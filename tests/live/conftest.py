"""The live tests run by `make live` alone: without a server (RETINUE_LIVE_URL) they are not even collected."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from retinue.models import OpenAIChatModel, resolve_model

collect_ignore_glob = [] if os.environ.get("RETINUE_LIVE_URL") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is `live`, and slower than other tests may be."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture
def reference() -> str:
    """The model under test, as a text."""
    return os.environ["RETINUE_LIVE_URL"]


@pytest.fixture
async def model(reference: str) -> AsyncGenerator[OpenAIChatModel]:
    """The model under test."""
    made = resolve_model(reference)
    assert isinstance(made, OpenAIChatModel)
    yield made
    await made.close()


@pytest.fixture
async def schema_model(reference: str) -> AsyncGenerator[OpenAIChatModel]:
    """The same with calls by a schema."""
    made = resolve_model(f"{reference}?tool_mode=schema")
    assert isinstance(made, OpenAIChatModel)
    yield made
    await made.close()
