"""The roster: which subagents an agent has, from four sources, each id once (A-04, D-05); and finding one by its id."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from retinue.config import WorkspaceMode
from retinue.errors import ConfigurationError, UnknownId
from retinue.near import near_names
from retinue.subagents.choices import SelectionMode
from retinue.subagents.declaration import Origin, SubAgent
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.loading import LoadReport
from retinue.subagents.prompts import general_purpose_description
from retinue.subagents.resolved import ResolvedDeclaration, with_defaults

__all__ = ["GENERAL_PURPOSE", "MergeReport", "Roster", "fold", "general_purpose", "merge_subagents"]

GENERAL_PURPOSE: Final = "general-purpose"
_NOTHING: Final = LoadReport()
_LISTED: Final = 40


def general_purpose() -> SubAgent:
    """The built-in child that mirrors its parent and works in its workspace (A-07, A-22, D-13). Always a leaf."""
    return SubAgent(
        GENERAL_PURPOSE,
        general_purpose_description(),
        workspace_mode=WorkspaceMode.SHARED,
        leaf=True,
        surface="roster",
        origin=Origin(kind="builtin"),
    )


class Roster(msgspec.Struct, frozen=True):
    """The subagents that `agent_spawn` can reach, each with its defaults filled in. Immutable: a change makes a new one.

    `refused` are ids whose file is bad and that no code declares: they are unknown, and looking one up says why.
    """

    entries: tuple[ResolvedDeclaration, ...] = ()
    refused: tuple[tuple[str, Diagnostic], ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[ResolvedDeclaration]:
        return iter(self.entries)

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, hidden ones included, in the order of the prompt."""
        return tuple(entry.agent_id for entry in self.entries)

    @property
    def spawnable(self) -> tuple[ResolvedDeclaration, ...]:
        """Those that can be spawned, hidden ones included: all but those for people only."""
        return tuple(entry for entry in self.entries if _spawnable(entry))

    def available(self, depth: int, ceiling: int) -> "Roster":
        """The part that an agent at `depth` may call where children may be at most at depth `ceiling` (H-06).

        Those for people only stay in it, so that asking for one says what it is; nobody is told of them.
        """
        return Roster(tuple(entry for entry in self.entries if entry.availability.admits(depth, ceiling)), self.refused)

    def listed(self) -> tuple[ResolvedDeclaration, ...]:
        """Those that a model is told of: neither hidden nor for people only."""
        return tuple(entry for entry in self.entries if _spawnable(entry) and not entry.declaration.hidden)

    def find(self, agent_id: str) -> ResolvedDeclaration:
        """The subagent of this id: exactly, else the only one whose id is the same up to case, spaces, `-` and `_`.

        Raises:
            UnknownId: there is none, or several; says what is near and what there is. Codes `unknown_agent`,
                `ambiguous_agent`, `refused_agent` (its file is bad), `primary_agent` (for people only).
        """
        entry = next((entry for entry in self.entries if entry.agent_id == agent_id), None) or self._near(agent_id)
        if not _spawnable(entry):
            remedy = f"use one of {self._available()}"
            raise UnknownId(f"`{entry.agent_id}` cannot be spawned: its `mode` is primary", code="primary_agent", remedy=remedy)
        return entry

    def _near(self, agent_id: str) -> ResolvedDeclaration:
        folded = fold(agent_id)
        same = [entry for entry in self.entries if fold(entry.agent_id) == folded]
        bad = next((found for refused, found in self.refused if fold(refused) == folded), None)
        if len(same) == 1 and bad is None:
            return same[0]
        if bad is not None:
            place = "" if bad.path is None else f" (`{bad.path.name}`{f', line {bad.line}' if bad.line else ''})"
            message = f"subagent `{_cut(agent_id)}` cannot be used: {bad.message}{place}"
            raise UnknownId(message, code="refused_agent", remedy=f"{bad.remedy}, or use one of {self._available()}")
        if same:
            names = " and ".join(f"`{entry.agent_id}`" for entry in same)
            raise UnknownId(f"`{_cut(agent_id)}` can be {names}", code="ambiguous_agent", remedy="write the id exactly")
        near = near_names(folded, (fold(entry.agent_id) for entry in self.listed()))
        hint = [f"`{entry.agent_id}`" for entry in self.listed() if fold(entry.agent_id) in near]
        meant = f", did you mean {' or '.join(hint)}?" if hint else ""
        raise UnknownId(
            f"there is no subagent `{_cut(agent_id)}`{meant}", code="unknown_agent", remedy=f"use one of {self._available()}"
        )

    def _available(self) -> str:
        names = [f"`{entry.agent_id}`" for entry in self.listed()]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return (", ".join(names[:_LISTED]) + more) or "none: this agent has no subagents"


