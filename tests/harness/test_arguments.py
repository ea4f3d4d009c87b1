"""Values of a wrong kind are refused where they are given, with what is expected."""

from typing import Any

import pytest

from retinue import Agent, ConfigurationError, ScriptedModel, SubAgent

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
