"""`tool_mode="schema"` against the strict provider: a whole conversation, streaming, servers that do not keep to the form."""

from typing import Any

import msgspec
import pytest

from retinue.config import ChatClientConfig
from retinue.errors import ConfigurationError, ModelError
from retinue.messages import Entry
from retinue.models import OpenAIChatModel, TextDelta, reference_of, resolve_model
from retinue.models.port import ModelRequest
from retinue.testing import StrictProvider
from retinue.testing.requests import Deltas, answered, model_request

pytestmark = pytest.mark.anyio

TURNS: list[dict[str, Any]] = [
    {"text": "I add.", "calls": [{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]},
    {"calls": [{"name": "add", "arguments": {}}]},
    {"text": "It is {result}.", "chunk": 4},
]


def _ignore(_: object) -> None:
    pass


def _model(provider: StrictProvider, **options: Any) -> OpenAIChatModel:
    return provider.model(tool_mode="schema", **options)


async def test_a_conversation_with_calls_and_results() -> None:
    async with StrictProvider(TURNS[1:]) as provider:
        model, history = _model(provider), [*model_request("Add.").history]
        first = await model.answer(model_request(*history, tools=["add"]), _ignore)
        assert ([call.name for call in first.calls], first.finish_reason) == (["add"], "tool_calls")
        history += answered(first, "42", provider=model.provider)
        shown = Deltas()
        last = await model.answer(model_request(*history, tools=["add"], step=2), shown)
        assert provider.refused == []
        assert last.text == "It is 42."
        assert len(shown) > 1
        assert "".join(delta.text for delta in shown) == last.text
        first_body, second_body = (request.raw for request in provider.requests)
        end = first_body.index(b'],"response_format"')
        assert second_body.startswith(first_body[:end])
        assert b'"tools"' not in first_body


@pytest.mark.parametrize("piece", [1, 3])
@pytest.mark.parametrize("shape", ["document", "omit_usage", "omit_done", "omit_finish", "crlf"])
async def test_every_shape_of_server(shape: str, piece: int) -> None:
    async with StrictProvider([{"text": "é🤖"}]) as provider:
        provider.fail(shape=[shape], piece=piece)
        shown = Deltas()
        answer = await _model(provider).answer(model_request("Hi", tools=["add"]), shown)
    assert answer.text == "é🤖" == "".join(delta.text for delta in shown)


async def test_a_server_that_lost_the_form_is_asked_once_more() -> None:
    async with StrictProvider([TURNS[1]]) as provider:
        provider.fail(shape=["free_text"])
        answer = await _model(provider).answer(model_request("Hi", tools=["add"]), _ignore)
        assert [call.name for call in answer.calls] == ["add"]
        assert len(provider.requests) == 2
    async with StrictProvider(["Hello"]) as provider:
        provider.fail(shape=["free_text"], times=3)
        shown = Deltas()
        with pytest.raises(ModelError) as caught:
            await _model(provider).answer(model_request("Hi", tools=["add"]), shown)
        assert (caught.value.code, caught.value.retryable, len(provider.requests)) == ("bad_response", False, 2)
        assert "tried 2 times" in caught.value.message
        assert "tool_mode" in (caught.value.remedy or "")
        assert shown == []


async def test_a_half_answer_that_was_shown_is_not_asked_again() -> None:
    async with StrictProvider(['{"answer": "Hel']) as provider:
        shown = Deltas()
        provider.fail(shape=["free_text"])
        with pytest.raises(ModelError) as caught:
            await _model(provider).answer(model_request("Hi", tools=["add"]), shown)
        assert (caught.value.code, caught.value.retryable) == ("bad_response", True)
        assert "tried once" in caught.value.message
        assert (shown, len(provider.requests)) == ([TextDelta("Hel")], 1)


async def test_only_words_where_no_tool_may_be_called() -> None:
    async with StrictProvider(["Hello"]) as provider:
        for shape in ([], ["free_text"]):
            provider.fail(shape=shape)
            answer = await _model(provider).answer(model_request("Hi", tools=["add"], tools_allowed=False), _ignore)
            assert (answer.text, answer.calls) == ("Hello", ())


async def test_an_agent_without_tools_is_asked_as_ever() -> None:
    async with StrictProvider(["Hello"]) as provider:
        assert (await _model(provider).answer(model_request("Hi"), _ignore)).text == "Hello"
        assert "response_format" not in provider.requests[0].body


async def test_the_provider_refuses_a_schema_that_is_none() -> None:
    def asking(reference: str) -> ModelRequest:
        request = model_request("Hi", tools=["add"])
        tool = msgspec.structs.replace(request.envelope.tools[0], parameters={"properties": {"a": {"$ref": reference}}})
        return msgspec.structs.replace(request, envelope=msgspec.structs.replace(request.envelope, tools=(tool,)))

    async with StrictProvider() as provider:
        with pytest.raises(ModelError) as caught:
            await _model(provider).answer(asking("#/$defs/Gone"), _ignore)
        assert caught.value.code == "bad_request"
        assert "leads nowhere" in caught.value.message
        assert (await _model(provider).answer(asking("#"), _ignore)).text == "ok"


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("http://127.0.0.1:8080/v1?tool_mode=schema#a", "http://127.0.0.1:8080/v1?tool_mode=schema#a"),
        ("http://127.0.0.1:8080/v1#a?tool_mode=schema", "http://127.0.0.1:8080/v1?tool_mode=schema#a"),
        ("ollama:llama3.2:3b?tool_mode=schema", "ollama:llama3.2:3b?tool_mode=schema"),
        ("http://127.0.0.1:8080/v1?tool_mode=native#a", "http://127.0.0.1:8080/v1#a"),
        ("http://127.0.0.1:8080/v1?tool_mode=schema#a?tool_mode=native", "http://127.0.0.1:8080/v1#a"),
    ],
)
def test_a_text_says_the_mode_and_the_model_says_it_again(text: str, reference: str) -> None:
    model = resolve_model(text)
    assert reference_of(model) == reference
    assert reference_of(resolve_model(reference)) == reference
    assert "tool_mode" not in model.name


