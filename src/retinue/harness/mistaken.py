"""Names of tools that nobody has, in the rules and subagents of an agent: told to who wrote them, before they protect nothing."""

from collections.abc import Sequence
from typing import Final

from retinue.agent.results import READ_RESULT
from retinue.config import PermissionRules
from retinue.permissions.mistakes import unknown_tools
from retinue.subagents.declaration import SubAgent
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.mistaken_tools import mistaken_tools
from retinue.subagents.registry import Roster
from retinue.subagents.roster_tools import ROSTER_TOOLS
from retinue.tools.harness import collect
from retinue.tools.port import Capability

__all__ = ["UNKNOWN_TOOL", "mistaken_names"]

UNKNOWN_TOOL: Final = "unknown_tool_in_rule"
"""The code of the diagnostic for a rule whose tool nobody has."""


def mistaken_names(
    capabilities: Sequence[Capability], roster: Roster, rules: PermissionRules, *, builtin: Sequence[str]
) -> list[Diagnostic]:
    """Warnings for an agent with these capabilities and children; `builtin` are the file tools that its tree may have.

    Nothing is said where not all tools are known: children of factories have their own, and so have those that are made of
    another agent's configuration.
    """
    known = _tools_of(capabilities, roster, builtin)
    if known is None:
        return []
    said = [
        Diagnostic(severity="warning", code=UNKNOWN_TOOL, message=one.message, remedy=one.remedy)
        for one in unknown_tools(rules, known)
    ]
    declared = (*(one for one in capabilities if isinstance(one, SubAgent)), *(one.declaration for one in roster))
    return [*said, *(found for one in declared for found in mistaken_tools(one, known))]


def _tools_of(capabilities: Sequence[Capability], roster: Roster, builtin: Sequence[str]) -> set[str] | None:
    """The names of all tools that an agent with these, and its children at any depth, can have; None if they are not known."""
    names = {*builtin, *ROSTER_TOOLS, READ_RESULT}
    todo = [*capabilities, *(one.declaration for one in roster)]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        names.add(one.name)
        if isinstance(one, SubAgent):
            if one.source == "factory":
                return None
            new = [harness for harness in one.tool_harnesses if id(harness) not in seen]  # a subagent may be its own child
            seen.update(map(id, new))
            todo += collect(new)
    return names
