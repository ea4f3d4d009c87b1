"""A middleware that heeds no cancellation holds up no stop: it is waited for no longer than the grace, and named."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, Limits, Middleware, Runtime, ScriptedModel
from retinue.testing import VirtualClock

pytestmark = pytest.mark.anyio


class Deaf(Middleware):
    """Waits in `before_reasoning`, whoever cancels it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()

    async def before_reasoning(self, state: Any) -> None:
        """Wait."""
        self.begun.set()
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                pass


@pytest.mark.parametrize("how", ["cancel", "caller"])
async def test_a_middleware_before_the_model_is_left_behind_after_the_grace(how: str) -> None:
    deaf, clock = Deaf(), VirtualClock(auto=True)
    runtime = Runtime(clock=clock, limits=Limits(stop_grace=5))
    async with runtime, Agent("a", model=ScriptedModel(["x"]), middleware=[deaf], runtime=runtime) as agent:
        running = asyncio.create_task(agent.run("go", check=False))
        await deaf.begun.wait()
        before = clock.monotonic()
        if how == "cancel":
            await agent.cancel(reason="enough")
            result = await running
            assert (result.status, result.reason) == ("cancelled", "enough")
            assert "still stopping: `before_reasoning of a middleware`" in result.message
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert clock.monotonic() - before == pytest.approx(5)
        deaf.leave.set()
