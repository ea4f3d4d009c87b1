"""A fault of `on_request` is the author's: the run ends as failed with it, what is below as cancelled, and nothing stays open."""

import asyncio
from typing import Any

import pytest

from retinue import Agent, PermissionRequest, PermissionRules, RunFailed, Runtime, RuntimeContext, ScriptedModel, SubAgent, tool
from retinue.errors import LedgerUnavailable
from retinue.events import CancelSeenEvent, ToolCallResultEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.ops import RequestCancel
from retinue.states import RequestState, RunState
from retinue.testing.audit import audit
from retinue.testing.mortal import SharedStore

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
PAY: dict[str, Any] = {"name": "pay", "arguments": {}}
SPAWN: dict[str, Any] = {"name": "agent_spawn", "arguments": {"agent_id": "clerk", "task": "Pay."}}
WAITS: dict[str, Any] = {"name": "waits", "arguments": {}}


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


@tool
async def waits() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "over"


async def raises(_request: PermissionRequest) -> bool:
    raise ValueError("no")


def raises_at_once(_request: PermissionRequest) -> bool:
    raise ValueError("no")


async def other_arity() -> bool:
    return True


async def second(_request: PermissionRequest, _more: int) -> bool:
    return True


def payer(runtime: Runtime, on_request: Any, *, child: bool = False) -> Agent:
    turns: dict[str, Any] = {"desk": [{"calls": [SPAWN if child else PAY, WAITS]}], "clerk": [{"calls": [PAY, WAITS]}]}
    return Agent(
        "desk",
        model=ScriptedModel(turns),
        tools=[pay, waits],
        subagents=[SubAgent("clerk", "Pays.", instructions="Pay.", tools=["*"])],
        permissions=PermissionRules(allow=["*"], ask=["pay"]),
        on_request=on_request,
        runtime=runtime,
    )


async def results_in(ledger: Ledger, run_id: str) -> list[str]:
    """The statuses of the results in the journals of a tree."""
    found: list[str] = []
    for row in await ledger.tree(run_id):
        stored = await ledger.journal(row.key)
        assert stored is not None
        found += [event.status for event in map(decode, stored.own) if isinstance(event, ToolCallResultEvent)]
    return found


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("child", [False, True], ids=["root", "child"])
@pytest.mark.parametrize(
    ("on_request", "told"),
    [
        (raises, "`on_request` raised ValueError: no"),
        (raises_at_once, "`on_request` raised ValueError: no"),
        (other_arity, "`on_request` raised TypeError: other_arity() takes 0 positional arguments but 1 was given"),
        (second, "`on_request` raised TypeError: second() missing 1 required positional argument"),
    ],
)
async def test_the_run_fails_and_what_is_below_is_stopped(on_request: Any, told: str, child: bool) -> None:
    async with Runtime() as runtime:
        agent = payer(runtime, on_request, child=child)
        with pytest.raises(RunFailed) as caught:
            await asyncio.wait_for(agent.run("Go.", context=HERE), 10)
        error, ended = caught.value, caught.value.result
        assert (error.code, ended.status, ended.reason) == ("on_request_raised", "failed", "on_request_raised")
        assert told in str(error)
        assert "mend `on_request`" in (error.remedy or "")
        states = [(row.agent_id, row.state) for row in await runtime.ledger.tree(ended.run_id)]
        assert states == [("desk", RunState.FAILED), *([("clerk", RunState.CANCELLED)] if child else [])]
        assert await results_in(runtime.ledger, ended.run_id) == ["cancelled"] * (4 if child else 2)
        assert await audit(runtime.ledger, ended.run_id) == []
        assert await runtime.ledger.requests(root_run=ended.run_id, state=RequestState.OPEN) == []
        later = Agent("desk", model=ScriptedModel(["Again."]), runtime=runtime)
        assert (await later.run("And now?", context=HERE)).text == "Again."


async def test_a_stop_that_is_asked_for_meanwhile_overrules_the_fault() -> None:
    """After an intent a run can only end as cancelled (M8)."""
    stopping: list[asyncio.Task[None]] = []

    async with Runtime() as runtime:

        async def on_request(request: PermissionRequest) -> bool:
            stopping.append(asyncio.create_task(agent.cancel(request.run_id, reason="enough")))
            raise ValueError("no")

        agent = payer(runtime, on_request)
        result = await asyncio.wait_for(agent.run("Go.", context=HERE, check=False), 10)
        await asyncio.gather(*stopping)
        assert (result.status, result.reason) == ("cancelled", "enough")
        assert await audit(runtime.ledger, result.run_id) == []


async def test_an_intent_of_another_process_overrules_it_as_well() -> None:
    store = SharedStore(MemoryLedger())
    await store.ledger.open()

    async def on_request(request: PermissionRequest) -> bool:
        await store.ledger.commit([RequestCancel(request.run_id, "enough", "user", 1)])  # nobody here is told
        raise ValueError("no")

    async with Runtime(ledger=store.process().ledger) as runtime:
        result = await asyncio.wait_for(payer(runtime, on_request).run("Go.", context=HERE, check=False), 10)
        assert (result.status, result.reason) == ("cancelled", "enough")
        assert await audit(runtime.ledger, result.run_id) == []


@pytest.mark.contract("D-33")
@pytest.mark.parametrize("commit", [1, 2, 3, 4])
async def test_a_process_that_dies_on_the_way_to_that_end(commit: int) -> None:
    """Whoever resumes the run ends it as failed if the stop was seen; else asks again, and meets the fault again."""
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    first = store.process()

    async def dies(_request: PermissionRequest) -> bool:
        first.kill_at(commit)
        raise ValueError("no")

    with pytest.raises(LedgerUnavailable):
        await asyncio.wait_for(payer(Runtime(ledger=first.ledger), dies, child=True).run("Go.", context=HERE), 10)
    (root,) = await store.ledger.runs(roots_only=True)
    async with Runtime(ledger=store.process().ledger) as runtime:
        result = await asyncio.wait_for(payer(runtime, raises, child=True).resume(root.run_id, check=False), 10)
    assert (result.status, result.reason) == ("failed", "on_request_raised")
    assert await audit(store.ledger, root.run_id) == []
    stored = await store.ledger.journal(root.key)
    assert stored is not None
    assert [event.fault for event in map(decode, stored.own) if isinstance(event, CancelSeenEvent)] == ["on_request_raised"]