@pytest.mark.parametrize("parent", ["http://127.0.0.1:8080/v1?tool_mode=schema#a", "ollama:a?tool_mode=schema"])
def test_a_child_on_the_same_server_has_the_same_mode(parent: str) -> None:
    model = resolve_model("b", parent_provider=parent)
    assert isinstance(model, OpenAIChatModel)
    assert (model.name, model.tool_mode) == ("b", "schema")
    other = resolve_model("b?tool_mode=native", parent_provider=parent)
    assert isinstance(other, OpenAIChatModel)
    assert (other.name, other.tool_mode) == ("b", "native")


@pytest.mark.parametrize("text", ["http://127.0.0.1:8080/v1?tool_mode=x#a", "ollama:a?tool_mode=", "http://127.0.0.1:1/v1?a=1#a"])
def test_a_mode_that_is_none_is_said_at_once(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(text)
    assert caught.value.code in ("invalid_tool_mode", "invalid_base_url")


async def test_a_fork_of_the_other_mode_encodes_anew() -> None:
    async with StrictProvider([TURNS[0], "Done.", "Done."]) as provider:
        native, schema = provider.model(), _model(provider)
        history: list[Entry] = [*model_request("Add.").history]
        answer = await native.answer(model_request(*history, tools=["add"]), _ignore)
        history += answered(answer, "1", "2", provider=native.provider)
        for model in (schema, native, schema):
            assert (await model.answer(model_request(*history, tools=["add"], step=2), _ignore)).text == "Done."
        assert provider.refused == []
        assert provider.requests[1].raw == provider.requests[3].raw


async def test_narrowing_is_not_sent() -> None:
    settings = ChatClientConfig(extra={"tool_choice": "required", "seed": 1})
    async with StrictProvider([TURNS[1]]) as provider:
        await _model(provider).answer(model_request("Hi", tools=["add"], settings=settings), _ignore)
        body = provider.requests[0].body
    assert ("tool_choice" in body, body["seed"]) == (False, 1)
