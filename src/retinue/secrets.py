"""Secrets: named where they are defined, looked up where they are used, and kept out of everything that is stored or shown.

`SecretRef("env:NAME")` stands for a value of the environment. A `Redactor` knows values, and replaces each of them by
`[redacted]` wherever text goes into a journal, to a viewer, to a model or into a log (invariant 10). It finds a value as it
is, as JSON writes it (up to twice over, in any of the ways in which programs escape) and as a URL writes it.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import msgspec

from retinue.errors import ConfigurationError

__all__ = ["REDACTED", "RedactedStream", "Redactor", "SecretRef", "secret_text"]

REDACTED: Final = "[redacted]"
SHORTEST: Final = 8
"""Values below this many characters are not searched for: they would be found in ordinary words."""

_S = TypeVar("_S", bound=msgspec.Struct)
_ESCAPED: Final = re.compile(r"\\+u00([2-7][0-9a-fA-F])")
_MAY_ESCAPE: Final = re.compile(rb"\\u00[2-7]")
_OURS: Final = (
    *("completed", "cancelled", "abandoned", "assistant", "unknown_outcome", "synchronous", "permission", "content_filter"),
    *("tool_calls", "isolated", "answered", REDACTED),
)
"""Words of our own records: what is part of one cannot be told apart from it."""
_PLACEHOLDERS: Final = frozenset({"lm-studio", "not-needed", "no-key-required", "sk-no-key-required", "placeholder"})
"""What people give as a key to servers that want none."""


_PLACES: Final = frozenset({"base", "call", "owner", "key", "path", "invocations", "runId", "childSessionId", "childThreadId"})


class SecretRef:
    """A secret by its place: `env:NAME`. It is looked up at each use, and its value is never stored or shown.

    Raises:
        ConfigurationError: the text is not of this form.
    """

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        scheme, _, name = reference.partition(":")
        if scheme != "env" or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(
                "`SecretRef(…)` takes the place of a secret, not the secret",  # which may stand here: it is not repeated
                code="invalid_secret",
                remedy='write `SecretRef("env:NAME")`, and set NAME in the environment',
            )
        self.reference = reference

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.reference.removeprefix("env:")

    def get(self) -> str | None:
        """The value now, without white space around it; None if there is none."""
        return os.environ.get(self.name, "").strip() or None

    def resolve(self) -> str:
        """The value now.

        Raises:
            ConfigurationError: `missing_secret`.
        """
        value = self.get()
        if value is None:
            raise ConfigurationError(
                f"the secret `{self.reference}` has no value",
                code="missing_secret",
                remedy=f"set `{self.name}` in the environment of this process",
            )
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretRef) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    def __repr__(self) -> str:
        return f"SecretRef({self.reference!r})"


def secret_text(value: "str | SecretRef") -> str:
    """The text of a value that may be given by reference. Only where it is used.

    Raises:
        ConfigurationError: `missing_secret`.
    """
    return value.resolve() if isinstance(value, SecretRef) else value


class Redactor:
    """Known values, and how they are taken out of text. False while it knows none: then nobody needs to ask it."""

    __slots__ = ("_needles", "_pattern", "_sources", "_values", "active", "forms")

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._sources: list[Callable[[], Iterable[str | SecretRef]]] = []
        self._needles: tuple[bytes, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self.active = False
        """Whether it knows any value: an attribute, because each event asks for it."""
        self.forms: tuple[str, ...] = ()
        """Every way in which a known value may be written, the longest first."""

    def __bool__(self) -> bool:
        return self.active

    def require(self, secret: str | SecretRef) -> None:
        """Know a value that the application has named as a secret.

        Raises:
            ConfigurationError: it is too short, or part of a word that records consist of.
        """
        if isinstance(secret, SecretRef):
            self.watch(lambda: (secret,))
            return
        if not _searchable(secret):
            raise ConfigurationError(
                f"a secret of {len(secret)} characters cannot be told apart from ordinary text",
                code="secret_too_short",
                remedy=f"use secrets of at least {SHORTEST} characters",
            )
        self.add((secret,))

    def add(self, values: Iterable[str | SecretRef]) -> None:
        """Know these values, those that are long enough. What was known stays known: an old key is still a secret."""
        texts = ((value.get() or "") if isinstance(value, SecretRef) else value for value in values)
        new = {text for text in texts if text not in self._values and _searchable(text)}
        if new:
            self._values |= new
            self._build()

    def watch(self, source: Callable[[], Iterable[str | SecretRef]]) -> None:
        """Ask `source` for values now and at each `refresh`."""
        self._sources.append(source)
        self.add(source())

    def refresh(self) -> None:
        """Look again at what may have changed: variables of the environment."""
        for source in self._sources:
            self.add(source())

    def _build(self) -> None:
        forms = {form for value in self._values for form in _forms(value)}
        self.forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        # a backslash before a value goes with it: else what is left of an escape would break the JSON around it
        self._pattern = re.compile(r"\\*(?:" + "|".join(map(re.escape, self.forms)) + ")")
        self.active = True
        self._needles = tuple({_bytes(_escaped(form)) for form in self.forms})

    def found(self, data: bytes) -> bool:
        """Whether JSON (or any text as UTF-8) may hold a known value. Quick; may say yes where `text` changes nothing."""
        for needle in self._needles:
            if needle in data:
                return True
        return b"\\" in data and b"\\u00" in data and _MAY_ESCAPE.search(data) is not None

    def text(self, text: str) -> str:
        """`text` without any known value; the same object if there is none."""
        if self._pattern is None:
            return text
        if any(form in text for form in self.forms):
            text = self._pattern.sub(REDACTED, text)
        if "\\u00" in text:
            plain = _ESCAPED.sub(_unescaped, text)
            if any(form in plain for form in self.forms):
                return self._pattern.sub(REDACTED, plain)
        return text

    def value(self, value: Any) -> Any:
        """JSON data without any known value, in keys as well."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {self.value(key): self.value(item) for key, item in items}
            case list() | tuple():
                return [self.value(item) for item in cast("list[Any]", value)]
            case _:
                return value

    def body(self, data: bytes) -> bytes:
        """JSON bytes without any known value; the same object if there is none."""
        return msgspec.json.encode(self.value(msgspec.json.decode(data))) if self.found(data) else data

    def event(self, event: _S, data: bytes) -> tuple[_S, bytes]:
        """An event without any known value, the same object if there is none, and its JSON; `data` is its JSON as it is.
        Names of places are left as they are, or a journal would lead nowhere.
        """
        if not self.found(data):
            return event, data
        clean = self.record(data)
        return (event, data) if clean is data else (msgspec.json.decode(clean, type=type(event)), clean)

    def record(self, data: bytes) -> bytes:
        """An event's JSON without any known value, the same object if there is none; names of places as in `event`."""
        if not self.found(data):
            return data
        fields: dict[str, Any] = msgspec.json.decode(data)
        clean = {name: value if name in _PLACES else self.value(value) for name, value in fields.items()}
        return data if clean == fields else msgspec.json.encode(clean)

    def log_filter(self) -> logging.Filter:
        """A filter that takes known values out of log records."""
        return _LogFilter(self)

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"


