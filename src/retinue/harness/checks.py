"""What a call of the public face must be given, checked where it is given (D-27)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from retinue.agent.middleware import Middleware, misnamed_point
from retinue.config import Budget, ChatClientConfig, Limits, PermissionRules, RuntimeContext
from retinue.errors import ConfigurationError
from retinue.harness.runtime import Runtime
from retinue.ledger.port import Ledger
from retinue.media import Media, composed
from retinue.near import a_kind
from retinue.subagents.declaration import SubAgent

__all__ = [
    "check_agent_arguments",
    "check_answer",
    "check_choice",
    "check_context",
    "check_input",
    "check_kinds",
    "check_middleware",
    "check_reason",
    "ledger_files",
]

T = TypeVar("T")


def check_agent_arguments(name: str, *, model: Any, subagents: Any, permissions: Any) -> None:
    """Refuse values of a kind that could only fail later, in the middle of a run.

    Raises:
        ConfigurationError: naming the parameter, what was given, and what is expected.
    """
    _check_model(name, model)
    if not _is_list(subagents):
        raise _wrong(name, "subagents", _kind(subagents), "a list: `subagents=[SubAgent(…)]`")
    for one in subagents:
        if not isinstance(one, SubAgent):
            raise _wrong(
                name, "subagents", f"a list with {_kind(one)}", "`SubAgent(…)`, or `SubAgent.from_factory(name, …)` for an agent"
            )
    if permissions is not None and not isinstance(permissions, PermissionRules):
        raise _wrong(name, "permissions", _kind(permissions), "`PermissionRules(allow=[…], ask=[…], deny=[…])`")


def _check_model(name: str, model: Any) -> None:
    if isinstance(model, type):
        raise _wrong(name, "model", f"the class `{model.__name__}`", f"an instance: `model={model.__name__}(…)`")
    if model is not None and not isinstance(model, str) and not (hasattr(model, "answer") and hasattr(model, "provider")):
        raise _wrong(
            name,
            "model",
            f"{_kind(model)}",
            'a text like `"openai:gpt-5"`, or a `ChatModel` with `provider`, `name`, `answer`, `close`',
        )


def check_kinds(name: str, *, optional: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Refuse values of a wrong kind for the other parameters of an agent; `optional` ones may be None.

    Raises:
        ConfigurationError: naming the parameter, what was given, and what is expected.
    """
    given = {**{parameter: value for parameter, value in optional.items() if value is not None}, **required}
    for parameter, value in given.items():
        fits, expected = _KINDS[parameter]
        if not fits(value):
            raise _wrong(name, parameter, _kind(value), expected)


def check_choice(name: str, parameter: str, value: T, choices: Sequence[str]) -> T:
    """One of these words.

    Raises:
        ConfigurationError: `invalid_argument`.
    """
    if value not in choices:
        near = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigurationError(f"agent `{name}`: `{parameter}` is {value!r}", code="invalid_argument", remedy=f"give {near}")
    return value


def check_middleware(name: str, middleware: Sequence[Any]) -> None:
    """Refuse what would do nothing around a run, or fail in the middle of it.

    Raises:
        ConfigurationError: `invalid_argument`, one is no instance of a `Middleware`, or its `priority` no number;
            `unknown_middleware_point`, a method's name is nearly that of a point.
    """
    for one in middleware:
        kind = one if isinstance(one, type) else type(one)
        if isinstance(one, type) and issubclass(one, Middleware):
            raise _wrong(name, "middleware", f"a list with the class `{kind.__name__}`", f"an instance: `{kind.__name__}(…)`")
        if not isinstance(one, Middleware):
            given = f"the class `{kind.__name__}`" if isinstance(one, type) else _kind(one)
            raise _wrong(
                name, "middleware", f"a list with {given}", "instances of a class with the base: `class Trace(Middleware)`"
            )
        priority = cast("object", one.priority)
        if isinstance(priority, bool) or not isinstance(priority, int | float):
            raise _wrong(name, f"{kind.__name__}.priority", _kind(priority), "a number: lower is outer")
        if (wrong := misnamed_point(kind)) is not None:
            method, point = wrong
            raise ConfigurationError(
                f"agent `{name}`: middleware `{kind.__name__}` has `{method}`, which nothing calls; did you mean `{point}`?",
                code="unknown_middleware_point",
                remedy=f"name it `{point}`, or begin its name with `_` if it is a helper",
            )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "instructions": (_is(str), "a text, or leave it out"),
    "tools": (_is_list, "a list of functions: `tools=[…]`"),
    "tool_harnesses": (_is_list, "a list of classes or instances: `tool_harnesses=[…]`"),
    "middleware": (_is_list, "a list: `middleware=[…]`"),
    "ledger": (lambda value: isinstance(value, str | Path) or hasattr(value, "commit"), '`"memory"`, a path, or a `Ledger`'),
    "runtime": (_is(Runtime), "a `Runtime(…)`, or leave it out"),
    "budget": (_is(Budget), "`Budget(…)`, or leave it out"),
    "limits": (_is(Limits), "`Limits(…)`, or leave it out"),
    "chat": (_is(ChatClientConfig), "`ChatClientConfig(…)`, or leave it out"),
    "models": (_is(Mapping), "a mapping from name to model: `models={…}`"),
    "on_request": (callable, "a function `async (request) -> bool`"),
    "max_iters": (_is_count, "a whole number from 1"),
    "max_subagent_depth": (_is_count, "a whole number from 0"),
}
"""What the parameters of an agent take."""


