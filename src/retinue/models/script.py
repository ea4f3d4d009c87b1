"""What a scripted model says, as data: turns by agent, from Python or from a JSON or YAML file. Pure but for reading it.

A script is one of

* a list of turns, for whichever agent asks;
* an object from agent id to turns (`"*"` stands for every other agent);
* `{"agents": {…}, "fallback": turn, "model": name, "price": {"input": …, "output": …, "cached": …}}`, prices in US
  dollars for a million tokens.

The turns of an agent are a list, or `{"turns": […], "fallback": turn, "marker": text}`. Turn `n` answers the n-th model
call of a run, so that another process that resumes it gets the same answers. After the last one the fallback answers.
A turn is a text, or an object with the fields of `Turn`. In its text and in the arguments of its calls stand for

* `{input}` the last thing that a person or parent wrote, `{agent}` the agent's id,
* `{result[0]}`, `{result[-1]}` the first, the last tool result of the conversation, `{result}` the last one,
  `{result.NAME}` the last one of tool NAME, `{results}` all of them, one a line.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from retinue.errors import ConfigurationError
from retinue.json_text import dumps
from retinue.messages import FinishReason, ToolCall, Usage
from retinue.models.port import ModelAnswer
from retinue.models.prices import per_million
from retinue.near import near_names

__all__ = ["AgentScript", "Price", "Script", "ScriptCall", "ScriptError", "ScriptSource", "Turn", "View", "parse_script"]

ErrorCode: TypeAlias = Literal[
    "unreachable",
    "timeout",
    "stream_broken",
    "authentication",
    "rate_limited",
    "overloaded",
    "context_overflow",
    "model_not_found",
    "bad_request",
    "bad_response",
    "missing_key",
]


class ScriptCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call to make. `arguments` is an object, or text that is sent as it is, valid or not."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class ScriptUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens to report."""

    input: int = 0
    output: int = 0
    cached: int = 0


