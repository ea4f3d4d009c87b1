"""What can go wrong with a model call, and the words for it. Pure: from a status and a body to a `ModelError`.

Each text names provider and model, says whether it was tried again, and what to do. A key never appears in one.
"""

import re
from datetime import UTC
from typing import Any, Final, cast

import msgspec

from retinue.errors import ModelError
from retinue.json_text import loads, mend

__all__ = ["CODES", "Fault", "Target", "from_error_body", "from_status", "redacted", "retry_after"]

_LONGEST: Final = 300
_CONTEXT: Final = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|maximum (model|prompt) length|model token limit"
    r"|too many tokens|prompt (is )?too long|exceeds? the (available )?context|input (is )?too long|reduce the length"
    r"|(input|prompt) token count .{0,40}exceeds|`inputs` tokens|current length is \d+ while limit",
    re.IGNORECASE,
)
"""How providers say that a conversation is too long. Each wording has its test."""
_NO_PARAMETER: Final = re.compile(
    r"(unknown|unrecogni[sz]ed|unsupported|extra) (request )?(parameter|argument|field|input)", re.I
)
"""A parameter whose name has to do with the context is not the context."""
_NO_MODEL: Final = re.compile(
    r"model[ _]not[ _]found|invalid[ _]model|unknown model|(not a valid|no such) model"
    r"|model\b.{0,80}\b(does not exist|not found|is not available)",
    re.IGNORECASE,
)
_QUOTA: Final = re.compile(r"insufficient[ _](quota|balance|credit)|billing|payment required|exceeded your current quota", re.I)

_RETRYABLE: Final = frozenset({"unreachable", "timeout", "stream_broken", "rate_limited", "overloaded"})

_WHAT: Final[dict[str, str]] = {
    "unreachable": "cannot reach `{provider}` for model `{model}`",
    "timeout": "`{provider}` did not answer in time for model `{model}`",
    "stream_broken": "the answer of model `{model}` from `{provider}` broke off",
    "authentication": "`{provider}` refused the key for model `{model}`",
    "model_not_found": "`{provider}` has no model `{model}`",
    "rate_limited": "`{provider}` limits the calls of model `{model}`",
    "overloaded": "`{provider}` failed or is overloaded, model `{model}`",
    "context_overflow": "the conversation is too long for model `{model}` of `{provider}`",
    "bad_request": "`{provider}` refused the request for model `{model}`",
    "bad_response": "`{provider}` gave no usable answer for model `{model}`",
    "answer_too_long": "model `{model}` of `{provider}` comes to no end in its answer",
    "missing_key": "no key for `{provider}`, model `{model}`",
}

CODES: Final = tuple(_WHAT)
"""The codes of `ModelError` that a model's server is to blame for, or the way to it."""

_REMEDY: Final[dict[str, str]] = {
    "timeout": "try again, or raise `idle_timeout`",
    "stream_broken": "run again: of the broken answer only whole text is kept, no calls",
    "model_not_found": "check the model's name, and that the base URL `{base_url}` is right",
    "overloaded": "try again later, or choose another model",
    "context_overflow": "compact the conversation, or choose a model with a longer context",
    "answer_too_long": "set `max_tokens`, or use a model that stops; the text so far is kept",
    "bad_request": "check the settings of the model; the provider's own words stand above",
    "bad_response": "check that `{base_url}` is the base URL of an OpenAI-compatible server",
}


class Target(msgspec.Struct, frozen=True):
    """Whom a call was for. `key_env` is where its key is looked for, `local` whether it is on this machine."""

    provider: str
    model: str
    base_url: str
    key_env: str | None = None
    local: bool = False


