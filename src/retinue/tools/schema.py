"""What a function's signature says of a tool: its parameters, where the context goes, and what cannot be offered.

Nothing here needs pydantic: declarations are checked when they are made, schemas are built at first use (`arguments`).
"""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from retinue.errors import ConfigurationError
from retinue.tools.port import ToolContext

__all__ = ["REQUIRED", "Parameter", "Signature", "check_declaration", "location", "read_signature"]

REQUIRED: Final = inspect.Parameter.empty
"""The default of a parameter that has none."""

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameter(NamedTuple):
    """One argument that the model gives. `annotation` is resolved, with its `Annotated` extras."""

    name: str
    annotation: Any
    default: Any
    description: str


class Signature(NamedTuple):
    """The arguments of a tool in order, and the name of the parameter that takes the `ToolContext`, if any."""

    parameters: tuple[Parameter, ...]
    context: str | None


def location(function: Callable[..., Any]) -> str:
    """Where a function stands, as `module:qualified.name`."""
    return f"{function.__module__}:{function.__qualname__}"


def check_declaration(function: Callable[..., Any]) -> None:
    """Refuse what cannot be a tool, when it is declared.

    Raises:
        ConfigurationError: naming the function and the parameter.
    """
    if not inspect.isfunction(function):
        raise ConfigurationError(
            f"`@tool` is for functions and methods, not for `{type(function).__name__}`",
            code="invalid_tool",
            remedy="write `@staticmethod` or `@classmethod` above `@tool`, and wrap other callables in a function",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _unsupported(function, "is a generator", "return one value, and use `ToolContext.progress` for what comes before")
    for parameter in _own_parameters(function).values():
        if parameter.kind not in _BY_NAME:
            raise _unsupported(
                function,
                f"has the parameter `{parameter}`, which cannot be given by name",
                "give every argument a name that the model can use",
            )
        if parameter.annotation is REQUIRED:
            raise _unsupported(
                function,
                f"has no type hint for `{parameter.name}`",
                f"write `{parameter.name}: str`, or whatever its type is",
            )
        _check_type(function, parameter.name, parameter.annotation)


def read_signature(function: Callable[..., Any], descriptions: Mapping[str, str]) -> Signature:
    """The parameters of a function that `check_declaration` has passed, with resolved types.

    Raises:
        ConfigurationError: a type hint names something that cannot be found, or two parameters take the context.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _unsupported(
            function, f"has a type hint that cannot be resolved ({error})", "define or import the type at module level"
        ) from error
    contexts: list[str] = []
    parameters: list[Parameter] = []
    for name, parameter in _own_parameters(function).items():
        annotation = hints.get(name, Any)
        if _bare(annotation) is ToolContext:
            contexts.append(name)
        else:
            _check_type(function, name, annotation)
            parameters.append(Parameter(name, annotation, parameter.default, descriptions.get(name, "")))
    if len(contexts) > 1:
        raise _unsupported(function, "takes the `ToolContext` twice", "keep one of the parameters")
    return Signature(tuple(parameters), contexts[0] if contexts else None)


def _own_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters without `self` or `cls`."""
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters), None)
    if first in ("self", "cls"):
        del parameters[first]
    return parameters


def _check_type(function: Callable[..., Any], name: str, annotation: Any) -> None:
    """Refuse a class of somebody's own that no JSON can be made into; what other types lack is found with their schema."""
    plain = next((kind for kind in _classes(annotation) if _is_plain(kind)), None)
    if plain is not None:
        raise _unsupported(
            function,
            f"takes `{name}: {plain.__name__}`, a class that a model cannot write as JSON",
            f"use JSON types, make `{plain.__name__}` a dataclass, or look the object up with `ToolContext.get`",
        )


def _classes(annotation: Any) -> Iterator[type]:
    """The classes in an annotation, also inside of lists and unions. What is still a text is left for later."""
    inner = typing.get_args(annotation)
    if inner:
        inner = inner[:1] if typing.get_origin(annotation) is Annotated else inner
        for one in inner:
            yield from _classes(one)
    elif isinstance(annotation, type):
        yield annotation


def _is_plain(kind: type) -> bool:
    """Whether a class is nothing but a class: no base, no fields, no hooks that say how it is written."""
    hooks = ("__dataclass_fields__", "__get_pydantic_core_schema__", "__total__", "_is_protocol")
    known = kind is ToolContext or kind.__module__ == "builtins" or any(hasattr(kind, hook) for hook in hooks)
    return not known and kind.__mro__[1:] == (object,) and kind.__module__.partition(".")[0] not in sys.stdlib_module_names


def _bare(annotation: Any) -> Any:
    return annotation.__origin__ if typing.get_origin(annotation) is Annotated else annotation


def _unsupported(function: Callable[..., Any], fault: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"tool `{location(function)}` {fault}", code="invalid_tool", remedy=remedy)
