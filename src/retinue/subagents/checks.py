"""The checks of a declaration, as pure functions (A-05, A-06, D-27, D-31).

Each error names the declaration, what is wrong, and the remedy.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from retinue.config import SubAgentContextPolicy, Unset
from retinue.errors import ConfigurationError
from retinue.ids import check_agent_id, check_tool_name
from retinue.near import a_kind
from retinue.secrets import SecretRef
from retinue.tools.harness import ToolHarness

__all__ = [
    "check_exclusive",
    "check_fork_compaction",
    "check_model",
    "check_name",
    "choose",
    "frozen_headers",
    "frozen_metadata",
    "harness_list",
    "name_list",
    "positive_int",
    "positive_seconds",
    "refuse",
    "tool_surface_name",
]

E = TypeVar("E", bound=StrEnum)

_SAFE: Final = 60


def refuse(name: str, problem: str, remedy: str, *, code: str = "invalid_declaration") -> ConfigurationError:
    """The error of declaration `name`."""
    return ConfigurationError(f"subagent `{name}`: {problem}", code=code, remedy=remedy)


def check_name(name: object, description: object, agent_id: object) -> str:
    """Check name and description, and return the agent id: `agent_id`, or the name where that is None (D-31)."""
    if not isinstance(name, str) or not name.strip():
        remedy = f"give it a name; its description is {_shown(description)}"
        raise ConfigurationError("a subagent's `name` is blank", code="invalid_declaration", remedy=remedy)
    if not name.isprintable() or name != name.strip():
        remedy = "use visible characters only, without spaces at the ends"
        raise ConfigurationError(f"the subagent name {_shown(name)} cannot be used", code="invalid_declaration", remedy=remedy)
    if not isinstance(description, str) or not description.strip():
        raise refuse(name, "`description` is blank", "say when to use it, what to give it and what it returns")
    if agent_id is not None and (not isinstance(agent_id, str) or not agent_id.isprintable()):
        raise refuse(name, f"`agent_id` {_shown(agent_id)} cannot be used", "leave it out to use the name")
    where = "its name, which is its agent id," if agent_id is None else "`agent_id`"
    return check_agent_id(name if agent_id is None else agent_id, where=f"subagent `{name[:128]}`: {where}")


def check_model(name: str, model: object) -> None:
    """Refuse a model that is no text: a declaration is data, and may be stored."""
    if model is None or (isinstance(model, str) and model.strip()):
        return
    if isinstance(model, str):
        raise refuse(name, "`model` is blank", "name a model, or leave it out for the parent's")
    if isinstance(model, (int, float)):
        raise refuse(name, f"`model` is {_shown(model)}", 'give a text like `"openai:gpt-5"`')
    remedy = 'register it on the parent, `Agent(…, models={"mine": …})`, and write `model="mine"` here'
    raise refuse(name, f"`model` is {a_kind(model)}, and a subagent names its model by a text", remedy)


def tool_surface_name(name: str) -> str:
    """Return `name` if it can be a tool's name, as a subagent on the tool surface needs (H-02)."""
    return check_tool_name(name, where=f"subagent `{name}`: its name, which becomes the name of its tool,")


def choose(name: str, parameter: str, value: object, kind: type[E]) -> E | Unset:
    """`value` as a member of `kind`, given as member or plain string; UNSET stays."""
    if isinstance(value, Unset):
        return value
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(f"`{member.value}`" for member in kind)
        raise refuse(name, f"`{parameter}` does not know {_shown(value)}", f"use one of {allowed}") from None


def check_exclusive(name: str, *, instructions: str | None, workspace: object, url: str | None, headers: object) -> None:
    """The three modes of A-05 exclude each other; a blank text is no instructions."""
    written = bool(instructions and instructions.strip())
    if url is not None:
        if workspace is not None or written:
            other = "workspace" if workspace is not None else "instructions"
            raise refuse(name, f"`url` and `{other}` exclude each other", f"leave out `url` or `{other}`")
        _check_url(name, url)
    elif headers:
        raise refuse(name, "`headers` without `url`", "give the `url` they are for, or leave them out")
    if workspace is not None and written:
        remedy = "leave out one: with `workspace` the text comes from its `AGENTS.md`"
        raise refuse(name, "`workspace` and `instructions` exclude each other", remedy)
    if workspace is not None and not str(workspace).strip():
        raise refuse(name, "`workspace` is blank", "give a folder, or leave it out")


