"""All texts that a person reads when a model does not answer, on one page: `golden/errors.txt`.

Each comes from where people meet it: the adapter against a server on loopback, a text that names a model. To write the page
anew: RETINUE_UPDATE_GOLDEN=1 pytest tests/models/test_error_page.py; then read it as the person would who gets it.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.config import ChatClientConfig
from retinue.errors import ModelError, RetinueError
from retinue.models import OpenAIChatModel, resolve_model
from retinue.models.faults import Fault, Target
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.requests import model_request

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parent / "golden" / "errors.txt"
REMOTE = Target("openai", "gpt-5", "https://api.openai.com/v1", "OPENAI_API_KEY")
STREAM = "text/event-stream"

Scene = tuple[str, Callable[[VirtualClock], Awaitable[RetinueError]]]


def _ignore(_: object) -> None:
    pass


async def _asked(model: OpenAIChatModel, **request: Any) -> RetinueError:
    try:
        await model.answer(model_request("Hi", **request), _ignore)
    except RetinueError as error:
        return error
    finally:
        await model.close()
    raise AssertionError("it answered")


def _server(title: str, *, times: int = 3, tools: bool = False, model: dict[str, Any] | None = None, **fault: Any) -> Scene:
    async def scene(clock: VirtualClock) -> RetinueError:
        async with StrictProvider() as provider:
            provider.fail(times=times, **fault)
            asked = provider.model("qwen", clock=clock, **(model or {}))
            return await _asked(asked, tools=["add"] if tools else [])

    return title, scene


def _stopped(title: str) -> Scene:
    async def scene(clock: VirtualClock) -> RetinueError:
        async with StrictProvider() as provider:
            url = provider.url
        return await _asked(OpenAIChatModel("qwen", base_url=url, clock=clock))

    return title, scene


def _hosted(title: str, fault: Fault, attempts: int = 1) -> Scene:
    async def scene(clock: VirtualClock) -> RetinueError:
        return fault.error(REMOTE, attempts)

    return title, scene


def _named(title: str, text: str, **options: Any) -> Scene:
    async def scene(clock: VirtualClock) -> RetinueError:
        try:
            resolve_model(text, **options)
        except RetinueError as error:
            return error
        raise AssertionError("it resolved")

    return title, scene


def _made(title: str, **options: Any) -> Scene:
    async def scene(clock: VirtualClock) -> RetinueError:
        settings = options.pop("settings", None)
        try:
            model = OpenAIChatModel("gpt-5", **options)
        except RetinueError as error:
            return error
        return await _asked(model, settings=settings)

    return title, scene


SCENES: tuple[Scene, ...] = (
    _stopped("the server is not running"),
    _hosted("the host is not known", Fault("unreachable", "the host name is not known"), 3),
    _hosted("a certificate", Fault("unreachable", "its certificate is not trusted, or it does not speak TLS", final=True)),
    _hosted("a proxy", Fault("unreachable", "the proxy `proxy.example:3128`: HTTP 407", final=True)),
    _server("it closes the connection", cut_after=0),
    _server("it says nothing", hang_after=0),
    _server("it is slow (408)", status=408, message="Request timed out."),
    _server("it breaks off before anything was shown", cut_after=1),
    _server("it breaks off after something was shown", hang_after=2, model={"idle_timeout": 20}),
    _server("the key is wrong (401)", status=401, message="Incorrect API key provided"),
    _hosted("the key of a hosted provider is wrong", Fault("authentication", "Incorrect API key provided", 401)),
    _hosted("no key", Fault("missing_key")),
    _made("no key in the variable that was named", api_key="env:RETINUE_NO_SUCH_KEY"),
    _made("a key with a line break", api_key="sk-0123\n4567"),
    _server("no such model (404)", status=404, message="The model `qwen` does not exist"),
    _server("a conflict (409)", status=409, message="The resource is busy"),
    _server("the conversation is too long (400)", status=400, message="maximum context length is 8192 tokens"),
    _server("the request is too large (413)", status=413, message="Request too large"),
    _server("a refused request (400)", status=400, message="temperature: expected 0 to 2, got 3"),
    _server("a refused request (422)", status=422, message="field required"),
    _server("too many requests (429)", status=429, message="Slow down."),
    _server("too many requests, for a while", status=429, message="Slow down.", retry_after=20),
    _server("too many requests, for an hour", status=429, message="Slow down.", retry_after=3600),
    _server("no credit", status=429, message="You exceeded your current quota", code="insufficient_quota"),
    _server("it failed (500)", status=500, message="internal error"),
    _server("it failed with a page (502)", status=502, body="<html>Bad gateway", content_type="text/html"),
    _server("it is overloaded (529)", status=529, message="Overloaded"),
    _server("it redirects", redirect="https://login.example/start?session=1"),
    _server("it is a web page", body="<!doctype html><p>Welcome", content_type="text/html"),
    _server("it answers something else", body="plain words", content_type="text/plain"),
    _server("its answer is empty", body='{"choices": []}'),
    _server("an error inside of the answer", body='data: {"error": {"message": "boom"}}\n\n', content_type=STREAM),
    _server("it does not keep to the schema", tools=True, shape=["free_text"], model={"tool_mode": "schema"}),
    _named("an unknown model", "gtp-5"),
    _named("an unknown provider", "opnai:gpt-5"),
    _named("an unknown name beside registered ones", "fsat", registered={"fast": "openai:gpt-5-mini"}),
    _named("a URL without a model", "http://127.0.0.1:8080/v1"),
    _named("a URL with a query", "http://127.0.0.1:8080/v1?key=sk-0123#qwen"),
    _named("an unknown tool mode", "http://127.0.0.1:8080/v1?tool_mode=json#qwen"),
    _made("no base URL", base_url="127.0.0.1:8080"),
    _made("a base URL with a password", base_url="http://me:secret@host/v1"),
    _made("a header with a line break", headers={"X-Team": "a\nb"}),
    _made("a setting that is the adapter's", api_key="sk-0123", settings=ChatClientConfig(extra={"stream": False})),
)


def _entries(page: str) -> Iterator[tuple[str, str]]:
    for entry in page.split("\n\n")[1:]:
        title, _, text = entry.strip().partition("\n")
        yield title.removeprefix("# "), text


def _entry(title: str, error: RetinueError) -> str:
    code = f"{type(error).__name__}, {error.code}"
    if isinstance(error, ModelError) and error.retryable:
        code += ", may pass"
    text = re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:8080", f"[{code}]\n{error.message}\n  to do: {error.remedy}")
    return f"# {title}\n{text}"


HEAD = "What a person reads when a model does not answer. Written by tests/models/test_error_page.py."


async def test_the_page_of_all_texts() -> None:
    clock = VirtualClock(auto=True)
    entries = [_entry(title, await scene(clock)) for title, scene in SCENES]
    page = "\n\n".join([HEAD, *entries]) + "\n"
    if os.environ.get("RETINUE_UPDATE_GOLDEN"):
        PAGE.write_text(page, encoding="utf-8")
    expected = PAGE.read_text(encoding="utf-8")
    assert dict(_entries(page)) == dict(_entries(expected))
    assert page == expected
