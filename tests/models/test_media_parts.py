"""Pictures and files on the wire: as the Chat Completions document says, and as lines of text where a model takes none."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest

from retinue.errors import ConfigurationError
from retinue.messages import AssistantMessage, CallRef, Entry, MediaRef, Message, ToolCall, ToolResult, UserMessage
from retinue.models import OpenAIChatModel, reference_of, resolve_model
from retinue.models.form_wire import FormWire
from retinue.models.port import ModelRequest
from retinue.models.profiles import KNOWN, Profile
from retinue.models.wire import ChatWire, body_of
from retinue.testing import StrictProvider
from retinue.testing.provider_rules import MISTRAL_RULES, RULES, refusal
from retinue.testing.requests import model_request, tool_spec

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
PDF = b"%PDF-1.4\n"
IMAGE = MediaRef(digest="a" * 64, media_type="image/png", size=len(PNG), name="a.png")
REPORT = MediaRef(digest="b" * 64, media_type="application/pdf", size=len(PDF), name="b.pdf")
CSV = MediaRef(digest="c" * 64, media_type="text/csv", size=3, name="c.csv")
DATA = {IMAGE.digest: PNG, REPORT.digest: PDF, CSV.digest: b"a,b"}
OPENAI = ChatWire(KNOWN["openai"])
MISTRAL = ChatWire(KNOWN["mistral"])
NONE = ChatWire(Profile("local", "http://127.0.0.1/v1"))
ALL = ("image/*", "application/pdf")


def asked(*parts: MediaRef) -> Entry:
    text = "\n".join(["What is this?", *(ref.line for ref in parts), "Say it."])
    return Entry(UserMessage(id="u", text=text, parts=parts))


def batch(*parts: tuple[MediaRef, ...]) -> list[Entry]:
    """A message with a call for each of `parts`, and the results."""
    calls = tuple(ToolCall(id=f"call{n:05}", name=f"shot{n}") for n in range(len(parts)))
    results = [
        ToolResult(
            call=CallRef("m", n),
            call_id=f"call{n:05}",
            name=f"shot{n}",
            content=" ".join(ref.line for ref in refs) or "ok",
            parts=refs,
        )
        for n, refs in enumerate(parts)
    ]
    entries = [Entry(AssistantMessage(id="m", calls=calls)), *(Entry(one) for one in results)]
    entries[-1].shows = tuple(one for one in results if one.parts)
    return entries


def sent(wire: ChatWire, *entries: Entry, tail: str = "") -> list[dict[str, Any]]:
    """The messages as they go over the wire; every provider's rules hold."""
    for entry in entries:
        if wanted := wire.wanted(entry):
            entry.wire = wire.encode_with(entry, {ref.digest: DATA[ref.digest] for ref in wanted})
            entry.wire_format = wire.format
    request = model_request(*entries, tools=[tool_spec("shot0")], tail=tail)
    body = msgspec.json.decode(body_of(wire, request, "m"))
    rules = (*RULES, *MISTRAL_RULES) if wire.profile.provider == "mistral" else RULES
    assert refusal(body, rules) is None
    return [one for one in body["messages"] if one["role"] != "system"]


def image_part() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(PNG).decode()}"}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_parts_stand_where_their_lines_are() -> None:
    content = sent(OPENAI, asked(IMAGE, REPORT))[-1]["content"]
    file = {"filename": "b.pdf", "file_data": f"data:application/pdf;base64,{b64encode(PDF).decode()}"}
    assert content == [
        text_part(f"What is this?\n{IMAGE.line}"),
        image_part(),
        text_part(REPORT.line),
        {"type": "file", "file": file},
        text_part("Say it."),
    ]


def test_a_model_that_takes_none_is_told_what_is_there_in_one_text() -> None:
    content = sent(NONE, asked(IMAGE, CSV))[-1]["content"]
    assert content.splitlines() == [
        "What is this?",
        "[image a.png, 14 bytes: this model takes no images]",
        "[file c.csv, 3 bytes: this model takes no text/csv]",
        "Say it.",
    ]


