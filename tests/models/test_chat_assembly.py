"""An answer is the same however its provider cuts it into chunks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.messages import Usage
from retinue.models import assemble
from retinue.models.assemble import Assembler, BadStream, EndlessAnswer
from retinue.models.port import ModelAnswer, ReasoningDelta, TextDelta
from retinue.models.wire import CALLS_NOTE, REASONING_NOTE


def _assembled(*deltas: dict[str, Any], finish: str | None = "stop") -> ModelAnswer:
    assembler = Assembler()
    for delta in deltas:
        assembler.feed({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    if finish:
        assembler.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    assembler.flush()
    return assembler.answer()


def _call(index: int | None, call_id: str | None, name: str | None, arguments: Any = "") -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    if name is not None:
        call["function"]["name"] = name
    return call


def _seen(answer: ModelAnswer) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in answer.calls]


CALLS = [("call_aB3", "read_file", '{"path":"a.txt"}'), ("call_xY9", "grep", '{"q":"é🤖","n":[1,2]}'), ("call_0Zq", "now", "{}")]


@st.composite
def _fragmentations(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Chunks of fragments of `CALLS`: each call cut anywhere, all of them interleaved in any way."""
    queues: list[list[dict[str, Any]]] = []
    for index, (call_id, name, arguments) in enumerate(CALLS):
        pieces = (
            [("id", char) for char in call_id] + [("name", char) for char in name] + [("arguments", char) for char in arguments]
        )
        fragments: list[dict[str, Any]] = []
        while pieces:
            size = draw(st.integers(1, len(pieces)))
            joined = {kind: "".join(char for one, char in pieces[:size] if one == kind) for kind in ("id", "name", "arguments")}
            pieces = pieces[size:]
            fragment: dict[str, Any] = {"index": index, "function": {k: v for k in ("name", "arguments") if (v := joined[k])}}
            if joined["id"]:
                fragment["id"] = joined["id"]
            fragments.append(fragment)
        queues.append(fragments)
    chunks: list[list[dict[str, Any]]] = [[queue.pop(0) for queue in queues]]  # a call is begun in its place
    while any(queues):
        open_queues = [queue for queue in queues if queue]
        chosen = draw(st.lists(st.sampled_from(range(len(open_queues))), unique=True, min_size=1))
        chunks.append([open_queues[place].pop(0) for place in sorted(chosen)])
    return chunks


@given(_fragmentations())
def test_any_fragmentation_of_calls_gives_the_same_answer(chunks: list[list[dict[str, Any]]]) -> None:
    answer = _assembled(*({"tool_calls": chunk} for chunk in chunks), finish="tool_calls")
    assert _seen(answer) == CALLS
    assert answer.finish_reason == "tool_calls"


