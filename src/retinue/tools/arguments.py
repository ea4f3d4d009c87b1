"""The arguments of a call: their JSON schema, and the check of what a model sent. This module imports pydantic.

`ToolDeclaration` imports it at first use, so that `import retinue.tools` stays cheap. A model is built once per tool.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from retinue.errors import ConfigurationError
from retinue.tools.errors import BadArguments
from retinue.tools.forms import SHOWN, form_of, lowered, shown, syntax_fault, without_titles
from retinue.tools.results import bounded, clean_text
from retinue.tools.schema import REQUIRED, Parameter

__all__ = ["Arguments"]

_MAX_FAULTS: Final = 20


class Arguments:
    """The checked form of one tool's arguments.

    `schema` is a closed JSON schema of type object (`additionalProperties` false).
    """

    def __init__(self, tool: str, parameters: Sequence[Parameter], *, where: str) -> None:
        self._tool = tool
        self._names = [parameter.name for parameter in parameters]
        try:
            self._model = _build(tool, parameters)
            schema = without_titles(self._model.model_json_schema(by_alias=True))
        except ConfigurationError:
            raise
        except Exception as error:  # pydantic names many, among them those of types' own hooks
            culprit = next((one for one in parameters if not _has_schema(one.annotation)), None)
            what = f"`{culprit.name}: {_type_name(culprit.annotation)}`" if culprit else bounded(str(error), 300)
            raise ConfigurationError(
                f"tool `{where}` has a type that no JSON schema can be made of: {what}",
                code="invalid_tool",
                remedy="use JSON types, dataclasses, TypedDicts or pydantic models",
            ) from error
        self.schema = _completed(schema, parameters)

    def parse(self, text: str) -> dict[str, Any]:
        """The values that the model gave, checked and converted; parameters left out are not in it.

        Raises:
            BadArguments: saying what does not fit, what was given, and what is expected, all faults at once.
        """
        try:
            checked = self._model.model_validate_json("{}" if text.strip() in ("", "null") else clean_text(text))
        except ValidationError as error:
            raise BadArguments(self._explain(error, text)) from None
        given = checked.model_fields_set
        return {name: getattr(checked, f"f{i}") for i, name in enumerate(self._names) if f"f{i}" in given}

    def _explain(self, error: ValidationError, text: str) -> str:
        faults = cast("list[dict[str, Any]]", error.errors(include_url=False))
        if faults[0]["type"] == "json_invalid":
            wrong = syntax_fault(text, str(faults[0]["ctx"]["error"]))
            return f"The arguments of `{self._tool}` are not valid JSON: {wrong}. Send one JSON object."
        if not faults[0]["loc"] and faults[0]["type"] == "model_type":
            given = shown(faults[0]["input"])
            return f"The arguments of `{self._tool}` must be one JSON object, not {given}. {self._known()}"
        lines = [f"- {self._fault(fault)}" for fault in faults[:_MAX_FAULTS]]
        if len(faults) > _MAX_FAULTS:
            lines.append(f"- and {len(faults) - _MAX_FAULTS} more")
        body = "\n".join(lines)
        return clean_text(f"The arguments of `{self._tool}` do not fit:\n{body}\nCall it again with these corrected.")

    def _fault(self, fault: dict[str, Any]) -> str:
        loc = [str(part) for part in fault["loc"]]
        name = bounded(".".join(loc), SHOWN) or "arguments"
        form = self._form(loc)
        if fault["type"] == "extra_forbidden" and len(loc) == 1:
            return f"`{name}`: there is no such argument. {self._known()}"
        if fault["type"] == "missing":
            return f"`{name}`: is missing{form}"
        return f"`{name}`: {lowered(bounded(str(fault['msg']), 300))}, but {shown(fault['input'])} was given{form}"

    def _form(self, loc: Sequence[str]) -> str:
        """How the argument should look, from its schema."""
        known: Mapping[str, Any] = self.schema["properties"]
        if len(loc) != 1 or loc[0] not in known:  # deeper down, pydantic's own message says it
            return ""
        entry: Mapping[str, Any] = known[loc[0]]
        target = str(entry.get("$ref", "")).rpartition("/")[2]
        return f" (expected: {form_of(self.schema.get('$defs', {}).get(target, entry))})"

    def _known(self) -> str:
        if not self._names:
            return f"`{self._tool}` takes no arguments."
        return f"Known: {', '.join(f'`{name}`' for name in self._names)}."


def _build(tool: str, parameters: Sequence[Parameter]) -> type[BaseModel]:
    """A pydantic model whose fields have neutral names: a parameter may be called `schema` or `model_config`."""
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        if isinstance(parameter.default, FieldInfo):
            raise ConfigurationError(
                f"tool `{tool}`: the default of `{parameter.name}` is a pydantic `Field`",
                code="invalid_tool",
                remedy=f"write `{parameter.name}: Annotated[…, Field(…)] = default`",
            )
        # The default itself stays with the function: only what was given is passed to it.
        info = Field(alias=parameter.name) if parameter.default is REQUIRED else Field(alias=parameter.name, default=None)
        fields[f"f{index}"] = (parameter.annotation, info)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False, defer_build=False)
    return create_model(tool, __config__=config, **fields)


def _has_schema(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).json_schema()
    except Exception:  # noqa: BLE001  as above
        return False
    return True


def _type_name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else bounded(str(annotation), 80)


def _completed(schema: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The schema with descriptions from the docstring and the function's own defaults."""
    properties: dict[str, Any] = schema.setdefault("properties", {})
    for parameter in parameters:
        entry: dict[str, Any] = properties[parameter.name]
        entry.pop("default", None)
        if parameter.description:
            entry.setdefault("description", parameter.description)
        if parameter.default is not REQUIRED:
            try:
                entry["default"] = to_jsonable_python(parameter.default)
            except ValueError:  # not expressible: the model only needs to know that it may leave it out
                pass
    schema.pop("description", None)
    schema["additionalProperties"] = False
    return schema
