"""The algebra of rights (M10): rules, what one set of them says, and what the chain from root to self decides.

Pure functions over plain data. A verdict is one of deny < ask < allow; each further set on the chain can only lower it.

How a rule matches
------------------
* `tool` or `tool(glob)`. In both, `*` stands for any run of characters, `/` included, and `?` for one; nothing else is
  special. So `write_file(src/*)` covers the whole tree below `src`.
* The glob is matched against the call's main argument. What looks like a path is normalised first: `src/../.env` is `.env`.
  Give a path relative to the workspace, as the rules do.
* A tool may say which places a call really touches (`Tool.places`): the file tools give the path from the workspace's root,
  and where it leads through symbolic links. These are matched like the argument, so no spelling and no symbolic link gets
  around a rule. A hard link is another name of the same file, which says nothing of its other names: a rule for one does not
  hold for the other. (No tool makes one; the files of a ledger are closed under every name.)
* Matching leans to the safe side. An `allow` needs the argument as written *and*, where it has `.`, `..` or empty segments,
  its normal form to match, and so every place. A `deny` or an `ask` applies if any form of the argument or of a place
  matches (as written, trimmed, normalised), whatever the case of the letters, because file systems may ignore it.
* In an `allow` for a command tool, `*` does not reach over what starts a second command or redirects (`;`, `|`, `&`, `<`,
  `>`, a line break, a backtick, `$(`): `execute(git *)` does not allow `git log; rm x`. A plain `execute` allows everything.
"""

import posixpath
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from unicodedata import normalize

import msgspec

from retinue.config import PermissionRules, Verdict
from retinue.errors import ConfigurationError

__all__ = [
    "COMMAND_TOOLS",
    "Decision",
    "Opinion",
    "Rule",
    "decide",
    "opinion",
    "opinion_of",
    "parse_rule",
    "place_rules",
    "stricter",
]

COMMAND_TOOLS: Final = frozenset({"execute"})
"""Tools whose main argument is a command line for a shell."""

_RANK: Final = {Verdict.DENY: 0, Verdict.ASK: 1, Verdict.ALLOW: 2}
_ANY: Final = r"[\s\S]*"
_ONE_COMMAND: Final = r"(?:(?!\$\()[^;|&<>`\r\n])*"
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_DETOUR: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")


class Rule(msgspec.Struct, frozen=True):
    """One rule, read. `pattern` None covers every call of the tool."""

    tool: str
    pattern: str | None = None

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    def speaks_of(self, tool: str) -> bool:
        """Whether this rule is about that tool, for some argument."""
        return _glob(self.tool, _ANY, ignore_case=False).fullmatch(tool) is not None

    def matches(self, tool: str, main_argument: str | None, places: Sequence[str] = (), *, grants: bool) -> bool:
        """Whether this rule speaks of that call. `grants` says that it stands under `allow`, where doubt means no."""
        if not self.speaks_of(tool):
            return False
        if self.pattern is None:
            return True
        texts = places if main_argument is None else (main_argument, *places)
        if grants:
            glob = _glob(self.pattern, _ONE_COMMAND if tool in COMMAND_TOOLS else _ANY, ignore_case=False)
            return bool(texts) and all(glob.fullmatch(form) for text in texts for form in _needed(text))
        glob = _glob(normalize("NFC", self.pattern), _ANY, ignore_case=True)  # one name may be written in several ways
        return any(glob.fullmatch(normalize("NFC", form)) for text in texts for form in _forms(text))


class Opinion(msgspec.Struct, frozen=True):
    """What one set says of a call, and the rule that said it."""

    verdict: Verdict
    rule: Rule


class Decision(msgspec.Struct, frozen=True):
    """What the whole chain says. `because` is one line for a person, without a final dot.

    `level` is the place of the deciding set on the chain (0 is the root), None where no rule decided.
    """

    verdict: Verdict
    because: str
    rule: str | None = None
    level: int | None = None


def stricter(first: Verdict, second: Verdict) -> Verdict:
    """The smaller of two verdicts in deny < ask < allow."""
    return first if _RANK[first] <= _RANK[second] else second


def parse_rule(text: str) -> Rule:
    """Read `tool` or `tool(glob)`.

    Raises:
        ConfigurationError: the rule has no tool, or its bracket does not close.
    """
    tool, bracket, rest = text.strip().partition("(")
    tool = tool.strip()
    if not tool or (bracket and not rest.endswith(")")):
        raise ConfigurationError(
            f"permission rule `{text}` cannot be read",
            code="invalid_permission_rule",
            remedy="write `tool` or `tool(glob of its main argument)`",
        )
    return Rule(tool, rest[:-1] if bracket else None)


