"""Import references, `module:Class.member`: how code is named in what is stored (H-14, H-15)."""

import inspect

__all__ = ["class_reference", "reference_of"]


def class_reference(harness: type) -> str | None:
    """The import reference of a class, or None if it is made inside a function and so cannot be imported."""
    return None if "<locals>" in harness.__qualname__ else f"{harness.__module__}:{harness.__qualname__}"


def reference_of(owner: object, member: str) -> str | None:
    """The import reference of an owner's member, or of a function that stands alone; None if there is none."""
    if inspect.isfunction(owner):
        return None if "<" in owner.__qualname__ else f"{owner.__module__}:{owner.__qualname__}"
    reference = class_reference(type(owner))
    return None if reference is None else f"{reference}.{member}"
