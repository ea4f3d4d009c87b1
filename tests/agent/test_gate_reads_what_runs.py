"""What the gate is asked about is what runs: no spelling of arguments gets past a rule."""

from pathlib import Path

import pytest

from retinue import Agent, HarnessAgent, ModelAnswer, ModelRequest, PermissionRules, ScriptedModel
from retinue.messages import ToolCall, ToolResult

pytestmark = pytest.mark.anyio


def calling(name: str, arguments: str) -> ScriptedModel:
    def answer(request: ModelRequest) -> ModelAnswer:
        if request.step == 1:
            return ModelAnswer(calls=(ToolCall(id="c", name=name, arguments=arguments),))
        last = request.history[-1].message
        return ModelAnswer(text=last.content if isinstance(last, ToolResult) else "?")

    return ScriptedModel(answer)


@pytest.mark.parametrize("arguments", ["null", "", "  ", "\u00a0", "{}", '{"env": "prod"}', '{"env":"a","env":"prod"}'])
async def test_a_denied_tool_does_not_run_whatever_its_arguments_look_like(arguments: str) -> None:
    ran: list[str] = []

    async def deploy(env: str = "prod") -> str:
        """Deploy."""
        ran.append(env)
        return "done"

    async with Agent("a", model=calling("deploy", arguments), tools=[deploy], permissions=PermissionRules(deny=["*"])) as agent:
        result = await agent.run("go")
    assert "Not allowed" in result.text
    assert ran == []


@pytest.mark.parametrize("arguments", ['{"amount": NaN}', '{"amount": 1e999}', '{"amount": Infinity}', "[1]", "{"])
async def test_what_is_no_json_object_does_not_run(arguments: str) -> None:
    ran: list[float] = []

    async def pay(amount: float) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    async with Agent("a", model=calling("pay", arguments), tools=[pay]) as agent:
        result = await agent.run("go")
    assert "The arguments of `pay`" in result.text
    assert ran == []


async def test_a_tool_gets_the_arguments_that_the_gate_saw() -> None:
    got: list[str] = []

    async def note(text: str) -> str:
        """Note."""
        got.append(text)
        return "ok"

    rules = PermissionRules(deny=["note(b)"])
    async with Agent("a", model=calling("note", '{"text":"b","text":"a"}'), tools=[note], permissions=rules) as agent:
        await agent.run("go")
    assert got == ["a"]


async def test_a_protected_file_is_not_written_by_arguments_that_only_one_parser_reads(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("good")
    arguments = '{"path":"AGENTS.md","content":NaN,"content":"evil"}'
    async with HarnessAgent(
        "a", model=calling("write_file", arguments), workspace=tmp_path, permissions=PermissionRules(allow=["write_file"])
    ) as agent:
        await agent.run("go")
    assert (tmp_path / "AGENTS.md").read_text() == "good"


@pytest.mark.parametrize(
    ("name", "deny", "arguments"),
    [
        ("deploy", "deploy(prod)", "{}"),
        ("refund", "refund(5)", '{"n":5.0}'),
        ("refund", "refund(5)", '{"n":"+5"}'),
        ("refund", "refund(5)", '{"n":"5"}'),
    ],
)
async def test_a_rule_sees_the_value_that_the_tool_will_be_called_with(name: str, deny: str, arguments: str) -> None:
    ran: list[object] = []

    async def deploy(env: str = "prod") -> str:
        """Deploy."""
        ran.append(env)
        return "done"

    async def refund(n: int) -> str:
        """Refund."""
        ran.append(n)
        return "done"

    async with Agent(
        "a", model=calling(name, arguments), tools=[deploy, refund], permissions=PermissionRules(deny=[deny])
    ) as agent:
        result = await agent.run("go")
    assert "Not allowed" in result.text
    assert ran == []