def test_a_model_that_takes_some_is_told_of_the_others() -> None:
    content = sent(MISTRAL, asked(REPORT, IMAGE))[-1]["content"]
    assert content[0]["text"].splitlines()[1:] == ["[file b.pdf, 9 bytes: this model takes no application/pdf]", IMAGE.line]
    assert content[1] == image_part()


def test_what_tools_show_stands_in_one_message_after_the_last_result() -> None:
    messages = sent(OPENAI, asked(), *batch((IMAGE,), (), (CSV, REPORT)))
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert messages[2]["content"] == IMAGE.line
    assert messages[4]["content"] == f"[file c.csv, 3 bytes: this model takes no text/csv] {REPORT.line}"
    assert [part.get("text") or part["type"] for part in messages[5]["content"]] == [
        f"{IMAGE.line} from `shot0`:",
        "image_url",
        f"{REPORT.line} from `shot2`:",
        "file",
    ]


def test_where_no_user_message_may_follow_a_result_its_line_stands() -> None:
    messages = sent(MISTRAL, asked(), *batch((IMAGE,)), tail="Last turn.")
    assert [one["role"] for one in messages] == ["user", "assistant", "tool"]
    assert messages[-1]["content"] == "[image a.png, 14 bytes: this model takes no images from tools]\n\nLast turn."


def test_a_tail_does_not_take_the_place_of_a_picture() -> None:
    messages = sent(MISTRAL, asked(IMAGE), tail="Last turn.")
    assert messages[-2]["content"][1] == image_part()
    assert messages[-1] == {"role": "user", "content": "Last turn."}


def test_calls_as_json_take_parts_too() -> None:
    wire = FormWire(Profile("local", "http://127.0.0.1/v1", media=ALL))
    messages = sent(wire, asked(IMAGE), *batch((IMAGE,)))
    assert [one["role"] for one in messages] == ["user", "assistant", "user", "user"]
    assert IMAGE.line in messages[2]["content"]
    assert messages[0]["content"][1] == messages[3]["content"][1] == image_part()


@pytest.mark.parametrize(
    "wire", [OPENAI, MISTRAL, NONE, FormWire(Profile("local", "x", media=ALL))], ids=lambda wire: wire.format
)
def test_a_prefix_stays_a_prefix(wire: ChatWire) -> None:
    history: list[Entry] = [asked(IMAGE)]
    before = b""
    for turn in range(4):
        for entry in history:
            if entry.wire_format != wire.format and (wanted := wire.wanted(entry)):
                entry.wire, entry.wire_format = (
                    wire.encode_with(entry, {ref.digest: DATA[ref.digest] for ref in wanted}),
                    wire.format,
                )
        body = body_of(wire, model_request(*history, tools=[tool_spec("shot0")]), "m")
        assert body.startswith(before)
        before = body.partition(b'],"response_format"')[0].removesuffix(b"]}")
        again = [copy_of(entry) for entry in history]  # as another process makes them
        for entry in again:
            if wanted := wire.wanted(entry):
                entry.wire, entry.wire_format = (
                    wire.encode_with(entry, {ref.digest: DATA[ref.digest] for ref in wanted}),
                    wire.format,
                )
        assert body_of(wire, model_request(*again, tools=[tool_spec("shot0")]), "m") == body
        history += batch((IMAGE, REPORT), ()) if turn % 2 else [Entry(AssistantMessage(id="x", text="A cat.")), asked(REPORT)]


def copy_of(entry: Entry) -> Entry:
    made = Entry(entry.message)
    made.shows = entry.shows
    return made


def test_models_of_one_provider_that_take_different_things_do_not_share_bytes() -> None:
    formats = {ChatWire(Profile("p", "x", media=media)).format for media in ((), ("image/*",), ALL)}
    assert len(formats) == 3


