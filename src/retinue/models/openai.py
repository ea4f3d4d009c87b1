"""Any server with an OpenAI-compatible Chat Completions endpoint, asked over aiohttp.

One pool of connections for a model and an event loop, made at the first call. Nothing heavy is imported before that.
"""

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec
from msgspec.structs import replace

from retinue.clock import Clock, SystemClock
from retinue.config import ChatClientConfig
from retinue.messages import Entry, MediaRef, Usage
from retinue.models.connections import Connections, Pool
from retinue.models.exchange import exchange
from retinue.models.faults import Fault, Target
from retinue.models.parameters import ToolMode, checked_headers, checked_media, checked_mode, checked_url, profile_of
from retinue.models.port import Delta, Emit, LoadMedia, ModelAnswer, ModelRequest
from retinue.models.prices import cost_of
from retinue.models.profiles import KNOWN, Profile, is_loopback
from retinue.models.proxies import NotAProxy, Proxy, proxy_for
from retinue.models.retries import LONGEST_ASKED_WAIT, wait_after
from retinue.models.wire import ChatWire, body_of
from retinue.secrets import SecretRef, secret_text

__all__ = ["OpenAIChatModel", "ToolMode"]

_SECRET_HEADER: Final = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
_HEADER_VALUE: Final = re.compile(r"[!-~]{1,200}")


class _Asking(msgspec.Struct, frozen=True):
    """One request as it is sent, to whom, and what may not show in what is said of it."""

    target: Target
    body: bytes
    headers: dict[str, str]
    secrets: tuple[str, ...]
    proxy: Proxy | None


