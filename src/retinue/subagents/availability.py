"""At which depths a subagent may be called: the one predicate that both hides it and refuses it (H-06)."""

from typing import ClassVar, Self

from retinue.config import Value
from retinue.errors import ConfigurationError

__all__ = ["SubAgentAvailability"]


class SubAgentAvailability(Value, frozen=True):
    """How deep a subagent's children may be. `limit` is the greatest depth of a child, None: up to the agent's ceiling.

    Depth 0 is the root agent, its children are at depth 1. Use the two constants or `through_depth`.
    """

    limit: int | None

    ROOT_ONLY: ClassVar["SubAgentAvailability"]
    """Only the root agent may call it: `through_depth(1)`."""
    ANY_ALLOWED_DEPTH: ClassVar["SubAgentAvailability"]
    """Whoever may delegate at all may call it."""

    def __post_init__(self) -> None:
        limit = self.limit
        if limit is not None and (isinstance(limit, bool) or limit < 1):
            raise ConfigurationError(
                f"`SubAgentAvailability.through_depth({limit!r})` is out of range",
                code="out_of_range",
                remedy="give the greatest depth that a child may have, a whole number from 1",
            )

    @classmethod
    def through_depth(cls, depth: int) -> Self:
        """Agents at depths 0 to `depth - 1` may call it, so that children exist at depths 1 to `depth`.

        Raises:
            ConfigurationError: `depth` is less than 1.
        """
        return cls(depth)

    def admits(self, depth: int, ceiling: int) -> bool:
        """Whether an agent at `depth` may call it where children may be at most at depth `ceiling`.

        A policy can be stricter than the ceiling, never looser (H-06).
        """
        child = depth + 1
        return child <= ceiling and (self.limit is None or child <= self.limit)


SubAgentAvailability.ROOT_ONLY = SubAgentAvailability(1)
SubAgentAvailability.ANY_ALLOWED_DEPTH = SubAgentAvailability(None)