class MergeReport(msgspec.Struct, frozen=True):
    """The roster, and what the merge has to say: clashes and look-alike ids."""

    roster: Roster
    diagnostics: tuple[Diagnostic, ...] = ()


def merge_subagents(
    builtin: Sequence[SubAgent] = (),
    code: Sequence[SubAgent] = (),
    user_files: LoadReport = _NOTHING,
    shared_files: LoadReport = _NOTHING,
    factories: Sequence[SubAgent] = (),
) -> MergeReport:
    """Merge the sources of a roster: code or factory over the user's file over the shared file over the built-in (D-05).

    The order is that of the sources (built-in, code, factories, then files by id); an id keeps its first place. A refused
    file blocks its id for all sources below it.

    Raises:
        ConfigurationError: two declarations in code have one id, or one cannot be on a roster.
    """
    chosen: dict[str, SubAgent] = {}
    refused: dict[str, Diagnostic] = {}
    findings: list[Diagnostic] = []
    explicit = _distinct((*code, *factories))
    for report in (user_files, shared_files):
        for agent_id, why in report.refused:
            if agent_id not in explicit and agent_id not in chosen:
                refused.setdefault(agent_id, why)
        for declaration in report.declarations:
            winner = explicit.get(declaration.id) or chosen.get(declaration.id)
            if winner is not None:
                findings.append(_shadowed(declaration, winner))
            elif declaration.id in refused:
                findings.append(_blocked(declaration, refused[declaration.id]))
            else:
                chosen[declaration.id] = declaration
    builtins = [entry for entry in builtin if entry.id not in refused]
    replaced = {**{entry.id: entry for entry in builtins}, **explicit, **chosen}
    order = [entry.id for entry in builtins] + list(explicit) + sorted(chosen)
    entries = tuple(with_defaults(replaced[agent_id], "roster") for agent_id in dict.fromkeys(order))
    findings += [_replaced(entry, replaced[entry.id]) for entry in builtins if replaced[entry.id] is not entry]
    findings += _look_alikes(replaced)
    return MergeReport(Roster(entries, tuple(refused.items())), tuple(findings))


def fold(agent_id: str) -> str:
    """What two ids have in common that a model confuses: case, spaces, hyphens, underscores, quotes, invisible characters."""
    text = unicodedata.normalize("NFKC", agent_id).casefold()
    return "".join(char for char in text if not (char in "-_'\"`" or char.isspace() or unicodedata.category(char) == "Cf"))


def _spawnable(entry: ResolvedDeclaration) -> bool:
    return entry.declaration.mode != SelectionMode.PRIMARY


def _distinct(declarations: Iterable[SubAgent]) -> dict[str, SubAgent]:
    found: dict[str, SubAgent] = {}
    for declaration in declarations:
        if declaration.id in found:
            raise ConfigurationError(
                f"two subagents in code have the id `{declaration.id}`: `{found[declaration.id].name}` and `{declaration.name}`",
                code="duplicate_agent_id",
                remedy="give one of them another `agent_id` or name, or remove it",
            )
        found[declaration.id] = declaration
    return found


def _shadowed(loser: SubAgent, winner: SubAgent) -> Diagnostic:
    by = f"the file {winner.origin.path}" if winner.origin.path else "a declaration in code"
    return Diagnostic(
        severity="warning",
        code="shadowed",
        message=f"subagent `{loser.id}` of this file is not used, {by} takes its place",
        remedy="rename or remove one of them",
        path=loser.origin.path,
    )


def _blocked(loser: SubAgent, why: Diagnostic) -> Diagnostic:
    return Diagnostic(
        severity="warning",
        code="blocked",
        message=f"subagent `{loser.id}` of this file is not used, because `{why.path}` comes first and is refused",
        remedy=why.remedy,
        path=loser.origin.path,
    )


def _replaced(builtin: SubAgent, winner: SubAgent) -> Diagnostic:
    return Diagnostic(
        severity="info",
        code="replaced_builtin",
        message=f"the built-in subagent `{builtin.id}` is replaced",
        remedy="rename the declaration to have both",
        path=winner.origin.path,
    )


def _look_alikes(entries: Iterable[str]) -> list[Diagnostic]:
    groups: dict[str, list[str]] = {}
    for agent_id in entries:
        groups.setdefault(fold(agent_id), []).append(agent_id)
    return [
        Diagnostic(
            severity="warning",
            code="look_alike_ids",
            message=f"the ids {', '.join(f'`{agent_id}`' for agent_id in group)} are easily confused",
            remedy="rename one of them; only the exact id finds each",
        )
        for group in groups.values()
        if len(group) > 1
    ]


def _cut(agent_id: str) -> str:
    shown = agent_id if agent_id.isprintable() else ascii(agent_id)[1:-1]
    return f"{shown[:60]}…" if len(shown) > 60 else shown
