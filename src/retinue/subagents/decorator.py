"""`@subagent`: marks a method of a `ToolHarness` that returns a `SubAgent` (H-01)."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from retinue.errors import ConfigurationError, RetinueError
from retinue.subagents.declaration import SubAgent
from retinue.subagents.resolved import with_defaults
from retinue.tools.decorator import CAPABILITY

__all__ = ["subagent"]

T = TypeVar("T")


def subagent(fn: Callable[[T], SubAgent], /) -> Callable[[T], SubAgent]:
    """Declare a subagent as a tool of its own: the model sees a function with the subagent's name and description.

    The method takes nothing but `self` and is called once per harness instance; the declaration is then frozen. The
    method itself stays as it is.

    Raises:
        ConfigurationError: the method is a coroutine or takes arguments; and when the harness is registered: it raises,
            or returns something else than a `SubAgent` for the tool surface.

    >>> class Specialists(ToolHarness):
    ...     @subagent
    ...     def summarizer(self) -> SubAgent:
    ...         return SubAgent("summarizer", "Summarises a text", instructions="…")
    """
    where: str = getattr(fn, "__qualname__", repr(fn))
    if not inspect.isfunction(fn) or inspect.iscoroutinefunction(fn) or len(inspect.signature(fn).parameters) != 1:
        raise ConfigurationError(
            f"`@subagent` cannot be used on `{where}`",
            code="invalid_subagent_method",
            remedy="put it on a plain method `def name(self) -> SubAgent`",
        )

    def factory(owner: object, attribute: str) -> SubAgent:
        return _declared(getattr(owner, attribute), f"{type(owner).__qualname__}.{attribute}")

    setattr(fn, CAPABILITY, factory)
    return fn


def _declared(method: Callable[[], Any], label: str) -> SubAgent:
    try:
        declaration = method()
        if isinstance(declaration, SubAgent):
            with_defaults(declaration, "tool")
            return declaration
    except RetinueError as error:
        raise ConfigurationError(f"`{label}`: {error.message}", code=error.code, remedy=error.remedy) from error
    except Exception as error:  # whatever the author's method raises is a fault of the declaration
        raise ConfigurationError(
            f"`{label}` raised {type(error).__name__}: {error}",
            code="invalid_subagent_method",
            remedy="a `@subagent` method only builds and returns a `SubAgent`",
        ) from error
    raise ConfigurationError(
        f"`{label}` returned {type(declaration).__name__}, not a `SubAgent`",
        code="invalid_subagent_method",
        remedy="return a `SubAgent`",
    )
