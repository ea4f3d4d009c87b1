"""What models are told about delegating: the roster section of a parent, the context section of a child (A-03, A-13).

The words are files in `prompts/`; here they are put together. Pure functions: the same roster gives the same bytes (M11).
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the roster describes its built-in entry with a text from here
    from retinue.subagents.registry import Roster

__all__ = [
    "CATALOGUE_CHARACTERS",
    "DESCRIPTION_CHARACTERS",
    "child_instructions",
    "general_purpose_description",
    "roster_section",
]

DESCRIPTION_CHARACTERS: Final = 300
CATALOGUE_CHARACTERS: Final = 12_000
_MORE: Final = 80
"""Characters kept free for the line that says how many are not shown."""


def roster_section(
    roster: "Roster",
    *,
    background: bool = True,
    description_characters: int = DESCRIPTION_CHARACTERS,
    catalogue_characters: int = CATALOGUE_CHARACTERS,
) -> str:
    """The section `## Subagents` of a parent's system text: the rules, then the available ids (A-03). "" if there are none.

    Args:
        roster: what is available at this agent's depth (`Roster.available`).
        background: whether the `task_*` tools are there to be spoken of.
        description_characters: where each description is cut.
        catalogue_characters: the greatest length of the list as a whole: descriptions go first, then ids.
    """
    if not roster.listed():
        return ""
    parts = [_text("roster.md"), _text("roster_background.md") if background else "", "Available agent ids:"]
    lines = _catalogue(roster, description_characters, catalogue_characters)
    return "\n\n".join(part for part in parts if part) + "\n\n" + "\n".join(lines)


def child_instructions(base: str | None, *, leaf: bool) -> str:
    """A roster child's system text: its base, then the fixed subagent-context section (A-13)."""
    section = f"{_text('child.md')}\n{_text('child_leaf.md')}" if leaf else _text("child.md")
    return f"{base.rstrip()}\n\n{section}" if base and base.strip() else section


def general_purpose_description() -> str:
    """What a parent is told of `general-purpose`."""
    return _text("general_purpose.md")


def _catalogue(roster: "Roster", description_characters: int, catalogue_characters: int) -> list[str]:
    entries = roster.listed()
    full = [f"- `{entry.agent_id}`: {_one_line(entry.description, description_characters)}" for entry in entries]
    if sum(len(line) + 1 for line in full) <= catalogue_characters:
        return full
    room = catalogue_characters - _MORE
    short = [f"- `{entry.agent_id}`" for entry in entries]
    lines: list[str] = []
    bare = sum(len(line) + 1 for line in short)  # what the ids of the rest will need, so that ids outlive descriptions
    for described, only_id in zip(full, short, strict=True):
        bare -= len(only_id) + 1
        line = described if len(described) + 1 + bare <= room else only_id
        if len(line) + 1 > room:
            break
        room -= len(line) + 1
        lines.append(line)
    hidden = len(entries) - len(lines)
    return [*lines, f"- ({hidden} more: `agent_spawn` with a wrong id names close ones)"] if hidden else lines


def _one_line(description: str, limit: int) -> str:
    text = " ".join(description.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name("prompts").joinpath(name).read_text(encoding="utf-8").strip()