class Fault(msgspec.Struct, frozen=True):
    """Why one attempt failed, as a value.

    `final`: the same request would fail again, although the code says otherwise. `once`: it may succeed, although the code
    says otherwise; one more attempt is worth it.
    """

    code: str
    detail: str = ""
    status: int | None = None
    retry_after: float | None = None
    final: bool = False
    once: bool = False

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return (self.code in _RETRYABLE or self.once) and not self.final

    @property
    def limits_all(self) -> bool:
        """Whether the provider limits everybody who has this key, not this request alone."""
        return (self.code == "rate_limited" and not self.final) or (self.code == "overloaded" and self.retry_after is not None)

    def error(self, target: Target, attempts: int = 1) -> ModelError:
        """The error to raise after this many attempts."""
        names = {"provider": target.provider, "model": target.model, "base_url": target.base_url}
        what = _WHAT[self.code].format(**names)
        status = f" (HTTP {self.status})" if self.status else ""
        detail = f": {self.detail.rstrip('.')}" if self.detail else ""
        if attempts > 1:
            tried = f"tried {attempts} times"
        else:
            tried = "tried once, a retry may help" if self.retryable else "not retried"
        return ModelError(
            f"{what}{status}{detail}; {tried}",
            provider=target.provider,
            model=target.model,
            code=self.code,
            remedy=self._remedy(target).format(**names),
            retryable=self.retryable and not (self.once and attempts > 1),
            retry_after=self.retry_after,
            status=self.status,
        )

    def _remedy(self, target: Target) -> str:
        env = f"`{target.key_env}`" if target.key_env else "`api_key=…`"
        match self.code:
            case "bad_response" if self.once:
                return "choose a model or a server that keeps to a JSON schema, or leave out `tool_mode=schema`"
            case "unreachable" if self.final:
                return "check the proxy settings (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`) and the certificates of this machine"
            case "unreachable" if target.local:
                return "is the server running at {base_url}? Start it, or choose another model"
            case "unreachable":
                return "check the network and the base URL `{base_url}`"
            case "authentication":
                return f"check the key in {env}, and that it may use this model"
            case "missing_key":
                return f"set {env} in the environment" if target.key_env else 'name it: `api_key="env:NAME"`'
            case "rate_limited" if self.final:
                return "add credit or raise the limit at the provider, or choose another model"
            case "rate_limited" if self.retry_after is not None:
                return f"try again in {self.retry_after:g} s, or run fewer children at once (`Limits(max_children=…)`)"
            case "rate_limited":
                return "try again later, or run fewer children at once (`Limits(max_children=…)`)"
            case code:
                return _REMEDY[code]


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """`text` on one line, not too long, without control characters and without any of the secrets."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    line = " ".join("".join(c if c.isprintable() else " " for c in mend(text)).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def from_status(status: int, body: bytes, secrets: tuple[str, ...], wait: float | None = None, *, final: bool = False) -> Fault:
    """The fault behind an HTTP status that is not 200, and the body that came with it.

    `final`: the server says that the same request would fail again (`x-should-retry: false`). Then it is not overloaded.
    """
    words, error = _words(body)
    text = f"{words} {error.get('code', '')} {error.get('type', '')}"
    code, known = _code_of(status, text)
    if final and code == "overloaded":
        code = "bad_request"
    return Fault(code, redacted(words, secrets), status=status, retry_after=wait, final=final or known)


def from_error_body(error: Any, secrets: tuple[str, ...]) -> Fault:
    """The fault behind an `error` in a body that came with status 200, or inside a stream (B202)."""
    fields: dict[str, Any] = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    words = str(fields.get("message") or fields)
    kind = f"{fields.get('code', '')} {fields.get('type', '')}"
    status: Any = fields.get("code")
    if not isinstance(status, int) or not 400 <= status < 600:
        status = None
        for name, meant in (("rate_limit", 429), ("overloaded", 529), ("server_error", 500), ("authentication", 401)):
            if name in kind:
                status = meant
    if status is None:
        code = "context_overflow" if _too_long(f"{words} {kind}") else "bad_response"
        return Fault(code, redacted(words, secrets))
    code, final = _code_of(status, f"{words} {kind}")
    return Fault(code, redacted(words, secrets), status=status, final=final)


def retry_after(headers: Any, now_ms: int) -> float | None:
    """Seconds to wait as the provider says: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            from email.utils import parsedate_to_datetime

            try:
                when = parsedate_to_datetime(value)
            except ValueError:
                continue
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)  # a date in HTTP is in GMT
            seconds = when.timestamp() - now_ms / 1000
        if seconds == seconds and seconds < 1e9:  # neither NaN nor for ever
            return max(0.0, seconds)
    return None


def _code_of(status: int, text: str) -> tuple[str, bool]:
    """Code and whether it is final."""
    match status:
        case 401 | 403:
            return "authentication", False
        case 407:
            return "unreachable", True
        case 402:
            return "rate_limited", True
        case 404:
            return "model_not_found", False
        case 408 | 504:
            return "timeout", False
        case 413:
            return "context_overflow", False
        case 429:
            return "rate_limited", bool(_QUOTA.search(text))
        case 500 if _too_long(text):  # llama.cpp, when it runs full in the middle of an answer
            return "context_overflow", False
        case _ if status >= 500 or status in (409, 425):
            return "overloaded", False
        case _ if status < 400:
            return "bad_response", False
        case _:
            pass
    if _too_long(text):
        return "context_overflow", False
    if _NO_MODEL.search(text):
        return "model_not_found", False
    return "bad_request", False


def _too_long(text: str) -> bool:
    return bool(_CONTEXT.search(text)) and not _NO_PARAMETER.search(text)


def _words(body: bytes) -> tuple[str, dict[str, Any]]:
    """What an error body says, and its `error` object."""
    if body.lstrip()[:1] == b"<":
        return "an HTML page instead of JSON", {}
    try:
        value: Any = loads(body)
    except ValueError:
        return body.decode("utf-8", "replace"), {}
    if not isinstance(value, dict):
        return str(value), {}
    fields = cast("dict[str, Any]", value)
    error: Any = fields.get("error", fields)
    if not isinstance(error, dict):
        return str(error), {}
    inner = cast("dict[str, Any]", error)
    return str(inner.get("message") or inner.get("detail") or inner), inner
