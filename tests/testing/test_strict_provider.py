"""The fake provider towards a plain client: it answers, refuses, records and fails as it is told."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec
import pytest

from retinue import Agent, RunFailed, RunResult
from retinue.errors import ConfigurationError
from retinue.testing import Recorded, StrictProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def _body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages) or [{"role": "user", "content": "Hello"}]} | more


async def _post(client: aiohttp.ClientSession, provider: StrictProvider, body: Any) -> tuple[int, Any]:
    async with client.post(f"{provider.url}/chat/completions", json=body) as response:
        return response.status, await response.json()


async def test_it_answers_a_plain_client_with_a_document(client: aiohttp.ClientSession) -> None:
    async with StrictProvider(["You said {input}."]) as provider:
        status, answer = await _post(client, provider, _body())
        assert status == 200
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "You said Hello."}
        assert provider.requests[0].body["model"] == "m"
        assert msgspec.json.decode(provider.requests[0].raw) == provider.requests[0].body


async def test_it_streams_to_a_plain_client(client: aiohttp.ClientSession) -> None:
    async with StrictProvider([{"text": "abcd", "chunk": 2}]) as provider:
        async with client.post(f"{provider.url}/chat/completions", json=_body(stream=True)) as response:
            lines = [line async for line in response.content]
        events = [line.removeprefix(b"data: ").strip() for line in lines if line.strip()]
        assert events[-1] == b"[DONE]"
        deltas = [msgspec.json.decode(event)["choices"][0]["delta"] for event in events[:-2]]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "ab"}, {"content": "cd"}, {}]


async def test_it_knows_agent_and_turn_of_a_plain_client(client: aiohttp.ClientSession) -> None:
    script = {
        "writer": {"marker": "You write.", "turns": ["w1", "w2"]},
        "reader": {"marker": "You read.", "turns": [{"calls": [{"name": "look"}]}, "r2"]},
    }
    system = {"role": "system", "content": "You read."}
    tools = [{"type": "function", "function": {"name": "look"}}]
    async with StrictProvider(script) as provider:
        user = {"role": "user", "content": "go"}
        _, first = await _post(client, provider, _body(system, user, tools=tools))
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "seen"}
        _, second = await _post(client, provider, _body(system, user, message, result, tools=tools))
        assert second["choices"][0]["message"]["content"] == "r2"
        assert [(one.agent, one.step) for one in provider.requests] == [("reader", 1), ("reader", 2)]


async def test_it_refuses_and_says_which_rule(client: aiohttp.ClientSession) -> None:
    async with StrictProvider() as provider:
        status, answer = await _post(client, provider, _body({"role": "tool", "tool_call_id": "a", "content": "x"}))
        assert status == 400
        assert answer["error"]["code"] == "orphan_result"
        assert [one.refused and one.refused[0] for one in provider.refused] == ["orphan_result"]


@pytest.mark.parametrize("raw", [b"\xff", b"{", b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}'])
async def test_it_refuses_bytes_that_are_no_text(client: aiohttp.ClientSession, raw: bytes) -> None:
    async with StrictProvider() as provider, client.post(f"{provider.url}/chat/completions", data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "invalid_json"


@pytest.mark.case("B175")
async def test_it_refuses_a_lone_surrogate(client: aiohttp.ClientSession) -> None:
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    async with StrictProvider() as provider, client.post(f"{provider.url}/chat/completions", data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "lone_surrogate"


async def test_a_function_decides_from_the_request(client: aiohttp.ClientSession) -> None:
    def reply(request: Recorded) -> str:
        return f"{len(request.messages)} messages"

    async with StrictProvider(reply) as provider:
        _, answer = await _post(client, provider, _body())
        assert answer["choices"][0]["message"]["content"] == "1 messages"


async def test_a_script_that_has_ended_is_an_error(client: aiohttp.ClientSession) -> None:
    async with StrictProvider({"other": ["x"], "more": ["y"]}) as provider:
        status, answer = await _post(client, provider, _body())
        assert (status, answer["error"]["code"]) == (400, "no_turn")


async def test_a_held_request_waits_for_its_gate(client: aiohttp.ClientSession) -> None:
    async with StrictProvider() as provider:
        gate = provider.hold()
        task = asyncio.create_task(_post(client, provider, _body()))
        await gate.arrived.wait()
        assert not provider.requests[0].answered
        gate.release()
        assert (await task)[0] == 200


async def test_it_ends_although_a_request_is_held(client: aiohttp.ClientSession) -> None:
    async with StrictProvider() as provider:
        gate = provider.hold()
        task = asyncio.create_task(_post(client, provider, _body()))
        await gate.arrived.wait()
    await asyncio.wait((task,))
    assert task.done()
    task.exception()


async def test_it_can_ask_for_a_key_and_a_model(client: aiohttp.ClientSession) -> None:
    async with StrictProvider(api_key="sk-right", models=["a"]) as provider:
        assert (await _post(client, provider, _body()))[0] == 401
    async with StrictProvider(models=["a"]) as provider:
        assert (await _post(client, provider, _body()))[0] == 404
        async with client.get(f"{provider.url}/models") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ["a"]


async def test_a_fault_is_for_the_agent_it_names(client: aiohttp.ClientSession) -> None:
    async with StrictProvider() as provider:
        provider.fail(status=503, agent="b", headers={"X-Note": "n"}, retry_after=2)
        assert (await _post(client, provider, _body()))[0] == 200
        async with client.post(f"{provider.url}/chat/completions", json=_body(), headers={"X-Retinue-Agent": "b"}) as response:
            assert (response.status, response.headers["X-Note"], response.headers["Retry-After"]) == (503, "n", "2")


def test_a_script_that_cannot_be_used_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError, match="nonsense"):
        StrictProvider({"a": [{"nonsense": 1}]})


def _raises(_request: Recorded) -> str:
    raise ValueError("no such page")


def _misspells(_request: Recorded) -> dict[str, Any]:
    return {"text": "Hello.", "usage": {"input_tokens": 5}}


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        (_raises, ValueError, "the script function failed for agent `desk`, turn 1: ValueError: no such page"),
        (_misspells, ConfigurationError, "`input_tokens`"),
    ],
)
async def test_a_fault_of_the_script_function_is_told_as_such(function: Any, kind: type[Exception], said: str) -> None:
    async def ask() -> None:
        async with StrictProvider(function) as provider, Agent("desk", model=provider.model()) as agent:
            results.append(await agent.run("Hi.", check=False))
        raise AssertionError("the fault was not raised")

    results: list[RunResult] = []
    with pytest.raises(kind):
        await ask()
    (result,) = results
    assert result.reason == "bad_request"
    assert said in result.message
    assert "not retried" in result.message


async def test_a_fault_of_the_script_function_hides_no_other_error() -> None:
    async def ask() -> None:
        async with StrictProvider(_raises) as provider, Agent("desk", model=provider.model()) as agent:
            await agent.run("Hi.")

    with pytest.raises(RunFailed, match="no such page"):
        await ask()
