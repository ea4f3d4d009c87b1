"""Middleware: points around a run, a model call and a tool call, before each reasoning step, and before a fork is committed.

A middleware overrides the points it needs. Lower `priority` is outer. State kept through `state(…)` is in the ledger.

What it gives to `next` is what is done: the request of a model call and the arguments of a plain tool's call may be others
(`with_request`, `with_arguments`). Everything else stands, and `accepted` refuses what differs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from retinue.agent.ports import CallOutcome, RunEnd
from retinue.errors import ConfigurationError
from retinue.messages import CallRef, Entry, ToolCall
from retinue.models.port import ModelAnswer, ModelRequest
from retinue.near import near_names

__all__ = [
    "Fork",
    "Middleware",
    "ModelCall",
    "Reasoning",
    "RunCall",
    "StateHandle",
    "ToolInvocation",
    "accepted",
    "chain",
    "misnamed_point",
    "overriding",
]

C = TypeVar("C", bound=msgspec.Struct)
R = TypeVar("R")
Scope = Literal["thread", "session"]


class StateHandle:
    """A middleware's state: JSON values by name. A thread's is copied on fork, a session's is shared by all its runs.

    A thread has one run at a time. In a session others write at the same time: what they write under other names is kept,
    and of two that `set` one name the later commit stands. Use `update` for what follows from the value before (a count, a
    list that grows), and not `set` and `update` for one name.
    """

    __slots__ = ("_change", "_read", "_write")

    def __init__(
        self,
        read: Callable[[str], Any],
        write: Callable[[str, Any], None],
        change: Callable[[str, Callable[[Any], Any]], Awaitable[Any]],
    ) -> None:
        self._read = read
        self._write = write
        self._change = change

    def get(self, name: str, default: Any = None) -> Any:
        """The value under `name`: of a session as it was when this run began, with what its tree has set since."""
        value = self._read(name)
        return default if value is None else value

    def set(self, name: str, value: Any) -> None:
        """Set a JSON value; it is stored with the run's next commit, whatever is there by then."""
        self._write(name, value)

    async def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Replace the value under `name` by `change(value)`, of the value that is there now (None for none), and return it.

        Of several that do this at once none is lost, in whatever process. A session's is stored when this returns, so a run
        that dies after it and is resumed may do it again. `change` may be called several times: it is to have no effects.

        >>> await call.state("session").update("runs", lambda runs: (runs or 0) + 1)
        """
        return await self._change(name, change)


StateOf = Callable[[Scope], StateHandle]


class RunCall(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is about to be driven. Nothing of it can be changed."""

    agent_id: str
    run_id: str
    attempt: int
    depth: int
    state: StateOf


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call that is about to be made. `request` may be another one, but a changed envelope moves the prefix.

    >>> await next(call.with_request(tail="Be short."))
    """

    request: ModelRequest
    agent_id: str
    run_id: str
    turn: int
    state: StateOf

    def with_request(self, **changes: Any) -> "ModelCall":
        """The same call with a request that differs in these fields of `ModelRequest`."""
        return replace(self, request=replace(self.request, **changes))


class ToolInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the gate allowed. Not to call `next` answers it in the tool's place.

    The arguments of a plain tool may be others: `await next(call.with_arguments({…}))`. The gate decides over these again, and
    what it would have to ask for is refused. A delegation stands as it is: its child is committed before.
    """

    ref: CallRef
    call: ToolCall
    agent_id: str
    run_id: str
    depth: int
    state: StateOf

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, read."""
        return msgspec.json.decode(self.call.arguments, type=dict[str, Any])

    def with_arguments(self, arguments: Mapping[str, Any]) -> "ToolInvocation":
        """The same call with other arguments, which are JSON values."""
        return replace(self, call=replace(self.call, arguments=msgspec.json.encode(arguments).decode()))


class Reasoning(msgspec.Struct, kw_only=True):
    """What the model will be asked with. Text appended to `tail` follows the conversation in this request only."""

    agent_id: str
    run_id: str
    turn: int
    history: Sequence[Entry]
    state: StateOf
    tail: list[str] = msgspec.field(default_factory=list[str])


class Fork(msgspec.Struct, kw_only=True):
    """A child's history before it is committed. `history` may be replaced by a shorter valid one."""

    parent_run: str
    child_agent_id: str
    history: list[Entry]


class Middleware:
    """The base: override what you need."""

    priority: int = 100

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[RunEnd]]) -> RunEnd:
        """Around one attempt of a run. Its end is in the journal when `next` returns: what is returned changes nothing."""
        return await next(call)

    async def around_model_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Around one model call."""
        return await next(call)

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        """Around one tool call or delegation. `next` may be called again after it has returned, but not around a delegation."""
        return await next(call)

    async def before_reasoning(self, state: Reasoning) -> None:
        """Before each model call."""

    async def before_fork_commit(self, fork: Fork) -> None:
        """Before a child that begins with its parent's history is committed (H-24)."""


