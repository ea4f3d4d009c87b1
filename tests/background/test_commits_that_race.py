"""Commits of two ends of a task that come at the same moment, held back until both are on their way (D-20, invariant 2)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from retinue import Agent, Runtime, RuntimeContext, SubAgent, ThreadBusy, UserMessage
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Outcome
from retinue.messages import AssistantMessage
from retinue.models.port import ModelRequest
from retinue.ops import Append, Op, PutMail, PutRun, Receipt
from retinue.rows import ThreadKey
from retinue.testing import RecordingModel, calls, messages_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})
Sound = Callable[[Any], Awaitable[None]]


class Holding(MemoryLedger):
    """A ledger in memory that keeps commits back while `holds` says so of their ops, and carries them out when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.immediate = False
        self.holds: Callable[[Sequence[Op]], bool] = lambda _: False
        self.held: list[tuple[Sequence[Op], Outcome[Receipt]]] = []
        self.arrived = asyncio.Event()

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger`."""
        if not self.holds(ops):
            return super().submit(ops)
        outcome: Outcome[Receipt] = Outcome()
        self.held.append((ops, outcome))
        self.arrived.set()
        return outcome

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """See `Ledger`."""
        return await self.submit(ops)

    def let_go(self, *order: int) -> None:
        """Carry out what is held, in this order of places."""
        held, self.held = self.held, []
        self.arrived.clear()
        for ops, outcome in (held[place] for place in order):
            done = super().submit(ops)
            error = done.exception()
            if error is None:
                outcome.set_result(done.result())
            else:
                outcome.set_exception(error)


def ends(kind: str) -> Callable[[Sequence[Op]], bool]:
    """Commits that end the task (they write a letter), or that end the root."""
    if kind == "task":
        return lambda ops: any(isinstance(op, PutMail) for op in ops)
    return lambda ops: any(isinstance(op, PutRun) and op.row.key == KEY and op.row.state.terminal for op in ops)


def begins(ops: Sequence[Op]) -> bool:
    """Commits with which a run begins on the root's thread."""
    return any(isinstance(op, Append) and op.key == KEY and op.events[0].type == "RUN_STARTED" for op in ops)


def told(request: ModelRequest) -> int:
    """How many notices of tasks a request has."""
    spoken = [message for message in messages_of(request) if isinstance(message, UserMessage)]
    return sum(message.notice == "background-task" for message in spoken)


class Stage:
    """A root with one task that ends when it is let go."""

    def __init__(self, runtime: Runtime, **options: Any) -> None:
        self.go = asyncio.Event()
        self.model = RecordingModel(self._answer)
        kid = SubAgent("kid", "Helps.", instructions="Help.")
        self.agent = Agent("root", model=self.model, subagents=[kid], runtime=runtime, **options)

    async def _answer(self, request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            await self.go.wait()
            return "kid is done"
        return calls(SPAWN) if len(self.model.asked("root")) == 1 else "ok"


@pytest.mark.contract("D-20", "H-20")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_commit_of_a_parents_end_and_that_of_its_tasks_end(sound: Sound, order: tuple[int, int]) -> None:
    """The parent has read its mailbox for the last time, its end is on its way, and so is the task's, in both orders."""
    ledger = Holding()
    async with Runtime(ledger=ledger) as runtime:
        stage = Stage(runtime)
        async with stage.agent:
            ledger.holds = ends("root")
            run = asyncio.create_task(stage.agent.run("go", context=HERE))
            await ledger.arrived.wait()
            ledger.arrived.clear()
            ledger.holds = ends("task")
            stage.go.set()
            await ledger.arrived.wait()
            ledger.holds = lambda _: False
            ledger.let_go(*order)
            result = await run
            assert (await result.tasks[0].wait()).status == "completed"
        assert [told(request) for request in stage.model.asked("root")] == [0, 0, 1]
        await sound(ledger)


@pytest.mark.contract("D-20")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_wake_races_with_user_input(sound: Sound, order: tuple[int, int]) -> None:
    """A run that was woken and one of a user begin at the same moment: one goes on, both things are said, each once."""
    ledger = Holding()
    async with Runtime(ledger=ledger) as runtime:
        stage = Stage(runtime)
        async with stage.agent:
            await stage.agent.run("go", context=HERE)
            ledger.holds = begins
            stage.go.set()
            await ledger.arrived.wait()  # it is woken
            ledger.arrived.clear()
            run = asyncio.create_task(stage.agent.run("and?", context=HERE))
            await ledger.arrived.wait()
            ledger.holds = lambda _: False
            ledger.let_go(*order)
            (said,) = await asyncio.gather(run, return_exceptions=True)
        if order == (1, 0):
            assert not isinstance(said, BaseException)
        else:
            assert isinstance(said, ThreadBusy)
            await stage.agent.run("and?", context=HERE)
        last = messages_of(stage.model.asked("root")[-1])
        spoken = [message for message in last if isinstance(message, UserMessage)]
        assert [message.text for message in spoken if not message.notice] == ["go", "and?"]
        assert sum(message.notice == "background-task" for message in spoken) == 1
        answered = [message for message in last if isinstance(message, AssistantMessage)]
        assert len(answered) == len(stage.model.asked("root")) - 1
        await sound(ledger)
