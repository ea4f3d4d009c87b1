"""State tables of run, invocation and request, as data: the code checks transitions here, the documentation renders them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = [
    "INVOCATION_TRANSITIONS",
    "REQUEST_TRANSITIONS",
    "RUN_TRANSITIONS",
    "InvocationState",
    "RequestState",
    "ResultStatus",
    "RunState",
]


class RunState(StrEnum):
    """Where a run is. `waiting` is not terminal: an answer lets any process go on with it (D-28)."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True for completed, failed and cancelled."""
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)


class InvocationState(StrEnum):
    """Where a delegation is. Exactly one terminal state, never changed (invariant 1). `pending`: a task that no process has
    begun to drive yet (A-33)."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True for completed, failed and cancelled."""
        return self in (InvocationState.COMPLETED, InvocationState.FAILED, InvocationState.CANCELLED)


class RequestState(StrEnum):
    """Where a question to a person is."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class ResultStatus(StrEnum):
    """How one tool call ended; the model is told in the result's text what it can do."""

    OK = "ok"
    ERROR = "error"
    DENIED = "denied"
    CANCELLED = "cancelled"
    LIMIT = "limit"
    UNKNOWN_OUTCOME = "unknown_outcome"


RUN_TRANSITIONS: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.RUNNING: frozenset(RunState),
    RunState.WAITING: frozenset({RunState.RUNNING, RunState.WAITING, RunState.CANCELLED, RunState.FAILED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
}

INVOCATION_TRANSITIONS: Final[Mapping[InvocationState, frozenset[InvocationState]]] = {
    InvocationState.PENDING: frozenset(InvocationState) - {InvocationState.COMPLETED},
    InvocationState.RUNNING: frozenset(InvocationState) - {InvocationState.PENDING},
    InvocationState.WAITING: frozenset(InvocationState) - {InvocationState.PENDING, InvocationState.COMPLETED},
    InvocationState.STOPPING: frozenset({InvocationState.STOPPING, InvocationState.CANCELLED, InvocationState.FAILED}),
    InvocationState.COMPLETED: frozenset(),
    InvocationState.FAILED: frozenset(),
    InvocationState.CANCELLED: frozenset(),
}

REQUEST_TRANSITIONS: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    RequestState.OPEN: frozenset(RequestState) - {RequestState.OPEN},
    RequestState.ANSWERED: frozenset(),
    RequestState.EXPIRED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.ABANDONED: frozenset(),
}
