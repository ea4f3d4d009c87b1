"""The form of an answer: `output=Type` as a JSON schema, the check of what a model wrote, and the words that give it back.

A check is a function of the text, the stored schema and, where it is there, the Python type. pydantic is imported at first use.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from retinue.errors import ConfigurationError
from retinue.ids import sha256_hex
from retinue.json_text import dumps, mend_all
from retinue.messages import OutputSpec

if TYPE_CHECKING:
    from retinue.agent.schema_check import Misfit

__all__ = ["WRAP", "Checked", "OutputType", "check_answer", "give_back"]

WRAP: Final = "value"
"""Under this key stands an answer that is no object: some providers take objects only."""

MAX_FAULTS: Final = 10

_FENCE: Final = r"(?s)```[\w+-]*[ \t]*\r?\n(.*?)```"
_NOT_NAME: Final = r"[^A-Za-z0-9_-]+"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of an answer found. `plain` is the answer as JSON, `value` of the type asked for.

    `fault` is empty, or says to the model what does not fit.
    """

    value: Any = None
    plain: Any = None
    fault: str = ""


class _Misfits(Exception):
    def __init__(self, found: "Sequence[Misfit]") -> None:
        super().__init__()
        self.found = found


class OutputType:
    """A Python type that answers are to have: a dataclass, a pydantic model, a `TypedDict`, a msgspec `Struct`, a builtin, a
    `Literal`, a union or a container of those.

    Raises:
        ConfigurationError: no JSON schema can be made of it.
    """

    __slots__ = ("_parse", "declared", "spec")

    def __init__(self, declared: Any, *, where: str = "`output`") -> None:
        self.declared = declared
        if isinstance(declared, OutputType) or declared is None:
            raise _unusable(declared, where, "it is no type")
        try:
            schema, self._parse = _of_pydantic(declared)
        except Exception as error:  # noqa: BLE001  # pydantic has many, among them those of types' own hooks
            try:
                schema, self._parse = _of_msgspec(declared)
            except Exception:  # noqa: BLE001
                raise _unusable(declared, where, str(error).split("\n", 1)[0]) from error
        self.spec = _spec(declared, schema)

    def parse(self, plain: Any) -> Any:
        """The value of the type that JSON `plain` means.

        Raises:
            _Misfits: it does not fit.
        """
        return self._parse(plain)

    def bounded(self, repairs: int) -> OutputSpec:
        """The form as a run stores it: with how often an answer that does not fit is given back."""
        return msgspec.structs.replace(self.spec, repairs=repairs)

    def __repr__(self) -> str:
        return f"OutputType({self.spec.name})"


def _unusable(declared: Any, where: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} cannot be `{str(declared)[:200]}`: {why[:300]}",
        code="invalid_output_type",
        remedy="give a dataclass, a pydantic model, a `TypedDict`, a `Struct`, a builtin, a `Literal`, or a union of those",
    )


def check_answer(spec: OutputSpec, text: str, kind: OutputType | None = None) -> Checked:
    """Check an answer against a stored form.

    Args:
        kind: the Python type. Without one, or with one whose schema is another, the stored schema alone decides, and the
            value is plain JSON.
    """
    plain, fault = _read(text)
    if fault:
        return Checked(fault=fault)
    typed = kind is not None and kind.spec.digest == spec.digest
    parse = kind.parse if typed and kind is not None else _by_schema(spec)
    problems: list[_Misfits] = []
    for candidate in _candidates(spec, plain):
        try:
            return Checked(value=parse(candidate), plain=candidate)
        except _Misfits as error:
            problems.append(error)
        except Exception as error:  # noqa: BLE001  # a check of the author's own
            return Checked(fault=f"its check failed: {type(error).__name__}: {str(error)[:500]}")
    return Checked(fault=_explained(spec, problems[0].found))


def give_back(spec: OutputSpec, fault: str) -> str:
    """What a model is told whose answer does not fit."""
    form = f'one JSON object with the key "{WRAP}"' if spec.wrapped else "one JSON object"
    return f"Your answer is not what was asked for (`{spec.name}`): {fault}\nAnswer again with {form} and nothing else."


def _candidates(spec: OutputSpec, plain: Any) -> list[Any]:
    """What the answer may be: taken out of its wrapping, or as it stands (a model may forget the wrapping)."""
    if spec.wrapped and isinstance(plain, dict) and set(cast("dict[str, Any]", plain)) == {WRAP}:
        return [plain[WRAP], plain]
    return [cast("Any", plain)]


def _read(text: str) -> tuple[Any, str]:
    """The JSON of an answer: the whole text, or the one fenced block in it. Nothing else is guessed."""
    stripped = text.strip().removeprefix("\ufeff")
    value, fault = _decoded(stripped)
    if fault:
        blocks = re.findall(_FENCE, stripped)
        if len(blocks) == 1:
            return _decoded(blocks[0].strip())
    return value, fault


