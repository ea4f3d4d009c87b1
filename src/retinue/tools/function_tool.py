"""A tool made of a Python function: what was declared, and how it is called."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.ids import check_tool_name
from retinue.models.port import ToolSpec
from retinue.states import ResultStatus
from retinue.tools.errors import BadArguments, cancel_requested, is_fault
from retinue.tools.pool import ToolThreads
from retinue.tools.port import ToolContext, ToolFlags, ToolOutput
from retinue.tools.results import error_text, result_of

if TYPE_CHECKING:  # the first imports pydantic, and who declares no tool needs neither
    from retinue.tools.arguments import Arguments
    from retinue.tools.schema import Signature

__all__ = ["FunctionTool", "ToolDeclaration"]


class ToolDeclaration:
    """What `@tool` knows of a function. Checked when made; types are resolved and the schema is built at first use, once.

    Raises:
        ConfigurationError: the function cannot be a tool; names it and the parameter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        flags: ToolFlags | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        from retinue.tools.docstrings import parse_docstring
        from retinue.tools.schema import check_declaration, location

        check_declaration(function)
        self.function = function
        self.where = location(function)
        self.name = check_tool_name(name or function.__name__, where=f"the name of tool `{self.where}`,")
        self._docstring = parse_docstring(function.__doc__)
        self.description = self._docstring.text if description is None else inspect.cleandoc(description)
        self._flags = flags or ToolFlags()
        main = self._flags.main_argument
        if main is not None and main not in inspect.signature(function).parameters:
            raise ConfigurationError(
                f"tool `{self.where}` has no parameter `{main}`, which is its `main_argument`",
                code="invalid_tool",
                remedy="name one of its parameters",
            )

    @functools.cached_property
    def signature(self) -> "Signature":
        """Its parameters with resolved types."""
        from retinue.tools.schema import read_signature

        return read_signature(self.function, self._docstring.parameters)

    @functools.cached_property
    def flags(self) -> ToolFlags:
        """The author's flags, with the main argument filled in."""
        names = [parameter.name for parameter in self.signature.parameters]
        main = self._flags.main_argument or (names[0] if names else None)
        return ToolFlags(
            read_only=self._flags.read_only,
            idempotent=self._flags.idempotent,
            replayable=self._flags.replayable,
            need=self._flags.need,
            main_argument=main,
        )

    @functools.cached_property
    def arguments(self) -> "Arguments":
        """The check of its arguments. Imports pydantic."""
        from retinue.tools.arguments import Arguments

        return Arguments(self.name, self.signature.parameters, where=self.where)

    def main_value(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The main argument as text, after its default and its conversion (`5.0` for an `int` is 5); none if it does not fit."""
        import json

        name = self.flags.main_argument
        parameter = next((one for one in self.signature.parameters if one.name == name), None)
        if parameter is None:
            return ()
        value = arguments.get(parameter.name, parameter.default)
        if parameter.name in arguments and parameter.annotation is not str:
            try:
                value = self.arguments.parse(json.dumps(arguments)).get(parameter.name)
            except BadArguments:
                return ()  # it will not run
        if isinstance(value, list | tuple | set | frozenset):  # a denial of one part denies the call, an allowance needs all
            return tuple(str(one) for one in cast("Iterable[Any]", value))
        return () if value is inspect.Parameter.empty or value is None else (str(value),)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.arguments.schema)


class FunctionTool:
    """A `Tool` that calls a function: on the loop if it is async, else in the context's `ToolThreads`.

    `function` is what is called (a bound method, say); the declaration's function where it is left out. `reference` is the
    import reference of the member, or None where it has none. `limit_verdict` answers `always`, `touched` answers `places`.
    """

    def __init__(
        self,
        declaration: ToolDeclaration,
        function: Callable[..., Any] | None = None,
        *,
        reference: str | None = None,
        limit_verdict: Callable[[Mapping[str, Any]], Verdict] | None = None,
        touched: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
    ) -> None:
        self._declaration = declaration
        self._function = function or declaration.function
        self._blocking = not inspect.iscoroutinefunction(self._function)
        self.reference = reference
        self._limit_verdict = limit_verdict
        self._touched = touched

    def __repr__(self) -> str:
        return f"FunctionTool({self.name}, {self._declaration.where})"

    @property
    def name(self) -> str:
        """See `Capability`."""
        return self._declaration.name

    @property
    def description(self) -> str:
        """See `Capability`."""
        return self._declaration.description

    @property
    def spec(self) -> ToolSpec:
        """See `Tool`. Built once.

        Raises:
            ConfigurationError: a type hint cannot be resolved or expressed; names the function.
        """
        return self._declaration.spec

    @property
    def flags(self) -> ToolFlags:
        """See `Tool`."""
        return self._declaration.flags

    @property
    def blocking(self) -> bool:
        """See `Tool`: true for a function that is not async."""
        return self._blocking

    def always(self, arguments: Mapping[str, Any]) -> Verdict:
        """See `Tool`."""
        return Verdict.ALLOW if self._limit_verdict is None else self._limit_verdict(arguments)

    def places(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        """See `Tool`. Of a plain function: its main argument as it will be called with it, default and conversion included."""
        return self._declaration.main_value(arguments) if self._touched is None else self._touched(arguments)

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """See `Tool`.

        Raises:
            ConfigurationError: the function is not async and the context has no `threads`.
        """
        threads = context.threads
        if self._blocking and threads is None:
            raise ConfigurationError(
                f"tool `{self.name}` is not async, and its context has no `threads`",
                code="no_tool_threads",
                remedy="pass `ToolContext(threads=ToolThreads(…))`",
            )
        try:
            values = self._declaration.arguments.parse(arguments)
            if self._declaration.signature.context is not None:
                values[self._declaration.signature.context] = context
            return result_of(await self._call(values, context, threads))
        except BadArguments as error:
            return ToolOutput(content=str(error), status=ResultStatus.ERROR)
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            text = f"`{self.name}` failed: something that it waited for was cancelled"
            return ToolOutput(content=text, status=ResultStatus.ERROR)
        except BaseException as error:  # whatever a tool raises is for the model, `SystemExit` too
            if not is_fault(error):
                raise
            return ToolOutput(content=error_text(self.name, error), status=ResultStatus.ERROR)

    async def _call(self, values: dict[str, Any], context: ToolContext, threads: ToolThreads | None) -> object:
        if threads is None or not self._blocking:
            value = self._function(**values)
        else:
            call = functools.partial(self._function, **values)
            value = await threads.run(call, name=self.name, owner=context.run_id)
        return await value if inspect.isawaitable(value) else value
