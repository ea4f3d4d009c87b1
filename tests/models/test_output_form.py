"""How the form of an answer is put into a request: enforced, alone or in words; and never in the prefix."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from retinue.messages import OutputSpec
from retinue.models.output import is_strict, output_words, response_format
from retinue.models.profiles import KNOWN, Profile
from retinue.models.wire import ChatWire, body_of
from retinue.testing import StrictProvider
from retinue.testing.requests import Deltas, model_request

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
FORM = OutputSpec(name="Report", schema=SCHEMA, digest="d")
LOCAL = Profile("fake", "http://127.0.0.1/v1")


def body(
    profile: Profile, *, tools: tuple[str, ...] = (), allowed: bool = True, form: OutputSpec | None = FORM
) -> dict[str, Any]:
    """A request's body."""
    request = model_request("Go.", tools=tools, tools_allowed=allowed)
    return msgspec.json.decode(body_of(ChatWire(profile), msgspec.structs.replace(request, output=form), "m"))


@pytest.mark.parametrize(
    ("output", "tools", "allowed", "enforced", "told"),
    [
        ("enforced", (), True, True, False),
        ("enforced", ("add",), True, True, False),
        ("alone", (), True, True, True),
        ("alone", ("add",), True, False, True),  # the decoder would keep the model from calling
        ("alone", ("add",), False, True, True),
        ("words", (), True, False, True),
        ("words", ("add",), False, False, True),
    ],
)
def test_a_form_is_enforced_where_that_can_be_and_told_where_it_must(
    output: Any, tools: tuple[str, ...], allowed: bool, enforced: bool, told: bool
) -> None:
    sent = body(replace(LOCAL, output=output), tools=tools, allowed=allowed)
    assert ("response_format" in sent) is enforced
    assert ("Report" in sent["messages"][-1]["content"]) is told
    if enforced:
        assert sent["response_format"] == response_format(FORM)


def test_without_a_form_nothing_is_said_of_one() -> None:
    for profile in KNOWN.values():
        assert "response_format" not in body(profile, form=None)


@pytest.mark.parametrize("profile", KNOWN.values(), ids=lambda profile: profile.provider)
def test_the_prefix_of_a_body_does_not_move_for_a_form(profile: Profile) -> None:
    wire, plain = ChatWire(profile), model_request("Go.", tools=["add"])
    bodies = [body_of(wire, msgspec.structs.replace(plain, output=form), "m") for form in (None, FORM)]
    history = bodies[0].removesuffix(b"]}")
    if profile.tail == "join":
        history = history.rpartition(b'{"role":"user"')[0]  # there the words stand in the last message
    assert bodies[1].startswith(history)


def test_words_come_before_what_else_follows_the_conversation() -> None:
    request = msgspec.structs.replace(model_request("Go.", tail="Write now."), output=FORM)
    sent = msgspec.json.decode(body_of(ChatWire(LOCAL), request, "m"))
    assert sent["messages"][-1]["content"] == f"{output_words(FORM)}\n\nWrite now."


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({**SCHEMA, "required": []}, False),
        ({key: value for key, value in SCHEMA.items() if key != "additionalProperties"}, False),
        ({**SCHEMA, "properties": {"n": {"type": "integer", "minimum": 0}}}, False),
        ({**SCHEMA, "properties": {"n": {}}}, False),
        ({**SCHEMA, "properties": {"n": {"type": "array", "items": SCHEMA}}}, True),
        ({**SCHEMA, "properties": {"n": {"type": "array", "items": {"type": "object"}}}}, False),
        ({**SCHEMA, "properties": {"n": {"anyOf": [SCHEMA, {"type": "null"}]}}}, True),
        ({**SCHEMA, "$defs": {"a": {"type": "string", "default": ""}}}, False),
    ],
)
def test_only_what_every_server_can_keep_to_is_asked_for_strictly(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


@pytest.mark.parametrize("tools", [(), ("add",)])
async def test_a_strict_server_takes_it(tools: tuple[str, ...]) -> None:
    async with StrictProvider(['{"n": 1}']) as provider:
        request = msgspec.structs.replace(model_request("Go.", tools=tools), output=FORM)
        answer = await provider.model().answer(request, Deltas())
    assert answer.text == '{"n": 1}'
    assert provider.refused == []
    assert provider.requests[0].headers["x-retinue-tail"] == "1"