def opinion_of(rules: PermissionRules, tool: str, main_argument: str | None, places: Sequence[str] = ()) -> Opinion | None:
    """What one set says of a call, with the rule that decided. The order of rules inside the set does not matter.

    None if no rule matches: a silent set has no opinion.
    """
    for verdict, texts in ((Verdict.DENY, rules.deny), (Verdict.ASK, rules.ask), (Verdict.ALLOW, rules.allow)):
        for text in texts:
            rule = _parsed(text)
            if rule.matches(tool, main_argument, places, grants=verdict is Verdict.ALLOW):
                return Opinion(verdict, rule)
    return None


def opinion(rules: PermissionRules, tool: str, main_argument: str | None, places: Sequence[str] = ()) -> Verdict | None:
    """What one set says of a call: deny beats ask beats allow; None if no rule matches."""
    found = opinion_of(rules, tool, main_argument, places)
    return None if found is None else found.verdict


def decide(
    chain: Sequence[PermissionRules],
    tool: str,
    main_argument: str | None,
    need: Verdict,
    always: Verdict = Verdict.ALLOW,
    *,
    places: Sequence[str] = (),
    remembered: bool = False,
    labels: Sequence[str] = (),
) -> Decision:
    """What the chain of rule sets says of a call (M10, D-29).

    Args:
        chain: the rule sets from the root agent to the one that calls. May be empty.
        tool: the tool's name.
        main_argument: the text its rules' globs are matched against, None if it has none.
        need: the tool's own verdict, used where the root's set is silent.
        always: the most that any rule or remembered answer can grant for this call.
        places: what the call really touches, matched like the main argument (`Tool.places`).
        remembered: a person has said yes to this call for good. Lifts `ask` to `allow`, never `deny`, never over `always`.
        labels: the agents the sets belong to, for `because`; as long as `chain` or empty.
    """
    decision = Decision(need, f"`{tool}` needs {_NEEDS[need]}, and no rule says otherwise")
    for level, rules in enumerate(chain):
        found = opinion_of(rules, tool, main_argument, places)
        if found is None:
            continue
        if level == 0 or _RANK[found.verdict] < _RANK[decision.verdict]:
            owner = f" of `{labels[level]}`" if level < len(labels) else ""
            because = f"rule `{found.rule}` under `{found.verdict.value}`{owner} decides"
            decision = Decision(found.verdict, because, str(found.rule), level)
    if remembered and decision.verdict is Verdict.ASK:
        decision = Decision(Verdict.ALLOW, f"a remembered answer allows `{tool}`", decision.rule, decision.level)
    if _RANK[always] < _RANK[decision.verdict]:
        decision = Decision(always, f"this call of `{tool}` {_ALWAYS[always]}, whatever the rules say")
    return decision


def place_rules(chain: Sequence[PermissionRules], tools: Sequence[str], verdict: Verdict) -> tuple[tuple[str, Rule], ...]:
    """The rules of a chain that deny places to one of these tools, or ask for them, each with that tool: those that have a
    glob. `rule.matches(tool, place, grants=False)` says whether a place is meant."""
    found = [_parsed(text) for rules in chain for text in (rules.deny if verdict is Verdict.DENY else rules.ask)]
    return tuple((tool, rule) for tool in tools for rule in found if rule.pattern is not None and rule.speaks_of(tool))


_NEEDS: Final = {Verdict.DENY: "nobody to call it", Verdict.ASK: "a permission", Verdict.ALLOW: "no permission"}
_ALWAYS: Final = {Verdict.DENY: "is always refused", Verdict.ASK: "is always asked for", Verdict.ALLOW: "is allowed"}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Rule:
    return parse_rule(text)


@lru_cache(maxsize=4096)
def _glob(pattern: str, star: str, *, ignore_case: bool) -> re.Pattern[str]:
    """The pattern as an expression. Groups between two stars are atomic, so that no argument makes matching slow."""
    first, *rest = re.split(r"\*+", pattern)
    text = _literal(first)
    if rest:
        text += "".join(f"(?>{star}?{_literal(part)})" for part in rest[:-1]) + star + _literal(rest[-1])
    return re.compile(text, re.IGNORECASE if ignore_case else 0)


def _literal(part: str) -> str:
    return r"[\s\S]".join(re.escape(piece) for piece in part.split("?"))


def _is_detour(argument: str) -> bool:
    """Whether a path's text hides where it leads: `.`, `..` or empty segments. The `//` of a URL is none."""
    path = _SCHEME.sub("", argument.strip().replace("\\", "/"))
    return _DETOUR.search(path.strip("/")) is not None and path.strip("/") != ""


def _needed(argument: str) -> tuple[str, ...]:
    """The forms that an `allow` must match."""
    return _forms(argument) if _is_detour(argument) else (argument,)


def _forms(argument: str) -> tuple[str, ...]:
    """The ways to read an argument: as written, trimmed, as a normalised path."""
    trimmed = argument.strip()
    return tuple(dict.fromkeys((argument, trimmed, _normal(trimmed.replace("\\", "/")))))


def _normal(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}" if path.startswith("/") else path or ".")
