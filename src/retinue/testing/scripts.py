"""Scripts of whole trees: who delegates to whom is written as it nests, and becomes a script for `ScriptedModel`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from retinue.errors import ConfigurationError

__all__ = ["ScriptedAgent", "TurnOfTree"]

TurnOfTree: TypeAlias = "ScriptedAgent | Mapping[str, Any] | Sequence[ScriptedAgent | Mapping[str, Any]]"
"""A child that is delegated to, a turn of a script (`calls(("read_file", {"path": "a"}))`), or several side by side."""


@dataclass(frozen=True, init=False)
class ScriptedAgent:
    """An agent of a scripted tree: its turns one after the other, then what it says in the end.

    A child stands where its parent delegates to it; a list of children and calls is one turn, side by side.

    Args:
        agent_id: who it is. One that stands in several places must do the same in all of them.
        turns: see `TurnOfTree`.
        says: its answer, a text with the templates of scripts (`{result}`), or a whole turn (`{"error": {…}}`).
        task: what its parent tells it.
        surface: how its parent calls it: by `agent_spawn`, or as a tool named after it.

    >>> lead = ScriptedAgent("lead", [ScriptedAgent("reader", says="It is blue."), ScriptedAgent("writer")], says="{results}")
    >>> model = ScriptedModel(lead.script())
    """

    agent_id: str
    turns: tuple[TurnOfTree, ...]
    says: str | Mapping[str, Any]
    task: str
    surface: Literal["roster", "tool"]

    def __init__(
        self,
        agent_id: str,
        *turns: TurnOfTree,
        says: str | Mapping[str, Any] = "{agent} is done.",
        task: str = "",
        surface: Literal["roster", "tool"] = "roster",
    ) -> None:
        values = {"agent_id": agent_id, "turns": turns, "says": says, "task": task or f"Do the work of {agent_id}."}
        for name, value in {**values, "surface": surface}.items():
            object.__setattr__(self, name, value)

    @property
    def children(self) -> Iterator["ScriptedAgent"]:
        """Whom it delegates to, in order."""
        return (one for turn in self.turns for one in _members(turn) if isinstance(one, ScriptedAgent))

    def walk(self) -> Iterator["ScriptedAgent"]:
        """Itself and everybody below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def script(self) -> dict[str, list[Any]]:
        """The turns of every agent of the tree, as `ScriptedModel` takes them.

        Raises:
            ConfigurationError: an agent stands in two places and does not do the same there.
        """
        made: dict[str, list[Any]] = {}
        for agent in self.walk():
            turns = [*(_turn(turn) for turn in agent.turns), agent.says]
            if made.setdefault(agent.agent_id, turns) != turns:
                raise ConfigurationError(
                    f"scripted agent `{agent.agent_id}` stands in two places with different turns",
                    code="invalid_script",
                    remedy="give one of them another id, or the same turns",
                )
        return made

    def _call(self) -> dict[str, Any]:
        """The call with which its parent delegates to it."""
        if self.surface == "tool":
            return {"name": self.agent_id, "arguments": {"input": self.task}}
        return {"name": "agent_spawn", "arguments": {"agent_id": self.agent_id, "task": self.task}}


def _members(turn: TurnOfTree) -> Sequence[ScriptedAgent | Mapping[str, Any]]:
    return [turn] if isinstance(turn, ScriptedAgent | Mapping) else turn


def _turn(turn: TurnOfTree) -> dict[str, Any]:
    """One turn of a script: what its members call, and all else that they say, together."""
    made: dict[str, Any] = {}
    called: list[Any] = []
    for member in _members(turn):
        if isinstance(member, ScriptedAgent):
            called.append(member._call())
        else:
            called += member.get("calls", ())
            made |= {key: value for key, value in member.items() if key != "calls"}
    return {**made, "calls": called} if called else made
