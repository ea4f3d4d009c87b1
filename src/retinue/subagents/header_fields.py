"""The keys of a declaration file: from text to typed values, each bad one reported with its line (A-18, A-20).

A key that could widen what the child may do (`tools`, limits) is never dropped: if it cannot be read, the file is refused.
A key that only tunes is left out with a warning.
"""

import math
from collections.abc import Callable
from typing import Final

from retinue.config import WorkspaceMode
from retinue.near import near_names
from retinue.subagents.choices import SelectionMode
from retinue.subagents.diagnostics import Diagnostic, Severity
from retinue.subagents.front_matter import Entry, HeaderValue

__all__ = ["HeaderReader", "canonical_key", "meant_keys"]

KEYS: Final = (
    "description",
    "name",
    "workspace",
    "model",
    "steps",
    "maxIters",
    "tools",
    "temperature",
    "top_p",
    "mode",
    "hidden",
    "askParent",
    "skills",
    "disallowedTools",
    "builtinTools",
    "url",
    "headers",
)
_FOLDED: Final = {key.replace("_", "").lower(): key for key in KEYS}
_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def canonical_key(key: str) -> str | None:
    """The known key that `key` spells (`max_iters`, `max-iters`, `MaxIters` are `maxIters`), or None (D-25)."""
    return _FOLDED.get(_folded(key))


def meant_keys(key: str) -> list[str]:
    """The known keys that `key`, which is none of them, is a likely slip for: the first letter is rarely mistyped, and
    without it `allowed-tools` would be told to be `disallowedTools`."""
    folded = _folded(key)
    return [_FOLDED[near] for near in near_names(folded, _FOLDED, count=2, alike=0.75) if near[0] == folded[0]]


def _folded(key: str) -> str:
    return key.replace("_", "").replace("-", "").replace(" ", "").lower()


