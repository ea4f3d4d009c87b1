"""What a left-out field means: the table of D-26, applied here and nowhere else; and the workspace table (A-07 to A-12).

`with_defaults(declaration, surface)` gives a `ResolvedDeclaration`, in which nothing is `UNSET`.
"""

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from retinue.config import (
    AgentInvocationModePolicy,
    ChatClientConfig,
    SubAgentContextPolicy,
    Unset,
    WorkspaceMode,
)
from retinue.ids import agent_folder
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.checks import check_fork_compaction, refuse, tool_surface_name
from retinue.subagents.choices import OnTimeout, SubAgentSurface
from retinue.subagents.declaration import SubAgent
from retinue.subagents.notifications import notified, strategy_of
from retinue.subagents.run_config import DEFAULT_ROSTER_FIELDS, DEFAULT_TOOL_FIELDS, SubAgentRunConfigFields

__all__ = [
    "MAX_TIMEOUT_SECONDS",
    "ROSTER_TIMEOUT_SECONDS",
    "InstructionsMode",
    "ResolvedDeclaration",
    "ResolvedSurface",
    "TimeoutPolicy",
    "WorkspacePlan",
    "with_defaults",
    "workspace_plan",
]

T = TypeVar("T")

ROSTER_TIMEOUT_SECONDS: Final = 30.0
MAX_TIMEOUT_SECONDS: Final = 600.0
DEFAULT_MAX_ITERS: Final = 10

ResolvedSurface: TypeAlias = Literal["tool", "roster"]
InstructionsMode: TypeAlias = Literal["exact", "with_context"]
"""`exact`: the child's own text. `with_context`: that and the subagent-context section (A-13)."""
TimeoutPolicy: TypeAlias = Literal["promote", "cancel", "fail"]
"""`promote`: goes on in the background. `cancel`: the child is stopped on the author's wish. `fail`: it is stopped and the
call ends failed with reason `timeout`, because a synchronous-only call never returns a receipt (D-08)."""


class ResolvedDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration on one surface, with every default filled in (D-26).

    `max_iters` None means the parent's (general-purpose, `from_parent`) or the stored definition's (`from_agent_id`);
    `timeout_seconds` None means no limit, `max_timeout_seconds` bounds what a model may ask for. `own_chat` is what the
    child itself says of its model and settings. `instructions` None means: the parent's, the store's or the factory's.
    `new_session` is False where the child lives in its parent's session.
    """

    declaration: SubAgent
    surface: ResolvedSurface
    agent_id: str
    name: str
    description: str
    instructions: str | None
    instructions_mode: InstructionsMode
    own_chat: ChatClientConfig
    context_policy: SubAgentContextPolicy
    new_session: bool
    invocation_mode_policy: AgentInvocationModePolicy
    fields: frozenset[SubAgentRunConfigFields]
    requires_permission: bool
    leaf: bool
    availability: SubAgentAvailability
    max_iters: int | None
    timeout_seconds: float | None
    max_timeout_seconds: float | None
    on_timeout: TimeoutPolicy
    workspace_mode: WorkspaceMode
    builtin_tools: Literal["all", "named"] | tuple[str, ...]

    @property
    def inherits_tools(self) -> bool:
        """Whether the parent's tools come along at all, before `tools` filters them."""
        return SubAgentRunConfigFields.TOOLS in self.fields

    @property
    def may_work_in_background(self) -> bool:
        """Whether a call of it can give a receipt (H-11, D-08)."""
        only_waits = self.invocation_mode_policy is AgentInvocationModePolicy.SYNCHRONOUS_ONLY and self.on_timeout != "promote"
        return self.surface == "roster" or not only_waits

    @property
    def notify(self) -> tuple[str, ...]:
        """The ends of a task that the parent's model is told (H-13)."""
        return notified(self.declaration.background_notification, f"subagent `{self.name}`")

    @property
    def strategy(self) -> str | None:
        """The name of the strategy that decides of that, if one does."""
        return strategy_of(self.declaration.background_notification)

    @property
    def inherits_output(self) -> bool:
        """Whether the child answers in the form that its parent's run asks for, if it has none of its own."""
        return SubAgentRunConfigFields.OUTPUT in self.fields

    def admits_inherited(self, tool: str) -> bool:
        """Whether the child gets its parent's tool of this name (A-14, D-11)."""
        allowed = self.declaration.tools
        return (
            self.inherits_tools
            and (allowed is None or _any_match(tool, allowed))
            and not _any_match(tool, self.declaration.disallowed_tools)
        )

    def admits_builtin(self, tool: str) -> bool:
        """Whether the child registers this built-in tool itself (D-11)."""
        if _any_match(tool, self.declaration.disallowed_tools):
            return False
        if self.builtin_tools == "all":
            return True
        return _any_match(tool, self.declaration.tools or () if self.builtin_tools == "named" else self.builtin_tools)


class WorkspacePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child's instructions come from and where it works (A-07 to A-12).

    `base_file` is the `AGENTS.md` to read (missing means an empty base, A-12), None where the base is `instructions`.
    `create` says that `root` is made on demand.
    """

    root: Path
    base_file: Path | None
    create: bool


def with_defaults(declaration: SubAgent, surface: ResolvedSurface) -> ResolvedDeclaration:
    """The declaration as this surface sees it (D-26).

    Raises:
        ConfigurationError: it was declared for the other surface, or cannot work on this one.
    """
    name = declaration.name
    _check_surface(declaration, surface)
    roster = surface == "roster"
    config = declaration.origin.config
    policy = _or(declaration.context_policy, SubAgentContextPolicy.ISOLATED if roster else SubAgentContextPolicy.FORK)
    if roster and policy == SubAgentContextPolicy.MODEL_CHOICE:
        problem = '`context_policy="model_choice"` is for the tool surface: `agent_spawn` lets the model choose no context'
        raise refuse(name, problem, 'use `"isolated"`, `"fresh"` or `"fork"`, or `surface="tool"`')
    check_fork_compaction(name, declaration.fork_compaction, policy, surface)
    modes = AgentInvocationModePolicy
    mode = modes(_or(declaration.invocation_mode_policy, modes.MODEL_CHOICE if roster else modes.SYNCHRONOUS_ONLY))
    any_depth, root_only = SubAgentAvailability.ANY_ALLOWED_DEPTH, SubAgentAvailability.ROOT_ONLY
    timeout = _or(declaration.timeout_seconds, ROSTER_TIMEOUT_SECONDS if roster else None)
    builtin = _or(declaration.builtin_tools, "all" if roster else ())
    fields = declaration.run_config.fields(DEFAULT_ROSTER_FIELDS if roster else DEFAULT_TOOL_FIELDS)
    if surface == "tool" and declaration.surface != SubAgentSurface.BOTH and declaration.tools and builtin != "named":
        _check_tools_inherited(name, fields)
    return ResolvedDeclaration(
        declaration=declaration,
        surface=surface,
        agent_id=declaration.id,
        name=name,
        description=declaration.description,
        instructions=_instructions(declaration),
        instructions_mode="with_context" if roster else "exact",
        own_chat=_own_chat(declaration),
        context_policy=SubAgentContextPolicy(policy),
        new_session=roster or policy == SubAgentContextPolicy.ISOLATED,
        invocation_mode_policy=mode,
        fields=fields,
        requires_permission=_or(declaration.requires_permission, not roster),
        # A roster child's depth is bounded by this, a tool's by its availability.
        leaf=_or(declaration.leaf, roster),
        availability=_or(declaration.availability, any_depth if roster else root_only),
        max_iters=_max_iters(declaration, config.max_iters if config else None),
        timeout_seconds=min(timeout, MAX_TIMEOUT_SECONDS) if roster and timeout is not None else timeout,
        max_timeout_seconds=MAX_TIMEOUT_SECONDS if roster else None,
        on_timeout=_on_timeout(declaration, surface, mode),
        workspace_mode=WorkspaceMode(_or(declaration.workspace_mode, WorkspaceMode.ISOLATED)),
        builtin_tools=cast("Literal['all', 'named']", builtin) if isinstance(builtin, str) else tuple(builtin),
    )


def workspace_plan(resolved: ResolvedDeclaration, main: Path, *, inside: bool = False) -> WorkspacePlan:
    """The rows A-07 to A-11 for a roster child whose parent's workspace is `main`.

    Args:
        inside: refuse a definition folder that leaves `main`, links followed (A-16; forced for files not trusted).
    """
    shared = resolved.workspace_mode is WorkspaceMode.SHARED
    defined = resolved.declaration.workspace
    if defined is None:
        root = main if shared else main / "agents" / agent_folder(resolved.agent_id) / "workspace"
        return WorkspacePlan(root=root, base_file=None, create=not shared)
    folder = Path(os.path.normpath(main / defined))
    if inside and not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(main)):
        remedy = "use a folder inside of it, or declare the subagent in code"
        raise refuse(resolved.name, f"`workspace` `{defined}` leads out of the workspace", remedy, code="workspace_outside")
    return WorkspacePlan(root=main if shared else folder, base_file=folder / "AGENTS.md", create=False)


def _check_tools_inherited(name: str, fields: frozenset[SubAgentRunConfigFields]) -> None:
    """`tools` names inherited tools, and a child called as a tool inherits none unless its author says so (D-26)."""
    if SubAgentRunConfigFields.TOOLS not in fields:
        problem = "`tools` names tools of its parent, which a child called as a tool does not inherit"
        remedy = 'add `.with_run_config(SubAgentRunConfig.inherit().include("tools"))`, or give it `tool_harnesses`'
        raise refuse(name, problem, remedy, code="tools_not_inherited")


def _check_surface(declaration: SubAgent, surface: ResolvedSurface) -> None:
    declared = declaration.surface
    if not isinstance(declared, Unset) and declared not in (surface, SubAgentSurface.BOTH):
        raise refuse(
            declaration.name,
            f'it was declared with `surface="{declared}"` but is used as a {surface} subagent',
            f'use `surface="{surface}"` or `"both"`, or leave it out',
            code="wrong_surface",
        )
    if surface == "tool":
        tool_surface_name(declaration.name)


def _instructions(declaration: SubAgent) -> str | None:
    if declaration.origin.config is not None:
        return declaration.origin.config.instructions
    if declaration.source in ("parent", "agent_id", "factory"):
        return None
    return declaration.instructions or ""


def _own_chat(declaration: SubAgent) -> ChatClientConfig:
    config = declaration.origin.config
    chat = declaration.chat if config is None else config.chat
    model = declaration.model or (config and config.model) or chat.model
    return replace(chat, model=model)


def _max_iters(declaration: SubAgent, configured: int | None) -> int | None:
    if not isinstance(declaration.max_iters, Unset):
        return declaration.max_iters
    if configured is not None:
        return configured
    return None if declaration.source in ("parent", "agent_id", "factory", "builtin") else DEFAULT_MAX_ITERS


def _on_timeout(declaration: SubAgent, surface: ResolvedSurface, mode: AgentInvocationModePolicy) -> TimeoutPolicy:
    chosen = declaration.on_timeout
    if mode is AgentInvocationModePolicy.SYNCHRONOUS_ONLY:
        if chosen == OnTimeout.PROMOTE:
            problem = '`on_timeout="promote"` contradicts `invocation_mode_policy="synchronous_only"`'
            raise refuse(declaration.name, problem, 'use `"model_choice"`, or leave out `on_timeout`')
        return "fail"
    return "cancel" if chosen == OnTimeout.CANCEL else "promote"


def _any_match(tool: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _or(value: T | Unset, default: T) -> T:
    return default if isinstance(value, Unset) else value
