"""Which ends of a task in the background its parent's model is told (H-13). The lifecycle event is written in any case."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from retinue.config import Value
from retinue.errors import ConfigurationError

__all__ = [
    "BackgroundNotification",
    "NotifyByStrategy",
    "NotifyNever",
    "NotifyOnFinalState",
    "Strategies",
    "TaskEnding",
    "is_told",
    "notified",
    "strategy_of",
]

_log: Final = logging.getLogger("retinue")

TaskEnd: TypeAlias = Literal["completed", "failed", "cancelled"]


class TaskEnding(Value, frozen=True, kw_only=True):
    """How a task ended, for a strategy to decide. `text` is the child's answer, or as far as it came, `reason` an error's
    code."""

    task_id: str
    name: str
    status: TaskEnd
    text: str = ""
    reason: str | None = None


Strategies: TypeAlias = Mapping[str, Callable[[TaskEnding], bool]]
"""Strategies by name, as a `Runtime` has them: each says whether the parent's model is told of an end."""


class NotifyOnFinalState(Value, frozen=True, kw_only=True):
    """Tell the ends that are true here. A time limit that was reached is a fault."""

    completed: bool = True
    faulted: bool = True
    cancelled: bool = False


class NotifyNever(Value, frozen=True):
    """Tell no end; `task_output` and `agent.tasks()` still say it."""


class _Named(Value, frozen=True):
    """What may be given by position."""

    name: str


class NotifyByStrategy(_Named, frozen=True, kw_only=True):
    """Let the strategy of this name decide, of the process that brings the task to its end (`Runtime(strategies={name: …})`).
    Where there is none, or it fails, `fallback` decides."""

    fallback: NotifyOnFinalState | NotifyNever = NotifyOnFinalState()


BackgroundNotification: TypeAlias = NotifyOnFinalState | NotifyNever | NotifyByStrategy


def notified(wanted: Any, where: str) -> tuple[TaskEnd, ...]:
    """The ends that are told, where no strategy decides.

    Raises:
        ConfigurationError: `wanted` is no notification.
    """
    if wanted is None:
        wanted = NotifyOnFinalState()
    if isinstance(wanted, NotifyByStrategy):
        wanted = wanted.fallback
    if isinstance(wanted, NotifyNever):
        return ()
    if not isinstance(wanted, NotifyOnFinalState):
        raise ConfigurationError(
            f"{where}: `background_notification` is {type(wanted).__name__}",
            code="invalid_argument",
            remedy="give `NotifyOnFinalState(…)`, `NotifyByStrategy(name)`, `NotifyNever()`, or leave it out",
        )
    ends: tuple[tuple[TaskEnd, bool], ...] = (
        ("completed", wanted.completed),
        ("failed", wanted.faulted),
        ("cancelled", wanted.cancelled),
    )
    return tuple(end for end, told in ends if told)


def strategy_of(wanted: Any) -> str | None:
    """The name of the strategy that decides, if one does."""
    return wanted.name if isinstance(wanted, NotifyByStrategy) else None


def is_told(strategy: str | None, strategies: Strategies, ending: TaskEnding, otherwise: tuple[str, ...]) -> bool:
    """Whether the parent's model is told of this end."""
    decides = None if strategy is None else strategies.get(strategy)
    if strategy is not None and decides is None:
        _log.warning("task %s: there is no strategy `%s` here; its fallback decides", ending.task_id, strategy)
    if decides is not None:
        try:
            return decides(ending) is True
        except Exception:  # noqa: BLE001  the author's code: an end is not lost for it
            _log.exception("task %s: strategy `%s` raised; its fallback decides", ending.task_id, strategy)
    return ending.status in otherwise
