"""An answer put together from the pieces of a stream: text, reasoning, calls, usage, extras. Pure.

A whole message, as a server that does not stream sends it, is one large piece.
"""

from typing import Any, Final, cast

import msgspec

from retinue.json_text import Mender, dumps, mend, mend_all
from retinue.messages import FinishReason, ToolCall, Usage
from retinue.models.plain import PlainChunk
from retinue.models.port import Delta, ModelAnswer, ReasoningDelta, TextDelta
from retinue.models.wire import CALLS_NOTE, REASONING_NOTE

__all__ = ["MAX_ARGUMENTS", "Assembler", "BadStream", "EndlessAnswer"]

MOST_TOKENS: Final = 10**12
"""More than that in one call is no count."""
MAX_ARGUMENTS: Final = 16_000_000
"""Characters of the arguments of all calls in one answer: more is a model that comes to no end."""

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
_FAILED: Final = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons of an answer that its provider could not bring to an end (B202)."""
_REASONING_KEYS: Final = ("reasoning_content", "reasoning")
_OWN_KEYS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "audio", "annotations", *_REASONING_KEYS}
)
_NAMES: Final = frozenset({"id", "type", "format", "name", "phase", "status"})
"""Extras under these keys are names: a second value replaces the first. Other texts come in pieces and are joined."""


class BadStream(ValueError):
    """The server sent what is no answer. Private to this folder: the adapter makes a `ModelError` of it."""


class EndlessAnswer(BadStream):
    """The model comes to no end."""


class _Call:
    """A call that is growing."""

    __slots__ = ("extras", "id", "name", "pieces")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.extras: dict[str, Any] = {}

    @property
    def arguments(self) -> str:
        """As far as they have come."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def complete(self) -> bool:
        """Whether its arguments can be whole."""
        return _is_json(self.arguments)


