"""Which ends of a task in the background its parent's model is told (H-13). The lifecycle event is written in any case."""

from typing import Any, Literal, TypeAlias

from retinue.config import Value
from retinue.errors import ConfigurationError

__all__ = ["BackgroundNotification", "NotifyNever", "NotifyOnFinalState", "notified"]

TaskEnd: TypeAlias = Literal["completed", "failed", "cancelled"]


class NotifyOnFinalState(Value, frozen=True, kw_only=True):
    """Tell the ends that are true here. A time limit that was reached is a fault."""

    completed: bool = True
    faulted: bool = True
    cancelled: bool = False


class NotifyNever(Value, frozen=True):
    """Tell no end; `task_output` and `agent.tasks()` still say it."""


BackgroundNotification: TypeAlias = NotifyOnFinalState | NotifyNever


def notified(wanted: Any, where: str) -> tuple[TaskEnd, ...]:
    """The ends that are told.

    Raises:
        ConfigurationError: `wanted` is no notification.
    """
    if wanted is None:
        wanted = NotifyOnFinalState()
    if isinstance(wanted, NotifyNever):
        return ()
    if not isinstance(wanted, NotifyOnFinalState):
        raise ConfigurationError(
            f"{where}: `background_notification` is {type(wanted).__name__}",
            code="invalid_argument",
            remedy="give `NotifyOnFinalState(…)`, `NotifyNever()`, or leave it out",
        )
    ends: tuple[tuple[TaskEnd, bool], ...] = (
        ("completed", wanted.completed),
        ("failed", wanted.faulted),
        ("cancelled", wanted.cancelled),
    )
    return tuple(end for end, told in ends if told)
