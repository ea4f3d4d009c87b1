"""The fake provider as a process of its own, which outlives the SIGKILL of the process that is tested.

    python -m retinue.testing.provider --script FILE --port 0 --record FILE

prints its base URL on the first line, and ends when its standard input does or at SIGTERM. Besides Chat Completions it
answers `GET /__record` (requests and tool effects so far), `POST /__tool` (a tool reports an effect: `{"key": …}` and what
it likes; the answer says how often that key has come) and `POST /__fail` (a `ProviderFault`, with `agent`, `step`, `times`).
"""

import argparse
import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Any

import msgspec
from aiohttp import web

from retinue.json_text import dumps
from retinue.testing.provider import StrictProvider
from retinue.testing.provider_record import Recorded

__all__ = ["main"]


class _Journal:
    """Requests and effects, also written to a file, one a line."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = path.open("ab") if path is not None else None
        self.effects: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()

    def request(self, recorded: Recorded) -> None:
        self._write({"type": "request", **recorded.summary()})

    def effect(self, effect: dict[str, Any]) -> int:
        """Record an effect; how often its key has come."""
        self.effects.append(effect)
        self._counts[str(effect.get("key"))] += 1
        self._write({"type": "tool", **effect})
        return self._counts[str(effect.get("key"))]

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(dumps(line) + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


async def _serve(options: argparse.Namespace) -> None:
    journal = _Journal(options.record)
    provider = StrictProvider(options.script, echo_extras=options.echo_extras, record=journal.request)

    async def read(request: web.Request) -> web.Response:
        body = {"requests": [one.summary() for one in provider.requests], "tools": journal.effects}
        return web.Response(body=dumps(body), content_type="application/json")

    async def effect(request: web.Request) -> web.Response:
        times = journal.effect(await request.json())
        return web.json_response({"times": times, "total": len(journal.effects)})

    async def fail(request: web.Request) -> web.Response:
        try:
            provider.fail(**await request.json())
        except (msgspec.ValidationError, TypeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    routes = [web.get("/__record", read), web.post("/__tool", effect), web.post("/__fail", fail)]
    await provider.start(options.port, routes)
    end = _end()  # before anyone can know that we run
    print(provider.url, flush=True)
    try:
        await end.wait()
    finally:
        await provider.stop()
        journal.close()


def _end() -> asyncio.Event:
    """Set at SIGTERM, SIGINT, or the end of standard input."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    stdin = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            end.set()

    try:
        loop.add_reader(stdin, readable)
    except OSError:
        pass  # a file or /dev/null: nobody will end it
    return end


def main(arguments: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m retinue.testing.provider", description="A strict fake provider.")
    parser.add_argument("--script", type=Path, help="JSON or YAML, as for ScriptedModel; left out it says ok")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append each request and tool effect to this file, one a line")
    parser.add_argument("--echo-extras", action="store_true", help="refuse messages with calls that lost `provider_state`")
    asyncio.run(_serve(parser.parse_args(arguments)))