_POINTS: Final = ("around_run", "around_model_call", "around_tool_call", "before_reasoning", "before_fork_commit")
_ALIKE: Final = 0.8
"""How near (1 is the same) a method's name is to a point's when it is taken for it: also without the last word."""


def misnamed_point(kind: type[Middleware]) -> tuple[str, str] | None:
    """A method that nothing would ever call, and the point that its author must have meant; None if there is none.

    A method whose point is overridden too is a helper of it, and so is one that begins with `_`.
    """
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if hasattr(Middleware, name) or name.startswith("_") or not callable(getattr(value, "__func__", value)):
                continue
            near = near_names(name.lower(), _POINTS, count=1, alike=_ALIKE)
            if near and getattr(kind, near[0]) is getattr(Middleware, near[0]):
                return name, near[0]
    return None


def overriding(middleware: Sequence[Middleware], point: str) -> tuple[Middleware, ...]:
    """Those that override `point`, outermost first."""
    base = getattr(Middleware, point)
    return tuple(sorted((one for one in middleware if getattr(type(one), point, base) is not base), key=lambda one: one.priority))


def chain(middleware: Sequence[Middleware], point: str, innermost: Callable[[C], Awaitable[R]]) -> Callable[[C], Awaitable[R]]:
    """`innermost` with the given point of each middleware around it."""
    handler = innermost
    for one in reversed(middleware):
        handler = _around(getattr(one, point), handler, point)
    return handler


def _around(
    outer: Callable[[C, Callable[[C], Awaitable[R]]], Awaitable[R]], inner: Callable[[C], Awaitable[R]], point: str
) -> Callable[[C], Awaitable[R]]:
    async def handler(call: C) -> R:
        layer = _Layer(inner, point)
        try:
            return await outer(call, layer.next)
        finally:
            await layer.close()

    return handler


class _Layer(Generic[C, R]):
    """`next` as one middleware has it for one call. Nothing of it outlives the middleware's own part: what still runs then, in
    a task that the middleware has made, is ended first, and what would begin later does not."""

    __slots__ = ("_closed", "_inner", "_inside", "_point")

    def __init__(self, inner: Callable[[C], Awaitable[R]], point: str) -> None:
        self._inner = inner
        self._point = point
        self._closed = False
        self._inside: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}

    async def next(self, call: C) -> R:
        """What the middleware is around.

        Raises:
            ConfigurationError: `next_called_late`.
        """
        if self._closed:
            raise ConfigurationError(
                f"a middleware called `next` after its `{self._point}` had ended",
                code="next_called_late",
                remedy="await `next` inside of it, and keep it for nothing else",
            )
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inside[over] = asyncio.current_task()
        try:
            return await self._inner(call)
        finally:
            del self._inside[over]
            if not over.done():
                over.set_result(None)

    async def close(self) -> None:
        """End what still runs in a task of the middleware's own."""
        self._closed = True
        here = asyncio.current_task()
        left = [over for over, task in self._inside.items() if task is not here]
        for over in left:
            task = self._inside[over]
            if task is not None:
                task.cancel()
        if left:
            await asyncio.wait(left)


_FREE: Final[Mapping[type, str]] = {ModelCall: "request", ToolInvocation: "call"}
"""What a middleware may change of each; of the others nothing."""
_KIND: Final[Mapping[type, type]] = {ModelCall: ModelRequest, ToolInvocation: ToolCall}


def accepted(given: C, passed: object) -> C:
    """What a middleware passed to `next` in the place of `given`, if it changed no more than it may.

    Raises:
        ConfigurationError: `middleware_changed`, naming what it changed.
    """
    if passed is given:
        return given
    kind, free = type(given), _FREE.get(type(given))
    if not isinstance(passed, kind):
        raise _refused(f"a middleware gave `next` a {type(passed).__name__}, not a `{kind.__name__}`", kind, free)
    for name in kind.__struct_fields__:
        was, now = getattr(given, name), getattr(passed, name)
        if name == free:
            if not isinstance(now, _KIND[kind]):
                raise _refused(f"a middleware made `{free}` of a `{kind.__name__}` a {type(now).__name__}", kind, free)
        elif now is not was and now != was:
            raise _refused(f"a middleware changed `{name}` of a `{kind.__name__}`", kind, free)
    if isinstance(given, ToolInvocation) and isinstance(passed, ToolInvocation):
        for name in ("id", "name", "provider_id"):
            if getattr(passed.call, name) != getattr(given.call, name):
                raise _refused(f"a middleware changed `call.{name}` of a `{kind.__name__}`", kind, free)
    return passed


def _refused(message: str, kind: type, free: str | None) -> ConfigurationError:
    if kind is ToolInvocation:
        remedy = "pass on `call`, or `call.with_arguments(…)`"
    else:
        remedy = "pass on `call`, or `call.with_request(…)`" if free else "pass on `call` as it is"
    return ConfigurationError(message, code="middleware_changed", remedy=remedy)