PARTS: Final[list[tuple[list[Any], str | None]]] = [
    ([image_part()], None),
    ([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}], None),
    ([{"type": "file", "file": {"file_id": "file_1"}}], None),
    ([], "blank_user"),
    ([{"text": "x"}], "part_form"),
    ([{"type": "image_url", "image_url": "data:"}], "part_form"),
    ([{"type": "image_url", "image_url": {}}], "part_data"),
    ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}], "part_data"),
    ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}], "part_data"),
    ([{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{b64encode(PNG).decode()}"}}], "part_data"),
    ([{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}], "part_data"),
    ([{"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}}], "part_data"),
    ([{"type": "file", "file": {"filename": "a", "file_data": "data:application/pdf;base64,"}}], "part_data"),
    ([{"type": "file", "file": {"filename": "a", "file_data": "data:text/csv;base64,AAAA"}}], "part_data"),
]


@pytest.mark.parametrize(("content", "rule"), PARTS)
def test_what_the_strict_provider_says_of_parts(content: Sequence[Any], rule: str | None) -> None:
    found = refusal({"model": "m", "messages": [{"role": "user", "content": content}]}, RULES)
    assert (None if found is None else found[0].id) == rule


def assistant(text: str) -> Message:
    return AssistantMessage(id="x", text=text)


@pytest.mark.anyio
async def test_bytes_are_asked_for_once_and_two_models_on_one_history_send_each_its_own() -> None:
    """A fork shares its parent's entries: while one waits for the bytes, the other must not make the entry's lines final."""
    loads: list[str] = []
    waiting, go = asyncio.Event(), asyncio.Event()

    async def load(ref: MediaRef) -> bytes:
        loads.append(ref.digest[0])
        if ref is REPORT:
            waiting.set()
            await go.wait()
        return DATA[ref.digest]

    history = [asked(IMAGE), Entry(assistant("A cat.")), asked(REPORT)]

    def request() -> ModelRequest:
        return msgspec.structs.replace(model_request(*history), media=load)

    async with StrictProvider() as provider:
        sees, blind = provider.model(media=ALL), provider.model()
        first = asyncio.create_task(sees.answer(request(), lambda _: None))
        await waiting.wait()
        await blind.answer(request(), lambda _: None)
        go.set()
        await first
        await sees.answer(request(), lambda _: None)
        raw = [one.raw.partition(b'"messages":')[2] for one in provider.requests]
        assert raw[1] == raw[2]
        assert b"takes no images" in raw[0]
        assert b"image_url" not in raw[0]
        assert loads == ["a", "b"]
        assert provider.refused == []


@pytest.mark.parametrize("media", ["image/*", ["image"], [7]])
def test_media_of_a_model_are_a_list_of_types(media: Any) -> None:
    with pytest.raises(ConfigurationError, match="no list of media types"):
        OpenAIChatModel("m", media=media)


@pytest.mark.parametrize(
    ("text", "reference", "media"),
    [
        ("http://127.0.0.1:8080/v1?media=image/*#a", "http://127.0.0.1:8080/v1?media=image/*#a", ("image/*",)),
        ("http://127.0.0.1:8080/v1?media=image/*#a?media=", "http://127.0.0.1:8080/v1#a", ()),
        (
            "ollama:llama3.2:3b?media=image/*,application/pdf&tool_mode=schema",
            "ollama:llama3.2:3b?tool_mode=schema&media=image/*,application/pdf",
            ALL,
        ),
        ("openai:gpt-5", "openai:gpt-5", KNOWN["openai"].media),
        ("openai:gpt-3.5-turbo?media=", "openai:gpt-3.5-turbo?media=", ()),
    ],
)
def test_a_reference_says_what_the_model_takes(text: str, reference: str, media: tuple[str, ...]) -> None:
    model = resolve_model(text)
    assert isinstance(model, OpenAIChatModel)
    assert reference_of(model) == reference
    assert model.profile.media == media
    again = resolve_model(reference)
    assert isinstance(again, OpenAIChatModel)
    assert (again.profile, again.tool_mode, again.name) == (model.profile, model.tool_mode, model.name)
    bare = resolve_model("b", parent_provider=reference)
    assert isinstance(bare, OpenAIChatModel)
    assert bare.profile.media == media


def test_an_unknown_option_of_a_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the option `seed`"):
        resolve_model("ollama:a?media=image/*&seed=1")