class Assembler:
    """Takes chunks, gives deltas to show, and at the end the answer."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.usage: Usage | None = None
        self.model: str | None = None
        self.received = False
        """Whether any content has come."""
        self.heard = 0
        """How often something of the answer has come. What only keeps the connection open does not count."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._mend_text = Mender()
        self._mend_reasoning = Mender()
        self._reasoning_key: str | None = None
        self._refused = False
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._extras: dict[str, Any] = {}
        self._characters = 0

    def feed(self, chunk: Any) -> list[Delta]:
        """One chunk, or one whole response: what there is to show of it.

        Raises:
            BadStream: it has not the shape of a chunk.
        """
        if not isinstance(chunk, dict):
            raise BadStream("a chunk is not an object")
        body = cast("dict[str, Any]", chunk)
        if isinstance(body.get("usage"), dict):
            self.usage = _usage(body["usage"])
        if self.model is None and isinstance(body.get("model"), str):
            self.model = mend(body["model"])
        choices: Any = body.get("choices") or []
        if not isinstance(choices, list):
            raise BadStream("`choices` is not a list")
        for choice in cast("list[Any]", choices):
            if isinstance(choice, dict) and not cast("dict[str, Any]", choice).get("index"):
                return self._choice(cast("dict[str, Any]", choice))
        return []

    def feed_plain(self, chunk: PlainChunk) -> list[Delta]:
        """The same for a chunk that is already decoded."""
        if self.model is None:
            self.model = chunk.model
        for choice in chunk.choices or ():
            if not choice.index:
                if choice.finish_reason:
                    self.finish = choice.finish_reason
                return self._show_text(choice.delta.content) if choice.delta is not None and choice.delta.content else []
        return []

    def _choice(self, choice: dict[str, Any]) -> list[Delta]:
        if reason := choice.get("finish_reason"):
            self.finish = str(reason)
        delta: Any = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise BadStream("`delta` is not an object")
        piece = cast("dict[str, Any]", delta)
        shown = self._reason(piece)
        shown += self._content(piece)
        for key, value in piece.items():
            if key not in _OWN_KEYS and value is not None:
                self._extras[key] = _merged(self._extras.get(key), value, key)
                self.heard += bool(value)  # what one provider alone says may be all that there is for a while
        calls: Any = piece.get("tool_calls") or []
        if not isinstance(calls, list):
            raise BadStream("`tool_calls` is not a list")
        for place, call in enumerate(cast("list[Any]", calls)):
            if isinstance(call, dict):
                self._fragment(cast("dict[str, Any]", call), place, len(cast("list[Any]", calls)))
                self.received = True
        return shown

    def _reason(self, piece: dict[str, Any]) -> list[Delta]:
        for key in (self._reasoning_key,) if self._reasoning_key else _REASONING_KEYS:
            text = piece.get(key)
            if isinstance(text, str):
                self._reasoning_key = key  # also where it is empty: who sends the key may want it back (B020)
                return self._show_reasoning(text)
        return []

    def _content(self, piece: dict[str, Any]) -> list[Delta]:
        content: Any = piece.get("content")
        shown: list[Delta] = []
        if isinstance(content, str):
            shown += self._show_text(content)
        elif isinstance(content, list):
            for part in cast("list[Any]", content):
                text, thought = _part(part)
                shown += self._show_reasoning(thought) + self._show_text(text)
        if isinstance(refusal := piece.get("refusal"), str) and refusal:
            self._refused = True
            shown += self._show_text(refusal)
        return shown

    def _show_text(self, text: str) -> list[Delta]:
        self.heard += bool(text)
        if not (text and (clean := self._mend_text.feed(text))):
            return []
        self.received = True
        self._text.append(clean)
        return [TextDelta(clean)]

    def _show_reasoning(self, text: str) -> list[Delta]:
        self.heard += bool(text)
        if not (text and (clean := self._mend_reasoning.feed(text))):
            return []
        self.received = True
        self._reasoning.append(clean)
        return [ReasoningDelta(clean)]

    def _fragment(self, piece: dict[str, Any], place: int, of: int) -> None:
        function: Any = piece.get("function") or {}
        if not isinstance(function, dict):
            raise BadStream("`function` of a tool call is not an object")
        parts = cast("dict[str, Any]", function)
        call_id, name = _string(piece.get("id")), _string(parts.get("name"))
        index: Any = piece.get("index")
        starts = bool(name and parts.get("arguments"))
        if isinstance(index, int):
            call = self._indexed(index, call_id, name, starts=starts)
        else:
            call = self._unindexed(call_id, name, (place, of), starts=starts)
        repeats = bool(call_id) and call_id == call.id
        if call_id and not call.name and not repeats:
            call.id += call_id
        if name and not call.pieces and not (repeats and name == call.name):
            call.name += name
        arguments: Any = parts.get("arguments")
        self.heard += bool(arguments)
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else dumps(arguments).decode()  # some servers send the object itself
            self._characters += len(text)
            if self._characters > MAX_ARGUMENTS:
                raise EndlessAnswer(f"the arguments of its calls have more than {MAX_ARGUMENTS:,} characters")
            if text:
                call.pieces.append(text)
        for key, value in piece.items():
            if key not in ("index", "id", "type", "function") and value is not None:
                call.extras[key] = _merged(call.extras.get(key), value, key)

    def _new(self) -> _Call:
        self.heard += 1
        call = _Call()
        self._calls.append(call)
        return call

    def _indexed(self, index: int, call_id: str, name: str, *, starts: bool) -> _Call:
        """The call at an index. A server that gives every call index 0 shows a new one by another id, or by a name and
        more arguments after whole ones."""
        call = self._by_index.get(index)
        if call is None:
            call = self._by_index[index] = self._new()
        elif call_id and call_id != call.id and call.name:
            known = next((other for other in self._calls if other.id == call_id), None)
            if known is not None:
                call = known
            elif name:
                call = self._by_index[index] = self._new()
        elif starts and call.complete():
            call = self._by_index[index] = self._new()
        return call

    def _unindexed(self, call_id: str, name: str, position: tuple[int, int], *, starts: bool) -> _Call:
        """The call that a fragment without an index belongs to: by its id, else a new one if it names a tool, else the
        one at its position if several come together, else the last."""
        if call_id:
            known = next((call for call in reversed(self._calls) if call.id == call_id), None)
            return known if known is not None and not (starts and known.complete()) else self._new()
        if name or not self._calls:
            return self._new()
        place, together = position
        return self._calls[place] if together > 1 and place < len(self._calls) else self._calls[-1]

    def flush(self) -> list[Delta]:
        """What was held back for its other half."""
        shown: list[Delta] = []
        if rest := self._mend_reasoning.end():
            self._reasoning.append(rest)
            shown.append(ReasoningDelta(rest))
        if rest := self._mend_text.end():
            self._text.append(rest)
            shown.append(TextDelta(rest))
        return shown

    @property
    def failed(self) -> str | None:
        """The finish reason, where it says that the provider gave the answer up."""
        return self.finish if self.finish in _FAILED else None

    def answer(self) -> ModelAnswer:
        """The whole answer, once the stream has ended.

        Raises:
            BadStream: nothing came, or a call has no name.
        """
        if self.finish is None and not self.received:
            raise BadStream("the answer is empty: no choices")
        calls, notes = self._finished_calls()
        extras = mend_all(self._extras)
        if self._reasoning_key is not None:
            extras[REASONING_NOTE] = self._reasoning_key
        if any(notes):
            extras[CALLS_NOTE] = notes
        return ModelAnswer(
            text="".join(self._text),
            reasoning="".join(self._reasoning) if self._reasoning_key or self._reasoning else None,
            calls=calls,
            usage=self.usage or Usage(calls=1),
            finish_reason=self._finish_reason(calls),
            extras=extras,
            model=self.model,
        )

    def _finish_reason(self, calls: tuple[ToolCall, ...]) -> FinishReason:
        if self._refused:
            return "content_filter"
        reason = _FINISH.get(self.finish or "stop", "other")
        return "tool_calls" if calls and reason in ("stop", "other") else reason

    def _finished_calls(self) -> tuple[tuple[ToolCall, ...], list[dict[str, Any]]]:
        calls = [call for call in self._calls if call.id or call.name or call.pieces]
        if self.finish is not None and _FINISH.get(self.finish) == "length":
            calls = [call for call in calls if call.complete()]  # the limit cut one in half: it is no call (B014)
        if any(not call.name for call in calls):
            raise BadStream("a tool call has no name")
        used: set[str] = set()
        done: list[ToolCall] = []
        for place, call in enumerate(calls):
            own = mend(call.id) or f"call_{place}"
            unique = own if own not in used else f"{own}_{place}"
            used.add(unique)
            done.append(
                ToolCall(
                    id=unique,
                    name=mend(call.name),
                    arguments=mend(call.arguments) if call.arguments.strip() else "{}",
                    provider_id=call.id if call.id and call.id != unique else None,
                )
            )
        return tuple(done), [mend_all(call.extras) for call in calls]


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def _part(part: Any) -> tuple[str, str]:
    """Text and reasoning of one part of a content list."""
    if not isinstance(part, dict):
        return _string(part), ""
    fields = cast("dict[str, Any]", part)
    thinking: Any = fields.get("thinking")
    if isinstance(thinking, list):
        return "", "".join(_part(inner)[0] for inner in cast("list[Any]", thinking))
    return _string(fields.get("text")), _string(thinking)


