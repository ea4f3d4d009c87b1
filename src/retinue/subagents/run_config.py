"""What a child takes from its parent's run (H-08, H-09): a recipe as data, and the pure function that carries it out.

`SubAgentRunConfig.isolated()` is about run configuration. It has nothing to do with `context_policy="isolated"` (the
child's conversation) or `workspace_mode="isolated"` (the child's folder).
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias, cast

from msgspec.structs import replace

from retinue.config import AgentRunConfig, ChatClientConfig, ClientsConfig, Value
from retinue.errors import ConfigurationError

__all__ = [
    "DEFAULT_ROSTER_FIELDS",
    "DEFAULT_TOOL_FIELDS",
    "ClientInheritance",
    "RunConfigField",
    "SubAgentRunConfig",
    "SubAgentRunConfigFields",
]


class SubAgentRunConfigFields(StrEnum):
    """The groups of a run's configuration that a child can take from its parent."""

    INSTRUCTIONS = "instructions"
    PERMISSIONS = "permissions"
    EXECUTION = "execution"
    COMPACTION = "compaction"
    CONTEXT = "context"
    TOOLS = "tools"
    OUTPUT = "output"


class ClientInheritance(StrEnum):
    """Where a child's client of one family comes from."""

    USE_OWN = "use_own"
    """Only what the child names itself."""
    FALLBACK_TO_PARENT = "fallback_to_parent"
    """The child's own settings if it has any, else the parent's."""
    INHERIT_RESOLVED = "inherit_resolved"
    """The parent's settings, each replaced by the child's own where it names one."""


RunConfigField: TypeAlias = (
    SubAgentRunConfigFields | Literal["instructions", "permissions", "execution", "compaction", "context", "tools", "output"]
)
ClientRule: TypeAlias = ClientInheritance | Literal["use_own", "fallback_to_parent", "inherit_resolved"]
Override: TypeAlias = Callable[[AgentRunConfig], AgentRunConfig]

_F = SubAgentRunConfigFields
DEFAULT_TOOL_FIELDS: Final = frozenset({_F.PERMISSIONS, _F.EXECUTION, _F.COMPACTION, _F.CONTEXT})
"""What a child called as a tool takes unless its author says otherwise (H-08)."""
DEFAULT_ROSTER_FIELDS: Final = frozenset({_F.PERMISSIONS, _F.EXECUTION, _F.CONTEXT, _F.TOOLS})
"""What a roster child takes unless its author says otherwise (A-22)."""


class SubAgentRunConfig(Value, frozen=True, kw_only=True):
    """A recipe: which groups a child takes, where its clients come from, and what is changed last.

    Immutable; every method returns a new one, and later calls of a chain win. Rights are no part of it: whatever is
    excluded, the stricter of parent and child holds (D-29).

    >>> SubAgentRunConfig.inherit().include("instructions").exclude("compaction").override(cooler)
    """

    base: frozenset[SubAgentRunConfigFields] | None = None
    """The groups to begin with; None: those of the surface (D-26)."""
    changes: tuple[tuple[SubAgentRunConfigFields, bool], ...] = ()
    chat: ClientInheritance = ClientInheritance.INHERIT_RESOLVED
    overrides: tuple[Override, ...] = ()

    @classmethod
    def inherit(cls) -> Self:
        """The groups that the surface gives by default, and the parent's clients."""
        return cls()

    @classmethod
    def inherit_only(cls, *fields: RunConfigField) -> Self:
        """Exactly these groups, and the parent's clients."""
        return cls(base=frozenset(_fields("inherit_only", fields)))

    @classmethod
    def isolated(cls) -> Self:
        """Nothing of the parent's run, its clients neither: the child must name its own model."""
        return cls(base=frozenset(), chat=ClientInheritance.USE_OWN)

    def include(self, *fields: RunConfigField) -> Self:
        """These groups as well."""
        return replace(self, changes=(*self.changes, *((field, True) for field in _fields("include", fields))))

    def exclude(self, *fields: RunConfigField) -> Self:
        """Not these groups."""
        return replace(self, changes=(*self.changes, *((field, False) for field in _fields("exclude", fields))))

    def with_clients(self, *, chat: ClientRule) -> Self:
        """Take the chat client by this rule."""
        try:
            return replace(self, chat=ClientInheritance(chat))
        except ValueError:
            raise ConfigurationError(
                f"`SubAgentRunConfig.with_clients(chat=…)` does not know `{chat}`",
                remedy=f"use one of {_listed(ClientInheritance)}",
            ) from None

    def override(self, fn: Override) -> Self:
        """Change the child's run configuration last, after inheritance. `fn` returns the configuration to use."""
        return replace(self, overrides=(*self.overrides, fn))

    def fields(self, default: frozenset[SubAgentRunConfigFields]) -> frozenset[SubAgentRunConfigFields]:
        """The groups that the child takes, where the surface's own are `default`."""
        chosen = set(default if self.base is None else self.base)
        for field, wanted in self.changes:
            if wanted:
                chosen.add(field)
            else:
                chosen.discard(field)
        return frozenset(chosen)

    def apply(self, parent: AgentRunConfig, own: AgentRunConfig) -> AgentRunConfig:
        """The child's run configuration, from its parent's and what it names itself. Shares no mutable object with either.

        Raises:
            ConfigurationError: an `override` gave something else than an `AgentRunConfig`.
        """
        result = AgentRunConfig(clients=ClientsConfig(chat=_chat(self.chat, parent.clients.chat, own.clients.chat)))
        for fn in self.overrides:
            changed = cast("object", fn(result))  # what a type checker did not see
            if not isinstance(changed, AgentRunConfig):
                raise ConfigurationError(
                    f"the function given to `SubAgentRunConfig.override` returned {type(changed).__name__}",
                    remedy="return the changed configuration, for example `config.with_chat(temperature=0.1)`",
                )
            result = changed
        return result


def _chat(rule: ClientInheritance, parent: ChatClientConfig, own: ChatClientConfig) -> ChatClientConfig:
    if rule is ClientInheritance.FALLBACK_TO_PARENT:
        chosen = parent if own == ChatClientConfig() else own
        return replace(chosen, stop=tuple(chosen.stop), extra=dict(chosen.extra))
    if rule is ClientInheritance.USE_OWN:
        return replace(own, stop=tuple(own.stop), extra=dict(own.extra))
    # `extra` is for one provider alone: a child with a model of its own may be with another one.
    inherited: Mapping[str, Any] = {} if own.model is not None else parent.extra
    return ChatClientConfig(
        temperature=parent.temperature if own.temperature is None else own.temperature,
        top_p=parent.top_p if own.top_p is None else own.top_p,
        max_tokens=parent.max_tokens if own.max_tokens is None else own.max_tokens,
        model=parent.model if own.model is None else own.model,
        stop=tuple(own.stop or parent.stop),
        extra={**inherited, **own.extra},
    )


def _fields(method: str, names: Iterable[str]) -> list[SubAgentRunConfigFields]:
    try:
        return [SubAgentRunConfigFields(name) for name in names]
    except ValueError:
        known = set(SubAgentRunConfigFields)
        unknown = ", ".join(f"`{name}`" for name in names if name not in known)
        raise ConfigurationError(
            f"`SubAgentRunConfig.{method}(…)` does not know {unknown}",
            code="unknown_run_config_field",
            remedy=f"use names of {_listed(SubAgentRunConfigFields)}",
        ) from None


def _listed(kind: type[StrEnum]) -> str:
    return ", ".join(f"`{member.value}`" for member in kind)
