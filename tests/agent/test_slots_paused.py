"""A wait inside a model call gives its slot back: a limit on children counts those at work (M9, D-30)."""

import asyncio

import pytest

from retinue import Agent, Limits, PermissionRules, Runtime, RuntimeContext, SubAgent
from retinue.agent.slots import Hold, Slots
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

ASK_BOTH = {"calls": [{"name": name, "arguments": {"input": "go"}} for name in ("limited", "other")]}
SCRIPT = {"root": [ASK_BOTH, "root is done"], "limited": ["limited is done"], "other": ["other is done"]}


def parent(provider: StrictProvider, clock: VirtualClock) -> Agent:
    """A root with two children and one slot for them. The other has a model of its own, with a gate of its own."""
    limited = SubAgent("limited", "Helps.", instructions="Help.", surface="tool")
    other = SubAgent("other", "Helps.", instructions="Help.", surface="tool", model="second")
    children = [limited, other]
    runtime = Runtime(clock=clock, limits=Limits(max_children=1), models={"second": provider.model(clock=clock)})
    allowed = PermissionRules(allow=["*"])
    return Agent("root", model=provider.model(clock=clock), subagents=children, permissions=allowed, runtime=runtime)


@pytest.mark.contract("D-30")
async def test_others_work_while_one_waits_to_try_again() -> None:
    clock = VirtualClock()
    async with StrictProvider(SCRIPT) as provider:
        provider.fail(status=429, retry_after=20, agent="limited")
        busy = provider.hold(agent="other")
        agent = parent(provider, clock)
        run = asyncio.create_task(agent.run("go"))
        await asyncio.wait_for(provider.arrived(3), 10)
        assert [one.agent for one in provider.requests] == ["root", "limited", "other"]
        await clock.advance(30)
        assert len(provider.asked("limited")) == 1  # its time has come, but the slot is the other's now
        busy.release()
        result = await run
        assert (result.text, provider.refused) == ("root is done", [])
        assert len(provider.asked("limited")) == 2
        assert await audit(agent.runtime.ledger, result.run_id) == []
        await agent.runtime.close()


@pytest.mark.contract("D-30")
@pytest.mark.parametrize("seconds", [10, 30], ids=["before its time", "while it waits for a slot"])
async def test_a_cancel_while_it_waits_loses_no_slot(seconds: int) -> None:
    clock = VirtualClock()
    async with StrictProvider(SCRIPT | {"other": [{"calls": [{"name": "none", "arguments": {}}]}, "other is done"]}) as provider:
        provider.fail(status=429, retry_after=20, agent="limited")
        busy = provider.hold(agent="other")
        agent = parent(provider, clock)
        run = asyncio.create_task(agent.run("go", context=RuntimeContext(session_id="s")))
        await asyncio.wait_for(provider.arrived(3), 10)
        await clock.advance(seconds)
        root = (await agent.runtime.ledger.runs(roots_only=True))[0]
        limited = next(row for row in await agent.runtime.ledger.tree(root.run_id) if row.agent_id == "limited")
        await agent.cancel(limited.run_id)
        busy.release()
        await asyncio.wait_for(provider.arrived(4), 10)  # the other has taken the only slot twice more
        while len(agent.runtime._trees) and not run.done():
            await clock.advance(1)
        result = await run
        ended = {row.agent_id: row.state.value for row in await agent.runtime.ledger.tree(result.run_id)}
        assert ended == {"root": "completed", "limited": "cancelled", "other": "completed"}
        assert len(provider.asked("limited")) == 1
        assert await audit(agent.runtime.ledger, result.run_id) == []
        await agent.runtime.close()


class Worker:
    """A block that holds a slot and waits in the middle."""

    def __init__(self, slots: Slots, order: int) -> None:
        self.hold: Hold = slots.place(1, order).hold()
        self.waited = asyncio.Event()
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with self.hold:
            async with self.hold.pause():
                await self.waited.wait()
            await self.done.wait()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("when", ["pausing", "taking", "given", "working"])
@pytest.mark.parametrize("how", ["cancelled", "released"])
async def test_a_slot_that_was_lent_is_never_lost(when: str, how: str) -> None:
    slots = Slots(1)
    worker = Worker(slots, 0)
    await _turns()
    assert slots.taken == 0
    await slots.take(1, 1)
    if when != "pausing":
        worker.waited.set()
        await _turns()
        assert slots.queued == 1
    if when in ("given", "working"):
        slots.give()
    if when == "working":
        await _turns()
        assert slots.taken == 1
    if how == "cancelled":
        worker.task.cancel()
    else:  # given up as stuck: it goes on, without a slot
        worker.hold.release()
    if when in ("pausing", "taking"):
        slots.give()
    worker.waited.set()
    await _turns()
    assert (slots.taken, slots.queued) == (0, 0)
    worker.done.set()
    await asyncio.wait((worker.task,))
    assert worker.task.cancelled() is (how == "cancelled")
    assert (slots.taken, slots.queued) == (0, 0)


async def test_two_waits_in_one_block_take_one_slot() -> None:
    slots, first, second = Slots(1), asyncio.Event(), asyncio.Event()
    hold = slots.place(1, 0).hold()

    async def wait(event: asyncio.Event) -> None:
        async with hold.pause():
            await event.wait()

    async with hold:
        waits = [asyncio.create_task(wait(event)) for event in (first, second)]
        await _turns()
        assert slots.taken == 0
        await slots.take(1, 1)
        first.set()
        second.set()
        await _turns()
        assert slots.queued == 1
        slots.give()
        await asyncio.gather(*waits)
        assert slots.taken == 1
    assert slots.taken == 0


async def test_a_root_lends_no_slot() -> None:
    slots = Slots(1)
    async with (hold := slots.place(0, 0).hold()), hold.pause():
        assert slots.taken == 0
    assert slots.taken == 0


async def test_a_wait_that_raises_takes_the_slot_again() -> None:
    slots = Slots(1)
    async with (hold := slots.place(1, 0).hold()):
        with pytest.raises(ValueError, match="no"):
            async with hold.pause():
                raise ValueError("no")
        assert slots.taken == 1
    assert slots.taken == 0


async def test_calls_of_one_run_share_a_slot() -> None:
    slots = Slots(1)
    place, other = slots.place(1, 0), slots.place(1, 1)
    async with place.hold():
        async with place.hold():
            assert slots.taken == 1
        waiting = asyncio.create_task(other.enter())
        await _turns()
        assert (slots.taken, slots.queued) == (1, 1)  # the first of the run still works
    await waiting
    other.leave()
    assert (slots.taken, slots.queued) == (0, 0)


async def test_of_calls_that_wait_for_their_slot_any_can_go() -> None:
    slots = Slots(1)
    await slots.take(1, 0)
    place = slots.place(1, 1)
    first, second = (asyncio.create_task(place.enter()) for _ in range(2))
    await _turns()
    assert slots.queued == 1
    first.cancel()
    await _turns()
    assert slots.queued == 1  # it is the second's to take now
    slots.give()
    await second
    assert slots.taken == 1
    place.leave()
    assert slots.taken == 0
