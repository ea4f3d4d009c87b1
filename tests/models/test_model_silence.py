"""The watch over silence: one task for all exchanges of a loop, gone when they are; plain chunks read as any other."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.assemble import Assembler
from retinue.models.idle import IdleWatch, IdleWatches
from retinue.models.plain import plain_chunk
from retinue.testing import VirtualClock

pytestmark = pytest.mark.anyio


async def _exchange(watches: IdleWatches, entered: list[IdleWatch]) -> str:
    try:
        async with watches.watch() as watch:
            entered.append(watch)
            await asyncio.Event().wait()
    except TimeoutError:
        return "cut off"
    return "over"


def _watching() -> int:
    return sum(task.get_name() == "retinue-model-idle" for task in asyncio.all_tasks())


async def test_one_task_watches_all_and_each_is_cut_off_in_its_time() -> None:
    clock, entered = VirtualClock(), list[IdleWatch]()
    watches = IdleWatches(clock, 30)
    first = asyncio.create_task(_exchange(watches, entered))
    await clock.advance(10.1)
    second = asyncio.create_task(_exchange(watches, entered))
    third = asyncio.create_task(_exchange(watches, entered))
    await clock.advance(0.1)
    assert (_watching(), clock.sleepers) == (1, 1)
    await clock.advance(15)
    entered[1].touch()
    await clock.advance(5)
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    await clock.advance(10)
    assert (second.done(), third.done()) == (False, True)
    await clock.advance(15)
    assert [await one for one in (first, second, third)] == ["cut off"] * 3
    assert (_watching(), clock.sleepers) == (0, 0)


async def test_a_cancelled_exchange_is_not_cut_off_and_leaves_no_task() -> None:
    clock, entered = VirtualClock(), list[IdleWatch]()
    watches = IdleWatches(clock, 30)
    task = asyncio.create_task(_exchange(watches, entered))
    await clock.advance(1)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    await watches.close()
    assert (_watching(), clock.sleepers) == (0, 0)
    await watches.close()


@pytest.mark.parametrize("start", [0.1, 1 / 3, 1234.5678, 98765.4321])
async def test_the_time_comes_however_it_is_rounded(start: float) -> None:
    clock, entered = VirtualClock(auto=True), list[IdleWatch]()
    await clock.sleep(start)
    assert await asyncio.wait_for(_exchange(IdleWatches(clock, 20.7), entered), 10) == "cut off"


TEXTS = st.none() | st.text(max_size=5)
DELTAS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": TEXTS | st.lists(st.just({"type": "text", "text": "part"}), max_size=2),
        "refusal": TEXTS,
        "reasoning_content": TEXTS,
        "tool_calls": st.none() | st.just([{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]),
        "provider_state": st.just("s"),
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.none() | st.integers(0, 1),
        "delta": DELTAS,
        "message": DELTAS,
        "finish_reason": st.none() | st.sampled_from(["stop", "length", ""]),
        "logprobs": st.none(),
    },
)
CHUNKS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("x"),
        "model": st.none() | st.sampled_from(["m", "n"]),
        "choices": st.none() | st.lists(CHOICES, max_size=3),
        "usage": st.none() | st.just({"prompt_tokens": 3, "completion_tokens": 4}),
    },
)


@given(st.lists(CHUNKS, max_size=6))
def test_a_plain_chunk_says_the_same_as_any_other(chunks: list[dict[str, Any]]) -> None:
    typed, generic = Assembler(), Assembler()
    shown: list[object] = []
    wanted: list[object] = []
    for chunk in chunks:
        plain = plain_chunk(msgspec.json.encode(chunk))
        shown += typed.feed(chunk) if plain is None else typed.feed_plain(plain)
        wanted += generic.feed(chunk)
    assert shown == wanted
    assert (typed.finish, typed.model, typed.usage, typed.received) == (
        generic.finish,
        generic.model,
        generic.usage,
        generic.received,
    )
    if generic.finish is not None or generic.received:
        assert typed.answer() == generic.answer()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"error":{"message":"no"}}',
        b'{"error":"no","choices":[]}',
        b'{"choices":[{"delta":{"content":"a","new_key":1}}]}',
        b'{"choices":[{"delta":{"tool_calls":[]}}]}',
        b'{"choices":[{"message":{"content":"a"}}]}',
        b'{"choices":[{"delta":{"content":"\\ud83e"}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_more_than_text_is_no_plain_chunk(data: bytes) -> None:
    assert plain_chunk(data) is None
