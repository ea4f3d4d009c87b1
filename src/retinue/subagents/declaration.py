"""`SubAgent`: who a child is, how it is reached, what it inherits. Plain, immutable, checked when it is written (D-01, D-27).

What an author leaves out is `UNSET` here and filled by the surface, in one place: `retinue.subagents.resolved` (D-26).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from retinue.config import (
    UNSET,
    AgentConfig,
    AgentInvocationModePolicy,
    Budget,
    ChatClientConfig,
    ContextPolicy,
    ModePolicy,
    RuntimeContext,
    SubAgentContextPolicy,
    Unset,
    Value,
    WorkspaceMode,
    WorkspaceModeName,
)
from retinue.secrets import SecretRef
from retinue.subagents import checks
from retinue.subagents.availability import SubAgentAvailability
from retinue.subagents.choices import (
    BuiltinTools,
    OnTimeout,
    OnTimeoutName,
    SelectionMode,
    SelectionModeName,
    SubAgentSurface,
    SurfaceName,
)
from retinue.subagents.fingerprint import digest
from retinue.subagents.notifications import notified
from retinue.subagents.run_config import SubAgentRunConfig
from retinue.tools.harness import ToolHarness

__all__ = ["Origin", "SourceKind", "SubAgent"]

SourceKind: TypeAlias = Literal["declaration", "config", "parent", "agent_id", "factory", "file", "builtin"]
Factory: TypeAlias = Callable[[RuntimeContext], Any]
Harnesses: TypeAlias = Sequence[type[ToolHarness] | ToolHarness]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """How a declaration came about. Class methods and the loader set it.

    `path` and `title` are of a file: where it lies, and the `name` of its front matter, which is for people only (A-17).
    `extras` are the front-matter keys that this product does not know, as text.
    """

    kind: SourceKind = "declaration"
    config: AgentConfig | None = None
    factory: Factory | None = None
    path: Path | None = None
    title: str | None = None
    extras: Mapping[str, Any] = msgspec.field(default_factory=lambda: MappingProxyType({}))


class _Named(Value, frozen=True):
    """What may be given by position."""

    name: str
    description: str


class SubAgent(_Named, frozen=True, kw_only=True):
    """The declaration of a child.

    `tools` are names of inherited tools (globs allowed), not functions: those go into `tool_harnesses`. None inherits
    what the surface gives, an empty list nothing. `context_policy` is about the child's conversation, `workspace_mode`
    about its folder. The base of its instructions is one of `instructions`, the `AGENTS.md` in `workspace`, or what runs
    at `url` (A-05). `budget` is for each task that it is given, with all below it. `ask_parent`: it
    has a tool of that name for questions to whoever gave it its task (D-10).
    `mode="primary"` keeps it from being spawned, `hidden` only from being listed. With
    `output=Type` its answer is checked, and its parent's model reads the value as JSON.

    Raises:
        ConfigurationError: something cannot work; names the declaration and the remedy (A-06, D-31, H-24).
        TypeError: `tools` contains a callable.

    >>> SubAgent("reviewer", "Reviews a change and lists defects", instructions="…", tools=["read_file", "grep_files"])
    """

    agent_id: str | None = None
    instructions: str | None = None
    workspace: str | Path | None = None
    workspace_mode: WorkspaceModeName | Unset = UNSET
    url: str | None = None
    headers: Mapping[str, str | SecretRef] | None = None
    model: str | None = None
    max_iters: int | Unset = UNSET
    tools: Sequence[str] | None = None
    tool_harnesses: Harnesses = ()
    leaf: bool | Unset = UNSET
    context_policy: ContextPolicy | Unset = UNSET
    invocation_mode_policy: ModePolicy | Unset = UNSET
    surface: SurfaceName | Unset = UNSET
    disallowed_tools: Sequence[str] = ()
    builtin_tools: BuiltinTools | Unset = UNSET
    metadata: Mapping[str, object] | None = None
    requires_permission: bool | Unset = UNSET
    timeout_seconds: float | Unset = UNSET
    on_timeout: OnTimeoutName | Unset = UNSET
    background_notification: Any = None
    fork_compaction: Any = None
    chat: ChatClientConfig = ChatClientConfig()
    output: Any = None
    skills: Sequence[str] = ()
    ask_parent: bool = False
    budget: Budget | None = None
    hidden: bool = False
    mode: SelectionModeName = SelectionMode.ALL
    availability: SubAgentAvailability | Unset = UNSET
    run_config: SubAgentRunConfig = SubAgentRunConfig.inherit()
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        name = self.name
        agent_id = checks.check_name(name, self.description, self.agent_id)
        checks.check_exclusive(name, instructions=self.instructions, workspace=self.workspace, url=self.url, headers=self.headers)
        checks.positive_int(name, "max_iters", self.max_iters)
        checks.positive_seconds(name, "timeout_seconds", self.timeout_seconds)
        surface = checks.choose(name, "surface", self.surface, SubAgentSurface)
        policy = checks.choose(name, "context_policy", self.context_policy, SubAgentContextPolicy)
        if surface in (SubAgentSurface.TOOL, SubAgentSurface.BOTH):
            checks.tool_surface_name(name)
        checks.check_fork_compaction(name, self.fork_compaction, policy, surface)
        checks.check_model(name, self.model)
        notified(self.background_notification, f"subagent `{name}`")
        self._set(
            agent_id=agent_id,
            workspace=None if self.workspace is None else Path(self.workspace),
            workspace_mode=checks.choose(name, "workspace_mode", self.workspace_mode, WorkspaceMode),
            headers=checks.frozen_headers(name, self.headers),
            tools=None if self.tools is None else checks.name_list(name, "tools", self.tools),
            tool_harnesses=checks.harness_list(name, self.tool_harnesses),
            context_policy=policy,
            invocation_mode_policy=checks.choose(
                name, "invocation_mode_policy", self.invocation_mode_policy, AgentInvocationModePolicy
            ),
            surface=surface,
            disallowed_tools=checks.name_list(name, "disallowed_tools", self.disallowed_tools),
            builtin_tools=_builtin_tools(name, self.builtin_tools),
            metadata=checks.frozen_metadata(name, self.metadata),
            on_timeout=checks.choose(name, "on_timeout", self.on_timeout, OnTimeout),
            skills=checks.name_list(name, "skills", self.skills),
            mode=checks.choose(name, "mode", self.mode, SelectionMode),
        )

    def _set(self, **values: Any) -> None:
        for key, value in values.items():
            force_setattr(self, key, value)

    @classmethod
    def from_config(
        cls,
        agent_id: str,
        name: str,
        description: str,
        config: AgentConfig,
        *,
        context_policy: ContextPolicy | None = None,
        metadata: Mapping[str, object] | None = None,
        invocation_mode_policy: ModePolicy | Unset = UNSET,
        background_notification: Any = None,
        tool_harnesses: Harnesses = (),
        fork_compaction: Any = None,
        requires_permission: bool | None = None,
        surface: SurfaceName | Unset = UNSET,
        output: Any = None,
    ) -> Self:
        """A child with a configuration of its own; it takes the parent's chat client if it names no model (H-14)."""
        return cls(
            name,
            description,
            agent_id=agent_id,
            context_policy=_unset(context_policy),
            metadata=metadata,
            invocation_mode_policy=invocation_mode_policy,
            background_notification=background_notification,
            tool_harnesses=tool_harnesses,
            fork_compaction=fork_compaction,
            requires_permission=_unset(requires_permission),
            surface=surface,
            output=output,
            origin=Origin(kind="config", config=config),
        )

    @classmethod
    def from_parent(
        cls,
        agent_id: str,
        name: str,
        description: str,
        *,
        context_policy: ContextPolicy | None = None,
        tool_harnesses: Harnesses = (),
        surface: SurfaceName | Unset = UNSET,
    ) -> Self:
        """A child that is what its parent is: a snapshot of the parent's effective configuration, and these harnesses (H-14)."""
        return cls(
            name,
            description,
            agent_id=agent_id,
            context_policy=_unset(context_policy),
            tool_harnesses=tool_harnesses,
            surface=surface,
            origin=Origin(kind="parent"),
        )

    @classmethod
    def from_agent_id(
        cls,
        agent_id: str,
        name: str,
        description: str,
        *,
        context_policy: ContextPolicy | None = None,
        tool_harnesses: Harnesses = (),
        surface: SurfaceName | Unset = UNSET,
    ) -> Self:
        """A child whose definition is in the agent store; that it is missing is an error at build (H-14)."""
        return cls(
            name,
            description,
            agent_id=agent_id,
            context_policy=_unset(context_policy),
            tool_harnesses=tool_harnesses,
            surface=surface,
            origin=Origin(kind="agent_id"),
        )

    @classmethod
    def from_factory(cls, name: str, factory: Factory, description: str | None = None) -> Self:
        """A roster child that `factory` makes for each spawn. A blank description becomes the name (A-04)."""
        if not callable(factory):
            raise checks.refuse(name, "`factory` cannot be called", "give a function `RuntimeContext -> Agent`")
        written = description if description and description.strip() else name
        return cls(name, written, surface="roster", origin=Origin(kind="factory", factory=factory))

    def with_availability(self, availability: SubAgentAvailability) -> Self:
        """A copy that may be called at these depths (H-06)."""
        return replace(self, availability=availability)

    def with_run_config(self, run_config: SubAgentRunConfig) -> Self:
        """A copy that takes this from its parent's run (H-09)."""
        return replace(self, run_config=run_config)

    @property
    def id(self) -> str:
        """The agent id: `agent_id`, or the name."""
        return self.agent_id or self.name

    @property
    def source(self) -> SourceKind:
        """How it was declared."""
        return self.origin.kind

    def fingerprint(self) -> str:
        """A stable hash of what defines it (H-01, H-15). Where it was declared, and header values, do not count; nor does
        what was left out, so that a later version which knows more has the same."""
        defaults = dict(zip(self.__struct_fields__[2:], self.__struct_defaults__, strict=True))
        values = {field: getattr(self, field) for field in self.__struct_fields__ if field != "origin"}
        values = {field: value for field, value in values.items() if field not in defaults or value != defaults[field]}
        values["headers"] = sorted(self.headers or ())
        if values.pop("output", None) is not None:
            values["output"] = repr(self.output)  # a type: its name counts, as with all code
        defines = self.origin.kind if self.origin.kind in ("parent", "agent_id") else "own"
        return digest([values, defines, self.origin.config, self.origin.factory])

    def __hash__(self) -> int:
        return hash((self.name, self.description, self.id))  # the rest may hold dictionaries, which have no hash

    def __repr__(self) -> str:
        shown = [repr(value) if field in ("name", "description") else f"{field}={value!r}" for field, value in self._shown()]
        return f"SubAgent({', '.join(shown)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The same for `rich`, which would show every field."""
        return self._shown()

    def _shown(self) -> list[tuple[str, Any]]:
        """What was given: without the values of headers, which may be secrets, and without what is as it is by default."""
        shown: list[tuple[str, Any]] = [("name", self.name), ("description", self.description)]
        for field, default in zip(self.__struct_fields__[2:], self.__struct_defaults__, strict=True):
            value = getattr(self, field)
            if field == "headers":
                value = value and "***"
            if value not in (default, None, (), {}) and not (field == "agent_id" and value == self.name):
                shown.append((field, value))
        return shown


def _builtin_tools(name: str, value: BuiltinTools | Unset) -> BuiltinTools | Unset:
    if isinstance(value, Unset) or value in ("all", "named"):
        return value
    if isinstance(value, str):
        raise checks.refuse(name, f"`builtin_tools` does not know `{value}`", "use `all`, `named`, or a list of tool names")
    return checks.name_list(name, "builtin_tools", value)


def _unset(value: Any) -> Any:
    """None of the documented class methods means left out."""
    return UNSET if value is None else value
