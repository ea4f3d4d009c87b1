"""`NotifyByStrategy`: a named function decides which ends are told; without it, its fallback does (H-13)."""

import logging
from typing import Any

import pytest

from retinue import (
    Agent,
    ConfigurationError,
    NotifyByStrategy,
    NotifyNever,
    NotifyOnFinalState,
    Runtime,
    RuntimeContext,
    SubAgent,
    TaskEnding,
)
from retinue.ledger.memory import MemoryLedger
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


def broken(_: TaskEnding) -> bool:
    """Decides nothing."""
    raise ValueError("no")


def is_long(ending: TaskEnding) -> bool:
    """Tell what is worth it."""
    return len(ending.text) > 20


def is_short(ending: TaskEnding) -> bool:
    """Tell the rest."""
    return len(ending.text) < 20 and ending.status == "completed"


def odd(_: TaskEnding) -> Any:
    """Says something else than yes."""
    return "yes"


@pytest.mark.contract("H-13")
@pytest.mark.parametrize(
    ("notification", "strategies", "told"),
    [
        (NotifyByStrategy("long"), {"long": is_long}, False),
        (NotifyByStrategy("short"), {"short": is_short}, True),
        (NotifyByStrategy("short", fallback=NotifyNever()), {"short": is_short}, True),
        (NotifyByStrategy("gone"), {}, True),
        (NotifyByStrategy("gone", fallback=NotifyNever()), {}, False),
        (NotifyByStrategy("broken", fallback=NotifyOnFinalState(completed=False)), {"broken": broken}, False),
        (NotifyByStrategy("odd"), {"odd": odd}, False),
    ],
)
async def test_a_strategy_decides(
    notification: Any, strategies: dict[str, Any], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return "kid is done"
        spawn = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})
        return "noted" if any(isinstance(one.message, ToolResult) for one in request.history) else calls(spawn)

    model = RecordingModel(answer)
    kid = SubAgent("kid", "Helps.", instructions="Help.", background_notification=notification)
    with caplog.at_level(logging.WARNING, "retinue"):
        async with Runtime(ledger=MemoryLedger(), strategies=strategies) as runtime:
            agent = Agent("root", model=model, subagents=[kid], runtime=runtime)
            result = await agent.run("go", context=HERE)
            assert (await result.tasks[0].wait(10)).status == "completed"
            await agent.run("and?", context=HERE)
            assert await audit(runtime.ledger, result.run_id) == []
    messages = (entry.message for entry in model.asked("root")[-1].history)
    assert any(isinstance(one, UserMessage) and one.notice for one in messages) is told
    assert any("its fallback decides" in record.getMessage() for record in caplog.records) is (
        notification.name in ("gone", "broken")
    )


def test_what_is_no_notification_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="background_notification"):
        SubAgent("kid", "Helps.", instructions="Help.", background_notification="always")
