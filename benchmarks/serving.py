"""A model server for the benchmarks: chat completions, streamed, in a process of its own, on loopback.

What it answers is decided from the request: `fan` in the last user message asks for 200 children, `DELEGATE` for one,
`HOLD` (and every child of `fan`) waits until it is released, anything else is "done".
"""

import asyncio
import json
import sys
from typing import Any, Self

__all__ = ["Endpoint"]

CHILDREN = 200


class Endpoint:
    """The server as an async context manager; `url` is its base."""

    def __init__(self) -> None:
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.serving", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = (await self._process.stdout.readline()).decode().strip()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def held(self, count: int) -> None:
        """Return when `count` requests are held."""
        await self._ask(f"held {count}")

    async def release(self) -> None:
        """Let the held requests go on."""
        await self._ask("release")

    async def _ask(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()
        await self._process.stdout.readline()


class _Server:
    def __init__(self) -> None:
        self.waiting = 0
        self.fanning = False
        self.gate = asyncio.Event()
        self.changed = asyncio.Event()

    async def answer(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        last = body["messages"][-1]
        text = last.get("content") or ""
        calls = 0
        if last["role"] == "user" and text == "fan":
            calls, self.fanning = CHILDREN, True
        elif last["role"] == "user" and text == "DELEGATE":
            calls = 1
        elif text == "HOLD" or (self.fanning and last["role"] == "user" and text == "x"):
            self.waiting += 1
            self.changed.set()
            await self.gate.wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_stream(calls))
        await response.write_eof()
        return response


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'x', 'model': 'm', 'choices': [choice]})}\n\n"


def _stream(calls: int) -> bytes:
    parts = [_chunk({"role": "assistant", "content": ""})]
    if calls:
        made = [
            {"index": i, "id": f"c{i}", "type": "function", "function": {"name": "child", "arguments": '{"input":"x"}'}}
            for i in range(calls)
        ]
        parts += [_chunk({"tool_calls": made}), _chunk({}, "tool_calls")]
    else:
        parts += [_chunk({"content": "do"}), _chunk({"content": "ne"}), _chunk({}, "stop")]
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    parts += [f"data: {json.dumps({'id': 'x', 'model': 'm', 'choices': [], 'usage': usage})}\n\n", "data: [DONE]\n\n"]
    return "".join(parts).encode()


async def _serve() -> None:
    from aiohttp import web

    server = _Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "held":
            while server.waiting < int(line[1]):
                server.changed.clear()
                await server.changed.wait()
        elif line[0] == "release":
            server.gate.set()
        print("ok", flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve())