class HeaderReader:
    """Takes values out of a header and collects what there is to say about them.

    `report(severity, code, message, remedy, line)` makes a diagnostic of this file.
    """

    def __init__(self, header: dict[str, Entry], report: Callable[[Severity, str, str, str, int | None], Diagnostic]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.extras: dict[str, HeaderValue] = {}
        self._report = report
        self._known: dict[str, Entry] = {}
        self._lines = {key: entry.line for key, entry in header.items()}
        for key, entry in header.items():
            known = canonical_key(key)
            if known is None:
                self.extras[key] = entry.value
            elif known in self._known:
                self.error("duplicate_key", f"`{key}` and another spelling of `{known}` are both there", "keep one", entry.line)
            else:
                self._known[known] = entry

    @property
    def refused(self) -> bool:
        """Whether an error was found, so that the file must not be used."""
        return any(diagnostic.severity == "error" for diagnostic in self.diagnostics)

    def error(self, code: str, message: str, remedy: str, line: int | None) -> None:
        """Refuse the file."""
        self.diagnostics.append(self._report("error", code, message, remedy, line))

    def warn(self, code: str, message: str, remedy: str, line: int | None) -> None:
        """Say that something is not as it was meant."""
        self.diagnostics.append(self._report("warning", code, message, remedy, line))

    def info(self, code: str, message: str, remedy: str) -> None:
        """Say something worth knowing."""
        self.diagnostics.append(self._report("info", code, message, remedy, None))

    def tell_extras(self) -> None:
        """Say which keys have no effect: each that is near to a known one is likely a slip, with its line."""
        others: list[str] = []
        for key in self.extras:
            near = meant_keys(key)
            if near:
                remedy = f"did you mean {' or '.join(f'`{one}`' for one in near)}?"
                self.warn("unknown_key", f"`{_cut(key)}` is not known, and has no effect", remedy, self._lines[key])
            else:
                others.append(f"`{_cut(key)}`")
        if others:
            message = f"keys that are not known here have no effect: {', '.join(others)}"
            self.info("unknown_keys", message, "remove them, or leave them")

    def has(self, key: str) -> bool:
        """Whether the header has this key, whatever its value."""
        return key in self._known

    def line(self, key: str) -> int | None:
        """The line of a key."""
        return self._known[key].line if key in self._known else None

    def text(self, key: str, *, strict: bool = False) -> str | None:
        """A text, trimmed; blank is None. What is no text is a warning, or an error where `strict`."""
        value = self._value(key)
        if value is None or isinstance(value, str):
            return (value or "").strip() or None
        tell = self.error if strict else self.warn
        tell("invalid_value", f"`{key}` is not a text", "write one value on its line", self.line(key))
        return None

    def count(self, key: str) -> int | None:
        """A whole number from 1. It limits, so a bad one refuses the file."""
        text = self.text(key, strict=True)
        if text is None:
            return None
        if text.isascii() and text.isdigit() and int(text[:18]) >= 1:
            return int(text[:18])
        self.error("invalid_value", f"`{key}` is `{_cut(text)}`", "give a whole number from 1, or remove the key", self.line(key))
        return None

    def number(self, key: str, low: float, high: float) -> float | None:
        """A number between `low` and `high`; another value is left out with a warning."""
        text = self.text(key)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        remedy = f"give a number from {low:g} to {high:g}; until then the provider's default is used"
        self.warn("invalid_value", f"`{key}` is `{_cut(text)}`", remedy, self.line(key))
        return None

    def flag(self, key: str) -> bool:
        """A truth value, False where the key is absent; another value is left out with a warning."""
        text = self.text(key)
        value = _BOOLEANS.get((text or "false").lower())
        if value is None:
            self.warn("invalid_value", f"`{key}` is `{_cut(text)}`", "write `true` or `false`", self.line(key))
        return bool(value)

    def selection_mode(self) -> SelectionMode:
        """`mode`: primary, subagent or all; another value counts as all, with a warning."""
        text = self.text("mode")
        try:
            return SelectionMode((text or "all").lower())
        except ValueError:
            remedy = "write `primary`, `subagent` or `all`"
            self.warn("invalid_value", f"`mode` is `{_cut(text)}`, taken as `all`", remedy, self.line("mode"))
            return SelectionMode.ALL

    def names(self, key: str) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """A list of names: (named, switched off). Absent is (None, ()); present but empty is no names at all.

        Accepts a list, a text with commas (brackets allowed) and a mapping of names to true or false.
        """
        if not self.has(key):
            return None, ()
        value = self._value(key)
        if value is None:
            self.warn("empty_list", f"`{key}` is empty, taken as none", f"write `{key}: []`, or remove the key", self.line(key))
            return (), ()
        if isinstance(value, dict):
            return self._switches(key, value)
        items: list[HeaderValue] = [*value] if isinstance(value, list) else [*value.strip().strip("[]").split(",")]
        names = [item.strip().strip("\"'") for item in items if isinstance(item, str)]
        if len(names) < len(items):
            remedy = "write names only; that item was left out"
            self.warn("invalid_value", f"`{key}` has an item that is not a name", remedy, self.line(key))
        return tuple(dict.fromkeys(name for name in names if name)), ()

    def _switches(self, key: str, value: dict[str, HeaderValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        chosen: dict[bool, list[str]] = {True: [], False: []}
        for name, item in value.items():
            wanted = _BOOLEANS.get(item.strip().lower()) if isinstance(item, str) else None
            if wanted is None:
                self.error("invalid_value", f"`{key}.{name}` is neither true nor false", "write a list of names", self.line(key))
            else:
                chosen[wanted].append(name.strip())
        return tuple(chosen[True]), tuple(chosen[False])

    def workspace(self) -> tuple[WorkspaceMode | None, str | None]:
        """`workspace`: (mode, path). What is no mapping refuses the file; an unknown mode counts as isolated."""
        value = self._value("workspace")
        if value is None:
            return None, None
        line = self.line("workspace")
        if not isinstance(value, dict):
            self.error("invalid_value", "`workspace` is not a mapping", "write `workspace:` with `mode:` or `path:` below", line)
            return None, None
        fields: dict[str, HeaderValue] = {key.lower(): item for key, item in value.items()}
        for key in sorted(set(fields) - {"mode", "path"}):
            self.warn("unknown_key", f"`workspace.{key}` is not known", "use `mode` and `path`", line)
        mode, path = fields.get("mode"), fields.get("path")
        if not isinstance(path, (str, type(None))):
            self.error("invalid_value", "`workspace.path` is not a text", "give one folder", line)
            return None, None
        return self._workspace_mode(mode, line), (path or "").strip() or None

    def _workspace_mode(self, mode: HeaderValue, line: int | None) -> WorkspaceMode | None:
        if mode is None:
            return None
        try:
            return WorkspaceMode(mode.strip().lower() if isinstance(mode, str) else "")
        except ValueError:
            self.warn("invalid_value", "`workspace.mode` is not known, taken as `isolated`", "write `isolated` or `shared`", line)
            return WorkspaceMode.ISOLATED

    def _value(self, key: str) -> HeaderValue:
        entry = self._known.get(key)
        return None if entry is None else entry.value


def _cut(text: str | None) -> str:
    return (text or "")[:60]
