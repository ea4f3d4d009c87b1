"""What a docstring says: the text for the model, and a description of each parameter.

Google ("Args:"), NumPy ("Parameters" underlined) and reST (":param name:") forms are read.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Docstring", "parse_docstring"]

_PARAMETER_SECTIONS: Final = frozenset({"args", "arguments", "parameters", "params", "other parameters"})
_SECTIONS: Final = _PARAMETER_SECTIONS | {
    *("returns", "return", "yields", "yield", "raises", "raise", "examples", "example"),
    *("notes", "note", "references", "see also", "warnings", "warning", "attributes"),
}
_GOOGLE_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\w+)\s*(?::.*)?")
_REST_ENTRY: Final = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_UNDERLINE: Final = re.compile(r"\s*-{3,}\s*")


class Docstring(NamedTuple):
    """`text` is everything before the first section; `parameters` maps names to descriptions in one line."""

    text: str
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> Docstring:
    """Read a docstring. What cannot be read as a section stays text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    found: dict[str, str] = {}
    text_end = len(lines)
    index = 0
    while index < len(lines):
        section, body = _section_at(lines, index)
        if section is not None:
            text_end = min(text_end, index)
            end = _section_end(lines, body)
            if section in _PARAMETER_SECTIONS:
                found.update(_entries(lines[body:end], numpy=body - index == 2))
            index = end
        elif lines[index].startswith(":") and re.match(r":\w+[^:]*:", lines[index]):
            text_end = min(text_end, index)
            end = _block_end(lines, index + 1)
            if match := _REST_ENTRY.match(lines[index]):
                found[match[1]] = _joined([match[2], *lines[index + 1 : end]])
            index = end
        else:
            index += 1
    return Docstring("\n".join(lines[:text_end]).strip(), found)


def _section_at(lines: Sequence[str], index: int) -> tuple[str | None, int]:
    """The section that starts at this line, and where its body does."""
    line = lines[index]
    name = line.strip().rstrip(":").lower()
    if name not in _SECTIONS or _indent(line) > 0:
        return None, index
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if _UNDERLINE.fullmatch(following):
        return name, index + 2
    if line.rstrip().endswith(":") and (not following.strip() or _indent(following) > 0):
        return name, index + 1
    return None, index


def _section_end(lines: Sequence[str], start: int) -> int:
    """Where the section ends: at the next one, or for Google sections at the first line that is not indented."""
    numpy = start >= 1 and bool(_UNDERLINE.fullmatch(lines[start - 1]))
    if not numpy:
        return _block_end(lines, start)
    for index in range(start, len(lines)):
        if _section_at(lines, index)[0] is not None:
            return index
    return len(lines)


def _block_end(lines: Sequence[str], start: int) -> int:
    for index in range(start, len(lines)):
        if lines[index].strip() and _indent(lines[index]) == 0:
            return index
    return len(lines)


def _entries(lines: Sequence[str], *, numpy: bool) -> dict[str, str]:
    """The `name: description` entries of a section's body."""
    entry = _NUMPY_ENTRY if numpy else _GOOGLE_ENTRY
    level = min((_indent(line) for line in lines if line.strip()), default=0)
    parts: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        match = entry.fullmatch(line.strip()) if line.strip() and _indent(line) == level else None
        if match:
            current = parts.setdefault(match[1], [] if numpy else [match[2]])
        elif current is not None:
            current.append(line)
    return {name: text for name, words in parts.items() if (text := _joined(words))}


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
