"""Finding the definition of an agent of a tree by its id, and checking all of them at build (D-27, H-18)."""

from typing import Final

from retinue.agent.definition import AgentDefinition
from retinue.config import RuntimeContext
from retinue.errors import UnknownId
from retinue.subagents.equipment import Equipment, assemble, child_equipment
from retinue.subagents.roster_tools import SpawnTool
from retinue.subagents.tool_surface import SubAgentTool

__all__ = ["check_children", "child_definition"]

_NOT_AT_BUILD: Final = ("factory", "file", "builtin")
"""Sources that are looked at when they are used: a bad file must never stop a good one (invariant 11)."""


def check_children(definition: AgentDefinition) -> None:
    """Make the children that code declares, so that what cannot work is said at build.

    Raises:
        ConfigurationError: naming the declaration.
    """
    for handler in definition.tools.values():
        if isinstance(handler, SubAgentTool):
            handler.check(definition.tools)
        elif isinstance(handler, SpawnTool):
            handler.children.check(definition.tools, skip=_NOT_AT_BUILD)


def child_definition(root: AgentDefinition, agent_id: str, *, depth: int) -> AgentDefinition:
    """The agent with this id: the root itself, or one of the children it can make.

    Raises:
        UnknownId: there is none.
    """
    if agent_id == root.agent_id:
        return root
    for handler in root.tools.values():
        if isinstance(handler, SubAgentTool) and handler.agent_id == agent_id:
            return assemble(_at(handler.equipment(root.tools), depth))
        if isinstance(handler, SpawnTool):
            resolved = next((one for one in handler.children.roster if one.agent_id == agent_id), None)
            if resolved is not None:
                made = child_equipment(handler.children.parent, root.tools, resolved, RuntimeContext())
                return assemble(_at(made, depth))
    raise UnknownId(f"agent `{root.agent_id}` has no agent `{agent_id}`", code="unknown_agent", remedy="declare it as a subagent")


def _at(equipment: Equipment, depth: int) -> Equipment:
    """The same agent at the depth that is stored with its thread (invariant 5)."""
    from dataclasses import replace

    return replace(equipment, depth=max(depth, equipment.depth))
