"""What people configure: plain, immutable values. Nothing here does anything."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from retinue.errors import ConfigurationError

__all__ = [
    "MAX_SPAWN_DEPTH",
    "UNSET",
    "AgentConfig",
    "AgentInvocationModePolicy",
    "AgentRunConfig",
    "Budget",
    "ChatClientConfig",
    "ClientsConfig",
    "Limits",
    "PermissionRules",
    "RuntimeContext",
    "SubAgentContextPolicy",
    "Unset",
    "Value",
    "ValueType",
    "Verdict",
    "WorkspaceMode",
]

MAX_SPAWN_DEPTH: Final = 3
"""How deep a tree of delegations may be by default (D-03): children at depths 1 to 3 exist."""


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""The default of every parameter that the surface may fill (D-26)."""


class ValueType(msgspec.StructMeta):
    """Makes what is said of a wrong argument name the class that it was given to, as Python does for its own."""

    if not TYPE_CHECKING:  # each class keeps its own signature

        def __call__(cls, *args: object, **named: object) -> object:
            try:
                return super().__call__(*args, **named)
            except TypeError as error:
                if error.__traceback__.tb_next is not None:
                    raise  # of code of the class, which says where it is
                said = str(error)
                raise TypeError(f"{cls.__name__}(): {said[:1].lower()}{said[1:]}{_near(cls, named)}") from None


def _near(cls: type[msgspec.Struct], named: Mapping[str, object]) -> str:
    from retinue.near import near_names  # only a mistake needs it

    known = cls.__struct_fields__
    near = [name for wrong in named if wrong not in known for name in near_names(wrong, known)]
    return f"; did you mean `{near[0]}`?" if near else ""


class Value(msgspec.Struct, frozen=True, metaclass=ValueType):
    """The base of what people write down: immutable, compared by its fields. `msgspec.structs.replace` makes a changed one."""


class SubAgentContextPolicy(StrEnum):
    """How a child's conversation begins (H-17). Not to be confused with `WorkspaceMode` or `SubAgentRunConfig.isolated()`."""

    FORK = "fork"
    FRESH = "fresh"
    ISOLATED = "isolated"
    MODEL_CHOICE = "model_choice"


class AgentInvocationModePolicy(StrEnum):
    """Whether a call waits for the child (H-11)."""

    SYNCHRONOUS_ONLY = "synchronous_only"
    BACKGROUND_ONLY = "background_only"
    MODEL_CHOICE = "model_choice"


class WorkspaceMode(StrEnum):
    """In whose folder a roster child works (A-08 to A-11)."""

    ISOLATED = "isolated"
    SHARED = "shared"