def _check_url(name: str, url: object) -> None:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise refuse(name, "`url` is not a web address", "give `http://…` or `https://…` with a host")
    if parts.username or parts.password:
        raise refuse(name, "`url` contains a user or password", 'pass it as `headers={"Authorization": …}`')


def frozen_headers(name: str, headers: Mapping[str, str | SecretRef] | None) -> Mapping[str, str | SecretRef] | None:
    """A read-only copy; an empty mapping is none."""
    if not headers:
        return None
    for key, value in headers.items():
        given: list[object] = [key, value]
        texts = all(isinstance(item, str | SecretRef) for item in given)
        if not texts or "\n" in f"{key}{value}" or "\r" in f"{key}{value}":
            raise refuse(name, f"`headers` entry {_shown(key)} is not one line of text", "give texts without line breaks")
    return MappingProxyType(dict(headers))


def frozen_metadata(name: str, metadata: Mapping[str, object] | None) -> Mapping[str, object]:
    """A read-only deep copy of what is stored with the child's thread (H-19): JSON values only."""
    import json

    try:
        copied: dict[str, object] = json.loads(json.dumps(dict(metadata or {})))
    except (TypeError, ValueError) as error:
        raise refuse(name, f"`metadata` cannot be stored as JSON: {error}", "use texts, numbers, lists and mappings") from None
    return MappingProxyType(copied)


def check_fork_compaction(name: str, fork_compaction: object, policy: object, surface: object) -> None:
    """Fork compaction works on a fork, so the child must have one (H-24). Left-out policies mean what D-26 says."""
    if fork_compaction is None:
        return
    forks = policy in (SubAgentContextPolicy.FORK, SubAgentContextPolicy.MODEL_CHOICE)
    if not forks and not (isinstance(policy, Unset) and surface != "roster"):
        remedy = 'set `context_policy="fork"` or `"model_choice"`, or leave out `fork_compaction`'
        raise refuse(name, "`fork_compaction` needs a forked conversation", remedy, code="fork_compaction")


def name_list(name: str, parameter: str, value: Sequence[Any]) -> tuple[str, ...]:
    """Names of tools as a tuple.

    Raises:
        TypeError: a callable is among them; it belongs into `tool_harnesses`.
        ConfigurationError: one text instead of a list, or a blank or non-text item.
    """
    if isinstance(value, str):
        raise refuse(name, f"`{parameter}` is one text, not a list", f'write `{parameter}=["{value}"]`')
    for item in value:
        if callable(item):
            raise TypeError(
                f"subagent `{name}`: `{parameter}` takes names of tools that the child inherits, not {_shown(item)}. "
                "Put functions into a ToolHarness class and pass it in `tool_harnesses=[…]`."
            )
        if not isinstance(item, str) or not item.strip():
            raise refuse(name, f"`{parameter}` contains {_shown(item)}", "give names of tools as texts")
    return tuple(dict.fromkeys(item.strip() for item in value))


def harness_list(name: str, value: object) -> tuple[type[ToolHarness] | ToolHarness, ...]:
    """Tool harness classes or instances as a tuple."""
    items: tuple[object, ...] = tuple(cast("Sequence[object]", value)) if isinstance(value, Sequence) else (value,)
    checked: list[type[ToolHarness] | ToolHarness] = []
    for item in items:
        if isinstance(item, ToolHarness) or (isinstance(item, type) and issubclass(item, ToolHarness)):
            checked.append(item)
            continue
        remedy = "give a list of ToolHarness classes or instances; make a function a method marked `@tool` of such a class"
        raise refuse(name, f"`tool_harnesses` contains {_shown(cast(object, item))}", remedy, code="invalid_tool_harness")
    return tuple(checked)


def positive_int(name: str, parameter: str, value: object) -> None:
    """Refuse what is not a whole number from 1; UNSET and None are left to the surface."""
    if value is None or isinstance(value, Unset):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refuse(name, f"`{parameter}` is {_shown(value)}", "give a whole number from 1, or leave it out")


def positive_seconds(name: str, parameter: str, value: object) -> None:
    """Refuse what is not a positive, finite number of seconds; UNSET and None are left to the surface."""
    if value is None or isinstance(value, Unset):
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise refuse(name, f"`{parameter}` is {_shown(value)}", "give seconds greater than 0, or leave it out")


def _shown(value: object) -> str:
    """A value inside an error: on one line, never long."""
    text = getattr(value, "__name__", None) if callable(value) else None
    shown = repr(value) if text is None else str(text)
    return f"`{shown[:_SAFE]}…`" if len(shown) > _SAFE else f"`{shown}`"
