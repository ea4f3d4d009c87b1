"""Words for mistakes: the names that somebody may have meant, and what kind of value was given."""

from collections.abc import Iterable

__all__ = ["a_kind", "near_names"]


def a_kind(value: object) -> str:
    """What a value is, for people: "a `str`", "an `int`"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} `{name}`"


def near_names(name: str, known: Iterable[str], *, count: int = 3, alike: float = 0.6) -> list[str]:
    """At most `count` of the known names, the nearest first; none if none is `alike` (from 0 to 1, the same)."""
    from difflib import get_close_matches  # only a mistake needs it

    return get_close_matches(name, list(known), n=count, cutoff=alike)