class Verdict(StrEnum):
    """What the permission gate says, in the order deny < ask < allow (M10)."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class PermissionRules(Value, frozen=True, kw_only=True):
    """A set of rules, each `tool` or `tool(glob of its main argument)`; the tool's name may be a glob as well.

    Inside one set deny beats ask beats allow; a set in which nothing matches has no opinion (M10).

    >>> PermissionRules(allow=["read_file"], ask=["write_file(src/*)"], deny=["execute"])
    """

    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("allow", "ask", "deny"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigurationError(
                    f"`PermissionRules({name}=…)` is a list of rules, not one text",
                    remedy=f'write `{name}=["{value}"]`',
                )
            force_setattr(self, name, tuple(value))
        for rule in (*self.allow, *self.ask, *self.deny):
            tool, bracket, rest = rule.partition("(")
            if not tool.strip() or (bracket and not rest.endswith(")")):
                raise ConfigurationError(
                    f"permission rule `{rule}` cannot be read",
                    code="invalid_permission_rule",
                    remedy="write `tool` or `tool(glob of its main argument)`",
                )


class Limits(Value, frozen=True, kw_only=True):
    """Limits of a tree, on by default (D-30). A refusal names the setting.

    `max_children` is how many children may be at work at once (the rest queue), `max_tree_children` how many there may be
    in the whole tree, `max_task_attempts` how many processes may try to bring a task in the background to its end,
    `max_wakes` how often in a row the ends of tasks may wake an idle thread to which nobody says anything (what comes then waits
    for its next run), `max_depth` how deep it may be (0: nothing is delegated), `stop_grace` (seconds) how long a cancel waits
    for what is running, `tool_threads` how many synchronous tools run at once, `max_result_characters` how much of one result
    stands in a conversation (the rest is stored, and `read_result` pages through it), `max_media_bytes` how large one picture
    or file may be, `max_output_repairs` how often an answer that does not have the form asked for (`output=Type`) is given
    back to the model (0: never).
    """

    max_children: int = 16
    max_tree_children: int = 200
    max_task_attempts: int = 5
    max_wakes: int = 100
    max_depth: int = MAX_SPAWN_DEPTH
    stop_grace: float = 5.0
    tool_threads: int = 8
    max_result_characters: int = 50_000
    max_media_bytes: int = 20_000_000
    max_output_repairs: int = 2

    def __post_init__(self) -> None:
        for name in ("max_children", "max_tree_children", "max_task_attempts", "tool_threads", "max_media_bytes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"`Limits({name}=…)` must be at least 1", remedy="leave it out for the default")
        if self.max_result_characters < 1_000:
            raise ConfigurationError(
                "`Limits(max_result_characters=…)` must be at least 1,000", remedy="leave it out for the default"
            )
        for name in ("max_depth", "max_wakes", "stop_grace", "max_output_repairs"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"`Limits({name}=…)` must not be negative", remedy="leave it out for the default")


class Budget(Value, frozen=True, kw_only=True):
    """What a run and everything below it may use; None is no limit (M13). Without a budget nothing is limited (D-30).

    `tokens` are those of all model calls, input and output, `requests` the calls, `cost` is in US dollars, `seconds` are those
    in which the run is at work: not while it waits for a person, and not while no process drives it. Before each call what it
    may use is set aside, so that side by side, in several processes too, no more is used than the estimates are off.

    Raises:
        ConfigurationError: one is not above zero.
    """

    tokens: int | None = None
    requests: int | None = None
    cost: Decimal | int | float | str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        cost: Any = self.cost
        if cost is not None and not isinstance(cost, Decimal):
            try:
                force_setattr(self, "cost", Decimal(str(cost)))
            except ArithmeticError:
                raise ConfigurationError(
                    f"`Budget(cost={cost!r})` is no number", remedy="give US dollars, such as `1.50`"
                ) from None
        for name in ("tokens", "requests", "cost", "seconds"):
            value: Any = getattr(self, name)
            wrong = isinstance(value, bool) or (name in ("tokens", "requests") and not isinstance(value, int | None))
            if wrong or (value is not None and not 0 < value < float("inf")):
                raise ConfigurationError(
                    f"`Budget({name}={value!r})` must be above 0", code="invalid_argument", remedy="leave it out for no limit"
                )

    @property
    def limits_calls(self) -> bool:
        """Whether it limits what model calls may use."""
        return self.tokens is not None or self.requests is not None or self.cost is not None


class ChatClientConfig(Value, frozen=True, kw_only=True):
    """Settings of a model's calls. None leaves a setting to the provider.

    `extra` is sent as further top-level keys of the request body, for what one provider alone understands.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    model: str | None = None
    stop: Sequence[str] = ()
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ClientsConfig(Value, frozen=True, kw_only=True):
    """The clients of a run, by family. Chat is the one that this version calls."""

    chat: ChatClientConfig = ChatClientConfig()


class AgentRunConfig(Value, frozen=True, kw_only=True):
    """What one run adds to an agent's own configuration."""

    clients: ClientsConfig = ClientsConfig()

    def with_chat(self, **changes: Any) -> Self:
        """A copy with these settings of the chat client changed, for example `with_chat(temperature=0.1)`."""
        return replace(self, clients=replace(self.clients, chat=replace(self.clients.chat, **changes)))


class AgentConfig(Value, frozen=True, kw_only=True):
    """The serialisable form of an agent: who it is, what it is told, how far it goes.

    `name` is for display; `model` None takes the parent's.
    """

    name: str
    instructions: str = ""
    model: str | None = None
    max_iters: int = 10
    max_subagent_depth: int = MAX_SPAWN_DEPTH
    chat: ChatClientConfig = ChatClientConfig()

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigurationError("`AgentConfig(name=…)` is blank", remedy="give the agent a name to show")
        if self.max_iters < 1:
            raise ConfigurationError("`AgentConfig(max_iters=…)` must be at least 1", remedy="leave it out for 10")
        if self.max_subagent_depth < 0:
            raise ConfigurationError("`AgentConfig(max_subagent_depth=…)` must not be negative", remedy="use 0 to forbid")


class RuntimeContext(Value, frozen=True, kw_only=True):
    """On whose behalf a run is, and what its tools may look up (`ToolContext.get`).

    `user_id` and `session_id` scope everything that is stored (invariant 8). `attributes` reach every child.
    """

    user_id: str | None = None
    session_id: str | None = None
    thread_id: str | None = None
    attributes: Mapping[str, object] = msgspec.field(default_factory=dict[str, object])


ContextPolicy: TypeAlias = SubAgentContextPolicy | Literal["fork", "fresh", "isolated", "model_choice"]
ModePolicy: TypeAlias = AgentInvocationModePolicy | Literal["synchronous_only", "background_only", "model_choice"]
WorkspaceModeName: TypeAlias = WorkspaceMode | Literal["isolated", "shared"]
