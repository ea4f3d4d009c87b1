"""The adapter against llama.cpp's own server: an answer, its stream, its end by cancel, what it says of errors."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from retinue.config import ChatClientConfig
from retinue.errors import ModelError
from retinue.models import OpenAIChatModel, TextDelta
from retinue.testing.requests import Deltas, model_request

pytestmark = pytest.mark.anyio

SHORT = ChatClientConfig(max_tokens=48)


async def _busy(model: OpenAIChatModel) -> int:
    """How many slots of the server generate."""
    url = model.profile.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session, session.get(f"{url}/slots") as response:
        slots: list[dict[str, Any]] = await response.json()
    return sum(bool(slot["is_processing"]) for slot in slots)


async def test_an_answer_with_its_usage(model: OpenAIChatModel) -> None:
    answer = await model.answer(model_request("What is the capital of France?", settings=SHORT), Deltas())
    print(f"{answer.text!r} {answer.usage}")
    assert answer.text.strip()
    assert answer.usage.input_tokens > 10
    assert 0 < answer.usage.output_tokens <= 48
    assert answer.finish_reason in ("stop", "length")
    assert answer.cost is None
    assert answer.calls == ()


async def test_it_comes_in_pieces(model: OpenAIChatModel) -> None:
    times: list[float] = []
    shown = Deltas()

    def emit(delta: Any) -> None:
        times.append(time.monotonic())
        shown(delta)

    started = time.monotonic()
    answer = await model.answer(model_request("Count from one to twenty.", settings=SHORT), emit)
    ended = time.monotonic()
    print(f"{len(shown)} deltas, the first after {times[0] - started:.2f} s, the last after {times[-1] - started:.2f} s")
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == answer.text
    assert len(shown) > 5
    assert times[0] - started < (ended - started) / 2


async def test_a_history_that_grows_is_read_from_the_servers_cache(model: OpenAIChatModel) -> None:
    history = [*model_request("Say hello.", "I am a person with many words. " * 40).history]
    first = await model.answer(model_request(*history, settings=ChatClientConfig(max_tokens=4)), Deltas())
    history += model_request("And again.").history
    second = await model.answer(model_request(*history, step=2, settings=ChatClientConfig(max_tokens=4)), Deltas())
    print(f"{first.usage} then {second.usage}")
    assert second.usage.cached_tokens > first.usage.input_tokens * 0.8


async def test_a_cancel_ends_the_generation(model: OpenAIChatModel) -> None:
    begun = [asyncio.Event(), asyncio.Event()]  # both slots of the server are taken
    asked = model_request("Write a very long story about the sea, the wind and the moon.")
    tasks = [asyncio.create_task(model.answer(asked, lambda _, event=event: event.set())) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    assert await _busy(model) == 2
    stopped = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True]
    gone = time.monotonic()
    while await _busy(model):
        assert time.monotonic() - gone < 5
    idle = time.monotonic()
    answer = await model.answer(model_request("Hi", settings=ChatClientConfig(max_tokens=4)), Deltas())
    told = time.monotonic()
    print(f"cancelled in {gone - stopped:.3f} s, server idle after {idle - gone:.3f} s, next answer in {told - idle:.2f} s")
    assert answer.usage.output_tokens <= 4
    assert told - stopped < 10


async def test_its_errors_have_their_codes(model: OpenAIChatModel) -> None:
    with pytest.raises(ModelError) as caught:
        await model.answer(model_request("word " * 12_000), Deltas())
    print(caught.value)
    assert caught.value.code == "context_overflow"
    with pytest.raises(ModelError) as caught:
        await model.answer(model_request("Hi", settings=ChatClientConfig(extra={"messages_": 1, "n": "many"})), Deltas())
    print(caught.value)
    assert caught.value.code == "bad_request"
