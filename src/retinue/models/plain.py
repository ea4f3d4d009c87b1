"""The chunks that most of a stream consists of, decoded into typed values: some text, a reason to end. Pure.

What holds anything else (calls, usage, an error, a key of one provider) is no plain chunk: `Assembler.feed` takes it as JSON.
"""

from typing import Final

import msgspec

__all__ = ["PlainChunk", "PlainDelta", "plain_chunk"]


class PlainDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Text. A key that is not named here makes the chunk none of these."""

    role: str | None = None
    content: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: PlainDelta | None = None
    finish_reason: str | None = None
    message: None = None


class PlainChunk(msgspec.Struct, gc=False):
    """A chunk with at most text and a reason to end."""

    choices: list[_Choice] | None = None
    model: str | None = None
    usage: None = None
    error: None = None


_DECODER: Final = msgspec.json.Decoder(PlainChunk)


def plain_chunk(data: bytes) -> PlainChunk | None:
    """The chunk in `data`, None if it is another one or no JSON."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
