"""A stop meets an answer that another process gives: what had happened stays in the journal."""

import asyncio
from typing import Any

import msgspec
import pytest

from retinue import Agent, Limits, Middleware, PermissionRules, Runtime, RuntimeContext, ScriptedModel, tool
from retinue.agent.next_step import AnswerMail
from retinue.events import ToolCallResultEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ops import PutMail, PutRequest
from retinue.rows import Mail, RequestRow, ThreadKey
from retinue.states import RequestState, ResultStatus

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")


class Answered(MemoryLedger):
    """Between a stop's look at the open request and its commit, another process answers it."""

    armed = False

    async def request(self, request_id: str) -> RequestRow | None:
        row = await super().request(request_id)
        if self.armed and row is not None and row.state is RequestState.OPEN:
            self.armed = False
            body = msgspec.json.encode(AnswerMail(request_id=request_id, answer="allow", by="other"))
            answered = msgspec.structs.replace(row, state=RequestState.ANSWERED, answer="allow", by="other")
            mail = Mail(mail_id="mail_1", kind="answer", body=msgspec.Raw(body), at=1)
            await self.commit([PutRequest(answered, RequestState.OPEN), PutMail(row.key, mail)])
        return row


@pytest.mark.contract("D-07", "D-28")
@pytest.mark.parametrize("order", [("charge", "wipe"), ("wipe", "charge")])
async def test_what_a_tool_did_is_not_said_to_have_not_run(order: tuple[str, str]) -> None:
    started, asked, effects = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def charge() -> str:
        """Charge; what was begun is done when it is told to stop."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            effects.append("charged")
            return "charged 100 EUR"
        return "never"

    @tool
    async def wipe() -> str:
        """Wipe."""
        effects.append("wiped")
        return "wiped"

    async def on_request(_request: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    script: list[Any] = [{"calls": [{"name": name, "arguments": {}} for name in order]}, "done"]
    rules = PermissionRules(allow=["charge"], ask=["wipe"])
    ledger = Answered()
    async with Runtime(ledger=ledger, limits=Limits(stop_grace=2)) as runtime:
        agent = Agent(
            "a", model=ScriptedModel(script), tools=[charge, wipe], permissions=rules, runtime=runtime, on_request=on_request
        )
        run = asyncio.create_task(agent.run("go", context=HERE, check=False))
        await asyncio.gather(started.wait(), asked.wait())
        ledger.armed = True
        await agent.cancel()
        assert (await run).status == "cancelled"
        journal = await ledger.journal(KEY)
    assert journal is not None
    events = [decode(record) for record in journal.own]
    results = {event.name: event for event in events if isinstance(event, ToolCallResultEvent)}
    assert effects == ["charged"]
    assert (results["charge"].status, results["charge"].content) == (ResultStatus.OK, "charged 100 EUR")
    assert results["wipe"].status is ResultStatus.CANCELLED


class Late(Middleware):
    """Keeps the handle of a run's state beyond its end."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self.found: list[Any] = []

    async def before_reasoning(self, state: Any) -> None:
        self.handles.append(state.state("thread"))
        self.found.append(self.handles[-1].get("name"))


async def test_who_still_holds_a_run_that_is_over_writes_into_no_later_one() -> None:
    late = Late()
    async with Runtime() as runtime:
        agent = Agent("a", model=ScriptedModel(["x"]), middleware=[late], runtime=runtime)
        await agent.run("one", context=HERE)
        late.handles[0].set("name", "late")
        await agent.run("two", context=HERE)
    assert late.found == [None, None]
