"""Secrets by reference, and known values taken out of text: as they are, inside JSON, in pieces, in logs (invariant 10)."""

import json
import logging
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ConfigurationError
from retinue.events import MessageEvent, SubAgentInvocationStartedEvent, ToolCallResultEvent, encode
from retinue.messages import AssistantMessage, CallRef, ToolCall
from retinue.secrets import REDACTED, RedactedStream, Redactor, SecretRef

KEY = "sk-Ab/3+9=xyz"

plain = st.characters(codec="utf-8")
secrets = st.text(plain, min_size=8, max_size=20).filter(lambda text: REDACTED not in text and text.strip() == text)
harmless = secrets.filter(lambda text: not {'"', "\\"} & {text[0], text[-1]})
"""Values whose ends are not what JSON itself is made of."""


def knowing(*values: str) -> Redactor:
    redactor = Redactor()
    redactor.add(values)
    return redactor


def leaves(value: Any) -> list[str]:
    """Every text of JSON data, keys included, and every text of the JSON that such a text may hold."""
    if isinstance(value, dict):
        pairs: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [text for key, item in pairs.items() for text in (*leaves(key), *leaves(item))]
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [text for item in items for text in leaves(item)]
    if not isinstance(value, str):
        return []
    try:
        inner: Any = json.loads(value)
    except ValueError:
        return [value]
    return [value, *leaves(inner)] if isinstance(inner, dict | list) else [value]


def nested(value: Any, levels: list[bool]) -> Any:
    """JSON within JSON, each level written in one of the two usual ways."""
    for ascii_only in levels:
        value = {"arguments": json.dumps(value, ensure_ascii=ascii_only)}
    return value


@given(secrets, st.text(plain, max_size=10), st.text(plain, max_size=10), st.lists(st.booleans(), max_size=2))
def test_no_text_holds_a_secret_however_deep(secret: str, before: str, after: str, levels: list[bool]) -> None:
    redactor = knowing(secret)
    data = msgspec.json.encode(nested({f"{before}{secret}": [f"{before}{secret}{after}", {"x": secret}], "n": 1}, levels))
    if not redactor:  # a word of our own records
        return
    clean = redactor.body(data)
    assert not any(secret in text for text in leaves(json.loads(clean)))
    assert redactor.body(clean) == clean


@given(harmless, st.text(plain, max_size=10), st.lists(st.booleans(), min_size=1, max_size=2))
def test_json_inside_of_a_text_stays_json(secret: str, around: str, levels: list[bool]) -> None:
    redactor = knowing(secret)
    if not redactor or secret in around:
        return
    found: Any = json.loads(redactor.body(msgspec.json.encode(nested({"key": secret, "other": around}, levels))))
    for _ in levels:
        found = json.loads(found["arguments"])
    assert found == {"key": REDACTED, "other": redactor.text(around)}


@given(st.lists(secrets, min_size=1, max_size=3), st.data())
def test_a_stream_shows_what_the_whole_text_would(values: list[str], data: st.DataObject) -> None:
    redactor = knowing(*values)
    parts = st.lists(st.one_of(st.sampled_from(values), st.sampled_from(["\\", "a"]), st.text(plain, max_size=3)), max_size=6)
    text = "".join(data.draw(parts))
    stream, shown, at = RedactedStream(redactor), "", 0
    while at < len(text):
        step = data.draw(st.integers(1, 5))
        shown += stream.feed(text[at : at + step])
        assert not any(value in shown for value in values) or not redactor
        at += step
    shown += stream.flush()
    if "\\u00" not in text:
        assert shown == redactor.text(text)


def test_an_escape_that_looks_like_the_beginning_of_a_value_does_not_break_json() -> None:
    arguments = json.dumps({"text": "a line\nabcdefgh"})
    assert json.loads(knowing("nabcdefgh").text(arguments)) == {"text": f"a line{REDACTED}"}


def test_a_stream_waits_for_the_longer_of_two_values() -> None:
    stream = RedactedStream(knowing("abcdefgh", "abcdefghij"))
    shown = [stream.feed(piece) for piece in ("x abcdefgh", "ij", " abcdefgh", "!", "abc")]
    assert shown == ["x ", REDACTED, " ", f"{REDACTED}!", ""]
    assert stream.flush() == "abc"


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.replace("/", "\\/"),
        quote(KEY, safe=""),
        "".join(f"\\u{ord(char):04x}" for char in KEY),
        "".join(f"\\\\u{ord(char):04X}" for char in KEY),
        KEY.replace("+", "\\u002b").replace("=", "\\u003d"),
    ],
)
def test_ways_of_writing_are_known(written: str) -> None:
    redactor = knowing(KEY)
    assert redactor.text(f"key: {written}!") == f"key: {REDACTED}!"
    body = msgspec.json.encode({"text": f"key: {written}!"})
    assert json.loads(redactor.body(body)) == {"text": f"key: {REDACTED}!"}


