"""Finding the definition of an agent of a tree by its id, and checking all of them at build (D-27, H-18)."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from retinue.agent.definition import AgentDefinition
from retinue.config import RuntimeContext
from retinue.errors import ConfigurationError, UnknownId
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


def child_definition(
    root: AgentDefinition, agent_id: str, *, depth: int, context: RuntimeContext | None = None
) -> AgentDefinition:
    """The agent with this id: the root itself, or one that it or those below it can make, the nearest to the root first.

    Raises:
        UnknownId: there is none.
    """
    if agent_id == root.agent_id:
        return root
    level = [root]
    while level:
        made = [child for parent in level for child in _children(parent, context or RuntimeContext())]
        for child in made:
            if child.agent_id == agent_id:
                return assemble(_at(child.equipment(trial=False), depth))
        level = [definition for child in made if (definition := child.tried()) is not None]
    raise UnknownId(f"agent `{root.agent_id}` has no agent `{agent_id}`", code="unknown_agent", remedy="declare it as a subagent")


class _Possible:
    """A child that an agent can make."""

    def __init__(self, agent_id: str, equipment: Callable[..., Equipment]) -> None:
        self.agent_id = agent_id
        self.equipment = equipment

    def tried(self) -> AgentDefinition | None:
        """The child, to look further below it; None if it cannot be made: a bad file must never stop a good one."""
        try:
            return assemble(self.equipment(trial=True))
        except ConfigurationError:
            return None


def _children(parent: AgentDefinition, context: RuntimeContext) -> list[_Possible]:
    found: list[_Possible] = []
    for handler in parent.tools.values():
        if isinstance(handler, SubAgentTool):
            found.append(_Possible(handler.agent_id, partial(handler.equipment, parent.tools)))
        elif isinstance(handler, SpawnTool):
            above = handler.children.parent
            found += [
                _Possible(one.agent_id, partial(child_equipment, above, parent.tools, one, context))
                for one in handler.children.roster
            ]
    return found


def _at(equipment: Equipment, depth: int) -> Equipment:
    """The same agent at the depth that is stored with its thread (invariant 5)."""
    return replace(equipment, depth=max(depth, equipment.depth))