def _not_empty(text: str) -> str:
    if text and not text.isspace():
        return text
    raise ConfigurationError("the input of a run is empty", code="invalid_argument", remedy="write what is to be done")


def check_input(given: Any, limits: Limits) -> tuple[str, tuple[Media, ...]]:
    """The text of an input, with a line for each picture and file, and these.

    Raises:
        ConfigurationError: `invalid_argument`, it is neither text nor texts and media, or empty; `media_too_large`.
    """
    if isinstance(given, str):
        return _not_empty(given), ()
    items = [given] if isinstance(given, Media) else cast("Sequence[object]", given) if _is_list(given) else None
    if items is None:
        raise ConfigurationError(
            f"the input of a run is {_kind(given)}", code="invalid_argument", remedy="give a text, or a list of texts and media"
        )
    wrong = next((_kind(item) for item in items if not isinstance(item, str | Media)), None if items else "nothing")
    if wrong is not None:
        raise ConfigurationError(
            f"the input of a run is a list with {wrong}",
            code="invalid_argument",
            remedy='give texts, `Image(…)` and `File(…)`: `["What is this?", Image("photo.png")]`',
        )
    text, media = composed(cast("Sequence[str | Media]", items))
    if not media:
        _not_empty(text)
    for one in media:
        if len(one.data) > limits.max_media_bytes:
            raise ConfigurationError(
                f"{one.ref().line} is larger than `Limits(max_media_bytes={limits.max_media_bytes:_})`",
                code="media_too_large",
                remedy="make it smaller, or raise the limit if the model takes more",
            )
    return text, media


def check_context(context: Any) -> None:
    """Refuse a context that is none."""
    if context is not None and not isinstance(context, RuntimeContext):
        raise ConfigurationError(
            f"`context` is {_kind(context)}", code="invalid_argument", remedy='give `RuntimeContext(session_id="…")`'
        )


def check_answer(allow: Any, text: Any, remember: Any, note: Any, by: Any) -> None:
    """Refuse an answer that is none: only True allows, and what is recorded must be readable by any process.

    Raises:
        ConfigurationError: `invalid_argument`. Nothing is recorded then.
    """
    if text is not None:
        if not isinstance(text, str) or not text.strip():
            raise _invalid("text", text, "what the answer is")
        if allow is not None:
            raise _invalid("allow", allow, "one of `allow` (to a permission) and `text` (to a question)")
    elif not isinstance(allow, bool):
        raise _invalid("allow", allow, "True or False")
    if remember not in ("once", "session"):
        raise _invalid("remember", remember, '"once" or "session"')
    for name, value in (("note", note), ("by", by)):
        if not isinstance(value, str):
            raise _invalid(name, value, "a text, or leave it out")


def check_reason(reason: Any) -> None:
    """Refuse a reason of a stop that is no text."""
    if not isinstance(reason, str):
        raise _invalid("reason", reason, "a text, or leave it out")


def _invalid(parameter: str, value: Any, expected: str) -> ConfigurationError:
    return ConfigurationError(f"`{parameter}` is {_kind(value)}", code="invalid_argument", remedy=f"give {expected}")


def ledger_files(ledger: Ledger) -> tuple[Path, ...]:
    """The file that a ledger lies in, which no tool may touch; none for one that has no `path`."""
    path: object = getattr(ledger, "path", None)
    return (path,) if isinstance(path, Path) else ()


def _kind(value: Any) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | bool | dict) else a_kind(value)


def _wrong(name: str, parameter: str, given: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"agent `{name}`: `{parameter}` is {given}", code="invalid_argument", remedy=f"give {expected}")
