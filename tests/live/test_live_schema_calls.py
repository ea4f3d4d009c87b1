"""Calls by a schema: a model that never made a valid call of its own accord makes one every time."""

from typing import Any

import msgspec
import pytest

from retinue.config import ChatClientConfig
from retinue.messages import OutputSpec
from retinue.models import ModelAnswer, OpenAIChatModel, TextDelta, ToolSpec
from retinue.testing.provider_schema import fits
from retinue.testing.requests import Deltas, answered, model_request

pytestmark = pytest.mark.anyio

TEXT = {"type": "string", "maxLength": 60}


def _tool(name: str, description: str, **properties: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=parameters)


AGENTS = {"enum": ["reviewer", "historian", "coder"]}
TOOLS = (
    _tool("agent_spawn", "Gives a task to a subagent.", agent_id=AGENTS, task=TEXT),
    _tool("read_file", "Reads a file.", path=TEXT),
    _tool("add", "Adds two numbers.", a={"type": "integer"}, b={"type": "integer"}),
)
PROMPTS = (
    "Who wrote Hamlet? Ask the historian.",
    "Read the file notes.txt.",
    "What is 17 plus 25?",
    "Let the coder write a function that sorts a list.",
)
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "required": "required",
    "named": {"type": "function", "function": {"name": "agent_spawn"}},
}


def _settings(**extra: Any) -> ChatClientConfig:
    return ChatClientConfig(max_tokens=200, extra={"parallel_tool_calls": False, **extra})


def _is_valid(answer: ModelAnswer, choice: str) -> bool:
    if not answer.calls:
        return choice == "auto" and bool(answer.text.strip())  # words, perhaps cut at the limit
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    right = choice != "named" or [call.name for call in answer.calls] == ["agent_spawn"]
    return right and all(fits(msgspec.json.decode(call.arguments), dict(schemas[call.name])) for call in answer.calls)


async def test_twelve_of_twelve(schema_model: OpenAIChatModel) -> None:
    valid: list[bool] = []
    made = 0
    for choice, wanted in CHOICES.items():
        for prompt in PROMPTS:
            request = model_request(prompt, tools=TOOLS, settings=_settings(tool_choice=wanted))
            answer = await schema_model.answer(request, Deltas())
            valid.append(_is_valid(answer, choice))
            made += bool(answer.calls)
            said = [f"{call.name}{call.arguments}" for call in answer.calls] or [answer.text]
            print(
                f"{'valid' if valid[-1] else 'WRONG'} {choice:8} {answer.usage.output_tokens:3} tokens  {prompt}  ->  {said[0]}"
            )
    print(f"{sum(valid)} of {len(valid)} valid, {made} with calls")
    assert sum(valid) == 12
    assert made >= 8  # all of the required and named ones


async def test_a_call_its_result_and_the_answer(schema_model: OpenAIChatModel) -> None:
    history = [*model_request("What is 17 plus 25?").history]
    request = model_request(*history, tools=TOOLS, settings=_settings(tool_choice="required"))
    first = await schema_model.answer(request, Deltas())
    history += answered(first, "42", provider=schema_model.provider)
    shown = Deltas()
    last = await schema_model.answer(model_request(*history, tools=TOOLS, step=2, tools_allowed=False), shown)
    print(f"{first.calls[0].name}{first.calls[0].arguments} -> 42 -> {last.text!r} in {len(shown)} deltas")
    assert last.text.strip()
    assert not last.text.startswith("{")
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == last.text


async def test_an_answer_of_a_type_beside_tools(schema_model: OpenAIChatModel) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    request = model_request("What is 17 plus 25?", tools=TOOLS, tools_allowed=False, settings=_settings())
    asked = msgspec.structs.replace(request, output=OutputSpec(name="Sum", schema=schema, digest="1"))
    answer = await schema_model.answer(asked, Deltas())
    print(answer.text)
    assert isinstance(msgspec.json.decode(answer.text)["sum"], int)


async def test_schemas_with_references(schema_model: OpenAIChatModel) -> None:
    node = {"type": "object", "properties": {"name": TEXT, "next": {"$ref": "#/$defs/Node"}}, "required": ["name"]}
    ends = {name: {"$ref": "#/$defs/Node"} for name in ("first", "last")}
    parameters = {"type": "object", "properties": ends, "required": [*ends], "$defs": {"Node": node}}
    tool = ToolSpec(name="plan", description="Notes the first and the last step.", parameters=parameters)
    settings = _settings(tool_choice="required")
    answer = await schema_model.answer(model_request("Plan a walk in two steps.", tools=[tool], settings=settings), Deltas())
    print(f"{answer.finish_reason} {[call.arguments for call in answer.calls]}")
    assert answer.finish_reason in ("tool_calls", "length")
    assert all(fits(msgspec.json.decode(call.arguments), dict(tool.parameters)) for call in answer.calls)
