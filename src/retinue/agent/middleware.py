"""Middleware: points around a run, a model call and a tool call, before each reasoning step, and before a fork is committed.

A middleware overrides the points it needs. Lower `priority` is outer. State kept through `state(…)` is in the ledger.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from retinue.agent.ports import CallOutcome
from retinue.messages import CallRef, Entry, ToolCall
from retinue.models.port import ModelAnswer, ModelRequest

__all__ = ["Fork", "Middleware", "ModelCall", "Reasoning", "RunCall", "StateHandle", "ToolInvocation", "chain", "overriding"]

C = TypeVar("C")
R = TypeVar("R")
Scope = Literal["thread", "session"]


class StateHandle:
    """A middleware's state: `get` and `set` JSON values by name. A thread's is copied on fork, a session's is shared."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: Callable[[str], Any], write: Callable[[str, Any], None]) -> None:
        self._read = read
        self._write = write

    def get(self, name: str, default: Any = None) -> Any:
        """The value under `name`."""
        value = self._read(name)
        return default if value is None else value

    def set(self, name: str, value: Any) -> None:
        """Set a JSON value; it is stored with the run's next commit."""
        self._write(name, value)


StateOf = Callable[[Scope], StateHandle]


@dataclass(slots=True, kw_only=True)
class RunCall:
    """A run that is about to be driven."""

    agent_id: str
    run_id: str
    attempt: int
    depth: int
    state: StateOf


@dataclass(slots=True, kw_only=True)
class ModelCall:
    """A model call that is about to be made. `request` may be replaced, but a changed envelope moves the prefix."""

    request: ModelRequest
    agent_id: str
    run_id: str
    turn: int
    state: StateOf


@dataclass(slots=True, kw_only=True)
class ToolInvocation:
    """A call that the gate allowed. Not to call `next` answers it in the tool's place."""

    ref: CallRef
    call: ToolCall
    agent_id: str
    run_id: str
    depth: int
    state: StateOf


@dataclass(slots=True, kw_only=True)
class Reasoning:
    """What the model will be asked with. Text appended to `tail` follows the conversation in this request only."""

    agent_id: str
    run_id: str
    turn: int
    history: Sequence[Entry]
    state: StateOf
    tail: list[str] = field(default_factory=list[str])


@dataclass(slots=True, kw_only=True)
class Fork:
    """A child's history before it is committed. `history` may be replaced by a shorter valid one."""

    parent_run: str
    child_agent_id: str
    history: list[Entry]


class Middleware:
    """The base: override what you need."""

    priority: int = 100

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
        """Around one attempt of a run."""
        return await next(call)

    async def around_model_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Around one model call."""
        return await next(call)

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        """Around one tool call or delegation."""
        return await next(call)

    async def before_reasoning(self, state: Reasoning) -> None:
        """Before each model call."""

    async def before_fork_commit(self, fork: Fork) -> None:
        """Before a child that begins with its parent's history is committed (H-24)."""


def overriding(middleware: Sequence[Middleware], point: str) -> tuple[Middleware, ...]:
    """Those that override `point`, outermost first."""
    base = getattr(Middleware, point)
    return tuple(sorted((one for one in middleware if getattr(type(one), point, base) is not base), key=lambda one: one.priority))


def chain(middleware: Sequence[Middleware], point: str, innermost: Callable[[C], Awaitable[R]]) -> Callable[[C], Awaitable[R]]:
    """`innermost` with the given point of each middleware around it."""
    handler = innermost
    for one in reversed(middleware):
        handler = _around(getattr(one, point), handler)
    return handler


def _around(
    outer: Callable[[C, Callable[[C], Awaitable[R]]], Awaitable[R]], inner: Callable[[C], Awaitable[R]]
) -> Callable[[C], Awaitable[R]]:
    async def handler(call: C) -> R:
        return await outer(call, inner)

    return handler