class OpenAIChatModel:
    """A model behind `POST {base_url}/chat/completions`, streamed.

    Args:
        name: The model's name at that provider.
        base_url: Up to and without `/chat/completions`.
        api_key: The key, or `env:NAME` or `SecretRef("env:NAME")` for one in the environment. Left out: the known
            provider's own variable (`OPENAI_API_KEY`), which is read at each call and sent to that provider's host only.
        key_env: Where the key of a provider that is not known is looked for; there need not be one.
        provider: The provider's name; left out it follows from `base_url` (host and port where it is not known).
        headers: Further headers of each request; a value may be a `SecretRef`.
        connect_timeout: Seconds for making a connection.
        idle_timeout: Seconds between two bytes of an answer, and before the first one.
        keep_alive_timeout: Seconds in which a server may keep the connection alive (comments, empty events) while nothing of
            the answer comes; never less than `idle_timeout`. There is no limit in total for an answer that comes.
        retries: How often a call that failed for a passing reason is tried again, as long as nothing was shown of it.
        clock: For waits and idle times.
        max_connections: Open at once to this model.
        media: The media types that the model takes, as globs (`["image/*", "application/pdf"]`); left out, what is known of
            the provider. It is told in a line of text of what it does not take.
        tool_mode: `schema` for a server whose own tool calling is unreliable but who holds a model to a JSON schema.
        jitter: Gives numbers from 0 to 1 that spread the waits.

    Raises:
        ConfigurationError: `base_url` is not one, `tool_mode` is neither, or `media` is no list of media types.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | SecretRef | None = None,
        key_env: str | None = None,
        provider: str | None = None,
        headers: Mapping[str, str | SecretRef] | None = None,
        connect_timeout: float = 10.0,
        idle_timeout: float = 300.0,
        keep_alive_timeout: float = 1800.0,
        retries: int = 2,
        clock: Clock | None = None,
        max_connections: int = 256,
        jitter: Callable[[], float] = random.random,
        tool_mode: ToolMode = "native",
        media: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.profile = profile_of(checked_url(base_url), provider, key_env)
        if media is not None:
            self.profile = replace(self.profile, media=checked_media(media))
        self.provider = self.profile.provider
        self._api_key = api_key.reference if isinstance(api_key, SecretRef) else api_key
        self._headers = checked_headers(headers or {})
        self._retries = retries
        self._clock = clock or SystemClock()
        self._connections = Connections(
            limit=max_connections,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            keep_alive_timeout=keep_alive_timeout,
            clock=self._clock,
        )
        self._jitter = jitter
        self._local = is_loopback(self.profile.base_url)
        self.tool_mode = checked_mode(tool_mode)
        self._wire = _wire(self.profile, tool_mode)

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self.reference!r})"

    @property
    def reference(self) -> str:
        """The text that `resolve_model` makes this model of: `openai:gpt-5`, `http://127.0.0.1:8080/v1#name`."""
        known = KNOWN.get(self.provider)
        options = [] if self.tool_mode == "native" else [f"tool_mode={self.tool_mode}"]
        if self.profile.media != (() if known is None else known.media):
            options.append(f"media={','.join(self.profile.media)}")
        query = f"?{'&'.join(options)}" if options else ""
        if known is not None and known.base_url == self.profile.base_url:
            return f"{self.provider}:{self.name}{query}"
        return f"{self.profile.base_url}{query}#{self.name}"

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`. A call that failed is tried again by itself only before the first delta."""
        if request.media is not None:
            await self._load(request, request.media)
        ask, pool = self._asking(request), self._connections.here()
        gate, shown, let_in = pool.gate, False, False

        def show(delta: Delta) -> None:
            nonlocal shown, let_in
            if not shown:
                shown = True
                gate.passed(let_in)
                let_in = False
            emit(delta)

        attempt = 1
        while True:
            let_in = await gate.enter(request.depth, request.pause)
            reader = self._wire.reader(request, show)
            try:
                outcome = await self._exchanged(pool, ask, reader or show)
            except BaseException:
                gate.left(let_in)
                raise
            if reader is not None and isinstance(outcome, ModelAnswer):
                outcome = reader.read(outcome)
            if isinstance(outcome, ModelAnswer):
                gate.passed(let_in)
                cost = cost_of(self.profile.prices, ask.target.model, outcome.usage)
                return outcome if cost is None else msgspec.structs.replace(outcome, cost=cost)
            wait = wait_after(outcome, attempt, retries=self._retries, jitter=self._jitter)
            limit = outcome.retry_after if wait is None else wait if outcome.limits_all else None
            if limit is not None and outcome.limits_all and limit <= LONGEST_ASKED_WAIT:
                gate.limited(limit)  # not for this call alone
            else:
                gate.left(let_in)
            if shown or wait is None:
                raise outcome.error(ask.target, attempt)
            if not outcome.limits_all:
                async with request.pause():
                    await self._clock.sleep(wait)
            attempt += 1

    async def _exchanged(self, pool: Pool, ask: "_Asking", emit: Emit) -> ModelAnswer | Fault:
        return await exchange(
            pool,
            f"{self.profile.base_url}/chat/completions",
            ask.body,
            ask.headers,
            emit,
            clock=self._clock,
            secrets=ask.secrets,
            proxy=ask.proxy,
        )

    async def _load(self, request: ModelRequest, load: LoadMedia) -> None:
        """Encode what holds pictures and files and is not encoded yet. All bytes are there before the first entry is encoded:
        a fork that shares the entries may write them for another model meanwhile."""
        wire, data = self._wire, dict[str, bytes]()

        def due() -> Iterator[tuple[Entry, tuple[MediaRef, ...]]]:
            for entry in request.history:
                if entry.wire_format != wire.format and (wanted := wire.wanted(entry)):
                    yield entry, wanted

        while lacking := {ref.digest: ref for _, wanted in due() for ref in wanted if ref.digest not in data}:
            for digest, ref in lacking.items():
                data[digest] = await load(ref)
        for entry, _ in due():
            entry.wire, entry.wire_format = wire.encode_with(entry, data), wire.format

    def _asking(self, request: ModelRequest) -> "_Asking":
        """All that is sent, made once for all attempts.

        Raises:
            ModelError: without key or way to the server nothing is sent.
        """
        name = self._named(request.envelope.settings)
        key, env = self._key()
        target = Target(self.provider, name, self.profile.base_url, env, self._local)
        if key is None and (self.profile.needs_key or self._api_key is not None):
            raise Fault("missing_key").error(target)
        if key is not None and not key.isprintable():
            raise Fault("authentication", "the key holds a line break or another control character").error(target)
        try:
            proxy = None if self._local else proxy_for(self.profile.base_url)
        except NotAProxy as error:
            raise Fault("unreachable", str(error), final=True).error(target) from None
        given = {header: secret_text(value) for header, value in self._headers.items()}
        secrets = (key, proxy and proxy.password, *given.values())
        return _Asking(
            target,
            body_of(self._wire, request, name),
            self._request_headers(request, key) | given,
            tuple(text for text in secrets if text),
            proxy,
        )

    def price(self, usage: Usage, settings: ChatClientConfig) -> Decimal | None:
        """What a call would cost that used this, in US dollars; None where the price is not known. Budgets in money need it."""
        return cost_of(self.profile.prices, self._named(settings), usage)

    async def close(self) -> None:
        """See `ChatModel`: what this event loop opened. It may be used again afterwards: the next call opens a new pool."""
        await self._connections.close()

    def _named(self, settings: ChatClientConfig) -> str:
        return (settings.model or self.name).removeprefix(f"{self.provider}:")

    def _key(self) -> tuple[str | None, str | None]:
        """The key, and the variable that it is looked for in."""
        given = self._api_key
        if given is not None and not given.startswith("env:"):
            return given.strip() or None, None
        env = given.removeprefix("env:") if given else self.profile.key_env
        return ((os.environ.get(env) or "").strip() or None) if env else None, env

    def _request_headers(self, request: ModelRequest, key: str | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "retinue"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if self._local:  # servers on this machine may know who asks; the others have no need to
            told = {"Agent": request.agent_id, "Run": request.run_id, "Step": str(request.step)}
            if self._wire.tail_text(request):
                told["Tail"] = "1"
            headers |= {f"X-Retinue-{name}": value for name, value in told.items() if _HEADER_VALUE.fullmatch(value)}
        return headers

    def secrets(self) -> list[str | SecretRef]:
        """What a `Runtime` keeps out of journals and prompts: the key, and header values that say who asks."""
        made: list[str | SecretRef] = [key] if (key := self._key()[0]) else []
        for name, value in self._headers.items():
            if isinstance(value, SecretRef):
                made.append(value)
            elif _SECRET_HEADER.search(name):
                made += [value, value.rpartition(" ")[2]]  # `Bearer …`: the token alone as well
        return made


def _wire(profile: Profile, mode: ToolMode) -> ChatWire:
    if mode == "native":
        return ChatWire(profile)
    from retinue.models.form_wire import FormWire

    return FormWire(profile)
