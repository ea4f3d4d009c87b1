"""Fixtures for every test: asyncio as the one backend."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that async tests run on."""
    return "asyncio"
