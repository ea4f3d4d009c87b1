"""Names that are near to one that is not known: what somebody may have meant."""

from collections.abc import Iterable

__all__ = ["near_names"]


def near_names(name: str, known: Iterable[str], *, count: int = 3, alike: float = 0.6) -> list[str]:
    """At most `count` of the known names, the nearest first; none if none is `alike` (from 0 to 1, the same)."""
    from difflib import get_close_matches  # only a mistake needs it

    return get_close_matches(name, list(known), n=count, cutoff=alike)
