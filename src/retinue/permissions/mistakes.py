"""Rules that do not mean what they seem to: for tools that nobody has, and with globs that no path of a file tool matches."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from retinue.config import PermissionRules
from retinue.errors import ConfigurationError
from retinue.near import near_names
from retinue.permissions.rules import Rule, parse_rule

__all__ = ["LATER_TOOLS", "UnknownTool", "check_globs", "unknown_tools"]

LATER_TOOLS: Final = ("execute", "task_output", "task_cancel", "task_list", "task_wait")
"""Names that rules may use already: tools that this version does not have yet."""

_DETOUR: Final = r"^[/~]|(?:^|/)\.{1,2}(?:/|$)"
_NEAR: Final = 3


class UnknownTool(msgspec.Struct, frozen=True):
    """A rule for a tool that nobody has, and the names that may have been meant, the nearest first."""

    rule: str
    near: Sequence[str]

    @property
    def message(self) -> str:
        """What is wrong, without a final dot."""
        return f"permission rule `{self.rule}` is for a tool that no agent here has"

    @property
    def remedy(self) -> str:
        """What to do."""
        names = " or ".join(f"`{name}`" for name in self.near)
        return f"write {names}" if names else "correct the tool's name, or leave the rule out"


def unknown_tools(rules: PermissionRules, known: Iterable[str]) -> list[UnknownTool]:
    """The rules that match none of these tools. `known` must be all that any agent of the tree may have."""
    names = sorted({*known, *LATER_TOOLS})
    return [
        UnknownTool(str(rule), near_names(rule.tool, names, count=_NEAR))
        for rule in _rules(rules)
        if not any(rule.speaks_of(name) for name in names)
    ]


def check_globs(rules: PermissionRules, tools: Sequence[str], root: Path) -> None:
    """Refuse globs for these file tools that no path can match: paths count from the workspace's root, without detours.

    Raises:
        ConfigurationError: `invalid_permission_rule`, with the glob that is meant.
    """
    for rule in _rules(rules):
        pattern = (rule.pattern or "").strip()
        if rule.tool not in tools or not re.search(_DETOUR, pattern):
            continue
        inside = pattern.removeprefix(f"{str(root).rstrip('/')}/").removeprefix("./")
        fits = inside != pattern and not re.search(_DETOUR, inside)
        raise ConfigurationError(
            f"permission rule `{rule}` can never match: paths of `{rule.tool}` are relative to the workspace `{root}`",
            code="invalid_permission_rule",
            remedy=f"write `{rule.tool}({inside})`" if fits else "name a path below the workspace; no file tool leaves it",
        )


def _rules(rules: PermissionRules) -> Iterator[Rule]:
    for text in (*rules.allow, *rules.ask, *rules.deny):
        yield parse_rule(text)
