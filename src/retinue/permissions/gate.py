"""The gate before every call: the chain of rules from root to self, and the answers that people asked to be remembered (M10)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from retinue.config import PermissionRules, Verdict
from retinue.permissions.rules import Decision, Rule, decide, place_rules

__all__ = ["GatedCall", "PermissionGate", "Remembered", "remembered_name"]

Remembered = Callable[[str], Awaitable[bool]]
"""Whether an answer under this name (see `remembered_name`) was remembered for the session."""


RequestKind = Literal["permission", "question"]


class GatedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate is asked about. `subject` is the child's agent id for a delegation, else the asking agent's.

    `need` is the tool's own verdict, `always` the most that any rule can grant for these arguments.
    `forms` are the places that the call touches (`Tool.places`), which rules match besides the main argument.
    `kind` is that of the request which it opens: a `question` is asked whatever the rules grant, since only its answer lets
    the call end.
    """

    tool: str
    arguments: Mapping[str, Any]
    main_argument: str | None
    need: Verdict
    always: Verdict
    subject: str
    forms: tuple[str, ...] = ()
    kind: RequestKind = "permission"


_PlaceRules = tuple[tuple[str, Rule], ...]


def remembered_name(tool: str, subject: str) -> str:
    """The name under which an answer is kept in the session's state: by tool and agent, in the root's session (H-27)."""
    return f"permission:{tool}:{subject}"


class PermissionGate:
    """Decides by the rule sets of an agent's chain, root first. The effective right can only get stricter on the way down."""

    __slots__ = ("_closing", "_labels", "chain")

    def __init__(self, chain: Sequence[PermissionRules], labels: Sequence[str]) -> None:
        self.chain = tuple(chain)
        self._labels = tuple(labels)
        self._closing: dict[tuple[str, ...], tuple[_PlaceRules, _PlaceRules]] = {}

    async def decide(self, call: GatedCall, remembered: Remembered) -> Decision:
        """The verdict for one call. The session's remembered answers are only looked up where a person would be asked."""
        decision = self._by_rules(call, remembered=False)
        if decision.verdict is Verdict.ASK and await remembered(remembered_name(call.tool, call.subject)):
            return self._by_rules(call, remembered=True)
        return decision

    def closes_place(self, tools: Sequence[str], place: str, asked: str) -> bool:
        """Whether a rule of the chain denies this place to one of these tools, or asks for it: what a search or a listing
        leaves out. A rule that asks for `asked`, the place that the call names, has been answered: the call runs."""
        key = tuple(tools)
        if key not in self._closing:
            self._closing[key] = (place_rules(self.chain, key, Verdict.DENY), place_rules(self.chain, key, Verdict.ASK))
        denying, asking = self._closing[key]
        if any(rule.matches(tool, place, grants=False) for tool, rule in denying):
            return True
        return any(
            rule.matches(tool, place, grants=False) and not rule.matches(tools[0], asked, grants=False) for tool, rule in asking
        )

    def _by_rules(self, call: GatedCall, *, remembered: bool) -> Decision:
        return decide(
            self.chain,
            call.tool,
            call.main_argument,
            call.need,
            call.always,
            places=call.forms,
            remembered=remembered,
            labels=self._labels,
        )
