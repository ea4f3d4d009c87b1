"""A server that keeps a connection alive without answering is cut off in the end; one that answers slowly is not."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Thread

import pytest

from retinue.errors import ModelError
from retinue.models import OpenAIChatModel
from retinue.models.port import ModelAnswer
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.requests import model_request

pytestmark = pytest.mark.anyio

BOUND = 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TEXT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
THOUGHT = b'data: {"choices": [{"delta": {"reasoning_content": "a"}}]}\n\n'
ARGUMENT = (
    b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": " "}}]}}]}\n\n'
)
END = b'data: {"choices": [{"delta": {"content": "."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class LookedAt(VirtualClock):
    """A clock that says when somebody looked at it: each piece that is read is such a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Event()

    def monotonic(self) -> float:
        """See `Clock`."""
        self.looked.set()
        return super().monotonic()


class Slow:
    """A server that sends pieces one by one, each after the last one was read and time has passed."""

    def __init__(self) -> None:
        self.clock = LookedAt()
        self.url = ""
        self._asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self._asked.put_nowait(writer)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Slow"]:
        """Serve within the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def answer(self, pieces: list[bytes], seconds: float) -> tuple[ModelAnswer | ModelError, int]:
        """Ask, and give what came of it after which piece."""
        model = OpenAIChatModel("m", base_url=self.url, clock=self.clock, retries=0, idle_timeout=300, keep_alive_timeout=1000)
        asking = asyncio.create_task(model.answer(model_request("Hi"), lambda _: None))
        writer = await self._asked.get()
        sent = 0
        for piece in [HEAD, *pieces]:
            self.clock.looked.clear()
            writer.write(piece)
            await asyncio.wait_for(self.clock.looked.wait(), BOUND)
            await self.clock.advance(seconds)
            if asking.done():
                break
            sent += 1
        try:
            return await asyncio.wait_for(asking, BOUND), sent
        except ModelError as error:
            return error, sent
        finally:
            writer.close()
            await model.close()


@pytest.mark.parametrize(
    "piece",
    [
        b": ping\n\n",
        b"data: {}\n\n",
        b"data:\n\n: ping\n\n",
        b"event: ping\n\n",
        b'data: {"choices": []}\n\n',
        b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
        b'data: {"choices": [{"delta": {"reasoning_content": ""}}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}}]}\n\n',
        b"\n",
    ],
)
async def test_keep_alives_hold_a_connection_for_longer_but_not_for_ever(piece: bytes) -> None:
    async with Slow().listening() as server:
        error, sent = await server.answer([piece] * 30, 100)
    assert isinstance(error, ModelError)
    assert error.code == "timeout"
    assert "nothing of an answer came in 1000 s" in str(error)
    assert 8 <= sent <= 11  # longer than the 300 s of silence; a call that was begun counts once


@pytest.mark.parametrize("piece", [TEXT, THOUGHT, ARGUMENT])
async def test_an_answer_that_comes_slowly_is_not_cut_off(piece: bytes) -> None:
    async with Slow().listening() as server:
        answer, _ = await server.answer([*[b": ping\n\n", b"data: {}\n\n", piece] * 10, END], 200)
    assert isinstance(answer, ModelAnswer)


async def test_silence_is_told_as_silence() -> None:
    async with Slow().listening() as server:
        error, sent = await server.answer([TEXT, b": ping\n\n"], 300)
    assert "not a byte in 300 s" in str(error)
    assert sent == 0


async def test_white_space_before_a_document_keeps_alive_no_longer() -> None:
    async with Slow().listening() as server:
        error, sent = await server.answer([b'{"choices"', *[b"  \n"] * 30], 100)
    assert "nothing of an answer came in 1000 s" in str(error)
    assert sent <= 12


async def test_closing_a_model_leaves_what_another_loop_has_open() -> None:
    """A call that is under way there goes on, also while that loop's thread is busy: nobody waits for it."""
    async with StrictProvider() as provider:
        model, gate = provider.model(), provider.hold()
        texts: list[str] = []

        async def ask() -> None:
            texts.append((await model.answer(model_request("Hi"), lambda _: None)).text)
            await model.close()

        thread = Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        await provider.arrived(1)
        await asyncio.wait_for(model.close(), BOUND)
        gate.release()
        await asyncio.to_thread(thread.join, BOUND)
    assert texts == ["ok"]
