"""`@tool`: makes a function, or a method of a `ToolHarness`, something that a model can call."""

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, overload

from retinue.config import Verdict
from retinue.tools.function_tool import FunctionTool, ToolDeclaration
from retinue.tools.port import Capability, ToolFlags
from retinue.tools.references import reference_of

__all__ = ["CAPABILITY", "function_tool", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

CAPABILITY: Final = "__capability__"
"""The attribute by which a decorator marks a function: `factory(owner, attribute_name) -> Capability`.

`owner` is the harness, and None for a function that stands alone. `@tool` sets it, other decorators may as well.
"""


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    replayable: bool = False,
    requires_permission: bool = False,
    main_argument: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    replayable: bool = False,
    requires_permission: bool = False,
    main_argument: str | None = None,
) -> Any:
    """Declare a tool. The function itself stays as it is and can be called as before.

    Name, description and parameters come from the function's name, docstring and type hints. A parameter annotated
    `ToolContext` gets the context of the call. Synchronous functions run in a thread.

    `read_only`: it has no effect. `idempotent`: repeating with the same `ToolContext.idempotency_key` has the effect of
    once. `replayable`: may be run again from its start with recorded answers. `requires_permission`: ask where no rule has
    an opinion. `main_argument`: what the glob of a permission rule is matched against (default: the first parameter).

    Raises:
        ConfigurationError: the function cannot be a tool; names it and the parameter.

    >>> class SearchTools(ToolHarness):
    ...     @tool(read_only=True)
    ...     async def search(self, query: str, limit: int = 10) -> list[str]:
    ...         '''Search the approved index.'''
    """
    flags = ToolFlags(
        read_only=read_only,
        idempotent=idempotent,
        replayable=replayable,
        need=Verdict.ASK if requires_permission else Verdict.ALLOW,
        main_argument=main_argument,
    )

    def declare(declared: Callable[..., Any]) -> Callable[..., Any]:
        declaration = ToolDeclaration(declared, flags=flags, name=name, description=description)

        def factory(owner: object | None, attribute: str) -> Capability:
            bound = declared if owner is None else getattr(owner, attribute)
            return FunctionTool(declaration, bound, reference=reference_of(declared if owner is None else owner, attribute))

        setattr(declared, CAPABILITY, factory)
        return declared

    return declare if function is None else declare(function)


def function_tool(function: Callable[..., Any]) -> FunctionTool:
    """The tool of a function that stands alone, decorated with `@tool` or not.

    Raises:
        ConfigurationError: it cannot be a tool, or is marked as something else.
    """
    factory = getattr(function, CAPABILITY, None) or getattr(tool(function), CAPABILITY)
    made = factory(None, function.__name__)
    if not isinstance(made, FunctionTool):
        raise TypeError(f"`{function.__name__}` is not marked by `@tool`")
    return made
