"""An answer that is none is refused before it is recorded: only True allows, and a bad argument bricks nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, PermissionRules, RunFailed, RuntimeContext, ScriptedModel, tool
from retinue.states import RequestState

pytestmark = pytest.mark.anyio

PAY: list[Any] = [{"calls": [{"name": "pay", "arguments": {}}]}, "done"]
HERE = RuntimeContext(session_id="s")


def payer(paid: list[str], ledger: str | Path = "memory") -> Agent:
    @tool
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    return Agent("a", model=ScriptedModel(PAY), tools=[pay], permissions=PermissionRules(ask=["pay"]), ledger=ledger)


@pytest.mark.contract("D-28")
@pytest.mark.parametrize(
    "wrong",
    [
        {"allow": "deny"},
        {"allow": "no"},
        {"allow": 1},
        {"allow": None},
        {"allow": True, "remember": "always"},
        {"allow": True, "by": None},
        {"allow": True, "note": None},
        {"allow": True, "note": 5},
    ],
)
async def test_what_is_no_answer_is_refused_and_records_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    paid: list[str] = []
    async with payer(paid, tmp_path / "l.db") as agent:
        waiting = await agent.run("go", context=HERE)
        request = waiting.requests[0]
        with pytest.raises(ConfigurationError) as raised:
            await agent.answer(request, **wrong)
        assert raised.value.code == "invalid_argument"
        row = await agent.runtime.ledger.request(request.request_id)
        assert row is not None
        assert (row.state, paid) == (RequestState.OPEN, [])
        result = await agent.answer(request, allow=True)
        assert result is not None
        assert (result.text, paid) == ("done", ["paid"])


async def test_a_reason_that_is_no_text_stops_nothing() -> None:
    async with payer([]) as agent:
        waiting = await agent.run("go", context=HERE)
        with pytest.raises(ConfigurationError, match="`reason` is a `NoneType`"):
            await agent.cancel(waiting.run_id, reason=None)  # type: ignore[arg-type]
        assert (await agent.requests("s"))[0].request_id == waiting.requests[0].request_id


@pytest.mark.parametrize("wrong", [5, None, ["s"]])
def test_ids_that_are_no_text(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        Agent(wrong, model=ScriptedModel(["x"]))
    if wrong is not None:
        agent = Agent("a", model=ScriptedModel(["x"]))
        with pytest.raises(ConfigurationError, match="session_id"):
            agent.run_sync("go", context=RuntimeContext(session_id=wrong))
        agent.close_sync()


async def test_a_callback_that_is_cancelled_from_inside_hangs_nothing() -> None:
    async def on_request(_request: Any) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.cancel()  # as a closed connection does
        return await future

    agent = payer([])
    agent._on_request = on_request
    async with agent:
        with pytest.raises(RunFailed, match="`on_request` raised CancelledError"):
            await asyncio.wait_for(agent.run("go"), 10)
