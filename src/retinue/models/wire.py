"""The body of a Chat Completions request, as bytes, so that what was sent once is sent again byte for byte (M11).

    body = prefix of the envelope, cached in it + history, each entry encoded once + what may differ (tail, tool choice)

Everything that varies comes last: the body of a turn without its ending is a prefix of the next turn's body.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from retinue.config import ChatClientConfig
from retinue.errors import ConfigurationError
from retinue.json_text import dumps, loads
from retinue.messages import AssistantMessage, Entry, MediaRef, Message, ToolCall, ToolResult, UserMessage
from retinue.models.media_parts import Data, content_of, shown_results, told
from retinue.models.output import output_words, response_format
from retinue.models.port import Emit, Envelope, ModelRequest, ToolSpec
from retinue.models.profiles import Profile

if TYPE_CHECKING:
    from retinue.models.form import FormReader

__all__ = ["CALLS_NOTE", "REASONING_NOTE", "RESERVED", "ChatWire", "arguments_of", "body_of"]

RESERVED: Final = frozenset({"messages", "model", "stream", "stream_options", "tools"})
"""Keys of the body that `ChatClientConfig.extra` cannot set: they are the adapter's."""

REASONING_NOTE: Final = "$reasoning"
"""In the extras of a message: the key under which its provider wants its reasoning back. Not sent itself."""

CALLS_NOTE: Final = "$calls"
"""In the extras of a message: the extras of its calls, a list as long as they. Not sent itself."""

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")

_STUB: Final = ToolSpec(
    name="no_tool_available",
    description="Placeholder: no tool can be called.",
    parameters={"type": "object", "properties": {}},
)


class ChatWire:
    """How one provider's messages are written. `format` names the bytes: equal formats mean equal bytes."""

    reserved = RESERVED

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.format = "/".join(("chat", profile.provider, *profile.media))
        self._id: Callable[[str], str] = _short_id if profile.short_ids else _plain_id

    def encode(self, message: Message) -> bytes:
        """One message of the history, with a line of text for each of its pictures and files."""
        if isinstance(message, UserMessage):
            text = told(message.text, message.parts, self._why_not) if message.parts else message.text
            return dumps({"role": "user", "content": _filled(text, "(empty message)")})
        if isinstance(message, ToolResult):
            content = _filled(self.told_result(message), "(no output)")
            return dumps({"role": "tool", "tool_call_id": self._id(message.call_id), "content": content})
        return dumps(self._assistant(message))

    def wanted(self, entry: Entry) -> tuple[MediaRef, ...]:
        """The pictures and files that are sent with an entry: what a user gave, or after a batch what its calls gave."""
        message = entry.message
        parts = message.parts if isinstance(message, UserMessage) else ()
        if entry.shows and self.shows_results:
            parts = tuple(ref for result in entry.shows for ref in result.parts)
        return tuple(ref for ref in parts if self.profile.takes(ref.media_type))

    def encode_with(self, entry: Entry, data: Data) -> bytes:
        """An entry with the bytes that it wants. After a batch of calls that is two messages: no part may stand in a result."""
        message = entry.message
        if isinstance(message, UserMessage):
            return dumps({"role": "user", "content": content_of(message.text, message.parts, data, self._why_not)})
        return self.encode(message) + b"," + dumps({"role": "user", "content": shown_results(entry.shows, data)})

    @property
    def shows_results(self) -> bool:
        """Whether a user message may follow results, for what they show."""
        return self.profile.tail != "join"

    def told_result(self, message: ToolResult) -> str:
        """The text of a result, which says of each part that is not shown why."""
        if not message.parts:
            return message.content
        return told(message.content, message.parts, self._why_not if self.shows_results else _not_of_tools)

    def _why_not(self, ref: MediaRef) -> str:
        if self.profile.takes(ref.media_type):
            return ""
        return "this model takes no images" if ref.what == "image" else f"this model takes no {ref.media_type}"

    def _assistant(self, message: AssistantMessage) -> dict[str, Any]:
        ours = message.provider == self.profile.provider
        extras: dict[str, Any] = message.extras if ours else {}
        wire: dict[str, Any] = {"role": "assistant", "content": message.text if message.text.strip() else None}
        for key, value in extras.items():
            if not key.startswith("$") and key not in ("content", "role", "tool_calls"):
                wire[key] = value
        if self.profile.echo_reasoning and (key := extras.get(REASONING_NOTE)) is not None:
            wire[key] = message.reasoning or ""
        if message.calls:
            notes: list[Any] = extras.get(CALLS_NOTE, [])
            wire["tool_calls"] = [
                self._call(call, notes[place] if place < len(notes) else None) for place, call in enumerate(message.calls)
            ]
        elif wire["content"] is None:
            wire["content"] = "(no answer)"  # providers refuse a message with neither text nor calls
        return wire

    def _call(self, call: ToolCall, extras: dict[str, Any] | None) -> dict[str, Any]:
        function = {"name": call.name, "arguments": arguments_of(call.arguments)}
        return {**(extras or {}), "id": self._id(call.id), "type": "function", "function": function}

    def prefix(self, envelope: Envelope, model: str, *, stub: bool) -> bytes:
        """The bytes before the history, up to and with the system message; made once for an envelope."""
        key = f"{self.format}/{model}/{stub}"
        cached = envelope.wire.get(key)
        if cached is None:
            cached = envelope.wire[key] = self._prefix(envelope, model, stub=stub)
        return cast("bytes", cached)

    def _prefix(self, envelope: Envelope, model: str, *, stub: bool) -> bytes:
        head: dict[str, Any] = {"model": model, "stream": True}
        if self.profile.stream_usage:
            head["stream_options"] = {"include_usage": True}
        head |= self.settings(envelope.settings)
        tools = envelope.tools or ((_STUB,) if stub else ())
        if tools:
            head["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
        system = dumps({"role": "system", "content": envelope.instructions}) if envelope.instructions.strip() else b""
        return dumps(head)[:-1] + b',"messages":[' + system

    def settings(self, settings: ChatClientConfig) -> dict[str, Any]:
        """The keys of the body that settings make.

        Raises:
            ConfigurationError: `extra` holds one of the adapter's own keys.
        """
        if taken := sorted(self.reserved & settings.extra.keys()):
            raise ConfigurationError(
                f"`ChatClientConfig(extra=…)` sets `{taken[0]}`, which is the adapter's own",
                code="reserved_setting",
                remedy="leave it out of `extra`",
            )
        known: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            self.profile.max_tokens_key: settings.max_tokens,
            "stop": list(settings.stop) or None,
        }
        return {key: value for key, value in known.items() if value is not None} | dict(settings.extra)

    def ending(self, request: ModelRequest, *, stub: bool) -> bytes:
        """What follows the messages: all that may differ between two turns of a conversation."""
        no_calls = stub or (bool(request.envelope.tools) and not request.tools_allowed)
        end = b'],"tool_choice":"none"' if no_calls else b"]"
        if request.output is not None and (
            self.profile.output == "enforced" or (self.profile.output == "alone" and (no_calls or not request.envelope.tools))
        ):
            end += b',"response_format":' + dumps(response_format(request.output))
        return end + b"}"

    def reader(self, request: ModelRequest, emit: Emit) -> "FormReader | None":
        """What the answer is read with before it is one; None where it comes as it is."""
        return None

    def needs_stub(self, request: ModelRequest) -> bool:
        """Whether a tool must be offered that cannot be called: providers refuse calls in a history without tools."""
        return not request.envelope.tools and _has_calls(request.history)

    def tail_text(self, request: ModelRequest) -> str:
        """What follows the conversation in this request only; empty for most."""
        tail = request.tail if request.tail.strip() else ""
        if request.output is None or self.profile.output == "enforced":
            return tail
        words = output_words(request.output)
        return f"{words}\n\n{tail}" if tail else words

    def tail(self, request: ModelRequest) -> tuple[Sequence[Entry], bytes]:
        """The history to send as it is, and the bytes of the volatile tail after it."""
        history = request.history
        text = self.tail_text(request)
        if not text:
            return history, b""
        if self.profile.tail == "join" and history:
            last = history[-1].message
            if isinstance(last, ToolResult):
                joined = msgspec.structs.replace(last, content=f"{last.content}\n\n{text}")
                return history[:-1], self.encode(joined)
            if isinstance(last, UserMessage) and not last.parts:
                return history[:-1], self.encode(msgspec.structs.replace(last, text=f"{last.text}\n\n{text}"))
        return history, dumps({"role": "user", "content": text})


