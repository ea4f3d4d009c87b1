"""Text that any JSON parser takes: no lone surrogates, whatever a tool, a person or a provider has put in.

A provider that cuts UTF-16 in the middle of a pair sends its halves in two pieces; `Mender` joins them again (B175).
"""

from typing import Any, cast

import msgspec

__all__ = ["Mender", "dumps", "loads", "mend", "mend_all"]


def mend(text: str) -> str:
    """`text` with split pairs of surrogates joined and lone ones replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def mend_all(value: Any) -> Any:
    """The same for every text inside a JSON value."""
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {mend(key): mend_all(item) for key, item in pairs}
    if isinstance(value, (list, tuple)):
        return [mend_all(item) for item in cast("list[Any]", value)]
    return value


def dumps(value: Any) -> bytes:
    """A JSON value as UTF-8; lone surrogates are replaced, never an error."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mend_all(value))


def loads(data: bytes) -> Any:
    """The JSON value in `data`; bytes that are not UTF-8 and half surrogate pairs are let through (they are mended later).

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        import json  # only for what msgspec is too strict for

        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


class Mender:
    """Mends a text that comes in pieces: a half pair at the end of one waits for its other half."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """The next piece, mended; perhaps without its last half character."""
        if self._half:
            piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return mend(piece)

    def end(self) -> str:
        """What was held back."""
        rest, self._half = mend(self._half), ""
        return rest
