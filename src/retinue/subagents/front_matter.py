"""The header of a declaration file: finding it, and reading its YAML as text with line numbers. No I/O.

Two steps, `split` and `read_header`, so that a repair of malformed headers can be put between them later. Nothing is
guessed here: what cannot be read for certain is a `Problem`, and the file is refused (fail closed on rights).
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

__all__ = ["Entry", "HeaderValue", "Problem", "Split", "read_header", "split"]

HeaderValue: TypeAlias = "str | list[HeaderValue] | dict[str, HeaderValue] | None"
"""Scalars stay the text that was written (`yes`, `007`, `2026-01-01`); None is an empty value, `~` or `null`."""

_DEPTH: Final = 16
_PLAIN_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")
)
_NULL: Final = "tag:yaml.org,2002:null"


class Problem(msgspec.Struct, frozen=True):
    """Why a header cannot be used. `line` counts from 1 in the file."""

    code: str
    message: str
    remedy: str
    line: int


class Split(msgspec.Struct, frozen=True):
    """A file in two parts. `line` is where the header's text begins, from 1."""

    header: str
    line: int
    body: str


class Entry(msgspec.Struct, frozen=True):
    """One key of the header: its value, and the line of the key."""

    value: HeaderValue
    line: int


class _Unusable(Exception):
    """Inside this module only: valid YAML that this header may not use."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def split(text: str) -> Split | Problem:
    """Find header and body. A byte order mark, any line ends and blank lines before the header are accepted.

    The header ends at the first unindented line of `---` (or `...`); those of the body stay in the body.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    if start == len(lines) or lines[start].rstrip() != "---":
        remedy = "begin it with `---`, `description: …`, `---` if it is meant to be a subagent"
        return Problem("no_header", "the file has no front matter, so it is no subagent", remedy, 1)
    for end in range(start + 1, len(lines)):
        if lines[end].rstrip() in ("---", "..."):
            return Split("\n".join(lines[start + 1 : end]), start + 2, "\n".join(lines[end + 1 :]).strip("\n"))
    remedy = "close it with a line of `---` before the instructions"
    return Problem("unterminated_header", "the front matter is not closed", remedy, start + 1)


def read_header(header: str, line: int) -> dict[str, Entry] | Problem:
    """Read a header's YAML. An empty one gives an empty mapping.

    Args:
        header: the text between the markers.
        line: the line of the file on which it begins.
    """
    import yaml

    try:
        root = yaml.compose(header, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        place = line + (error.problem_mark.line if error.problem_mark else 0)
        return Problem("invalid_yaml", f"the front matter is not valid YAML: {error.problem}", _quote_hint(error.problem), place)
    except (yaml.YAMLError, RecursionError) as error:
        return Problem("invalid_yaml", f"the front matter is not valid YAML: {error}", _quote_hint(None), line)
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        return Problem("invalid_yaml", "the front matter is not a list of `key: value` lines", "write `description: …`", line)
    try:
        return _entries(root, line)
    except _Unusable as error:
        return error.problem


def _entries(root: Any, line: int) -> dict[str, Entry]:
    seen: set[int] = set()
    found: dict[str, Entry] = {}
    for key_node, value_node in root.value:
        key = _key(key_node, found, line)
        found[key] = Entry(_value(value_node, line, seen, 0), line + key_node.start_mark.line)
    return found


def _key(node: Any, taken: Mapping[str, object], line: int) -> str:
    if node.tag not in _PLAIN_TAGS or not isinstance(node.value, str):
        raise _Unusable(
            _problem("invalid_yaml", f"`{node.value}` cannot be used as a key", "use plain `key: value` lines", node, line)
        )
    if node.value in taken:
        raise _Unusable(_problem("duplicate_key", f"`{node.value}` is there twice", "keep one of them", node, line))
    return node.value


def _value(node: Any, line: int, seen: set[int], depth: int) -> HeaderValue:
    if id(node) in seen:
        raise _Unusable(_problem("invalid_yaml", "YAML aliases are not read", "write the value out", node, line))
    seen.add(id(node))
    if node.tag not in _PLAIN_TAGS:
        raise _Unusable(_problem("invalid_yaml", f"the YAML tag `{node.tag}` is not read", "write a plain value", node, line))
    if depth > _DEPTH:
        raise _Unusable(_problem("invalid_yaml", "the front matter is nested too deeply", "make it flat", node, line))
    if isinstance(node.value, str):
        return None if node.tag == _NULL and not node.style else node.value
    if node.tag.endswith(":seq"):
        return [_value(item, line, seen, depth + 1) for item in node.value]
    result: dict[str, HeaderValue] = {}
    for key_node, value_node in node.value:
        key = _key(key_node, result, line)
        result[key] = _value(value_node, line, seen, depth + 1)
    return result


def _problem(code: str, message: str, remedy: str, node: Any, line: int) -> Problem:
    return Problem(code, message, remedy, line + node.start_mark.line)


def _quote_hint(problem: str | None) -> str:
    if problem and "mapping values are not allowed" in problem:
        return "put the value of that line in quotes, because it contains `: `"
    return "quote values with `:`, `*`, `&`, `#` or brackets, and indent lines that go on"