def test_the_longest_of_several_values_is_taken() -> None:
    assert knowing("abcdefgh", "abcdefghij").text("abcdefghijk abcdefgh") == f"{REDACTED}k {REDACTED}"


def test_text_without_secrets_is_the_same_object() -> None:
    redactor, text = knowing(KEY), "nothing \x1b[31mto see\x1b[0m"
    body = msgspec.json.encode({"text": text})
    assert redactor.text(text) is text
    assert redactor.body(body) is body
    event = MessageEvent(message=AssistantMessage(id="msg_1", text=text))
    assert redactor.event(event, encode(event))[0] is event


def test_an_event_keeps_its_type_and_its_places() -> None:
    redactor = knowing(KEY, "session-1")
    extras = {"signature": [{"data": KEY}], KEY: 1}
    message = AssistantMessage(
        id="msg_1", text=KEY, calls=(ToolCall(id="c", name="f", arguments=f'{{"a": "{KEY}"}}'),), extras=extras
    )
    event, body = redactor.event(MessageEvent(message=message), encode(MessageEvent(message=message)))
    assert isinstance(event.message, AssistantMessage)
    assert event.message.calls[0].arguments == f'{{"a": "{REDACTED}"}}'
    assert event.message.extras == {"signature": [{"data": REDACTED}], REDACTED: 1}
    assert KEY.encode() not in body
    assert msgspec.json.decode(body, type=MessageEvent) == event
    started = SubAgentInvocationStartedEvent(
        invocation_id="inv_1",
        call=CallRef("msg_1", 0),
        parent_tool_call_id="c",
        name=KEY,
        child_agent_id="a",
        child_session_id="session-1",
        child_thread_id="main",
        child_run_id="run_1",
        context_policy="fresh",
    )
    clean, _ = redactor.event(started, encode(started))
    assert (clean.name, clean.child_session_id) == (REDACTED, "session-1")


@pytest.mark.parametrize("value", ["short", "complete", "lm-studio", "synchronous", f"x{REDACTED}"])
def test_values_that_ordinary_text_consists_of_are_not_known(value: str) -> None:
    assert not knowing(value)
    result = ToolCallResultEvent(call=CallRef("m", 0), call_id="c", name="n", content=value)
    assert knowing(value).event(result, encode(result))[0] is result


def test_an_application_is_told_of_a_secret_that_is_too_short() -> None:
    with pytest.raises(ConfigurationError) as error:
        Redactor().require("abc")
    assert error.value.code == "secret_too_short"
    assert "abc" not in str(error.value)


def test_a_reference_is_looked_up_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = SecretRef("env:CARE_TOKEN")
    assert repr(reference) == "SecretRef('env:CARE_TOKEN')"
    monkeypatch.delenv("CARE_TOKEN", raising=False)
    assert reference.get() is None
    with pytest.raises(ConfigurationError, match="CARE_TOKEN"):
        reference.resolve()
    monkeypatch.setenv("CARE_TOKEN", f" {KEY}\n")
    assert reference.resolve() == KEY
    assert KEY not in repr(reference)
    assert reference == SecretRef("env:CARE_TOKEN")


@pytest.mark.parametrize("text", [KEY, "env:", "env:not a name", "file:/etc/passwd"])
def test_a_reference_that_is_the_secret_itself_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        SecretRef(text)
    assert text not in str(error.value).replace('"env:NAME"', "")


def test_a_changed_variable_is_known_after_the_next_look_and_the_old_value_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    redactor = Redactor()
    redactor.require(SecretRef("env:CARE_TOKEN"))
    assert not redactor
    for value in ("first-value", "second-value"):
        monkeypatch.setenv("CARE_TOKEN", value)
        redactor.refresh()
    assert redactor.text("first-value second-value") == f"{REDACTED} {REDACTED}"


def test_log_records_are_clean(caplog: pytest.LogCaptureFixture) -> None:
    logger, secret_filter = logging.getLogger("care-of-logs"), knowing(KEY).log_filter()
    logger.addFilter(secret_filter)
    try:
        try:
            raise ValueError(KEY)
        except ValueError:
            logger.exception("it was %s", KEY)
        logger.warning("%d things", 3)
    finally:
        logger.removeFilter(secret_filter)
    assert KEY not in caplog.text
    assert f"it was {REDACTED}" in caplog.text
    assert f"ValueError: {REDACTED}" in caplog.text
    assert "3 things" in caplog.text
