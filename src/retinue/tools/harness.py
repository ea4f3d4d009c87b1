"""`ToolHarness`: a class whose methods are tools, subagents or other capabilities.

A decorator marks a method by setting `__capability__`; the harness collects what is marked, in the order of definition.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from retinue.errors import ConfigurationError
from retinue.ids import check_tool_name
from retinue.tools.decorator import CAPABILITY, function_tool
from retinue.tools.port import Capability
from retinue.tools.references import reference_of

__all__ = ["Member", "ToolHarness", "collect", "collect_members"]


class Member(msgspec.Struct, frozen=True):
    """A capability and where it was declared.

    `label` is for messages; `reference` is the import reference `module:Class.member`, None where there is none (a class
    made inside a function, or a capability added at run time).
    """

    capability: Capability
    label: str
    reference: str | None


class ToolHarness:
    """Base class of tool harnesses. Mark methods with `@tool` or `@subagent`; no `__init__` is needed.

    An override takes the place of what it overrides and must be marked too; `name = None` in a subclass removes a member.
    """

    def members(self) -> list[Member]:
        """The capabilities with their owners: declared ones in order of definition (base classes first), then added ones.

        Declared capabilities are made once per instance.

        Raises:
            ConfigurationError: two have one name, or an override is not marked.
        """
        state = vars(self)
        declared: list[Member] | None = state.get("_declared_members")
        if declared is None:
            declared = [self._make(name, factory) for name, factory in _factories(type(self)).items()]
            state["_declared_members"] = _distinct(declared)
        added: list[Member] = state.get("_added_members", [])
        return [*declared, *added]

    def capabilities(self) -> list[Capability]:
        """What this harness offers; see `members`."""
        return [member.capability for member in self.members()]

    def add(self, capability: Capability) -> None:
        """Offer one more capability, from now on (an agent that is running sees it at its next roster check).

        Raises:
            ConfigurationError: its name is taken in this harness, or is no tool name.
        """
        label = f"{_class_label(type(self))}.add({capability.name})"
        reference = getattr(capability, "reference", None)
        member = Member(_checked(capability, label), label, reference if isinstance(reference, str) else None)
        _distinct([*self.members(), member])
        vars(self).setdefault("_added_members", []).append(member)

    def add_tool(self, added: Callable[..., Any] | Capability) -> None:
        """Offer one more tool: a function with type hints, decorated or not, or a ready one. See `add`."""
        self.add(function_tool(added) if inspect.isroutine(added) else cast("Capability", added))

    def add_subagent(self, subagent: Capability) -> None:
        """Offer one more subagent: the same as declaring it with `@subagent` (H-01). See `add`."""
        self.add(subagent)

    def _make(self, name: str, factory: Callable[[object, str], object]) -> Member:
        label = f"{_class_label(type(self))}.{name}"
        return Member(_checked(factory(self, name), label), label, reference_of(self, name))


def collect(harnesses: Sequence[type[ToolHarness] | ToolHarness]) -> list[Capability]:
    """Everything that these harnesses offer, in order. A class is instantiated without arguments.

    Raises:
        ConfigurationError: two members have one name (both are named), or something given is no tool harness.
    """
    return [member.capability for member in collect_members(harnesses)]


def collect_members(harnesses: Sequence[type[ToolHarness] | ToolHarness]) -> list[Member]:
    """As `collect`, with the owner of each capability."""
    return _distinct([member for harness in harnesses for member in _instance(harness).members()])


def _instance(harness: object) -> ToolHarness:
    if isinstance(harness, ToolHarness):
        return harness
    if not (isinstance(harness, type) and issubclass(harness, ToolHarness)):
        shown = str(getattr(cast("object", harness), "__qualname__", type(cast("object", harness)).__name__))
        raise ConfigurationError(
            f"`{shown}` is not a tool harness",
            code="invalid_tool_harness",
            remedy="derive its class from `ToolHarness` and mark methods with `@tool`",
        )
    try:
        inspect.signature(harness).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"tool harness `{_class_label(harness)}` cannot be made without arguments ({error})",
            code="invalid_tool_harness",
            remedy="pass an instance instead of the class",
        ) from error
    return harness()


def _factories(harness: type) -> dict[str, Callable[[object, str], object]]:
    """The marked members of a class and its bases by attribute name, base classes first."""
    found: dict[str, Callable[[object, str], object]] = {}
    origin: dict[str, type] = {}
    for owner in reversed(harness.__mro__):
        for name, member in vars(owner).items():
            factory = _factory(member)
            if factory is not None:
                found[name] = factory
                origin[name] = owner
            elif member is None:
                found.pop(name, None)
            elif name in found:
                raise ConfigurationError(
                    f"`{_class_label(owner)}.{name}` overrides `{_class_label(origin[name])}.{name}` but is not marked",
                    code="invalid_tool_harness",
                    remedy=f"decorate it as well, or write `{name} = None` to take it away",
                )
    return found


def _factory(member: object) -> Callable[[object, str], object] | None:
    """The factory of a marked function, also inside `staticmethod` or `classmethod`."""
    function: object = getattr(member, "__func__", member)
    return getattr(function, CAPABILITY, None) if inspect.isroutine(function) else None


def _checked(made: object, label: str) -> Capability:
    if not isinstance(made, Capability):
        raise ConfigurationError(
            f"`{label}` gives `{type(made).__name__}`, which is no capability",
            code="invalid_tool_harness",
            remedy="it needs at least `name` and `description`",
        )
    check_tool_name(made.name, where=f"the name of `{label}`,")
    return made


def _distinct(members: list[Member]) -> list[Member]:
    """`members`, if their names differ."""
    seen: dict[str, Member] = {}
    for member in members:
        other = seen.setdefault(member.capability.name, member)
        if other is not member:
            raise ConfigurationError(
                f"`{other.label}` and `{member.label}` are both named `{member.capability.name}`",
                code="duplicate_name",
                remedy="give one of them another name, for example `@tool(name=…)`",
            )
    return members


def _class_label(harness: type) -> str:
    return f"{harness.__module__}:{harness.__qualname__}"