@given(st.text(max_size=40), st.text(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_any_fragmentation_of_text_gives_the_same_answer(text: str, thought: str, cuts: list[int]) -> None:
    def pieces(whole: str) -> list[str]:
        places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
        return [whole[start:end] for start, end in pairwise(places)]

    assembler = Assembler()
    shown: list[Any] = []
    for key, whole in (("reasoning_content", thought), ("content", text)):
        for piece in pieces(whole):
            shown += assembler.feed({"choices": [{"delta": {key: piece}}]})
    assembler.feed({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    shown += assembler.flush()
    answer = assembler.answer()
    assert (answer.text, answer.reasoning or "") == (text, thought)
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == text
    assert "".join(delta.text for delta in shown if isinstance(delta, ReasoningDelta)) == thought


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        pytest.param(
            [[_call(None, "a", "f", '{"x":')], [_call(None, None, None, "1}")], [_call(None, "b", "g", "{}")]],
            [("a", "f", '{"x":1}'), ("b", "g", "{}")],
            id="no index, continued by what comes next",
        ),
        pytest.param(
            [
                [_call(None, "a", "f", "{"), _call(None, "b", "g", "{")],
                [_call(None, None, None, "}"), _call(None, None, None, "}")],
            ],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="no index, continued by position",
        ),
        pytest.param(
            [
                [_call(None, "a", "f", "{")],
                [_call(None, "b", "g", "{")],
                [_call(None, "a", None, "}")],
                [_call(None, "b", None, "}")],
            ],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="no index, continued by id",
        ),
        pytest.param(
            [[_call(None, None, "f", "{}")], [_call(None, None, "f", '{"x":1}')]],
            [("call_0", "f", "{}"), ("call_1", "f", '{"x":1}')],
            id="neither index nor id",
        ),
        pytest.param(
            [[_call(0, "a", "f", '{"x":1}')], [_call(0, "b", "f", '{"x":2}')]],
            [("a", "f", '{"x":1}'), ("b", "f", '{"x":2}')],
            id="index 0 for all, whole calls",
        ),
        pytest.param(
            [[_call(0, "a", "f")], [_call(0, None, None, '{"x":1}')], [_call(0, "b", "g")], [_call(0, None, None, '{"y":2}')]],
            [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')],
            id="index 0 for all, in fragments",
        ),
        pytest.param(
            [[_call(0, "a", "f")], [_call(0, "b", "g")], [_call(0, "a", None, "{}")], [_call(0, "b", None, '{"y":2}')]],
            [("a", "f", "{}"), ("b", "g", '{"y":2}')],
            id="index 0 for all, interleaved by id",
        ),
        pytest.param(
            [[_call(0, "a", "f", "{")], [_call(0, "a", "f", "}")], [_call(0, "a", "f", "")]],
            [("a", "f", "{}")],
            id="id and name repeated with each fragment",
        ),
        pytest.param(
            [[_call(0, "r1", "f", "{")], [_call(0, "r2", None, "}")]],
            [("r1", "f", "{}")],
            id="another random id with each fragment",
        ),
        pytest.param(
            [[_call(0, "a", "f", "{}"), _call(1, "a", "g", "{}")]],
            [("a", "f", "{}"), ("a_1", "g", "{}")],
            id="one id for two calls",
        ),
        pytest.param([[_call(0, "a", "f", {"x": 1})]], [("a", "f", '{"x":1}')], id="arguments as an object"),
        pytest.param([[_call(0, "a", "f", None)]], [("a", "f", "{}")], id="no arguments"),
        pytest.param([[_call(0, "", "f", "{}")]], [("call_0", "f", "{}")], id="an empty id"),
        pytest.param([[_call(0, None, None)], [_call(1, "a", "f", "{}")]], [("a", "f", "{}")], id="an empty fragment"),
    ],
)
@pytest.mark.case("B014")
def test_the_ways_of_other_servers(fragments: list[list[dict[str, Any]]], calls: list[tuple[str, str, str]]) -> None:
    assert _seen(_assembled(*({"tool_calls": chunk} for chunk in fragments))) == calls


def test_an_id_that_had_to_be_changed_is_kept() -> None:
    answer = _assembled({"tool_calls": [_call(0, "a", "f", "{}"), _call(1, "a", "f", "{}")]})
    assert [call.provider_id for call in answer.calls] == [None, "a"]


@pytest.mark.case("B014")
def test_a_call_that_the_length_limit_cut_in_half_is_dropped() -> None:
    answer = _assembled({"tool_calls": [_call(0, "a", "f", "{}"), _call(1, "b", "g", '{"x": ')]}, finish="length")
    assert _seen(answer) == [("a", "f", "{}")]
    assert answer.finish_reason == "length"


def test_arguments_that_are_not_json_are_kept_for_the_tool_to_refuse() -> None:
    assert _seen(_assembled({"tool_calls": [_call(0, "a", "f", '{"x": ')]})) == [("a", "f", '{"x": ')]


@pytest.mark.parametrize(
    ("said", "meant"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("eos", "stop"), ("weird", "other")],
)
@pytest.mark.case("B202")
def test_finish_reasons(said: str, meant: str) -> None:
    assert _assembled({"content": "x"}, finish=said).finish_reason == meant


def test_calls_mean_tool_calls_whatever_the_server_says() -> None:
    assert _assembled({"tool_calls": [_call(0, "a", "f", "{}")]}, finish="stop").finish_reason == "tool_calls"


@pytest.mark.case("B202")
def test_a_refusal_is_text_and_a_content_filter() -> None:
    answer = _assembled({"refusal": "I can"}, {"refusal": "not."})
    assert (answer.text, answer.finish_reason) == ("I cannot.", "content_filter")


@pytest.mark.case("B198")
@pytest.mark.parametrize(
    "parts",
    [
        ["", {"type": "text", "text": "real"}],
        [{"type": "text", "text": ""}, {"type": "text", "text": "real"}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "real"}],
        [{"type": "image_url"}, {"type": "text", "text": "real"}],
    ],
)
def test_text_parts_are_joined(parts: list[Any]) -> None:
    assert _assembled({"content": parts}).text == "real"


@pytest.mark.parametrize("keys", [["reasoning_content"], ["reasoning"], ["reasoning", "reasoning_content"]])
def test_reasoning_comes_once_whatever_it_is_called(keys: Sequence[str]) -> None:
    answer = _assembled(*(dict.fromkeys(keys, piece) for piece in ("h", "m")), {"content": "x"})
    assert answer.reasoning == "hm"
    assert answer.extras[REASONING_NOTE] in keys


@pytest.mark.case("B020")
def test_an_empty_reasoning_is_still_owed_back() -> None:
    assert _assembled({"reasoning_content": ""}, {"content": "x"}).extras == {REASONING_NOTE: "reasoning_content"}


@pytest.mark.case("B020")
def test_unknown_keys_are_kept_and_their_pieces_joined() -> None:
    answer = _assembled(
        {"content": "x", "extra": {"k": 1}, "phase": "final", "sig": "ab"},
        {"extra": {"k": 1, "l": 2}, "phase": "final", "sig": "cd", "nothing": None},
        {"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "a"}]},
        {"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "b"}, {"index": 1, "text": "c"}]},
        {"tool_calls": [{**_call(0, "a", "f", "{}"), "extra_content": {"google": {"thought_signature": "s"}}}]},
    )
    assert answer.extras == {
        "extra": {"k": 1, "l": 2},
        "phase": "final",
        "sig": "abcd",
        "reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "ab"}, {"index": 1, "text": "c"}],
        CALLS_NOTE: [{"extra_content": {"google": {"thought_signature": "s"}}}],
    }


@pytest.mark.parametrize(
    ("wire", "usage"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(input_tokens=10, output_tokens=5, cached_tokens=4, calls=1),
        ),
        ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 3}, Usage(input_tokens=10, cached_tokens=3, calls=1)),
        ({"prompt_tokens": None, "completion_tokens": -1, "prompt_tokens_details": None}, Usage(calls=1)),
        (None, Usage(calls=1)),
    ],
)
def test_usage(wire: Any, usage: Usage) -> None:
    assembler = Assembler()
    assembler.feed({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    assembler.feed({"choices": [], "usage": wire})
    assert assembler.answer().usage == usage


def test_a_whole_response_is_one_chunk() -> None:
    assembler = Assembler()
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "annotations": []}
    assembler.feed({"model": "m-1", "choices": [{"message": message, "finish_reason": "tool_calls"}]})
    answer = assembler.answer()
    assert (_seen(answer), answer.model, answer.extras) == ([("a", "f", "{}")], "m-1", {})


@pytest.mark.parametrize(
    "chunk",
    [
        [],
        {"choices": {"a": 1}},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
    ],
)
def test_what_is_no_chunk_is_a_bad_stream(chunk: Any) -> None:
    with pytest.raises(BadStream):
        Assembler().feed(chunk)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_no_json_value_breaks_the_assembler(value: Any) -> None:
    for chunk in (value, {"choices": value}, {"choices": [{"delta": value}]}, {"choices": [{"delta": {"tool_calls": [value]}}]}):
        assembler = Assembler()
        try:
            assembler.feed(chunk)
            assembler.answer()
        except BadStream:
            pass


@pytest.mark.parametrize("deltas", [[], [{"tool_calls": [_call(0, "a", None, "{}")]}]])
def test_nothing_and_calls_without_a_name_are_no_answer(deltas: list[dict[str, Any]]) -> None:
    with pytest.raises(BadStream):
        _assembled(*deltas, finish=None)


def test_a_pair_of_surrogates_in_two_chunks_is_one_character() -> None:
    assembler = Assembler()
    shown: list[Any] = []
    for half in ("a\ud83e", "\udd16b"):
        shown += assembler.feed({"choices": [{"delta": {"content": half}}]})
    shown += assembler.flush()
    assert [delta.text for delta in shown] == ["a", "🤖b"]


@pytest.mark.parametrize("piece", ["x" * 10, ["x" * 8]])
def test_arguments_that_come_to_no_end_are_refused(piece: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "MAX_ARGUMENTS", 100)
    assembler = Assembler()

    def feed(times: int) -> None:
        for index in range(times):
            assembler.feed({"choices": [{"delta": {"tool_calls": [_call(index % 3, None, None, piece)]}}]})

    feed(8)
    with pytest.raises(EndlessAnswer, match="100 characters"):
        feed(3)
