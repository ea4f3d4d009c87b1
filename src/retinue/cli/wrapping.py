"""Lines made to fit the terminal that they are shown on: broken between words, and never inside of a command.

A file or a pipe gets whole lines, for whoever searches them.
"""

import os
import re
from typing import Final, TextIO

__all__ = ["fitted", "wrapped"]

_ATOM: Final = re.compile(r"`[^`]*`\S*|(?:\S*/)?retinue [a-z].*|\S+")
"""What stays in one piece: a word, what stands in backticks, a command to the end of its line."""
_LEAD: Final = re.compile(r"\s*(?:\| )?")
_LEAST: Final = 20


def wrapped(text: str, width: int) -> str:
    """`text` in lines of at most `width` columns, each begun as its first was; what is longer in one piece stays so."""
    return "\n".join(line for given in text.split("\n") for line in _lines(given, max(width, _LEAST)))


def _lines(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    found = _LEAD.match(line)
    lead = found[0] if found is not None else ""
    made: list[str] = []
    current, end = lead, len(lead)
    for atom in _ATOM.finditer(line, len(lead)):
        between = line[end : atom.start()]
        if current != lead and len(current) + len(between) + len(atom[0]) > width:
            made.append(current)
            current = f"{lead}{atom[0]}"
        else:
            current += between + atom[0]
        end = atom.end()
    return [*made, current]


def fitted(text: str, stream: TextIO) -> str:
    """`text` as it fits on `stream`, if that is a terminal."""
    try:
        if not stream.isatty():
            return text
        columns = os.get_terminal_size(stream.fileno()).columns
    except (AttributeError, OSError, ValueError):  # closed, or no terminal after all
        return text
    return wrapped(text, columns or 80)