def body_of(wire: ChatWire, request: ModelRequest, model: str) -> bytes:
    """The whole body of a request."""
    envelope = request.envelope
    stub = wire.needs_stub(request)
    prefix = wire.prefix(envelope, model, stub=stub)
    history, tail = wire.tail(request)
    wire_format, encode = wire.format, wire.encode
    parts = [entry.wire if entry.wire_format == wire_format else entry.encoded(wire_format, encode) for entry in history]
    if tail:
        parts.append(tail)
    if prefix.endswith(b"[") and parts:  # no system message: no comma before the first
        parts[0] = prefix + parts[0]
    else:
        parts.insert(0, prefix)
    # One join copies the history once; it may be a megabyte.
    parts[-1] += wire.ending(request, stub=stub)
    return b",".join(parts)


def _not_of_tools(ref: MediaRef) -> str:
    return f"this model takes no {ref.what}s from tools"


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _has_calls(history: Sequence[Entry]) -> bool:
    return any(isinstance(entry.message, AssistantMessage) and entry.message.calls for entry in history)


def _filled(text: str, instead: str) -> str:
    """Providers refuse blank content; a word in brackets says what it was."""
    return text if text.strip() else instead


def arguments_of(text: str) -> str:
    """Arguments as an object in JSON. What a model got wrong is kept inside one: servers parse the history again."""
    if not text.strip():
        return "{}"
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    try:
        value = loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        value = None
    return dumps(cast("object", value) if isinstance(value, dict) else {"invalid_arguments": text}).decode()


def _plain_id(call_id: str) -> str:
    """The id as it is, or one made of it: at most 40 letters, digits, `_` and `-` are taken everywhere."""
    return call_id if _CALL_ID.fullmatch(call_id) else f"call_{_digest(call_id)[:24]}"


def _short_id(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return _digest(call_id)[:9]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
