"""What a chat model of one's own may give back: wrong values end the run with words, and nothing of them is stored."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import pytest

from retinue import Agent, PermissionRules, RunFailed, RuntimeContext, tool
from retinue.agent.answers import call_name, checked_answer
from retinue.errors import ModelError
from retinue.messages import AssistantMessage, ToolCall, ToolResult, Usage
from retinue.models.port import Emit, ModelAnswer, ModelRequest, TextDelta
from retinue.states import ResultStatus
from retinue.testing import ScriptedModel

pytestmark = pytest.mark.anyio

VALID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CONTEXT = RuntimeContext(session_id="s")


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class Giving:
    """Answers what it is given the first time, then a text."""

    provider = "own"
    name = "wrong"

    def __init__(self, given: Any, delta: Any = None) -> None:
        self.given: list[Any] = [given]
        self.delta = delta

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        if not self.given:
            return ModelAnswer(text="well")
        given = self.given.pop()
        if self.delta is not None:
            emit(self.delta)
        return given

    async def close(self) -> None: ...


@tool
async def deploy(env: str = "prod") -> str:
    """Deploy."""
    return f"deployed {env}"


def call(**wrong: Any) -> ModelAnswer:
    return ModelAnswer(calls=(ToolCall(**{"id": "c", "name": "deploy"} | wrong),))


WRONG: list[tuple[str, Any]] = [
    ("it is `None` (NoneType); expected a `ModelAnswer`", None),
    ("`text` is `5` (int); expected a `str`", ModelAnswer(text=cast("str", 5))),
    ("`reasoning` is `5`", ModelAnswer(reasoning=cast("str", 5))),
    ("`model` is `5`", ModelAnswer(model=cast("str", 5))),
    ("`finish_reason` is `None`", ModelAnswer(finish_reason=cast("Any", None))),
    ("`usage` is `None`", ModelAnswer(usage=cast("Usage", None))),
    ("`usage` is `'7'`", ModelAnswer(usage=Usage(input_tokens=cast("int", "7")))),
    ("`usage` is `18446744073709551616`", ModelAnswer(usage=Usage(output_tokens=2**64))),
    ("`cost` is `0.1`", ModelAnswer(cost=cast("Decimal", 0.1))),
    ("`cost` is `Decimal('NaN')`", ModelAnswer(cost=Decimal("NaN"))),
    ("`calls` is `5`", ModelAnswer(calls=cast("Any", 5))),
    ("`calls[0]` is `'x'`", ModelAnswer(calls=cast("Any", ("x",)))),
    ("`calls[0].id` is `None`", call(id=None)),
    ("`calls[0].name` is `None`", call(name=None)),
    ("`calls[0].provider_id` is `5`", call(provider_id=5)),
    ("`calls[0].arguments` is `None`", call(arguments=None)),
    ("`calls[0].arguments` cannot be stored", call(arguments={"a": object()})),
    ("`extras` is `[]`", ModelAnswer(extras=cast("Any", []))),
    ("`extras` cannot be stored", ModelAnswer(text="x", extras={"a": object()})),
    ("`extras` cannot be stored: it is nested deeper", ModelAnswer(text="x", extras=deep(5_000))),
]


@pytest.mark.parametrize(("said", "given"), WRONG, ids=[said for said, _ in WRONG])
async def test_a_wrong_value_fails_the_run_and_leaves_the_thread_usable(said: str, given: Any) -> None:
    async with Agent("root", model=Giving(given), tools=[deploy]) as agent:
        with pytest.raises(RunFailed) as caught:
            await agent.run("go", context=CONTEXT)
        assert caught.value.code == "bad_answer"
        assert said in str(caught.value)
        assert "`wrong` (own)" in str(caught.value)
        assert caught.value.remedy
        assert (await agent.run("again", context=CONTEXT)).text == "well"
        thread = await agent.threads.get(session_id="s")
        assert not any(isinstance(message, ToolResult) for message in await thread.messages())
        assert await thread.events()


@pytest.mark.parametrize("delta", [TextDelta(cast("str", 5)), "text", object()], ids=["number", "text", "object"])
async def test_a_wrong_delta_fails_the_run(delta: Any) -> None:
    async with Agent("root", model=Giving(ModelAnswer(text="x"), delta)) as agent:
        with pytest.raises(RunFailed, match="`emit` is") as caught:
            await agent.run("go", context=CONTEXT)
        assert caught.value.code == "bad_answer"
        assert (await agent.run("again", context=CONTEXT)).text == "well"


async def test_arguments_given_as_an_object_are_stored_as_text() -> None:
    async with Agent("root", model=Giving(call(arguments={"env": "test \ud800"})), tools=[deploy]) as agent:
        result = await agent.run("go", context=CONTEXT)
        assert result.thread is not None
        messages = await result.thread.messages()
        assert [one.content for one in messages if isinstance(one, ToolResult)] == ["deployed test \ufffd"]
        asked = next(one for one in messages if isinstance(one, AssistantMessage))
        assert asked.calls[0].arguments == '{"env":"test \ufffd"}'
        assert await result.thread.events()
        assert (await agent.run("again", context=CONTEXT)).text == "well"


async def test_a_list_of_calls_is_as_good_as_a_tuple() -> None:
    given = ModelAnswer(calls=cast("Any", [ToolCall(id="c", name="deploy")]))
    async with Agent("root", model=Giving(given), tools=[deploy]) as agent:
        assert (await agent.run("go")).text == "well"


def test_a_good_answer_is_not_copied() -> None:
    answer = ModelAnswer(text="x", calls=(ToolCall(id="c", name="n"),), extras={"a": [1, {"b": None}]}, cost=Decimal("0.1"))
    assert checked_answer(Giving(None), answer) is answer
    with pytest.raises(ModelError):
        checked_answer(Giving(None), cast("ModelAnswer", answer.text))


NAMES = [
    ("functions.noop", "functions_noop"),
    ("a" * 100, "a" * 64),
    ("nöp x", "n_p_x"),
    ("", "unnamed"),
    ("a\0", "a_"),
    ("\ud800", "_"),
    ("a\n", "a_"),
    ("a" * 5_000_000, "a" * 64),
]


async def conversation(names: Sequence[str], **rules: Any) -> list[ToolResult]:
    """The results of one call of each name; the names that were stored are all valid."""
    calls = tuple(ToolCall(id=f"c{place}", name=name) for place, name in enumerate(names))
    sent: list[str] = []

    def answers(request: ModelRequest) -> Any:
        asked = [one.message for one in request.history if isinstance(one.message, AssistantMessage)]
        sent.extend(made.name for message in asked for made in message.calls)
        sent.extend(one.message.name for one in request.history if isinstance(one.message, ToolResult))
        return "done" if asked else ModelAnswer(calls=calls)

    async with Agent("root", model=ScriptedModel(answers), tools=[deploy], **rules) as agent:
        result = await agent.run("go")
        assert len(sent) == 2 * len(names)
        assert all(VALID.fullmatch(name) for name in sent)
        assert result.thread is not None
        return [one for one in await result.thread.messages() if isinstance(one, ToolResult)]


@pytest.mark.parametrize(("name", "stored"), NAMES, ids=[stored[:20] + str(len(name)) for name, stored in NAMES])
async def test_a_name_that_a_provider_refuses_is_stored_as_one_that_it_takes(name: str, stored: str) -> None:
    (result,) = await conversation([name])
    assert result.status is ResultStatus.ERROR
    assert result.name == stored
    assert "There is no tool" in result.content
    assert "`deploy`" in result.content


async def test_a_known_tool_behind_the_prefix_of_its_namespace_is_that_tool_and_gated_as_it() -> None:
    (result,) = await conversation(["functions.deploy"])
    assert (result.name, result.content) == ("deploy", "deployed prod")
    (denied,) = await conversation(["functions.deploy"], permissions=PermissionRules(deny=["deploy"]))
    assert (denied.name, denied.status) == ("deploy", ResultStatus.DENIED)


def test_a_name_that_is_no_tool_never_becomes_one() -> None:
    tools = {"a_b", "x" * 64, "_"}
    for name in ("a.b", "functions.a.b", "x" * 65, "é", "other.a_b"):
        made = call_name(name, tools)
        assert VALID.fullmatch(made)
        assert made not in tools
    assert call_name("a_b", tools) == "a_b"
    assert call_name("functions.a_b", tools) == "a_b"
