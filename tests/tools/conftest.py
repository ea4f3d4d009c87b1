"""Fixtures of the tests of tools: threads that are closed at the end, and a context to call with."""

from collections.abc import AsyncGenerator, Callable

import pytest

from retinue.clock import SystemClock
from retinue.messages import CallRef
from retinue.tools import ToolContext, ToolThreads


@pytest.fixture
async def threads(anyio_backend: str) -> AsyncGenerator[ToolThreads, None]:
    """Two threads; none may be left at the end."""
    pool = ToolThreads(2)
    yield pool
    assert await pool.close(5.0, SystemClock()) == []
    assert pool.threads == 0


@pytest.fixture
def context(threads: ToolThreads) -> Callable[..., ToolContext]:
    """Makes a context; keywords replace parts of it."""

    def make(**changes: object) -> ToolContext:
        parts: dict[str, object] = {
            "agent_id": "a",
            "user_id": "",
            "session_id": "ses_1",
            "run_id": "run_1",
            "path": ("a",),
            "call": CallRef("msg_1", 0),
            "attempt": 1,
            "threads": threads,
        }
        return ToolContext(**(parts | changes))  # pyright: ignore[reportArgumentType]

    return make
