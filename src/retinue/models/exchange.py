"""One HTTP exchange with a Chat Completions server: a whole answer, or the reason why there is none. No retries here."""

import asyncio
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urljoin, urlsplit

from retinue.clock import Clock
from retinue.json_text import loads
from retinue.models.assemble import Assembler, BadStream, EndlessAnswer
from retinue.models.connections import Pool
from retinue.models.faults import Fault, from_error_body, from_status, redacted, retry_after
from retinue.models.idle import IdleWatch
from retinue.models.plain import plain_chunk
from retinue.models.port import Emit, ModelAnswer
from retinue.models.proxies import Proxy
from retinue.models.sse import MAX_EVENT, EndlessEvent, EventStream

if TYPE_CHECKING:
    import aiohttp

__all__ = ["exchange"]

_LONGEST_ERROR: Final = 64 * 1024
_LARGE: Final = 1024 * 1024
"""Bytes of a body that are handed over in one go."""
_DRAIN: Final = 0.25
"""Seconds to wait for the end of a response after its `[DONE]`, so that the connection can be used again."""


async def exchange(
    pool: Pool,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    emit: Emit,
    *,
    clock: Clock,
    secrets: tuple[str, ...],
    proxy: Proxy | None = None,
) -> ModelAnswer | Fault:
    """Ask once. A cancelled or broken exchange closes its connection; a half answer is dropped whole."""
    import aiohttp

    reader = _Reader(emit, clock, secrets, f"the proxy `{proxy.place}`: " if proxy is not None else "")
    # Redirects are never followed: the request carries the key and the conversation.
    sent = body if len(body) <= _LARGE else BytesIO(body)  # in pieces, so that others get their turn
    post = pool.session.post(url, data=sent, headers=headers, allow_redirects=False, proxy=proxy.url if proxy else None)
    watch = pool.watches.watch()
    try:
        async with watch, post as response:
            watch.touch()
            return await reader.read(response, watch, url)
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        return reader.broken(error, watch.silence)