class RedactedStream:
    """Text that comes in pieces, without any known value: what may be the beginning of one is held back until it is not."""

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """As much as can be shown now."""
        text, forms = self._held + piece, self._redactor.forms
        pattern = self._redactor._pattern
        if pattern is None:
            return text
        shown: list[str] = []
        at = 0
        while True:
            hold = _open_end(text, at, forms)
            found = pattern.search(text, at)
            if found is None or found.start() >= hold:
                break
            shown += (text[at : found.start()], REDACTED)
            at = found.end()
        shown.append(text[at:hold])
        self._held = text[hold:]
        return "".join(shown)

    def flush(self) -> str:
        """What was held back: nothing comes after it."""
        held, self._held = self._held, ""
        return self._redactor.text(held)


class _LogFilter(logging.Filter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message by one without secrets."""
        if self._redactor:
            said = record.getMessage()
            clean = self._redactor.text(said)
            if clean is not said:
                record.msg, record.args = clean, None
            if record.exc_info:
                trace = record.exc_text or logging.Formatter().formatException(record.exc_info)
                record.exc_text = self._redactor.text(trace)
        return True


def _searchable(text: str) -> bool:
    return (
        len(text) >= SHORTEST and text not in _PLACEHOLDERS and REDACTED not in text and not any(text in word for word in _OURS)
    )


def _forms(value: str) -> set[str]:
    """The value, and how programs write it into JSON, into JSON within JSON, and into a URL."""
    once = {value}
    for write in (_escaped, _ascii):
        once |= {write(value), write(value).replace("/", "\\/")}
    twice = {write(form) for form in once for write in (_escaped, _ascii)}
    return once | twice | {quote(value, safe="", errors="replace")}


def _escaped(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ascii(text: str) -> str:
    import json

    return json.dumps(text)[1:-1]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unescaped(found: re.Match[str]) -> str:
    char = chr(int(found[1], 16))
    return found[0] if char in '"\\\x7f' else char


def _open_end(text: str, at: int, forms: tuple[str, ...]) -> int:
    """Where the end of `text` begins that may be the beginning of a form. Backslashes before it belong to it."""
    longest = len(forms[0]) if forms else 0
    firsts = {form[0] for form in forms}
    hold = len(text)
    for start in range(max(at, len(text) - longest + 1), len(text)):
        if text[start] in firsts:
            end = text[start:]
            if any(len(form) > len(end) and form.startswith(end) for form in forms):
                hold = start
                break
    while hold > at and text[hold - 1] == "\\":
        hold -= 1
    return hold
