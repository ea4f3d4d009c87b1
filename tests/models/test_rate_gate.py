"""A provider's limit is everybody's: one call that runs into it holds the others back, and nobody waits longer than it says."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from retinue.errors import ModelError
from retinue.models.openai import OpenAIChatModel
from retinue.models.rate_gate import RateGate
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.requests import model_request

pytestmark = pytest.mark.anyio


def _ignore(_: object) -> None:
    pass


async def turns() -> None:
    """Let whoever can go on do so."""
    for _ in range(8):
        await asyncio.sleep(0)


@asynccontextmanager
async def pause() -> AsyncGenerator[None]:
    """Nothing is given back."""
    yield


class Calls:
    """Calls through a gate, in the order in which they were let in."""

    def __init__(self, gate: RateGate) -> None:
        self.gate = gate
        self.begun: list[str] = []
        self.let_in: dict[str, bool] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def call(self, name: str, depth: int = 1) -> None:
        """Make one."""
        self.tasks[name] = asyncio.create_task(self._call(name, depth))

    async def _call(self, name: str, depth: int) -> None:
        self.let_in[name] = await self.gate.enter(depth, pause)
        self.begun.append(name)


async def test_nobody_goes_in_before_the_time_and_then_one_by_one() -> None:
    clock = VirtualClock()
    calls = Calls(RateGate(clock))
    calls.call("first")
    await turns()
    assert calls.let_in == {"first": False}
    calls.gate.limited(20)
    for name, depth in (("a", 1), ("deep", 3), ("b", 1), ("c", 1), ("d", 1)):
        calls.call(name, depth)
    await clock.advance(19)
    assert calls.begun == ["first"]
    await clock.advance(2)
    assert calls.begun == ["first", "deep"]  # the deepest goes first
    calls.gate.passed(True)
    await turns()
    assert calls.begun == ["first", "deep", "a", "b"]
    calls.gate.left(True)  # it failed for another reason
    await turns()
    assert calls.begun[-1] == "c"
    calls.gate.passed(True)
    await turns()
    assert (calls.begun[-1], calls.gate.waiting) == ("d", 0)
    calls.call("later")
    await turns()
    assert calls.let_in["later"] is False  # it is open again


async def test_who_runs_into_it_again_holds_all_back_again() -> None:
    clock = VirtualClock()
    calls = Calls(RateGate(clock))
    calls.gate.limited(10)
    for name in ("a", "b"):
        calls.call(name)
    await clock.advance(11)
    assert calls.begun == ["a"]
    calls.gate.limited(30)
    await clock.advance(29)
    assert calls.begun == ["a"]
    await clock.advance(2)
    assert calls.begun == ["a", "b"]


async def test_who_waits_no_more_takes_no_room() -> None:
    clock = VirtualClock()
    calls = Calls(RateGate(clock))
    calls.gate.limited(10)
    for name in ("a", "b", "c"):
        calls.call(name)
    await turns()
    calls.tasks["a"].cancel()
    await clock.advance(11)
    assert calls.begun == ["b"]
    calls.tasks["c"].cancel()  # given room at the same moment
    calls.gate.passed(True)
    await turns()
    calls.call("d")
    await turns()
    assert calls.begun == ["b", "d"]


@pytest.mark.parametrize("status", [429, 503])
async def test_calls_beside_one_that_is_limited_wait_too(status: int) -> None:
    clock = VirtualClock()
    async with StrictProvider({"agents": {"*": ["hello"]}}) as provider:
        provider.fail(status=status, retry_after=20)
        model = OpenAIChatModel("fake", base_url=provider.url, clock=clock)
        first = asyncio.create_task(model.answer(model_request("Hi"), _ignore))
        await provider.arrived(1)
        while not model._connections.here().gate._until:  # noqa: ASYNC110  the answer is on its way
            await asyncio.sleep(0)
        others = [asyncio.create_task(model.answer(model_request("Hi"), _ignore)) for _ in range(3)]
        await clock.advance(19)
        assert len(provider.requests) == 1
        await clock.advance(2)
        answers = await asyncio.gather(first, *others)
        assert [answer.text for answer in answers] == ["hello"] * 4
        assert len(provider.requests) == 5
        await model.close()


async def test_a_limit_that_is_not_waited_for_is_everybodys_too() -> None:
    """Its own call fails at once, because it may not be tried again."""
    clock = VirtualClock()
    async with StrictProvider({"agents": {"*": ["hello"]}}) as provider:
        provider.fail(status=429, retry_after=20)
        model = OpenAIChatModel("fake", base_url=provider.url, clock=clock, retries=0)
        with pytest.raises(ModelError, match="limits the calls"):
            await model.answer(model_request("Hi"), _ignore)
        other = asyncio.create_task(model.answer(model_request("Hi"), _ignore))
        await clock.advance(19)
        assert len(provider.requests) == 1
        await clock.advance(2)
        assert (await other).text == "hello"
        await model.close()


async def test_a_fault_of_one_call_holds_nobody_back() -> None:
    clock = VirtualClock()
    async with StrictProvider({"agents": {"*": ["hello"]}}) as provider:
        provider.fail(status=500)
        model = OpenAIChatModel("fake", base_url=provider.url, clock=clock)
        first = asyncio.create_task(model.answer(model_request("Hi"), _ignore))
        await provider.arrived(1)
        assert (await model.answer(model_request("Hi"), _ignore)).text == "hello"
        await clock.advance(10)
        assert (await first).text == "hello"
        await model.close()
