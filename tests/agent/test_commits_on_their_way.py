"""While commits are on their way: what they hold is neither taken twice nor lost with them (M1, M8)."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from retinue import Agent, PermissionRequest, PermissionRules, Runtime, RuntimeContext, SubAgent, tool
from retinue.events import RequestClosedEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Outcome
from retinue.ops import Op, PutRun, Receipt, RequestCancel, TakeMail
from retinue.rows import ThreadKey
from retinue.states import RunState
from retinue.testing import RecordingModel, calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
BOUND = 10


class Slow(MemoryLedger):
    """From the first commit that `holds` on, commits of this process wait until they are let go. What is committed at once,
    as by another process, is there before them.
    """

    def __init__(self, holds: Callable[[Op], bool]) -> None:
        super().__init__()
        self.immediate = False
        self.refused = 0
        self._holds = holds
        self._waiting = deque[tuple[Sequence[Op], Outcome[Receipt]]]()
        self._over = False
        self._arrived = asyncio.Condition()
        self._told = set[asyncio.Task[None]]()

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger`."""
        if self._over or not (self._waiting or any(map(self._holds, ops))):
            return super().submit(ops)
        self._waiting.append((tuple(ops), outcome := Outcome[Receipt]()))
        telling = asyncio.create_task(self._tell())
        self._told.add(telling)
        telling.add_done_callback(self._told.discard)
        return outcome

    async def _tell(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()

    async def held(self, count: int) -> None:
        """Wait until so many commits are on their way."""
        async with asyncio.timeout(BOUND), self._arrived:
            await self._arrived.wait_for(lambda: len(self._waiting) >= count)

    def let_go(self) -> None:
        """Carry them out, and all that come later at once."""
        self._over = True
        while self._waiting:
            ops, outcome = self._waiting.popleft()
            try:
                outcome.set_result(self._commit(ops))
            except Exception as error:  # noqa: BLE001  # whoever handed the commit in is told
                self.refused += 1
                outcome.set_exception(error)


async def test_an_answer_that_is_being_taken_is_not_taken_again_with_the_next_one() -> None:
    busy, begun = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Take long."""
        begun.set()
        await busy.wait()
        return "slowly"

    @tool
    async def wipe(what: str) -> str:
        """Wipe."""
        return what

    model = RecordingModel([calls(("slow", {}), ("wipe", {"what": "a"}), ("wipe", {"what": "b"})), "done"])
    ledger = Slow(lambda op: isinstance(op, TakeMail))
    rules = PermissionRules(allow=["slow"], ask=["wipe"])
    async with Runtime(ledger=ledger) as runtime, asyncio.timeout(BOUND):
        agent = Agent("root", model=model, tools=[slow, wipe], runtime=runtime, permissions=rules)
        running = asyncio.create_task(agent.run("go", context=HERE))
        await begun.wait()
        asked: Sequence[PermissionRequest] = ()
        for _ in range(10_000):
            if len(asked := await agent.requests("s")) == 2:
                break
            await asyncio.sleep(0)
        for count, request in enumerate(asked, 1):
            await agent.answer(request, allow=False)
            await ledger.held(count)
        ledger.let_go()
        busy.set()
        result = await running
        journal = await ledger.journal(KEY)
        assert await audit(ledger, result.run_id) == []
    assert journal is not None
    closed = [event.request_id for event in map(decode, journal.own) if isinstance(event, RequestClosedEvent)]
    assert closed == [request.request_id for request in asked]
    assert (result.status, ledger.refused) == ("completed", 0)


@pytest.mark.contract("D-07")
async def test_a_stop_that_rode_with_a_refused_commit_is_still_in_the_ledger() -> None:
    ledger = Slow(lambda op: isinstance(op, PutRun) and op.row.agent_id == "kid" and op.row.state is RunState.COMPLETED)

    @tool(read_only=True)
    async def look() -> str:
        """Look, until the child's end is on its way."""
        await ledger.held(1)
        return "seen"

    kid = SubAgent("kid", "Helps.", instructions="Help.", surface="tool")
    model = RecordingModel({"root": [calls(("kid", {"input": "x"}), ("look", {})), "never"], "kid": ["helped"]})
    rules = PermissionRules(allow=["*"])
    async with Runtime(ledger=ledger) as runtime, asyncio.timeout(BOUND):
        agent = Agent("root", model=model, subagents=[kid], tools=[look], runtime=runtime, permissions=rules)
        running = asyncio.create_task(agent.run("go", context=HERE))
        await ledger.held(1)
        (tree,) = agent._own_trees
        for _ in range(10_000):  # until what `look` saw is staged, behind the child's end
            if tree.runs[tree.root_run].projection.open is None:
                break
            await asyncio.sleep(0)
        running.cancel()
        await ledger.held(2)
        (child,) = [row for row in await ledger.tree(tree.root_run) if row.agent_id == "kid"]
        await ledger.commit([RequestCancel(child.run_id, "enough", "another process", 1)])  # so the child has not completed
        ledger.let_go()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ledger.refused == 2
        assert await ledger.cancel_intent((tree.root_run,)) == "interrupted"
        (root,) = await ledger.runs(roots_only=True)
        assert root.state is RunState.CANCELLED
        assert await audit(ledger, root.run_id) == []
