"""What the fake provider sends: a turn as chunks of a stream or as one document, in every shape that servers have. Pure."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from retinue.json_text import dumps
from retinue.messages import ToolCall, Usage
from retinue.models.script import Turn
from retinue.testing.provider_checks import state_of

__all__ = ["ProviderFault", "Shape", "chunks_of", "document_of", "half_call"]

Shape: TypeAlias = Literal[
    "omit_index",
    "same_index",
    "omit_ids",
    "repeat_ids",
    "whole_calls",
    "interleave",
    "object_arguments",
    "omit_usage",
    "omit_done",
    "omit_finish",
    "crlf",
    "document",
    "free_text",
]
"""Ways in which a healthy server may answer. `document`: one JSON document although a stream was asked for; `free_text`:
whatever `response_format` says."""


class ProviderFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong with one response.

    `status` (not 200) answers with an error whose `message`, `code` and `error_type` are given, `headers`, and
    `Retry-After` after `retry_after` seconds. `body` with `content_type` replaces the whole response. `redirect` answers 307
    with that place. `cut_after` breaks the connection after so many chunks (0: before any header), `half_call` in the middle
    of the first call's arguments, `hang_after` sends nothing more after so many chunks. `piece` writes so many bytes at a
    time (characters are cut in two), `piece_delay` seconds apart. `shape`: see `Shape`.
    """

    status: int = 200
    message: str = "the provider failed"
    code: str | None = None
    error_type: str = "server_error"
    headers: dict[str, str] = {}
    retry_after: float | None = None
    body: str | None = None
    content_type: str = "application/json"
    redirect: str | None = None
    cut_after: int | None = None
    half_call: bool = False
    hang_after: int | None = None
    piece: int = 0
    piece_delay: float = 0.0
    shape: tuple[Shape, ...] = ()


def chunks_of(turn: Turn, usage: Usage, *, step: int, number: int, model: str, shape: Sequence[Shape], echo: bool) -> list[bytes]:
    """The events of a streamed answer, whole, in order."""
    head: dict[str, Any] = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0, "model": model}
    calls = turn.tool_calls(step)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if turn.reasoning is not None:
        deltas.append({"reasoning_content": turn.reasoning})
    deltas += [{"content": piece} for piece in turn.pieces()]
    if extras := _extras(turn, calls, echo):
        deltas.append(extras)
    deltas += [{"tool_calls": fragments} for fragments in _fragments(calls, shape)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if "omit_finish" not in shape:
        choices.append({"index": 0, "delta": {}, "finish_reason": _finish(turn, calls)})
    bodies: list[dict[str, Any]] = [head | {"choices": [choice]} for choice in choices]
    if "omit_usage" not in shape:
        bodies.append(head | {"choices": [], "usage": _usage(usage)})
    end = b"\r\n\r\n" if "crlf" in shape else b"\n\n"
    events = [b"data: " + dumps(body) + end for body in bodies]
    return events if "omit_done" in shape else [*events, b"data: [DONE]" + end]


def document_of(turn: Turn, usage: Usage, *, step: int, number: int, model: str, shape: Sequence[Shape], echo: bool) -> bytes:
    """The same answer as one JSON document."""
    calls = turn.tool_calls(step)
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None} | _extras(turn, calls, echo)
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if calls:
        message["tool_calls"] = [_whole(call, place, (*shape, "omit_index")) for place, call in enumerate(calls)]
    body: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(turn, calls)}],
    }
    return dumps(body if "omit_usage" in shape else body | {"usage": _usage(usage)})


def half_call(events: Sequence[bytes]) -> int:
    """After how many events the first call has begun but is not whole."""
    with_calls = [place for place, event in enumerate(events) if b'"tool_calls":' in event]
    return with_calls[1] + 1 if len(with_calls) > 1 else len(events) // 2


def _extras(turn: Turn, calls: Sequence[ToolCall], echo: bool) -> dict[str, Any]:
    if not (echo and calls):
        return dict(turn.extras)
    wire = {"content": turn.text or None, "tool_calls": [{"function": {"name": call.name}} for call in calls]}
    return {**turn.extras, "provider_state": state_of(wire)}


def _finish(turn: Turn, calls: Sequence[ToolCall]) -> str:
    return turn.finish_reason or ("tool_calls" if calls else "stop")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _named(call: ToolCall, place: int, shape: Sequence[Shape]) -> dict[str, Any]:
    """Index and id of a call as this server gives them."""
    named: dict[str, Any] = {}
    if "omit_index" not in shape:
        named["index"] = 0 if "same_index" in shape else place
    if "omit_ids" not in shape:
        named["id"] = "call_0" if "repeat_ids" in shape else call.id
    return named


def _whole(call: ToolCall, place: int, shape: Sequence[Shape]) -> dict[str, Any]:
    arguments: Any = msgspec.json.decode(call.arguments) if "object_arguments" in shape else call.arguments
    return _named(call, place, shape) | {"type": "function", "function": {"name": call.name, "arguments": arguments}}


def _fragments(calls: Sequence[ToolCall], shape: Sequence[Shape]) -> list[list[dict[str, Any]]]:
    """The `tool_calls` of each chunk."""
    if "whole_calls" in shape or "object_arguments" in shape:
        return [[_whole(call, place, shape)] for place, call in enumerate(calls)]
    by_call: list[list[dict[str, Any]]] = []
    for place, call in enumerate(calls):
        start = _named(call, place, shape) | {"type": "function", "function": {"name": call.name, "arguments": ""}}
        middle = len(call.arguments) // 2
        rest: list[dict[str, Any]] = [
            {"function": {"arguments": half}} for half in (call.arguments[:middle], call.arguments[middle:])
        ]
        for fragment in rest:
            if "index" in start:
                fragment["index"] = start["index"]
        by_call.append([start, *rest])
    if "interleave" in shape and by_call:
        return [list(column) for column in zip(*by_call, strict=True)]
    return [[fragment] for fragments in by_call for fragment in fragments]
