"""The scripted model decides from the transcript, so that a resumed run gets the same answers."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.errors import ConfigurationError, ModelError
from retinue.messages import AssistantMessage, CallRef, Entry, ToolCall, ToolResult, Usage, UserMessage
from retinue.models.port import ModelAnswer, ModelRequest, ReasoningDelta, TextDelta
from retinue.models.script import Script, Turn, parse_script
from retinue.models.scripted import ScriptedModel
from retinue.testing import VirtualClock
from retinue.testing.requests import Deltas, model_request

pytestmark = pytest.mark.anyio


def _ignore(_: object) -> None:
    pass


def _result(name: str, content: str, place: int = 0) -> ToolResult:
    return ToolResult(call=CallRef("m", place), call_id=f"c{place}", name=name, content=content)


async def test_turns_by_agent_and_step() -> None:
    model = ScriptedModel({"a": ["a1", "a2"], "b": ["b1"], "*": ["any"]})
    said = [
        (await model.answer(model_request("x", agent_id=agent, step=step), _ignore)).text
        for agent, step in (("a", 2), ("b", 1), ("a", 1), ("c", 1), ("a", 2))
    ]
    assert said == ["a2", "b1", "a1", "any", "a2"]


async def test_another_process_answers_the_same() -> None:
    script = [{"calls": [{"name": "add", "arguments": {"a": 1}}]}, "done"]
    request = model_request("x", step=2)
    assert await ScriptedModel(script).answer(request, _ignore) == await ScriptedModel(script).answer(request, _ignore)


async def test_an_answer_with_everything() -> None:
    turn = {
        "text": "abcde",
        "chunk": 2,
        "reasoning": "hm",
        "calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "raw", "arguments": "{half", "id": "x"}],
        "usage": {"input": 1_000_000, "output": 500_000, "cached": 200_000},
        "extras": {"k": 1},
    }
    model = ScriptedModel({"agents": {"*": [turn]}, "model": "demo", "price": {"input": 2, "output": 10, "cached": "0.5"}})
    for _ in range(2):  # planned the first time, played from the plan the second
        deltas = Deltas()
        answer = await model.answer(model_request("x"), deltas)
        assert deltas == [ReasoningDelta("hm"), TextDelta("ab"), TextDelta("cd"), TextDelta("e")]
        assert answer == ModelAnswer(
            text="abcde",
            reasoning="hm",
            calls=(ToolCall(id="call_1_0", name="add", arguments='{"a":1}'), ToolCall(id="x", name="raw", arguments="{half")),
            usage=Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=200_000, calls=1),
            cost=Decimal("1.6") + Decimal("0.1") + Decimal(5),
            finish_reason="tool_calls",
            extras={"k": 1},
            model="demo",
        )


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{input}", "the question"),
        ("{agent}", "agent"),
        ("{result}", "two"),
        ("{result[0]} {result[1]} {result[-1]}", "one two two"),
        ("{result.look} {result.read}", "one two"),
        ("{results}", "one\ntwo"),
        ("[{result[7]}{result.gone}]", "[]"),
        ("{other} {} {{input}}", "{other} {} {the question}"),
    ],
)
async def test_templates(template: str, filled: str) -> None:
    calls = (ToolCall(id="c0", name="look"), ToolCall(id="c1", name="read"))
    history = (
        "the question",
        AssistantMessage(id="m", calls=calls),
        _result("look", "one"),
        _result("read", "two", 1),
        UserMessage(id="n", text="<notice>", notice="roster"),
    )
    model = ScriptedModel([{"text": template, "calls": [{"name": "use", "arguments": {"deep": [template]}}]}])
    answer = await model.answer(model_request(*history), _ignore)
    assert answer.text == filled
    assert msgspec.json.decode(answer.calls[0].arguments) == {"deep": [filled]}
    again = await model.answer(model_request("other question"), _ignore)
    assert again.text != answer.text or "{input}" not in template


async def test_the_fallback_answers_after_the_last_turn() -> None:
    model = ScriptedModel({"agents": {"a": {"turns": ["1"], "fallback": "more"}, "b": ["1"]}, "fallback": "at last"})
    assert (await model.answer(model_request("x", agent_id="a", step=9), _ignore)).text == "more"
    assert (await model.answer(model_request("x", agent_id="b", step=9), _ignore)).text == "at last"
    assert (await model.answer(model_request("x", agent_id="c"), _ignore)).text == "at last"


async def test_a_turn_that_is_missing_is_an_error() -> None:
    with pytest.raises(ModelError) as caught:
        await ScriptedModel(["1"]).answer(model_request("x", step=2), _ignore)
    assert str(caught.value) == (
        "the script of `scripted` model `scripted` has no turn 2 for agent `agent`; not retried. Add the turn, or a `fallback`."
    )


async def test_a_scripted_error() -> None:
    turn = {"text": "half", "error": {"code": "rate_limited", "message": "slow", "retry_after": 3, "status": 429}}
    deltas = Deltas()
    with pytest.raises(ModelError) as caught:
        await ScriptedModel([turn]).answer(model_request("x"), deltas)
    error = caught.value
    assert deltas == [TextDelta("half")]
    assert (error.code, error.retryable, error.retry_after, error.status) == ("rate_limited", True, 3, 429)
    with pytest.raises(ModelError) as caught:
        await ScriptedModel([{"error": {"retryable": False}}]).answer(model_request("x"), _ignore)
    assert not caught.value.retryable


async def test_delays_are_of_the_clock() -> None:
    clock = VirtualClock(auto=True)
    model = ScriptedModel([{"text": "abcd", "chunk": 2, "delay": 10, "chunk_delay": 1}], clock=clock)
    for turn in (1, 2):
        await model.answer(model_request("x"), _ignore)
        assert clock.monotonic() == 12 * turn


async def test_usage_can_be_estimated() -> None:
    model = ScriptedModel([{"text": "12345678", "usage": "estimate"}])
    answer = await model.answer(model_request("x" * 40, instructions=""), _ignore)
    assert answer.usage == Usage(input_tokens=10, output_tokens=2, calls=1)
    assert answer.cost is None


async def _later(request: ModelRequest) -> str:
    return f"later {request.step}"


FUNCTIONS: list[tuple[Callable[[ModelRequest], Any], str]] = [
    (lambda request: f"now {request.step}", "now 1"),
    (_later, "later 1"),
    (lambda _: ModelAnswer(text="whole"), "whole"),
    (lambda _: Turn(text="{input} is not filled in"), "{input} is not filled in"),
    (lambda _: {"text": "an object"}, "an object"),
]


@pytest.mark.parametrize(("function", "text"), FUNCTIONS)
async def test_a_function_answers(function: Callable[[ModelRequest], Any], text: str) -> None:
    deltas = Deltas()
    answer = await ScriptedModel(function).answer(model_request("x"), deltas)
    assert answer.text == text
    assert deltas == [TextDelta(text)]


async def test_a_function_is_asked_each_time() -> None:
    asked: list[int] = []

    def function(request: ModelRequest) -> str:
        asked.append(request.step)
        return "same"

    model = ScriptedModel(function)
    await model.answer(model_request("x"), _ignore)
    await model.answer(model_request("x"), _ignore)
    assert asked == [1, 1]


@pytest.mark.parametrize(("suffix", "text"), [(".json", '{"a": ["x"]}'), (".yaml", "a:\n- x\n"), (".yml", "a:\n- text: x\n")])
def test_scripts_from_files(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"script{suffix}"
    path.write_text(text)
    assert parse_script(path) == parse_script(str(path)) == parse_script({"a": ["x"]})
    assert ScriptedModel(path).reference == f"scripted:{path}"


def test_a_script_is_its_own_source() -> None:
    script = parse_script({"a": [Turn(text="x")], "b": "y"})
    assert parse_script(script) is script
    assert isinstance(script, Script)
    assert ScriptedModel(script).reference is None


UNUSABLE: list[tuple[Any, str]] = [
    ({"a": [{"nonsense": 1}]}, "nonsense"),
    ({"a": [{"calls": [{"arguments": {}}]}]}, "name"),
    ({"a": [1]}, "int"),
    ({"a": {"turns": ["x"], "nonsense": 1}}, "nonsense"),
    ({"agents": {}, "nonsense": 1}, "nonsense"),
    ({"agents": []}, "agents"),
    ({"a": [{"error": {"code": "nonsense"}}]}, "nonsense"),
    (1, "int"),
    ({"lead": ["x", {"cals": []}]}, "agent `lead`, turn 2: unknown field `cals`, did you mean `calls`"),
    ({"lead": [{"calls": [{"nam": "x"}]}]}, "agent `lead`, turn 1: .*did you mean `name`"),
    ({"lead": {"turn": ["x"]}}, "agent `lead`: unknown field `turn`, did you mean `turns`"),
    ({"lead": {"turns": ["x"], "fallback": {"zzz": 1}}}, "agent `lead`, `fallback`: unknown field `zzz`; the fields are text,"),
    ({"lead": 3}, "agent `lead`: its turns are of type int, not a list"),
    ([{"text": 3}], "turn 1: Expected `str`"),
]


@pytest.mark.parametrize(("source", "words"), UNUSABLE)
def test_a_script_that_cannot_be_used(source: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        ScriptedModel(source)
    assert caught.value.code == "invalid_script"
    assert caught.value.remedy


async def test_an_agent_that_the_script_does_not_name_is_told_which_it_names() -> None:
    with pytest.raises(ModelError) as caught:
        await ScriptedModel({"assistent": ["x"]}).answer(model_request("go"), lambda delta: None)
    assert caught.value.remedy == "add turns for `agent`, or a `fallback`; the script has turns for `assistent`"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ScriptedModel(tmp_path / "none.json")
    assert caught.value.code == "script_missing"
    for suffix in (".json", ".yaml"):
        path = tmp_path / f"bad{suffix}"
        path.write_text("{[")
        with pytest.raises(ConfigurationError) as caught:
            ScriptedModel(path)
        assert caught.value.code == "invalid_script"
        assert str(path) in caught.value.message


class Untouched(tuple[Entry, ...]):
    """A history that nobody may look through."""

    def __iter__(self) -> Any:
        raise AssertionError("a plain turn looked through the history")


def test_a_plain_turn_does_not_look_through_the_history() -> None:
    request = model_request(*["y"] * 20)
    request = msgspec.structs.replace(request, history=Untouched(request.history))
    with pytest.raises(StopIteration) as ended:
        ScriptedModel(["x"]).answer(request, _ignore).send(None)
    assert ended.value.value.text == "x"
