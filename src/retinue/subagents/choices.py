"""The words that an author can choose from in a declaration, beside those of `retinue.config`."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

__all__ = [
    "BuiltinTools",
    "OnTimeout",
    "OnTimeoutName",
    "SelectionMode",
    "SelectionModeName",
    "SubAgentSurface",
    "SurfaceName",
]


class SubAgentSurface(StrEnum):
    """How a parent's model reaches the child: a tool of its own, `agent_spawn` …, or both (D-02)."""

    TOOL = "tool"
    ROSTER = "roster"
    BOTH = "both"


class OnTimeout(StrEnum):
    """What happens to a synchronous call at its time limit (D-08). Nothing is ever restarted by it."""

    PROMOTE = "promote"
    """It goes on as a background task."""
    CANCEL = "cancel"
    """The child is stopped, the call ends failed."""


class SelectionMode(StrEnum):
    """Who may use an agent: `primary` agents are for people and cannot be spawned (front matter `mode`)."""

    ALL = "all"
    SUBAGENT = "subagent"
    PRIMARY = "primary"


SurfaceName: TypeAlias = SubAgentSurface | Literal["tool", "roster", "both"]
OnTimeoutName: TypeAlias = OnTimeout | Literal["promote", "cancel"]
SelectionModeName: TypeAlias = SelectionMode | Literal["all", "subagent", "primary"]
BuiltinTools: TypeAlias = Literal["all", "named"] | Sequence[str]
"""Which tools a child registers itself: all, only those that its `tools` name, or a list (D-11)."""
