"""The seeded loop finds a planted race, shows it again by its seed, and finds none in the kernel."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from retinue import Agent, Limits, PermissionRules, RunResult, Runtime, RuntimeContext, SubAgent, ThreadBusy
from retinue.ledger import MemoryLedger
from retinue.testing import RecordingModel, ScriptedAgent, SeededLoop, calls, explore, faults_of
from retinue.testing.audit import audit


class Counter:
    """A counter with a race: reading and writing are two steps."""

    def __init__(self) -> None:
        self.value = 0

    async def add(self) -> None:
        before = self.value
        await asyncio.sleep(0)
        self.value = before + 1


async def careless() -> int:
    """Two that add one after the other would be right; that the second waits two rounds is no guarantee."""
    counter = Counter()

    async def late() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await counter.add()

    await asyncio.gather(counter.add(), late())
    return counter.value


async def order() -> list[int]:
    seen: list[int] = []

    async def note(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(number)

    await asyncio.gather(*(note(number) for number in range(5)))
    return seen


def test_a_planted_race_is_found_and_shown_again() -> None:
    assert asyncio.run(careless()) == 2  # never seen on the usual loop

    async def checked() -> None:
        assert await careless() == 2

    with pytest.raises(AssertionError) as found:
        explore(checked, seeds=50)
    (note,) = found.value.__notes__
    seed = int(note.split("`explore(…, seeds=[")[1].split("]")[0])
    with pytest.raises(AssertionError):
        explore(checked, seeds=[seed])


def test_the_seed_decides_the_order() -> None:
    first, again = explore(order, seeds=20), explore(order, seeds=20)
    assert first == again
    assert len({tuple(one) for one in first}) > 10


def test_without_delay_only_the_order_of_a_round_differs() -> None:
    for seen in explore(order, seeds=20, delay=0):
        rounds = [sorted(seen[at : at + 5]) for at in range(0, 15, 5)]
        assert rounds == [[0, 1, 2, 3, 4]] * 3


def test_callbacks_keep_their_order() -> None:
    async def scheduled() -> list[int]:
        seen, ended = list[int](), asyncio.Event()
        for number in range(9):
            asyncio.get_running_loop().call_soon(seen.append, number)
        asyncio.get_running_loop().call_soon(ended.set)
        await ended.wait()
        return seen

    assert explore(scheduled, seeds=10) == [list(range(9))] * 10


def test_sockets_and_threads_work_on_it() -> None:
    async def served() -> tuple[str, int]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return answer.decode(), await asyncio.to_thread(sum, (1, 2))

    assert explore(served, seeds=5) == [("hello\n", 3)] * 5


def test_a_scenario_that_hangs_names_its_seed() -> None:
    with pytest.raises(TimeoutError) as found:
        explore(asyncio.Event().wait, seeds=[3], timeout=0.01)
    assert "seed 3" in found.value.__notes__[0]


def test_a_loop_can_be_had_alone() -> None:
    with asyncio.Runner(loop_factory=lambda: SeededLoop(7)) as runner:
        assert sorted(runner.run(order())) == sorted([*range(5)] * 3)


# The kernel, under 50 seeds


class Stage:
    """An agent with four children on the roster, and what must hold of every run of it."""

    def __init__(self, tree: ScriptedAgent, **options: Any) -> None:
        self.ledger = MemoryLedger()
        self.model = RecordingModel(tree.script())
        self.agent = Agent(
            tree.agent_id,
            model=self.model,
            runtime=Runtime(ledger=self.ledger, limits=Limits(max_children=2)),
            subagents=[SubAgent(one.agent_id, "A child.", instructions="…", leaf=False) for one in list(tree.walk())[1:]],
            permissions=PermissionRules(allow=["*"]),
            **options,
        )

    async def sound(self, result: RunResult) -> None:
        assert await audit(self.ledger, result.run_id) == []
        for request in self.model.requests:
            assert faults_of(request.history, sent=True) == []


PAIR = [ScriptedAgent("writer", ScriptedAgent("reader", says="read")), ScriptedAgent("tester", says="tested")]
TREE = ScriptedAgent("lead", PAIR, ScriptedAgent("closer", says="closed"), says="{results}")


def test_side_by_side_delegations_give_the_same_under_every_seed() -> None:
    async def scenario() -> tuple[int, int]:
        stage = Stage(TREE)
        async with stage.agent as agent:
            result = await agent.run("Begin.")
            await stage.sound(result)
            return result.text.count("reply:"), result.usage.calls

    assert set(explore(scenario, seeds=50)) == {(3, 8)}


@pytest.mark.contract("H-20")
def test_a_cancel_at_any_time_leaves_a_sound_tree() -> None:
    async def scenario() -> str:
        stage = Stage(TREE)
        async with stage.agent as agent:
            running = asyncio.create_task(agent.run("Begin.", check=False))
            for _ in range(8):
                await asyncio.sleep(0)
            await agent.cancel()
            result = await running
            asked = len(stage.model.requests)
            await asyncio.sleep(0)
            assert len(stage.model.requests) == asked
            await stage.sound(result)
            return result.status

    assert set(explore(scenario, seeds=50)) <= {"cancelled", "completed"}


def test_of_two_runs_at_once_on_one_thread_one_is_refused() -> None:
    async def scenario() -> tuple[int, int]:
        stage = Stage(ScriptedAgent("lead", calls(("agent_list", {})), says="ok"))
        async with stage.agent as agent:
            work = [agent.run("Begin.", context=RuntimeContext(session_id="s")) for _ in range(3)]
            ended = await asyncio.gather(*work, return_exceptions=True)
            done = [one for one in ended if isinstance(one, RunResult)]
            for result in done:
                await stage.sound(result)
            return len(done), sum(isinstance(one, ThreadBusy) for one in ended)

    for done, refused in explore(scenario, seeds=50):
        assert done >= 1
        assert done + refused == 3


def test_other_threads_may_call_in_while_a_round_is_put_in_order() -> None:
    """As a ledger's writer does (`call_soon_threadsafe`)."""
    done = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call_in() -> None:
            for _ in range(20_000):
                if done.is_set():
                    return
                loop.call_soon_threadsafe(int)

        async def steps() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        thread = threading.Thread(target=call_in)
        thread.start()
        try:
            await asyncio.gather(*(steps() for _ in range(50)))
        finally:
            done.set()
            thread.join()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with asyncio.Runner(loop_factory=lambda: SeededLoop(7)) as runner:
            runner.run(main())
    finally:
        sys.setswitchinterval(before)
