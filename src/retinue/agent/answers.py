"""What a chat model gave back, checked once where it comes in: nothing of another type reaches a journal.

Names of calls are made such that every provider takes them back with the history.
"""

import re
from collections.abc import Container
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from retinue.agent.texts import bounded
from retinue.errors import ModelError
from retinue.ids import sha256_hex
from retinue.json_text import dumps
from retinue.messages import ToolCall, Usage
from retinue.models.port import ChatModel, ModelAnswer, ReasoningDelta, TextDelta

__all__ = ["bad_answer", "call_name", "checked_answer", "checked_delta"]

DEEPEST: Final = 100
"""How deep `extras` and arguments given as objects may be nested: far below what JSON codecs refuse."""
MOST_TOKENS: Final = 2**53

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")
_PREFIX: Final = "functions."
_DELTAS: Final = (TextDelta, ReasoningDelta)


def call_name(name: str, tools: Container[str]) -> str:
    """The name that a call is stored, gated and executed under: one that any provider takes (`^[a-zA-Z0-9_-]{1,64}$`).

    `functions.NAME`, as some models write, is NAME where that is a tool. Any other name that a provider would refuse stands
    with `_` for what is not allowed, and never becomes the name of a tool: the model is told that there is none.
    """
    if _NAME.fullmatch(name):
        return name
    bare = name.removeprefix(_PREFIX)
    if bare in tools:
        return bare
    made = _OTHER.sub("_", name[:64]) or "unnamed"
    if made in tools:
        digest = sha256_hex(name.encode("utf-8", "replace"))[:8]
        made = f"{made[:55]}_{digest}"
    return made


def checked_answer(model: ChatModel, answer: ModelAnswer) -> ModelAnswer:
    """`answer`, if everything in it is what it should be; arguments of calls that are objects become their JSON text.

    Raises:
        ModelError: `bad_answer`, naming what was given and what is expected.
    """
    if not isinstance(cast("object", answer), ModelAnswer):
        raise bad_answer(model, "", answer, "a `ModelAnswer`")
    if type(answer.text) is not str:
        raise bad_answer(model, "text", answer.text, "a `str`")
    if answer.reasoning is not None and type(answer.reasoning) is not str:
        raise bad_answer(model, "reasoning", answer.reasoning, "a `str` or None")
    if answer.model is not None and type(answer.model) is not str:
        raise bad_answer(model, "model", answer.model, "a `str` or None")
    if not isinstance(cast("object", answer.finish_reason), str):
        raise bad_answer(model, "finish_reason", answer.finish_reason, "a `str`")
    _check_usage(model, answer)
    if answer.extras or type(answer.extras) is not dict:
        _check_extras(model, answer.extras)
    if type(answer.calls) is tuple:
        for call in answer.calls:
            if type(call) is not ToolCall or not (type(call.id) is type(call.name) is type(call.arguments) is str):
                break
            if call.provider_id is not None and type(call.provider_id) is not str:
                break
        else:
            return answer
    return msgspec.structs.replace(answer, calls=_checked_calls(model, answer.calls))


def checked_delta(model: ChatModel, delta: Any) -> str:
    """The text of a delta.

    Raises:
        ModelError: `bad_answer`: it is no delta, or its text is no text.
    """
    if not isinstance(delta, _DELTAS):
        raise bad_answer(model, "emit", delta, "a `TextDelta` or a `ReasoningDelta`")
    if type(delta.text) is not str:
        raise bad_answer(model, "emit", delta.text, "a delta whose `text` is a `str`")
    return delta.text


def bad_answer(model: ChatModel, place: str, given: object, expected: str) -> ModelError:
    """The error for a value that is not what a `ChatModel` promises. `given` is an exception where it cannot be encoded."""
    if isinstance(given, Exception):
        shown = f"cannot be stored: {bounded(str(given), 200)}"
    else:
        shown = f"is {_shown(given)} ({type(given).__name__})"
    return ModelError(
        f"model `{model.name}` ({model.provider}) gave an answer that cannot be used: "
        f"{f'`{place}`' if place else 'it'} {shown}; expected {expected}",
        provider=model.provider,
        model=model.name,
        code="bad_answer",
        remedy="mend the `ChatModel` that gave it, or the middleware around it",
    )


def _shown(given: object) -> str:
    try:
        return f"`{bounded(repr(given), 80)}`"
    except Exception:  # noqa: BLE001 (the author's own class, and this is about what is wrong with it; too deep, too)
        return "a value that cannot be shown"


def _check_usage(model: ChatModel, answer: ModelAnswer) -> None:
    used, cost = answer.usage, answer.cost
    if type(used) is not Usage:
        raise bad_answer(model, "usage", used, "a `Usage`")
    for count in (used.input_tokens, used.output_tokens, used.cached_tokens, used.calls):
        if type(count) is not int or not 0 <= count < MOST_TOKENS:
            raise bad_answer(model, "usage", count, "a `Usage` of whole numbers from 0")
    if cost is not None and (type(cost) is not Decimal or not cost.is_finite()):
        raise bad_answer(model, "cost", cost, "a finite `Decimal` or None")


def _check_extras(model: ChatModel, extras: Any) -> None:
    if not isinstance(extras, dict):
        raise bad_answer(model, "extras", cast("object", extras), "a `dict`")
    fault = _unstorable(cast("dict[Any, Any]", extras))
    if fault is not None:
        raise bad_answer(model, "extras", fault, "a `dict` that is JSON")


def _checked_calls(model: ChatModel, calls: Any) -> tuple[ToolCall, ...]:
    if not isinstance(calls, (tuple, list)):
        raise bad_answer(model, "calls", calls, "a tuple of `ToolCall`")
    return tuple([_checked_call(model, place, call) for place, call in enumerate(cast("tuple[Any, ...]", calls))])


def _checked_call(model: ChatModel, place: int, call: Any) -> ToolCall:
    if type(call) is not ToolCall:
        raise bad_answer(model, f"calls[{place}]", call, "a `ToolCall`")
    for name in ("id", "name"):
        if type(getattr(call, name)) is not str:
            raise bad_answer(model, f"calls[{place}].{name}", getattr(call, name), "a `str`")
    if call.provider_id is not None and type(call.provider_id) is not str:
        raise bad_answer(model, f"calls[{place}].provider_id", call.provider_id, "a `str` or None")
    arguments: Any = call.arguments
    if type(arguments) is str:
        return call
    if not isinstance(arguments, dict):
        raise bad_answer(model, f"calls[{place}].arguments", arguments, "JSON text, or a `dict`")
    fault = _unstorable(cast("dict[Any, Any]", arguments))
    if fault is not None:
        raise bad_answer(model, f"calls[{place}].arguments", fault, "JSON text, or a `dict` that is JSON")
    return msgspec.structs.replace(call, arguments=dumps(arguments).decode())


def _unstorable(value: dict[Any, Any]) -> Exception | None:
    """Why a value cannot be stored, as an exception; None if it can."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [child for one in level for child in _children(one)]
        if not level:
            break
    else:
        return ValueError(f"it is nested deeper than {DEEPEST}, or contains itself")
    try:
        msgspec.json.decode(dumps(value))
    except Exception as error:  # noqa: BLE001 (what is in it may be anything, with hooks of its own)
        return error
    return None


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for one in cast("dict[Any, Any]", value).values() if isinstance(one, (dict, list, tuple))]
    return [one for one in cast("list[Any]", value) if isinstance(one, (dict, list, tuple))]