class _Reader:
    """Reads one response."""

    def __init__(self, emit: Emit, clock: Clock, secrets: tuple[str, ...], through: str) -> None:
        self._emit = emit
        self._clock = clock
        self._secrets = secrets
        self._through = through
        self._started = False
        self._assembler = Assembler()
        self._done = False
        self._events = 0

    async def read(self, response: "aiohttp.ClientResponse", watch: IdleWatch, url: str) -> ModelAnswer | Fault:
        """The answer, or what it says of an error."""
        self._started = True
        if 300 <= response.status < 400:
            target = urlsplit(urljoin(url, response.headers.get("Location", "")))
            place = redacted(f"{target.scheme}://{target.netloc.rpartition('@')[2]}{target.path}", self._secrets)
            return Fault("bad_response", f"it redirects to `{place}`, which is not followed", response.status)
        if response.status != 200:
            raw = await _error_bytes(response, watch)
            wait = retry_after(response.headers, self._clock.now_ms())
            final = response.headers.get("x-should-retry", "").strip().lower() == "false"
            return from_status(response.status, raw, self._secrets, wait, final=final)
        try:
            return await self._body(response, watch)
        except EndlessEvent as error:
            return Fault("answer_too_long", str(error))

    async def _body(self, response: "aiohttp.ClientResponse", watch: IdleWatch) -> ModelAnswer | Fault:
        """Events, or one JSON document: some servers do not stream, some do so under another content type."""
        first = b""
        while not first.strip():
            piece = await response.content.readany()
            if not piece:
                return Fault("bad_response", "the answer is empty")
            watch.touch()
            first = (first + piece).lstrip()
        if first.lstrip()[:1] in (b"{", b"<", b"["):
            whole = first + await _bytes(response, watch, MAX_EVENT + 1 - len(first), said=True)
            if len(whole) > MAX_EVENT:
                raise EndlessEvent(f"the answer is longer than {MAX_EVENT:,} bytes")
            return self._document(whole)
        events = EventStream()
        piece = first
        while piece:
            before = self._assembler.heard
            for data in events.feed(piece):
                if (fault := self._event(data)) is not None:
                    return fault
            watch.touch(said=self._assembler.heard != before)
            if self._done:
                await _drain(response)
                return self._answer()
            piece = await response.content.readany()
        for data in events.end():
            if data.endswith(b"}") and (fault := self._event(data)) is not None:
                return fault
        return self._ended()

    def _document(self, raw: bytes) -> ModelAnswer | Fault:
        try:
            value: Any = loads(raw)
        except ValueError:
            what = "an HTML page instead of JSON" if raw.lstrip()[:1] == b"<" else "it is not JSON"
            return Fault("bad_response", what)
        return self._chunk(value) or self._answer()

    def _event(self, data: bytes) -> Fault | None:
        self._events += 1
        if data == b"[DONE]":
            self._done = True
            return None
        if self._done or not data.strip():  # an event without data says nothing: a keep-alive
            return None
        if (plain := plain_chunk(data)) is not None:
            for delta in self._assembler.feed_plain(plain):
                self._emit(delta)
            return None
        try:
            value: Any = loads(data)
        except ValueError:
            return Fault("bad_response", "a chunk of the stream is not JSON")
        return self._chunk(value)

    def _chunk(self, value: Any) -> Fault | None:
        if isinstance(value, dict) and (error := cast("dict[str, Any]", value).get("error")):
            return from_error_body(error, self._secrets)
        try:
            deltas = self._assembler.feed(value)
        except EndlessAnswer as error:
            return Fault("answer_too_long", str(error))
        except BadStream as error:
            return Fault("bad_response", str(error))
        for delta in deltas:
            self._emit(delta)
        return None

    def _answer(self) -> ModelAnswer | Fault:
        for delta in self._assembler.flush():
            self._emit(delta)
        if (failed := self._assembler.failed) is not None:
            return Fault("overloaded", f"it gave the answer up: its finish reason is `{failed}`")
        try:
            return self._assembler.answer()
        except BadStream as error:
            return Fault("bad_response", str(error))

    def _ended(self) -> ModelAnswer | Fault:
        """The stream is over without its end mark: whole if a finish reason came, else cut off."""
        if self._assembler.finish is not None:
            return self._answer()
        if self._events:
            return Fault("stream_broken", "the connection was closed before the end of the answer")
        return Fault("bad_response", "it is neither JSON nor a stream of events")

    def broken(self, error: Exception, silence: str) -> ModelAnswer | Fault:
        """What an exception of the transport means at this point."""
        import aiohttp

        if self._assembler.finish is not None:
            return self._answer()
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return Fault("timeout", "no connection was made in time")
        if isinstance(error, TimeoutError):
            return Fault("timeout", silence)
        if self._started:
            return Fault("stream_broken", "the connection was lost in the middle of the answer")
        if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError)):
            return Fault("unreachable", "its certificate is not trusted, or it does not speak TLS", final=True)
        if isinstance(error, aiohttp.ClientHttpProxyError):  # it would not let us through to a server that speaks TLS
            return Fault("unreachable", f"{self._through}HTTP {error.status}", final=400 <= error.status < 500)
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return Fault("unreachable", "the host name is not known")
        if isinstance(error, aiohttp.ClientConnectorError):
            refused = isinstance(error.os_error, ConnectionRefusedError)
            words = "connection refused" if refused else redacted(str(error.os_error), self._secrets)
            whose = self._through if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
            return Fault("unreachable", whose + words)
        if isinstance(error, (aiohttp.ServerDisconnectedError, OSError)):
            return Fault("unreachable", "the connection was closed before an answer came")
        # Not str(error): it may quote headers, and they hold the key.
        return Fault("bad_response", f"it does not speak HTTP as expected ({type(error).__name__})")


async def _bytes(response: "aiohttp.ClientResponse", watch: IdleWatch, limit: int | None = None, *, said: bool = False) -> bytes:
    """The rest of a body, at most `limit` bytes. `said`: it is the answer itself, where white space alone keeps alive."""
    pieces: list[bytes] = []
    size = 0
    while (limit is None or size < limit) and (piece := await response.content.readany()):
        watch.touch(said=said and not piece.isspace())
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


async def _error_bytes(response: "aiohttp.ClientResponse", watch: IdleWatch) -> bytes:
    """The body of an error; the status counts also where its body is broken."""
    import aiohttp

    try:
        return await _bytes(response, watch, _LONGEST_ERROR)
    except (aiohttp.ClientError, OSError):
        return b""


async def _drain(response: "aiohttp.ClientResponse") -> None:
    """Read to the end of a response that is over, but do not insist."""
    if response.content.at_eof():
        return
    import aiohttp

    try:
        async with asyncio.timeout(_DRAIN):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, OSError):
        response.close()  # the answer is complete, whatever becomes of its connection