class ScriptError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `ModelError` to raise instead of an answer."""

    code: ErrorCode = "overloaded"
    message: str = "the script says so"
    retryable: bool = True
    retry_after: float | None = None
    status: int | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer.

    `delay` is in seconds before the first delta; the text comes in deltas of `chunk` characters (0: all at once) with
    `chunk_delay` seconds after each. `usage` "estimate" counts four characters as a token. `error` is raised after what
    the turn says has been shown. `fault` is for `StrictProvider` alone (`ProviderFault` as an object).
    """

    text: str = ""
    reasoning: str | None = None
    calls: tuple[ScriptCall, ...] = ()
    usage: ScriptUsage | Literal["estimate"] | None = None
    delay: float = 0.0
    chunk: int = 0
    chunk_delay: float = 0.0
    finish_reason: FinishReason | None = None
    error: ScriptError | None = None
    extras: dict[str, Any] = {}
    fault: dict[str, Any] | None = None

    def pieces(self) -> list[str]:
        """The text in the deltas that it is shown in."""
        size = self.chunk or len(self.text)
        return [self.text[at : at + size] for at in range(0, len(self.text), size)] if self.text else []

    def filled(self, view: "View") -> "Turn":
        """A copy with what stands in braces filled in."""
        calls = tuple(msgspec.structs.replace(call, arguments=_fill(call.arguments, view)) for call in self.calls)
        return msgspec.structs.replace(self, text=_fill(self.text, view), reasoning=_fill(self.reasoning, view), calls=calls)

    def has_templates(self) -> bool:
        """Whether anything stands in braces."""
        return _TEMPLATE.search(dumps([self.text, self.reasoning, self.calls]).decode()) is not None

    def tool_calls(self, step: int) -> tuple[ToolCall, ...]:
        """Its calls as a model would make them in turn `step`."""
        return tuple(
            ToolCall(
                id=call.id or f"call_{step}_{place}",
                name=call.name,
                arguments=call.arguments if isinstance(call.arguments, str) else dumps(call.arguments).decode(),
            )
            for place, call in enumerate(self.calls)
        )

    def usage_of(self, view: "View") -> Usage:
        """What it reports as used."""
        if self.usage is None:
            return Usage(calls=1)
        if self.usage == "estimate":
            said = len(self.text) + sum(len(call.arguments) for call in self.tool_calls(1))
            return Usage(input_tokens=-(-view.characters() // 4), output_tokens=-(-said // 4), calls=1)
        used = self.usage
        return Usage(input_tokens=used.input, output_tokens=used.output, cached_tokens=used.cached, calls=1)


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars for a million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None


class AgentScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The turns of one agent. `marker` is a text in its system message that a plain client can be known by."""

    turns: tuple[Turn, ...] = ()
    fallback: Turn | None = None
    marker: str | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole script."""

    agents: dict[str, AgentScript] = {}
    fallback: Turn | None = None
    model: str = "scripted"
    price: Price | None = None

    def turn(self, agent_id: str, step: int) -> Turn | None:
        """What `agent_id` answers to the `step`-th (from 1) call of a run; None if the script does not say."""
        agent = self.agents.get(agent_id) or self.agents.get("*")
        if agent is None:
            return self.fallback
        if 0 < step <= len(agent.turns):
            return agent.turns[step - 1]
        return agent.fallback or self.fallback

    def cost_of(self, usage: Usage) -> Decimal | None:
        """What this usage costs, if the script names a price."""
        price = self.price
        return price and per_million(usage, input_price=price.input, output_price=price.output, cached_price=price.cached)

    def answer(self, turn: Turn, step: int, view: "View") -> ModelAnswer:
        """The answer that a (filled) turn stands for."""
        calls = turn.tool_calls(step)
        usage = turn.usage_of(view)
        return ModelAnswer(
            text=turn.text,
            reasoning=turn.reasoning,
            calls=calls,
            usage=usage,
            cost=self.cost_of(usage),
            finish_reason=turn.finish_reason or ("tool_calls" if calls else "stop"),
            extras=dict(turn.extras),
            model=self.model,
        )


class View:
    """What a template may use of a conversation; looked up only where one does."""

    __slots__ = ("_characters", "_input", "_results", "agent_id")

    def __init__(
        self,
        agent_id: str,
        last_input: Callable[[], str],
        results: Callable[[], Sequence[tuple[str, str]]],
        characters: Callable[[], int],
    ) -> None:
        self.agent_id = agent_id
        self._input = last_input
        self._results = results
        self._characters = characters

    def characters(self) -> int:
        """How long the conversation is."""
        return self._characters()

    def value(self, name: str, index: str | None, tool: str | None) -> str:
        """What stands for one template; nothing where there is no such result."""
        if name == "input":
            return self._input()
        if name == "agent":
            return self.agent_id
        results = self._results()
        if name == "results":
            return "\n".join(content for _, content in results)
        if tool is not None:
            results = [result for result in results if result[0] == tool]
        place = int(index) if index is not None else -1
        return results[place][1] if -len(results) <= place < len(results) else ""


ScriptSource: TypeAlias = Script | str | Path | Sequence[Turn | str | Mapping[str, Any]] | Mapping[str, Any]
"""What `parse_script` takes; a `str` is a path."""

_TEMPLATE: Final = re.compile(r"\{(input|agent|results|result(?:\[(-?\d+)\]|\.([A-Za-z_][A-Za-z0-9_-]*))?)\}")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?")
_INDEX: Final = re.compile(r"\[[^\]]*\]")
_FIELDS_AT: Final[Mapping[str, type[msgspec.Struct]]] = {"calls": ScriptCall, "error": ScriptError, "usage": ScriptUsage}
"""Where in a turn further objects stand."""
_SCRIPT_KEYS: Final = frozenset(Script.__struct_fields__)


def _fill(value: Any, view: View) -> Any:
    if isinstance(value, str):
        return _TEMPLATE.sub(lambda found: view.value(found[1].partition("[")[0].partition(".")[0], found[2], found[3]), value)
    if isinstance(value, dict):
        return {key: _fill(item, view) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_fill(item, view) for item in cast("list[Any]", value)]
    return value


def parse_script(source: ScriptSource) -> Script:
    """The script that `source` describes.

    Raises:
        ConfigurationError: it cannot be read; names the file and the place in it.
    """
    if isinstance(source, Script):
        return source
    where = f"script `{source}`" if isinstance(source, (str, Path)) else "the script"
    value: Any = _read(Path(source)) if isinstance(source, (str, Path)) else source
    try:
        return msgspec.convert(_whole(value), Script, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigurationError(
            f"{where} cannot be used: {error}",
            code="invalid_script",
            remedy="a script is a list of turns, or an object from agent id to turns; a turn is a text, or an object with "
            "`text`, `calls`, `reasoning`, `delay`, `error` and so on",
        ) from None


def _whole(value: Any) -> dict[str, Any]:
    """Any short form as the long one."""
    if isinstance(value, Mapping):
        fields = dict(cast("Mapping[str, Any]", value))
        if not fields.keys() & {"agents", "fallback"}:
            fields = {"agents": fields}
        if unknown := sorted(str(key) for key in fields if key not in _SCRIPT_KEYS):
            raise TypeError(f"unknown key `{unknown[0]}` beside `agents`")
        agents = fields.get("agents", {})
        if not isinstance(agents, Mapping):
            raise TypeError("`agents` is not an object")
        named = cast("Mapping[str, Any]", agents).items()
        fields["agents"] = {key: _checked(_agent(one, f"agent `{key}`"), AgentScript, f"agent `{key}`") for key, one in named}
        if fields.get("fallback") is not None:
            fields["fallback"] = _turn(fields["fallback"], "`fallback`")
        return fields
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return {"agents": {"*": _agent(cast("Sequence[Any]", value), "")}}
    raise TypeError(f"it is {type(value).__name__}")


def _agent(value: Any, place: str) -> Any:
    """The turns of one agent in the long form. `place` says whose they are."""
    if isinstance(value, AgentScript):
        return msgspec.to_builtins(value)
    fields: dict[str, Any] = dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {"turns": value}
    turns: Any = fields.get("turns", ())
    if not isinstance(turns, Sequence):
        raise TypeError(f"{place}: its turns are of type {type(turns).__name__}, not a list")
    listed = [turns] if isinstance(turns, str) else list(cast("Sequence[Any]", turns))
    before = f"{place}, " if place else ""
    fields["turns"] = [_turn(turn, f"{before}turn {number}") for number, turn in enumerate(listed, start=1)]
    if fields.get("fallback") is not None:
        fields["fallback"] = _turn(fields["fallback"], f"{before}`fallback`")
    return fields


def _turn(value: Any, place: str) -> Any:
    """One turn as an object, checked here, where its agent and number are known."""
    made = {"text": value} if isinstance(value, str) else msgspec.to_builtins(value) if isinstance(value, Turn) else value
    return _checked(made, Turn, place)


def _checked(value: Any, kind: type[msgspec.Struct], place: str) -> Any:
    """`value`, if it can be read as `kind`.

    Raises:
        TypeError: saying where it stands, what is wrong, and which fields there are.
    """
    try:
        msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        said = str(error).replace("Object contains unknown field", "unknown field")
        unknown = _UNKNOWN.search(said)
        if unknown:
            fields = _FIELDS_AT.get(_INDEX.sub("", unknown[2] or ""), kind).__struct_fields__
            near = near_names(unknown[1], fields, count=1)
            said += f", did you mean `{near[0]}`?" if near else f"; the fields are {', '.join(fields)}"
        raise TypeError(f"{place}: {said}" if place else said) from None
    return value


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"script `{path}` cannot be read: {error.strerror or error}",
            code="script_missing",
            remedy="check the path: a relative one is looked for in the current folder",
        ) from None
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return msgspec.json.decode(data)
    except Exception as error:  # noqa: BLE001 - two parsers, each with errors of its own
        raise ConfigurationError(
            f"script `{path}` cannot be parsed: {error}",
            code="invalid_script",
            remedy="write it as JSON, or as YAML in a `.yaml` file",
        ) from None
