"""Values of a wrong kind are refused where they are given, with what is expected."""

from collections.abc import Callable
from typing import Any

import pytest

from retinue import Agent, ConfigurationError, PermissionRules, ScriptedModel, SubAgent, ToolHarness, tool

pytestmark = pytest.mark.anyio

MODEL = ScriptedModel({"*": ["ok"]})


@pytest.mark.contract("D-27")
@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"model": 42}, "`model` is 42"),
        ({"model": ScriptedModel}, "the class `ScriptedModel`"),
        ({"model": MODEL, "subagents": SubAgent("a", "A.")}, "a list"),
        ({"model": MODEL, "subagents": ["a"]}, "SubAgent.from_factory"),
        ({"model": MODEL, "permissions": {"deny": ["x"]}}, "PermissionRules("),
        ({"model": MODEL, "tools": len}, "a list of functions"),
        ({"model": MODEL, "tool_harnesses": ToolHarness}, "a list of classes"),
        ({"model": MODEL, "middleware": MODEL}, "`middleware` is a `ScriptedModel`"),
        ({"model": MODEL, "limits": {"max_children": 1}}, "Limits("),
        ({"model": MODEL, "chat": {"temperature": 1}}, "ChatClientConfig("),
        ({"model": MODEL, "models": ["x"]}, "a mapping from name"),
        ({"model": MODEL, "ledger": 42}, "`ledger` is 42"),
        ({"model": MODEL, "runtime": "x"}, "Runtime("),
        ({"model": MODEL, "on_request": "yes"}, "async (request) -> bool"),
        ({"model": MODEL, "instructions": None}, "`instructions` is a `NoneType`"),
        ({"model": MODEL, "max_iters": "3"}, "a whole number"),
    ],
)
def test_an_agent_says_at_once_what_it_cannot_take(parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Agent("a", **parameters)
    assert told in str(caught.value)


@pytest.mark.parametrize(("text", "context"), [(None, None), (5, None), ("go", "s1")])
async def test_a_run_says_at_once_what_it_cannot_take(text: Any, context: Any) -> None:
    async with Agent("a", model=MODEL) as agent:
        with pytest.raises(ConfigurationError):
            await agent.run(text, context=context)


@pytest.mark.parametrize(("model", "told"), [(MODEL, "models={"), (42, '"openai:gpt-5"'), (" ", "name a model")])
def test_a_subagent_names_its_model_by_a_text(model: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match="subagent `x`: `model` is") as caught:
        SubAgent("x", "X.", instructions="X.", model=model)
    assert told in (caught.value.remedy or "")


@tool
def keep(text: str, what: Callable[[], None]) -> str:
    """Keep it."""
    return f"{text} {what}"


async def test_a_type_without_a_schema_is_named_with_its_parameter() -> None:
    with pytest.raises(ConfigurationError, match=r"can be made of: `what: collections\.abc\.Callable") as caught:
        await Agent("a", model=MODEL, tools=[keep]).build()
    assert "pydantic-core" not in str(caught.value)


async def test_a_printed_result_is_short() -> None:
    async with Agent("a", model=ScriptedModel({"*": ["Hello."]})) as agent:
        result = await agent.run("go")
    assert str(result) == "completed\nHello."
    script = ScriptedModel([{"calls": [{"name": "keep_note", "arguments": {"text": "x"}}]}])
    async with Agent("a", model=script, tools=[keep_note], permissions=PermissionRules(ask=["keep_note"])) as agent:
        waiting = await agent.run("go")
    request = waiting.requests[0]
    assert str(waiting) == f"waiting (permission)\nopen: `a` asks for `keep_note` ({request.request_id})"
    async with Agent("a", model=ScriptedModel([{"error": {"code": "authentication"}}])) as agent:
        failed = await agent.run("go", check=False)
    said = str(failed).splitlines()
    assert said[0].startswith("failed (authentication): `scripted` refused the key")
    assert said[1].startswith("to do: ")
    assert len(said) == 2


@tool
def keep_note(text: str) -> str:
    """Keep it."""
    return text
