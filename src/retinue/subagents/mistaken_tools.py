"""Names under a declaration's `tools`, `disallowed_tools` and `builtin_tools` that are the names of no tool."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from retinue.config import Unset
from retinue.near import near_names
from retinue.permissions.mistakes import LATER_TOOLS
from retinue.subagents.declaration import SubAgent
from retinue.subagents.diagnostics import Diagnostic

__all__ = ["UNKNOWN_TOOL_NAMED", "mistaken_tools"]

UNKNOWN_TOOL_NAMED: Final = "unknown_tool_named"
"""The code of the diagnostic for a subagent that names a tool which nobody has."""

_NEAR: Final = 3


def mistaken_tools(declaration: SubAgent, known: Iterable[str]) -> list[Diagnostic]:
    """A warning for each name that fits none of these tools. `known` must be all that any agent of the tree may have."""
    names = sorted({*known, *LATER_TOOLS})
    builtin = declaration.builtin_tools
    keys = (
        ("tools", declaration.tools or ()),
        ("disallowed_tools", declaration.disallowed_tools),
        ("builtin_tools", () if isinstance(builtin, str | Unset) else builtin),
    )
    return [
        _warning(declaration, key, pattern, near_names(pattern, names, count=_NEAR))
        for key, patterns in keys
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def _warning(declaration: SubAgent, key: str, pattern: str, near: Iterable[str]) -> Diagnostic:
    meant = " or ".join(f"`{name}`" for name in near)
    return Diagnostic(
        severity="warning",
        code=UNKNOWN_TOOL_NAMED,
        message=f"subagent `{declaration.name}`: `{key}` names `{pattern}`, a tool that no agent here has",
        remedy=f"write {meant}" if meant else "correct the tool's name, or leave it out",
        path=declaration.origin.path,
    )