def _decoded(text: str) -> tuple[Any, str]:
    import json

    try:
        return msgspec.json.decode(text), ""
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        if "\\ud" in text.lower() or isinstance(error, UnicodeEncodeError):  # half of a pair: mended, as everywhere
            try:
                return mend_all(json.loads(text, parse_constant=_no_constant)), ""
            except (ValueError, RecursionError):
                pass
        from retinue.tools.forms import syntax_fault

        return None, f"it is not valid JSON: {syntax_fault(text, str(error))}."
    except RecursionError:
        return None, "it is not valid JSON: it is nested too deeply."


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _by_schema(spec: OutputSpec) -> Callable[[Any], Any]:
    from retinue.agent.schema_check import misfits

    schema: Mapping[str, Any] = spec.schema
    if spec.wrapped:
        schema = {**schema["properties"][WRAP], "$defs": schema.get("$defs", {})}

    def parse(plain: Any) -> Any:
        if found := misfits(schema, plain):
            raise _Misfits(found)
        return plain

    return parse


def _explained(spec: OutputSpec, found: "Sequence[Misfit]") -> str:
    from retinue.agent.schema_check import node_at
    from retinue.tools.forms import form_of, lowered, shown

    inner: Mapping[str, Any] = spec.schema
    if spec.wrapped:
        inner = {**inner["properties"][WRAP], "$defs": inner.get("$defs", {})}
    lines = ["it does not fit:"]
    for misfit in found[:MAX_FAULTS]:
        name = ".".join(str(part) for part in misfit.path)[:80] or "the answer"
        node = node_at(inner, misfit.path)
        form = f" (expected: {form_of(node)})" if node is not None else ""
        given = "" if misfit.problem in ("is missing", "Field required") else f", but {shown(misfit.given)} was given"
        lines.append(f"- `{name}`: {lowered(misfit.problem[:300])}{given}{form}")
    if len(found) > MAX_FAULTS:
        lines.append(f"- and {len(found) - MAX_FAULTS} more")
    return "\n".join(lines)


# Types


def _of_pydantic(declared: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    from pydantic import TypeAdapter, ValidationError

    from retinue.agent.schema_check import Misfit

    if not (isinstance(declared, type) or hasattr(declared, "__origin__") or hasattr(declared, "__args__")):
        raise TypeError("it is no type")
    adapter = TypeAdapter[Any](declared)
    schema = adapter.json_schema()

    def parse(plain: Any) -> Any:
        try:
            return adapter.validate_json(dumps(plain))
        except ValidationError as error:
            faults = cast("list[dict[str, Any]]", error.errors(include_url=False))
            raise _Misfits([Misfit(tuple(one["loc"]), one["input"], str(one["msg"])) for one in faults]) from None

    return schema, parse


def _of_msgspec(declared: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    from retinue.agent.schema_check import Misfit

    schema = msgspec.json.schema(declared)
    decoder = msgspec.json.Decoder[Any](declared)

    def parse(plain: Any) -> Any:
        try:
            return decoder.decode(dumps(plain))
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            path = tuple(int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]`]+", place))
            raise _Misfits([Misfit(path, _value_at(plain, path), problem)]) from None

    return schema, parse


def _value_at(plain: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            plain = plain[step]
        except (KeyError, IndexError, TypeError):
            return plain
    return plain


def _spec(declared: Any, schema: Mapping[str, Any]) -> OutputSpec:
    """The schema as it is sent and stored: of type object, without titles, with closed objects."""
    import json

    from retinue.tools.forms import without_titles

    plain = cast("dict[str, Any]", _closed(without_titles(schema)))
    definitions: dict[str, Any] = plain.pop("$defs", {})
    target = str(plain.get("$ref", "")).rpartition("/")[2]
    if target in definitions and len(plain) == 1:
        plain = dict(definitions[target])
        if f'/{target}"' not in json.dumps([plain, definitions]):
            del definitions[target]
    wrapped = plain.get("type") != "object"
    if wrapped:
        plain = {"type": "object", "properties": {WRAP: plain}, "required": [WRAP], "additionalProperties": False}
    if definitions:
        plain["$defs"] = definitions
    digest = sha256_hex(msgspec.json.encode([plain, wrapped], order="sorted"))[:16]
    return OutputSpec(name=_name(declared), schema=plain, digest=digest, wrapped=wrapped)


def _name(declared: Any) -> str:
    if hasattr(declared, "__metadata__"):  # Annotated
        declared = declared.__origin__
    text: str = declared.__name__ if isinstance(declared, type) else re.sub(r"(\w+\.)+(?=\w)", "", str(declared))
    return re.sub(_NOT_NAME, "_", text).strip("_")[:60] or "answer"


def _closed(node: Any) -> Any:
    """Objects with named fields take no others unless the type says so; `oneOf` is `anyOf`, which more servers know."""
    if isinstance(node, list):
        return [_closed(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", node).items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            made[key] = {name: _closed(inner) for name, inner in cast("dict[str, Any]", value).items()}
        elif key != "discriminator":
            made[key] = value if key in ("const", "enum", "default", "examples") else _closed(value)
    if isinstance(made.get("oneOf"), list):
        made["anyOf"] = made.pop("oneOf")
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made