def _merged(old: Any, new: Any, key: str) -> Any:
    """Two pieces of an extra joined: texts and lists grow, objects by key, items of a list by their `index`."""
    if isinstance(old, str) and isinstance(new, str):
        return new if key in _NAMES else old + new
    if isinstance(old, dict) and isinstance(new, dict):
        joined = dict(cast("dict[str, Any]", old))
        for name, value in cast("dict[str, Any]", new).items():
            joined[name] = _merged(joined.get(name), value, name)
        return joined
    if isinstance(old, list) and isinstance(new, list):
        items = list(cast("list[Any]", old))
        for item in cast("list[Any]", new):
            place = _place(items, item)
            if place is None:
                items.append(item)
            else:
                items[place] = _merged(items[place], item, key)
        return items
    return cast("Any", old) if new is None else new


def _place(items: list[Any], item: Any) -> int | None:
    if not isinstance(item, dict) or not isinstance(index := cast("dict[str, Any]", item).get("index"), int):
        return None
    for place, other in enumerate(items):
        if isinstance(other, dict) and cast("dict[str, Any]", other).get("index") == index:
            return place
    return None


def _usage(wire: dict[str, Any]) -> Usage:
    details: Any = wire.get("prompt_tokens_details")
    cached: Any = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = wire.get("prompt_cache_hit_tokens")  # deepseek
    return Usage(
        input_tokens=_count(wire.get("prompt_tokens")),
        output_tokens=_count(wire.get("completion_tokens")),
        cached_tokens=_count(cached),
        calls=1,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value <= MOST_TOKENS else 0
