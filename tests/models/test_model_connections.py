"""The adapter on the wire: waits, pool, proxies, and servers that break the protocol, over real loopback connections."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from retinue.errors import ModelError
from retinue.models import OpenAIChatModel
from retinue.models.profiles import is_loopback
from retinue.models.proxies import NotAProxy, proxy_for
from retinue.testing import StrictProvider, VirtualClock
from retinue.testing.requests import model_request

pytestmark = pytest.mark.anyio

FAR = "http://models.example/v1"  # no such host: only a proxy can have answered for it
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
SIZE = b"%x\r\n" % len(EVENT)
REDIRECT = b"HTTP/1.1 302 there\r\nLocation: https://me:x@elsewhere.example/?q=1\r\nContent-Length: 0\r\n\r\n"
FAKE_PASSWORD = "pass-word-0123"


def _ignore(_: object) -> None:
    pass


async def _fails(model: OpenAIChatModel) -> ModelError:
    try:
        with pytest.raises(ModelError) as caught:
            await model.answer(model_request("Hi"), _ignore)
    finally:
        await model.close()
    return caught.value


class _RawServer:
    """Answers each request with the same bytes; `seen` are the heads of the requests."""

    def __init__(self, answer: bytes, *, stay: bool = False) -> None:
        self.answer = answer
        self.stay = stay
        self.seen: list[bytes] = []
        self.url = ""
        self.asked = asyncio.Event()
        self._end = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head)
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))
        writer.write(self.answer)
        self.asked.set()
        if self.stay:
            await self._end.wait()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["_RawServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._end.set()
            server.close()
            await server.wait_closed()


# Waits


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y", "%A, %d-%b-%y %H:%M:%S GMT"])
async def test_retry_after_as_a_date(form: str) -> None:
    clock = VirtualClock(auto=True)
    later = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=17)
    async with StrictProvider(["ok"]) as provider:
        provider.fail(status=503, headers={"Retry-After": later.strftime(form)})
        await provider.model(clock=clock).answer(model_request("Hi"), _ignore)
    assert clock.monotonic() == pytest.approx(17)


@pytest.mark.parametrize(("jitter", "part"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
async def test_waits_grow_to_a_bound_and_are_spread(jitter: float, part: float) -> None:
    clock = VirtualClock(auto=True)
    async with StrictProvider() as provider:
        provider.fail(status=503, times=8)
        await _fails(provider.model(clock=clock, retries=7, jitter=lambda: jitter))
        assert len(provider.requests) == 8
    assert clock.monotonic() == pytest.approx(part * (0.5 + 1 + 2 + 4 + 8 + 8 + 8))


# Pool


async def test_fifty_at_once_and_then_the_same_fifty_again() -> None:
    async with StrictProvider() as provider:
        model = provider.model()
        for round_ in (1, 2):
            gates = [provider.hold() for _ in range(50)]
            tasks = [asyncio.create_task(model.answer(model_request(f"{place}"), _ignore)) for place in range(50)]
            await provider.arrived(50 * round_)  # all of them are in the server at once
            for gate in gates:
                gate.release()
            assert {answer.text for answer in await asyncio.gather(*tasks)} == {"ok"}
        assert len(provider.requests) == 100
        assert provider.connections == 50


async def test_a_failed_call_leaves_its_connection_usable() -> None:
    async with StrictProvider() as provider:
        provider.fail(status=429, times=2)
        await provider.model(clock=VirtualClock(auto=True)).answer(model_request("Hi"), _ignore)
        assert (len(provider.requests), provider.connections) == (3, 1)


async def test_more_than_the_pool_holds_wait() -> None:
    async with StrictProvider() as provider:
        model = provider.model(max_connections=2)
        await asyncio.gather(*(model.answer(model_request("Hi"), _ignore) for _ in range(8)))
        assert provider.connections <= 2


# Statuses


@pytest.mark.parametrize(
    ("status", "message", "code", "retryable"),
    [
        (400, "temperature: no", "bad_request", False),
        (401, "no", "authentication", False),
        (403, "no", "authentication", False),
        (404, "no", "model_not_found", False),
        (408, "slow", "timeout", True),
        (409, "conflict", "overloaded", True),
        (413, "large", "context_overflow", False),
        (422, "field required", "bad_request", False),
        (425, "early", "overloaded", True),
        (429, "slow down", "rate_limited", True),
        (500, "oops", "overloaded", True),
        (500, "Context size has been exceeded.", "context_overflow", False),
        (502, "oops", "overloaded", True),
        (503, "oops", "overloaded", True),
        (504, "oops", "timeout", True),
        (529, "Overloaded", "overloaded", True),
    ],
)
async def test_a_status_has_its_code_and_its_number_of_attempts(status: int, message: str, code: str, retryable: bool) -> None:
    async with StrictProvider() as provider:
        provider.fail(status=status, message=message, times=3)
        error = await _fails(provider.model(clock=VirtualClock(auto=True)))
        assert (error.code, error.status, error.retryable) == (code, status, retryable)
        assert len(provider.requests) == (3 if retryable else 1)


# Proxies


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the machine's proxy, and nothing else of the kind."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "request_method"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_proxy(url: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("HTTPS_PROXY", url)

    return set_proxy


async def test_a_proxy_is_asked_for_what_is_far(proxied: Callable[[str], None]) -> None:
    answer = HEAD + b"Connection: close\r\n\r\n" + EVENT + b"data: [DONE]\n\n"
    async with _RawServer(answer).listening() as proxy:
        place = proxy.url.removeprefix("http://")
        proxied(f"http://me:{FAKE_PASSWORD}@{place}")
        model = OpenAIChatModel("m", base_url=FAR)
        assert (await model.answer(model_request("Hi"), _ignore)).text == "a"
        await model.close()
    assert proxy.seen[0].startswith(b"POST http://models.example/v1/chat/completions HTTP/1.1\r\n")
    assert b"proxy-authorization: basic " in proxy.seen[0].lower()
    assert b"x-retinue" not in proxy.seen[0].lower()


async def test_a_server_on_this_machine_is_never_asked_through_a_proxy(proxied: Callable[[str], None]) -> None:
    async with _RawServer(b"HTTP/1.1 500 no\r\n\r\n").listening() as proxy, StrictProvider() as provider:
        proxied(proxy.url)
        for host in ("127.0.0.1", "localhost"):
            model = OpenAIChatModel("m", base_url=provider.url.replace("127.0.0.1", host))
            assert (await model.answer(model_request("Hi"), _ignore)).text == "ok"
            await model.close()
    assert proxy.seen == []


async def test_no_proxy_is_heeded(proxied: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    proxied("proxy.example:3128")
    found = proxy_for(FAR)
    assert found is not None
    assert (found.url, found.place) == ("http://proxy.example:3128", "proxy.example:3128")
    for exceptions, through in (("models.example", False), (".example", False), ("*", False), ("models.example:81", True)):
        monkeypatch.setenv("NO_PROXY", exceptions)
        assert (proxy_for(FAR) is not None) == through, exceptions


@pytest.mark.parametrize(("status", "attempts"), [(b"407 Who are you", 1), (b"503 Busy", 3)])
async def test_a_tunnel_that_the_proxy_refuses(proxied: Callable[[str], None], status: bytes, attempts: int) -> None:
    async with _RawServer(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n").listening() as proxy:
        place = proxy.url.removeprefix("http://")
        proxied(f"http://me:{FAKE_PASSWORD}@{place}")
        error = await _fails(OpenAIChatModel("m", base_url="https://models.example/v1", clock=VirtualClock(auto=True)))
    assert proxy.seen[0].startswith(b"CONNECT models.example:443 HTTP/1.1\r\n")
    assert (error.code, len(proxy.seen)) == ("unreachable", attempts)
    assert f"the proxy `{place}`: HTTP {status[:3].decode()}" in error.message
    assert FAKE_PASSWORD not in str(error)


async def test_a_proxy_that_wants_credentials_for_plain_http(proxied: Callable[[str], None]) -> None:
    async with _RawServer(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n").listening() as proxy:
        proxied(proxy.url)
        error = await _fails(OpenAIChatModel("m", base_url=FAR))
    assert (error.code, error.status, error.retryable) == ("unreachable", 407, False)
    assert "`HTTPS_PROXY`" in (error.remedy or "")


async def test_a_proxy_that_tells_the_password_again(proxied: Callable[[str], None]) -> None:
    said = f"wrong password {FAKE_PASSWORD}".encode()
    async with _RawServer(b"HTTP/1.1 400 no\r\nContent-Length: %d\r\n\r\n" % len(said) + said).listening() as proxy:
        proxied(f"http://me:{FAKE_PASSWORD}@{proxy.url.removeprefix('http://')}")
        error = await _fails(OpenAIChatModel("m", base_url=FAR))
    assert "wrong password ***" in error.message


async def test_a_proxy_that_is_not_there(proxied: Callable[[str], None]) -> None:
    async with _RawServer(b"").listening() as gone:
        place = gone.url.removeprefix("http://")
    proxied(f"http://{place}")
    error = await _fails(OpenAIChatModel("m", base_url=FAR, clock=VirtualClock(auto=True)))
    assert (error.code, error.retryable) == ("unreachable", True)
    assert f"the proxy `{place}`: connection refused" in error.message


@pytest.mark.parametrize("url", [f"socks5://me:{FAKE_PASSWORD}@127.0.0.1:1080", "http://", f"http://me:{FAKE_PASSWORD}@h:port"])
async def test_a_proxy_that_cannot_be_used_is_not_passed_over(proxied: Callable[[str], None], url: str) -> None:
    proxied(url)
    with pytest.raises(NotAProxy):
        proxy_for(FAR)
    error = await _fails(OpenAIChatModel("m", base_url=FAR))
    assert (error.code, error.retryable) == ("unreachable", False)
    assert FAKE_PASSWORD not in f"{error} {error.__cause__!r} {error.__context__!r}"


async def test_what_netrc_holds_is_not_sent(
    proxied: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine models.example login me password {FAKE_PASSWORD}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with _RawServer(HEAD + b"Connection: close\r\n\r\n" + EVENT + b"data: [DONE]\n\n").listening() as proxy:
        proxied(proxy.url)
        for key in (None, "sk-0123456789"):
            model = OpenAIChatModel("m", base_url=FAR, api_key=key)
            assert (await model.answer(model_request("Hi"), _ignore)).text == "a"
            await model.close()
    assert [b"Basic" in head for head in proxy.seen] == [False, False]


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("LOCALHOST", True), ("a.localhost", True)),
        *(("[::1]", True), ("[::ffff:127.0.0.1]", True), ("0.0.0.0", True), ("127.0.0.1.evil.example", False)),
        *(("127.evil.example", False), ("localhost.example", False), ("10.0.0.1", False), ("[fe80::1]", False)),
    ],
)
def test_what_is_on_this_machine(host: str, here: bool) -> None:
    assert is_loopback(f"http://{host}:8080/v1") == here


# Servers that break the protocol


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", HEAD + b"\r\n", CHUNKED + SIZE + EVENT[:9]])
async def test_it_ends_however_little_comes(sent: bytes) -> None:
    clock = VirtualClock()
    async with _RawServer(sent, stay=True).listening() as server:
        task = asyncio.create_task(_fails(OpenAIChatModel("m", base_url=server.url, clock=clock, retries=0, idle_timeout=30)))
        await server.asked.wait()
        await clock.advance(29)
        assert not task.done()
        await clock.advance(2)
        error = await task
    assert (error.code, error.retryable) == ("timeout", True)


@pytest.mark.parametrize(
    ("sent", "code", "retryable"),
    [
        (CHUNKED + SIZE + EVENT[:-9], "stream_broken", True),
        (CHUNKED + SIZE + EVENT + b"\r\n", "stream_broken", True),
        (HEAD + b"Content-Length: 999\r\n\r\n" + EVENT, "stream_broken", True),
        (HEAD + b"Connection: close\r\n\r\n" + EVENT, "stream_broken", True),
        (CHUNKED + b"zz\r\n" + EVENT, "bad_response", False),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 60\r\n\r\n" + b"no gzip at all" * 5, "stream_broken", True),
        (b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n", "bad_response", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "bad_response", False),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "bad_response", False),
        (b"HTTP/1.1 500 no\r\nContent-Length: 999\r\n\r\n{", "overloaded", True),
        (b"HTTP/1.1 401 no\r\nContent-Length: 999\r\n\r\n{", "authentication", False),
        (REDIRECT, "bad_response", False),
    ],
)
async def test_a_server_that_breaks_the_protocol(sent: bytes, code: str, retryable: bool) -> None:
    async with _RawServer(sent).listening() as server:
        error = await _fails(OpenAIChatModel("m", base_url=server.url, clock=VirtualClock(auto=True), retries=0))
    assert (error.code, error.retryable) == (code, retryable), str(error)
    assert "me:x" not in str(error)


@pytest.mark.parametrize("sent", [b"data: " + b"x" * 300, b"{" + b" " * 300, b"data: {}\n" * 40])
async def test_an_answer_without_end_is_refused(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("exchange", "sse"):
        monkeypatch.setattr(f"retinue.models.{module}.MAX_EVENT", 200)
    async with _RawServer(HEAD + b"Connection: close\r\n\r\n" + sent, stay=True).listening() as server:
        error = await _fails(OpenAIChatModel("m", base_url=server.url, clock=VirtualClock(auto=True), retries=0))
    assert (error.code, error.retryable) == ("answer_too_long", False)


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(EVENT + b"data: [DONE]\n\n")
    async with _RawServer(
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    ).listening() as server:
        model = OpenAIChatModel("m", base_url=server.url)
        assert (await model.answer(model_request("Hi"), _ignore)).text == "a"
        await model.close()
