"""The messages of a conversation, as a model sees them: plain data, independent of any provider.

A conversation is a sequence of `UserMessage`, `AssistantMessage` and `ToolResult`. Each call of an assistant message has
exactly one result, adjacent and in call order (invariant 6). `Entry` wraps one of them with the bytes an adapter made of it.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from retinue.states import ResultStatus

__all__ = [
    "ZERO_USAGE",
    "AssistantMessage",
    "BlobRef",
    "CallRef",
    "Entry",
    "MediaRef",
    "Message",
    "OutputSpec",
    "ToolCall",
    "ToolResult",
    "Usage",
    "UserMessage",
]


class CallRef(msgspec.Struct, frozen=True, array_like=True):
    """A call's identity: the assistant message and the place in it. Provider ids repeat, this does not (M4)."""

    message_id: str
    index: int


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One call that a model asked for.

    `id` goes to the wire and is unique in its thread; `provider_id` is what the provider sent, kept where it differs.
    `arguments` is the JSON text as sent, also where it is not valid JSON.
    """

    id: str
    name: str
    arguments: str = "{}"
    provider_id: str | None = None


class BlobRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A reference to a text that is stored as a blob: `digest` is the SHA-256 of its UTF-8 bytes, `characters` its length.

    Whoever's history holds the reference may read the text (M12); the digest alone opens nothing.
    """

    digest: str
    characters: int

    @property
    def id(self) -> str:
        """What a model calls it."""
        return f"res_{self.digest[:24]}"


class MediaRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A reference to a picture or a file whose bytes are stored as a blob: `digest` is their SHA-256, `size` their number.

    Whoever's history holds the reference is shown the bytes (M12), where its model takes the `media_type`.
    """

    digest: str
    media_type: str
    size: int
    name: str = ""

    @property
    def what(self) -> str:
        """`image` or `file`."""
        return "image" if self.media_type.startswith("image/") else "file"

    @property
    def line(self) -> str:
        """What stands for it in a text: `[image photo.png, 120 kB]`. The same for ever, for it is in what is sent."""
        return f"[{self._said}]"

    def told(self, note: str) -> str:
        """The line with a word on why there is only the line."""
        return f"[{self._said}: {note}]"

    @property
    def _said(self) -> str:
        size = self.size
        told = f"{size} bytes" if size < 1_000 else f"{size // 1_000} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
        return f"{f'{self.what} {self.name}' if self.name else self.media_type}, {told}"


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The form that a run's answer must have: a JSON schema of type object, under a name.

    `wrapped`: what is wanted is no object, so it stands in one under the key `value`. `digest` is a hash of the schema.
    `repairs` is how often an answer that does not fit is given back.
    """

    name: str
    schema: dict[str, Any]
    digest: str
    wrapped: bool = False
    repairs: int = 2


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="role", tag="user"):
    """What a person or a parent agent wrote. A `notice` is written by the harness (background result, roster change).

    `parts` are the pictures and files that came with it: in `text` the line of each stands where it belongs. `blobs` are the
    stored texts that a notice names.
    """

    id: str
    text: str
    notice: str | None = None
    parts: tuple[MediaRef, ...] = ()
    blobs: tuple[BlobRef, ...] = ()


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="role", tag="assistant"
):
    """What a model answered: text, reasoning, calls, and `extras` that its provider wants back unchanged.

    `provider` names whose extras they are; another provider is not sent them.
    """

    id: str
    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    provider: str | None = None
    extras: dict[str, Any] = {}


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="role", tag="tool"):
    """The answer to one call. `call_id` is the `ToolCall.id` it answers.

    `blobs` are the texts that `content` was cut from, or names: `read_result` pages through them.
    `parts` are the pictures and files that the call gave: in `content` stands the line of each.
    """

    call: CallRef
    call_id: str
    name: str
    content: str
    status: ResultStatus = ResultStatus.OK
    blobs: tuple[BlobRef, ...] = ()
    parts: tuple[MediaRef, ...] = ()


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult


class Entry:
    """A message in a history, with the bytes that the adapter of one wire format made of it (M11).

    Histories share entries between turns and forks, so a message is encoded once. `shows` stands at the last result of a
    batch: the results of the batch that hold media, for the wires that show those after all of them.
    """

    __slots__ = ("message", "shows", "wire", "wire_format")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.shows: tuple[ToolResult, ...] = ()
        self.wire_format: str | None = None
        self.wire: bytes = b""

    def encoded(self, wire_format: str, encode: "Callable[[Message], bytes]") -> bytes:
        """The bytes of this message in `wire_format`, made by `encode` the first time."""
        if self.wire_format != wire_format:
            self.wire = encode(self.message)
            self.wire_format = wire_format
        return self.wire

    def __repr__(self) -> str:
        return f"Entry({self.message!r})"


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Tokens of model calls. `cached_tokens` are those of `input_tokens` that the provider had cached."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            calls=self.calls + other.calls,
        )


ZERO_USAGE = Usage()

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter", "other"]
