"""The adapter against the strict provider: answers, faults, retries, connections."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from retinue.config import ChatClientConfig
from retinue.errors import ConfigurationError, ModelError
from retinue.messages import Entry, Usage
from retinue.models.openai import OpenAIChatModel
from retinue.models.port import ModelAnswer, ReasoningDelta, TextDelta
from retinue.models.profiles import KNOWN
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.provider_rules import MISTRAL_RULES, RULES
from retinue.testing.requests import Deltas, answered, model_request

pytestmark = pytest.mark.anyio

KEY = "sk-secret-0123456789"
CALLING = {"text": "I add.", "calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]}


def _ignore(_: object) -> None:
    pass


async def _fails(model: OpenAIChatModel, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await model.answer(model_request("Hello", **options), _ignore)
    error = caught.value
    chain = f"{error!r} {error.__cause__!r} {error.__context__!r} {error} {error.remedy}"
    assert KEY not in chain
    return error


@pytest.fixture
async def provider() -> AsyncGenerator[StrictProvider]:
    async with StrictProvider() as running:
        yield running


async def test_an_answer_is_streamed_and_whole() -> None:
    turn = {
        "text": "Hello é🤖",
        "chunk": 3,
        "reasoning": "hm",
        "calls": [{"name": "add", "arguments": {"a": "é"}, "id": "c1"}],
        "usage": {"input": 10, "output": 5, "cached": 4},
    }
    async with StrictProvider([turn]) as provider:
        deltas = Deltas()
        answer = await provider.model().answer(model_request("Hi", tools=["add"]), deltas)
    assert deltas == [ReasoningDelta("hm"), TextDelta("Hel"), TextDelta("lo "), TextDelta("é🤖")]
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Hello é🤖", "hm", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [("c1", "add", '{"a":"é"}')]
    assert answer.usage == Usage(input_tokens=10, output_tokens=5, cached_tokens=4, calls=1)
    assert (answer.cost, answer.model) == (None, "fake")


@pytest.mark.parametrize("piece", [1, 2, 7])
@pytest.mark.parametrize(
    "shape",
    [
        *("omit_index", "same_index", "omit_ids", "repeat_ids", "whole_calls", "interleave", "object_arguments"),
        *("omit_usage", "omit_done", "omit_finish", "crlf", "document"),
    ],
)
async def test_every_shape_of_server_gives_the_same_calls(shape: str, piece: int) -> None:
    async with StrictProvider([CALLING | {"text": "é🤖"}]) as provider:
        provider.fail(shape=[shape], piece=piece)
        answer = await provider.model().answer(model_request("Hi", tools=["add"]), _ignore)
    assert answer.text == "é🤖"
    assert [(call.name, call.arguments) for call in answer.calls] == [("add", '{"a":1}'), ("add", '{"a":2}')]
    assert len({call.id for call in answer.calls}) == 2


@pytest.mark.case("B020")
async def test_what_a_provider_wants_back_it_gets_back() -> None:
    turns = [CALLING | {"reasoning": "hm"}, {"calls": [{"name": "add", "id": "z"}], "reasoning": ""}, "Done."]
    async with StrictProvider(turns, echo_extras=True) as provider:
        model = provider.model()
        history: list[Entry] = [*model_request("Add.").history]
        for step in (1, 2):
            answer = await model.answer(model_request(*history, tools=["add"], step=step), _ignore)
            history += answered(answer, *["3"] * len(answer.calls), provider=model.provider, message_id=f"msg_{step}")
        final = await model.answer(model_request(*history, tools=["add"], step=3), _ignore)
        sent = provider.requests[2].messages
    assert final.text == "Done."
    assert [message.get("reasoning_content") for message in sent if message["role"] == "assistant"] == ["hm", ""]


@pytest.mark.case("B014")
async def test_half_a_call_is_dropped_whole_and_asked_again() -> None:
    async with StrictProvider([{"calls": [{"name": "add", "arguments": {"a": 1}}]}]) as provider:
        provider.fail(half_call=True)
        model = provider.model(clock=VirtualClock(auto=True))
        answer = await model.answer(model_request("Hi", tools=["add"]), _ignore)
        assert [call.arguments for call in answer.calls] == ['{"a":1}']
        assert len(provider.requests) == 2
        assert provider.requests[0].raw == provider.requests[1].raw
        provider.fail(half_call=True, times=3)
        error = await _fails(model, tools=["add"])
        assert (error.code, error.retryable) == ("stream_broken", True)
        assert "tried 3 times" in error.message


@pytest.mark.case("B014")
async def test_what_was_shown_is_not_shown_again() -> None:
    async with StrictProvider([CALLING]) as provider:
        provider.fail(half_call=True)
        deltas = Deltas()
        with pytest.raises(ModelError) as caught:
            await provider.model().answer(model_request("Hi", tools=["add"]), deltas)
        assert (caught.value.code, caught.value.retryable) == ("stream_broken", True)
        assert "tried once, a retry may help" in caught.value.message
        assert deltas == [TextDelta("I add.")]
        assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limited"), (500, "overloaded"), (503, "overloaded"), (529, "overloaded")]
)
@pytest.mark.case("B209")
async def test_passing_faults_are_tried_again_and_then_told(status: int, code: str) -> None:
    clock = VirtualClock(auto=True)
    async with StrictProvider(["ok"]) as provider:
        model = provider.model(clock=clock, jitter=lambda: 1.0)
        provider.fail(status=status, times=2)
        assert (await model.answer(model_request("Hi"), _ignore)).text == "ok"
        assert clock.monotonic() == 0.5 + 1.0
        provider.fail(status=status, times=3)
        error = await _fails(model)
    assert (error.code, error.status, error.retryable) == (code, status, True)
    assert "tried 3 times" in error.message


async def test_the_wait_that_the_provider_asks_for_is_kept() -> None:
    clock = VirtualClock(auto=True)
    async with StrictProvider(["ok"]) as provider:
        provider.fail(status=429, retry_after=20)
        await provider.model(clock=clock).answer(model_request("Hi"), _ignore)
        assert clock.monotonic() == 20
        provider.fail(status=429, retry_after=3600)
        error = await _fails(provider.model(clock=clock))
    assert (error.retry_after, clock.monotonic()) == (3600, 20)
    assert "try again in 3600 s" in (error.remedy or "")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"status": 401}, "authentication"),
        ({"status": 403}, "authentication"),
        ({"status": 404}, "model_not_found"),
        ({"status": 400}, "bad_request"),
        ({"status": 400, "code": "context_length_exceeded"}, "context_overflow"),
        ({"status": 429, "code": "insufficient_quota"}, "rate_limited"),
        ({"body": "<!doctype html><p>Welcome"}, "bad_response"),
        ({"body": "<!doctype html><p>Welcome", "content_type": "text/html"}, "bad_response"),
        ({"body": "{not json"}, "bad_response"),
        ({"body": "plain words", "content_type": "text/plain"}, "bad_response"),
        ({"body": ""}, "bad_response"),
        ({"body": '{"choices": []}'}, "bad_response"),
        ({"body": "[1, 2]"}, "bad_response"),
        ({"body": "data: {broken\n\n", "content_type": "text/event-stream"}, "bad_response"),
        ({"body": "data: [DONE]\n\n", "content_type": "text/event-stream"}, "bad_response"),
        ({"body": '{"error": {"message": "no credit left"}}'}, "bad_response"),
    ],
)
@pytest.mark.case("B202", "B204")
async def test_lasting_faults_are_told_at_once(provider: StrictProvider, fault: dict[str, Any], code: str) -> None:
    provider.fail(**fault)
    error = await _fails(provider.model())
    assert (error.code, error.retryable) == (code, False)
    assert "not retried" in error.message
    assert len(provider.requests) == 1


@pytest.mark.case("B202")
async def test_an_error_inside_the_stream_is_an_error(provider: StrictProvider) -> None:
    events = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"error": {"message": "boom", "code": 502}}\n\n'
    provider.fail(body=events, content_type="text/event-stream")
    error = await _fails(provider.model())
    assert (error.code, error.retryable) == ("overloaded", True)


async def test_a_stream_under_another_content_type_is_read(provider: StrictProvider) -> None:
    events = '\n\ndata: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}'
    provider.fail(body=events, content_type="text/plain")
    assert (await provider.model().answer(model_request("Hi"), _ignore)).text == "a"


async def test_a_stream_that_ends_early_is_broken(provider: StrictProvider) -> None:
    provider.fail(body='data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi', content_type="text/event-stream")
    assert (await _fails(provider.model())).code == "stream_broken"


async def test_a_loss_after_the_finish_reason_does_not_matter(provider: StrictProvider) -> None:
    provider.fail(cut_after=3)
    assert (await provider.model().answer(model_request("Hi"), _ignore)).text == "ok"


async def test_a_connection_that_is_closed_before_the_answer(provider: StrictProvider) -> None:
    provider.fail(cut_after=0, times=3)
    error = await _fails(provider.model(clock=VirtualClock(auto=True)))
    assert (error.code, error.retryable) == ("unreachable", True)
    assert "closed before an answer came" in error.message


async def test_nobody_listens() -> None:
    async with StrictProvider() as provider:
        url = provider.url
    model = OpenAIChatModel("qwen", base_url=url, clock=VirtualClock(auto=True))
    error = await _fails(model)
    await model.close()
    host = url.removeprefix("http://").removesuffix("/v1")
    assert error.message == f"cannot reach `{host}` for model `qwen`: connection refused; tried 3 times"
    assert error.remedy == f"is the server running at {url}? Start it, or choose another model"


@pytest.mark.case("B210")
@pytest.mark.parametrize("fault", [None, {"hang_after": 0}, {"hang_after": 1}])
async def test_silence_ends(provider: StrictProvider, fault: dict[str, Any] | None) -> None:
    clock = VirtualClock()
    if fault is None:
        provider.hold()
    else:
        provider.fail(**fault)
    model = provider.model(clock=clock, retries=0, idle_timeout=30)
    task = asyncio.create_task(_fails(model))
    await provider.arrived(1)
    await clock.advance(29)
    assert not task.done()
    await clock.advance(2)
    error = await task
    assert (error.code, error.retryable) == ("timeout", True)
    assert "not a byte in 30 s" in error.message
    await provider.disconnected()


async def test_a_slow_answer_is_not_silence() -> None:
    clock = VirtualClock(auto=True)
    async with StrictProvider([{"text": "abcdef", "chunk": 1, "chunk_delay": 25}], clock=clock) as provider:
        answer = await provider.model(clock=clock, idle_timeout=30, retries=0).answer(model_request("Hi"), _ignore)
    assert answer.text == "abcdef"
    assert clock.monotonic() > 150


async def test_a_cancel_closes_the_connection(provider: StrictProvider) -> None:
    provider.fail(hang_after=2)
    model = provider.model()
    seen = asyncio.Event()
    task = asyncio.create_task(model.answer(model_request("Hi"), lambda _: seen.set()))
    await seen.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    await provider.disconnected()
    assert (await model.answer(model_request("Hi"), _ignore)).text == "ok"


async def test_an_error_of_the_listener_is_not_the_models(provider: StrictProvider) -> None:
    def listener(_: object) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await provider.model().answer(model_request("Hi"), listener)


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/v1?key=x", "/elsewhere"])
async def test_redirects_are_not_followed(provider: StrictProvider, place: str) -> None:
    provider.fail(redirect=place)
    error = await _fails(provider.model(api_key=KEY))
    assert (error.code, error.status) == ("bad_response", 307)
    assert "which is not followed" in error.message
    assert "key=x" not in error.message
    assert len(provider.requests) == 1


async def test_one_connection_serves_many_calls(provider: StrictProvider) -> None:
    model = provider.model()
    for _ in range(3):
        await model.answer(model_request("Hi"), _ignore)
    (pool,) = model._connections.pools.values()
    connector: Any = pool.session.connector
    assert sum(len(kept) for kept in connector._conns.values()) == 1


async def test_a_closed_model_opens_again(provider: StrictProvider) -> None:
    model = provider.model()
    await model.answer(model_request("Hi"), _ignore)
    await model.close()
    await model.close()
    assert (await model.answer(model_request("Hi"), _ignore)).text == "ok"


@pytest.mark.case("B213")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_model_serves_several_event_loops(provider: StrictProvider) -> None:
    model = provider.model()
    answers: list[ModelAnswer] = []

    def other_loop() -> None:
        answers.append(asyncio.run(model.answer(model_request("Hi"), _ignore)))  # which ends with its pool open

    for _ in range(2):
        thread = threading.Thread(target=other_loop)
        thread.start()
        await asyncio.to_thread(thread.join)
        answers.append(await model.answer(model_request("Hi"), _ignore))
    assert [answer.text for answer in answers] == ["ok"] * 4
    await model.close()
    gc.collect()  # what the other loops left open is gone before the next test


async def test_a_key_goes_to_the_server_and_into_no_text() -> None:
    async with StrictProvider(api_key=KEY) as provider:
        model = provider.model()
        assert (await model.answer(model_request("Hi"), _ignore)).text == "ok"
        wrong = provider.model(api_key=f"{KEY}-wrong")
        error = await _fails(wrong)
        assert "Incorrect API key provided: Bearer ***" in error.message
        assert KEY not in repr(model)


async def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    async with StrictProvider(api_key=KEY) as provider:
        assert (await provider.model(api_key="env:MY_KEY").answer(model_request("Hi"), _ignore)).text == "ok"
        assert (await provider.model(api_key=None, key_env="MY_KEY").answer(model_request("Hi"), _ignore)).text == "ok"
        monkeypatch.delenv("MY_KEY")
        error = await _fails(provider.model(api_key="env:MY_KEY"))
        assert error.code == "missing_key"
        assert "`MY_KEY`" in (error.remedy or "")


async def test_the_key_of_openai_goes_to_openai_only(monkeypatch: pytest.MonkeyPatch, provider: StrictProvider) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for named in (None, "openai"):
        await provider.model(provider=named).answer(model_request("Hi"), _ignore)
    assert ["authorization" in request.headers for request in provider.requests] == [False, False]
    monkeypatch.delenv("OPENAI_API_KEY")
    error = await _fails(OpenAIChatModel("gpt-5"))
    assert error.code == "missing_key"
    assert error.remedy == "set `OPENAI_API_KEY` in the environment"


async def test_a_key_with_a_line_break_is_told_without_it() -> None:
    error = await _fails(OpenAIChatModel("gpt-5", api_key=f"{KEY}\nx"))
    assert error.code == "authentication"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080/v1", "ftp://x/v1", "http://", f"http://user:{KEY}@host/v1", "http://x/v1?a=1", f"x://u:{KEY}@h"]
)
async def test_what_is_no_base_url_is_said_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIChatModel("m", base_url=url)
    assert caught.value.code == "invalid_base_url"
    assert KEY not in str(caught.value)


async def test_headers_are_sent_and_checked(provider: StrictProvider) -> None:
    await provider.model(headers={"X-Team": "a"}).answer(model_request("Hi"), _ignore)
    assert provider.requests[0].headers["x-team"] == "a"
    with pytest.raises(ConfigurationError):
        OpenAIChatModel("m", headers={"X": "a\r\nY: b"})


async def test_a_server_on_this_machine_is_told_who_asks(provider: StrictProvider) -> None:
    await provider.model().answer(model_request("Hi", agent_id="team/a", run_id="run_1", step=3, tail="note"), _ignore)
    request = provider.requests[0]
    assert (request.agent, request.run, request.step) == ("team/a", "run_1", 3)


def test_a_remote_server_is_not_told_who_asks() -> None:
    headers = OpenAIChatModel("gpt-5")._request_headers(model_request("Hi", agent_id="secret-project"), KEY)
    assert not [name for name in headers if name.lower().startswith("x-")]


async def test_a_run_can_ask_for_another_model(provider: StrictProvider) -> None:
    model = provider.model()
    for name in ("big", f"{model.provider}:big"):
        await model.answer(model_request("Hi", settings=ChatClientConfig(model=name)), _ignore)
    assert [request.body["model"] for request in provider.requests] == ["big", "big"]


async def test_the_ways_of_mistral() -> None:
    call = {"name": "add", "id": "call_that_is_long"}
    async with StrictProvider([{"calls": [call]}, "ok"], rules=(*RULES, *MISTRAL_RULES)) as provider:
        model = provider.model(provider="mistral")
        answer = await model.answer(model_request("Hi", tools=["add"]), _ignore)
        history = [*model_request("Hi").history, *answered(answer, "3", provider="mistral")]
        assert (await model.answer(model_request(*history, tools=["add"], step=2, tail="note"), _ignore)).text == "ok"
        assert "stream_options" not in provider.requests[0].body


async def test_it_knows_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StrictProvider([{"text": "x", "usage": {"input": 1_000_000}}]) as provider:
        model = provider.model("gpt-5", provider="openai")
        answer = await model.answer(model_request("Hi"), _ignore)
        assert answer.cost is None  # another host has other prices
        model.profile = KNOWN["openai"]
        monkeypatch.setattr(model, "profile", type(model.profile)("openai", provider.url, prices="openai"))
        answer = await model.answer(model_request("Hi"), _ignore)
    assert answer.cost is not None
    assert answer.cost > 0


def test_nothing_heavy_is_imported_before_the_first_call() -> None:
    code = (
        "import sys, retinue.models; retinue.models.OpenAIChatModel('m'); "
        "print([n for n in ('aiohttp', 'genai_prices', 'yaml', 'pydantic') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
