"""Calls as JSON by a schema, the pure part: the schema, the bytes, what is read of an answer and shown of a stream."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import ChatClientConfig
from retinue.errors import ConfigurationError
from retinue.messages import AssistantMessage, OutputSpec, ToolCall
from retinue.models.faults import Fault
from retinue.models.form import FormReader, form_of, manual_of
from retinue.models.form_wire import FormWire
from retinue.models.port import Envelope, ModelAnswer, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from retinue.models.profiles import Profile
from retinue.models.wire import ChatWire, body_of
from retinue.testing.provider_rules import RULES, refusal
from retinue.testing.provider_schema import fits, malformed
from retinue.testing.requests import Deltas, answered, model_request, tool_spec

ADD = tool_spec("add", a={"type": "integer"})
READ = tool_spec("read", path={"type": "string", "title": "Path", "default": "."})
WIRE = FormWire(Profile("local", "http://127.0.0.1:1/v1"))


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def _body(request: ModelRequest) -> dict[str, Any]:
    return msgspec.json.decode(body_of(WIRE, request, "m"))


def test_an_answer_is_words_or_calls_and_nothing_else() -> None:
    form = form_of([ADD, READ])
    assert malformed(form) is None
    assert fits({"answer": "Hello"}, form)
    assert fits(_call("add", a=1), form)
    assert fits({"calls": [*_call("add", a=1)["calls"], *_call("read", path="x")["calls"]]}, form)
    wrongs: list[Any] = [{}, {"answer": 1}, _call("add", a="1"), _call("gone"), {"calls": []}, {"answer": "", "calls": []}, "Hi"]
    for wrong in wrongs:
        assert not fits(wrong, form), wrong
    assert not fits({"calls": _call("add", a=1)["calls"] * 17}, form)


@pytest.mark.parametrize(
    ("choice", "words", "add", "read"),
    [
        (None, True, True, True),
        ("auto", True, True, True),
        ("none", True, False, False),
        ("required", False, True, True),
        ({"type": "function", "function": {"name": "add"}}, False, True, False),
        ({"type": "function", "function": {"name": "gone"}}, True, False, False),
    ],
)
def test_the_choice_narrows_the_form(choice: Any, words: bool, add: bool, read: bool) -> None:
    form = form_of([ADD, READ], choice)
    found = [fits(value, form) for value in ({"answer": "x"}, _call("add", a=1), _call("read", path="x"))]
    assert found == [words, add, read]


def test_one_call_at_a_time() -> None:
    request = model_request("Hi", tools=[ADD], settings=ChatClientConfig(extra={"parallel_tool_calls": False}))
    body = _body(request)
    form = body["response_format"]["json_schema"]["schema"]
    assert "parallel_tool_calls" not in body
    assert fits(_call("add", a=1), form)
    assert not fits({"calls": _call("add", a=1)["calls"] * 2}, form)


def test_references_point_to_where_the_schema_has_gone() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "top": {"$ref": "#"}}}
    tree = {"type": "object", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    tool = ToolSpec(name="answer", description="x", parameters=tree)
    form = form_of([tool, READ], answer={"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}})
    assert malformed(form) is None
    assert fits(_call("answer", node={"next": {"next": {}}, "top": {"node": {}}}), form)
    assert not fits(_call("answer", node={"next": {"next": 3}}), form)
    assert not fits(_call("answer", node={"top": {"path": "x"}}), form)
    assert fits({"answer": 3}, form)
    assert not fits({"answer": "3"}, form)


def test_notes_stay_in_the_manual_and_names_are_no_notes() -> None:
    properties = {"enum": {"enum": [{"title": 1}]}, "title": {"type": "string", "title": "Title"}}
    tool = ToolSpec(name="t", description="Sets.", parameters={"type": "object", "title": "T", "properties": properties})
    form = form_of([tool])
    arguments = form["anyOf"][1]["properties"]["calls"]["items"]["properties"]["arguments"]
    assert arguments == {"type": "object", "properties": {"enum": {"enum": [{"title": 1}]}, "title": {"type": "string"}}}
    assert '"title":"Title"' in manual_of([tool])


def test_the_history_is_words_of_two() -> None:
    calls = (ToolCall(id="c1", name="add", arguments='{"a": 1}'), ToolCall(id="c2", name="add", arguments="["))
    answer = ModelAnswer(text="I add.", calls=calls)
    history = [*model_request("Add.").history, *answered(answer, "3", 'bad "x"'), *model_request("Thanks.").history]
    request = model_request(*history, tools=[ADD], tail="note")
    messages = _body(request)["messages"]
    assert refusal(_body(request), RULES) is None
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "user", "user", "user"]
    assert messages[2]["content"] == (
        '{"answer":"I add.","calls":[{"name":"add","arguments":{"a": 1}},{"name":"add","arguments":{"invalid_arguments":"["}}]}'
    )
    assert messages[3]["content"] == '{"result_of":"add","call":1,"content":"3"}'
    assert messages[4]["content"] == '{"result_of":"add","call":2,"content":"bad \\"x\\""}'
    assert [message["content"] for message in messages[5:]] == ["Thanks.", "note"]
    assert {*_body(request)} == {"model", "stream", "stream_options", "messages", "response_format"}


def test_a_turn_is_a_prefix_of_the_next_and_an_entry_is_encoded_once() -> None:
    envelope = Envelope(instructions="Be brief.", tools=(ADD,))
    history = [*model_request("Add.").history]
    bodies: list[bytes] = []
    for step in range(1, 4):
        bodies.append(body_of(WIRE, model_request(*history, envelope=envelope, tail="x" * step), "m"))
        history += answered(ModelAnswer(calls=(ToolCall(id=f"c{step}", name="add"),)), "3", message_id=f"msg_{step}")
    ends = [body.index(b',{"role":"user","content":"x') for body in bodies]
    assert all(later.startswith(body[:end]) for body, end, later in zip(bodies, ends, bodies[1:], strict=False))
    assert {entry.wire_format for entry in history[:-2]} == {"form/1"}
    assert history[0].wire_format != ChatWire(Profile("local", "x")).format


def test_no_tools_no_form() -> None:
    body = _body(model_request("Hi", instructions="Be brief."))
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "response_format" not in body


def test_tools_that_may_not_be_called_leave_only_the_answer() -> None:
    bodies = [_body(model_request("Hi", tools=[ADD], tools_allowed=allowed)) for allowed in (True, False)]
    assert bodies[0]["messages"] == bodies[1]["messages"]
    form = bodies[1]["response_format"]["json_schema"]["schema"]
    assert fits({"answer": "x"}, form)
    assert not fits(_call("add", a=1), form)


def test_an_output_of_a_type_is_the_answer() -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    spec = OutputSpec(name="Sum", schema=schema, digest="1")
    request = msgspec.structs.replace(model_request("Hi", tools=[ADD], tail="note"), output=spec)
    body = _body(request)
    form = body["response_format"]["json_schema"]["schema"]
    assert fits({"answer": {"sum": 3}}, form)
    assert not fits({"answer": "3"}, form)
    assert '{"answer": …}' in body["messages"][-1]["content"]
    assert body["messages"][-1]["content"].endswith("note")


@pytest.mark.parametrize("key", ["response_format", "tools"])
def test_the_form_is_the_adapters_own(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _body(model_request("Hi", settings=ChatClientConfig(extra={key: 1})))
    assert caught.value.code == "reserved_setting"


def _read(text: str, *, pieces: int = 1, strict: bool = True, structured: bool = False, **fields: Any) -> tuple[Any, Deltas]:
    shown = Deltas()
    reader = FormReader(shown, strict=strict, structured=structured)
    for at in range(0, len(text), pieces):
        reader(TextDelta(text[at : at + pieces]))
    return reader.read(ModelAnswer(text=text, **fields)), shown


@given(st.text(), st.integers(1, 40), st.booleans())
def test_what_is_shown_is_the_answer(words: str, pieces: int, ascii_only: bool) -> None:
    import json

    text = json.dumps({"answer": words}, ensure_ascii=ascii_only)
    answer, shown = _read(text, pieces=pieces)
    assert isinstance(answer, ModelAnswer)
    assert "".join(delta.text for delta in shown) == answer.text == words
    assert all(delta.text for delta in shown)


def test_it_is_shown_while_it_comes() -> None:
    shown = Deltas()
    reader = FormReader(shown)
    seen: list[str] = []
    for piece in ('{ "answer"', ' : "a', "b\\", "n\\ud83e", "\\udd16", '"', "}"):
        reader(TextDelta(piece))
        seen.append("".join(delta.text for delta in shown))
    assert seen == ["", "a", "ab", "ab\n", "ab\n🤖", "ab\n🤖", "ab\n🤖"]
    reader(ReasoningDelta("hm"))
    assert shown[-1] == ReasoningDelta("hm")


def test_calls_are_never_shown() -> None:
    answer, shown = _read('{"calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "answer"}]}')
    assert shown == []
    assert answer.calls == (
        ToolCall(id="call_0", name="add", arguments='{"a":1}'),
        ToolCall(id="call_1", name="answer", arguments="{}"),
    )
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        *("", "Hello", "[1]", '{"answer": "x"', '{"calls": []}', "{}", '{"text": "x"}', '{"calls": [{"arguments": {}}]}'),
        *('{"calls": [{"name": "", "arguments": {}}]}', '{"calls": [{"name": "add", "arguments": "{}"}]}', '{"calls": {}}'),
        *('{"answer": "x", "answer": "y"}', '{"answer": "a\\x"}', '{"answer": "x"} {"answer": "y"}'),
    ],
)
def test_what_has_not_the_form_is_a_fault_that_may_pass(text: str) -> None:
    fault, _ = _read(text)
    assert isinstance(fault, Fault)
    assert (fault.code, fault.once, fault.retryable) == ("bad_response", True, True)


def test_an_answer_that_was_cut_keeps_its_text_and_no_call() -> None:
    answer, shown = _read('{"answer": "Hel', finish_reason="length")
    assert (answer.text, answer.finish_reason, shown) == ("Hel", "length", [TextDelta(c) for c in "Hel"])
    answer, shown = _read('{"calls": [{"name": "add", "arg', finish_reason="length")
    assert (answer.text, answer.calls, shown) == ("", (), [])


def test_words_without_form_where_only_words_are_asked_for() -> None:
    answer, shown = _read("Hello", pieces=2, strict=False)
    assert (answer.text, shown) == ("Hello", [TextDelta("Hello")])


def test_a_refusal_is_said_in_plain_words() -> None:
    answer, _ = _read("I cannot.", finish_reason="content_filter")
    assert answer.text == "I cannot."


def test_a_structured_answer_is_json_and_not_shown_in_pieces() -> None:
    answer, shown = _read('{"answer": {"sum": 3}}', structured=True)
    assert (answer.text, shown) == ('{"sum":3}', [TextDelta('{"sum":3}')])
    answer, _ = _read('{"answer": "x"}', structured=True)
    assert answer.text == '"x"'


def test_plain_answers_stay_plain() -> None:
    encoded = [WIRE.encode(AssistantMessage(id="m", text=text)) for text in ("Hello", " ")]
    assert encoded == [b'{"role":"assistant","content":"Hello"}', b'{"role":"assistant","content":"(no answer)"}']
