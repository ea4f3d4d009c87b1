"""The fake provider as a process of its own: it prints its URL, counts, and ends with its standard input."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


async def test_it_serves_records_and_ends(tmp_path: Path) -> None:
    script, record = tmp_path / "script.json", tmp_path / "record.jsonl"
    script.write_bytes(msgspec.json.encode(["from the file"]))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "retinue.testing.provider", "--script", str(script), "--port", "0", "--record", str(record)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    root = url.removesuffix("/v1")
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{url}/chat/completions", json=BODY) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "from the file"
        for times in (1, 2):
            async with client.post(f"{root}/__tool", json={"key": "k", "name": "pay"}) as response:
                assert await response.json() == {"times": times, "total": times}
        async with client.post(f"{root}/__fail", json={"status": 503}) as response:
            assert response.status == 200
        async with client.post(f"{url}/chat/completions", json=BODY) as response:
            assert response.status == 503
        async with client.post(f"{root}/__fail", json={"nonsense": 1}) as response:
            assert response.status == 400
        async with client.get(f"{root}/__record") as response:
            seen = await response.json()
    assert [one["body"] for one in seen["requests"]] == [BODY, BODY]
    assert [one["name"] for one in seen["tools"]] == ["pay", "pay"]
    process.stdin.close()
    assert await process.wait() == 0
    lines = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
    assert [line["type"] for line in lines] == ["request", "tool", "tool", "request"]


async def test_it_ends_at_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue.testing.provider", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"http://127.0.0.1:")
    process.terminate()
    assert await process.wait() == 0
