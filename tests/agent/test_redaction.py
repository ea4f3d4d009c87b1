"""Secrets stay out of the ledger's file, of what viewers see, of what models are sent, and of logs (invariant 10)."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    ConfigurationError,
    Event,
    Limits,
    ModelAnswer,
    ModelRequest,
    OpenAIChatModel,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SecretRef,
    SubAgent,
    TextDeltaEvent,
    ToolContext,
    tool,
)
from retinue.agent.middleware import Middleware, RunCall
from retinue.events import ReasoningDeltaEvent
from retinue.messages import ToolCall, ToolResult
from retinue.models.port import Emit, ReasoningDelta, TextDelta
from retinue.secrets import REDACTED
from retinue.testing import RecordingModel, calls, messages_of

pytestmark = pytest.mark.anyio

KEY = 'sk-live/4f"9+tail'


class Leaky:
    """A model that says the key in every way it can, in small pieces, and keeps what it was sent."""

    provider, name = "leaky", "leaky-1"

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        self.sent.append(msgspec.json.encode([request.envelope.instructions, [entry.message for entry in request.history]]))
        text = f"<{KEY}>"
        for start in range(0, len(text), 3):
            emit(ReasoningDelta(text[start : start + 3]))
            emit(TextDelta(text[start : start + 3]))
        calls: tuple[ToolCall, ...] = ()
        if request.step == 1 and request.agent_id == "boss":
            quoted = msgspec.json.encode({"text": KEY}).decode()
            names = ("leak", "fail", "asks", "helper")
            calls = tuple(
                ToolCall(id=f"c{n}", name=name, arguments=quoted.replace("text", _parameter(name)))
                for n, name in enumerate(names)
            )
        return ModelAnswer(text=text, reasoning=text, calls=calls, extras={"thought": {"signature": KEY}} if calls else {})

    async def close(self) -> None:
        """See `ChatModel`."""


def _parameter(name: str) -> str:
    return "input" if name == "helper" else "text"


@tool
def leak(text: str, context: ToolContext) -> dict[str, str]:
    """Says what it knows."""
    context.progress(f"using {KEY}")
    logging.getLogger("retinue").warning("a tool says %s", KEY)
    return {"given": text, "known": context.get("token", str)}


@tool
def fail(text: str) -> str:
    """Raises with the key."""
    raise ValueError(f"{'x' * 990}{KEY}")


@tool
def asks(text: str) -> str:
    """Needs permission."""
    return text


class Remembers(Middleware):
    """Keeps the key in a thread's and a session's state."""

    async def around_run(self, call: RunCall, next: Any) -> Any:
        """See `Middleware`."""
        for scope in ("thread", "session"):
            call.state(scope).set("seen", {"key": KEY})
        return await next(call)


def leaky(runtime: Runtime, model: Any) -> Agent:
    helper = SubAgent("helper", "Helps", instructions="Help.", surface="tool", context_policy="fork")
    rules = PermissionRules(allow=["helper", "leak", "fail"], ask=["asks"])
    instructions = f"You are told {KEY}"
    tools = [leak, fail, asks]
    return Agent(
        "boss",
        model=model,
        instructions=instructions,
        tools=tools,
        subagents=[helper],
        runtime=runtime,
        permissions=rules,
        middleware=[Remembers()],
    )


async def test_a_secret_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CARE_TOKEN", KEY)
    model, seen = Leaky(), list[Event]()
    context = RuntimeContext(session_id="s", attributes={"token": SecretRef("env:CARE_TOKEN")})
    async with Runtime(ledger=tmp_path / "l.db") as runtime:
        agent = leaky(runtime, model)
        async for event in agent.stream(f"My key is {KEY}", context=context):
            seen.append(event)
        requests = await agent.requests("s")
        assert [request.tool for request in requests] == ["asks"]
        await agent.answer(requests[0], allow=False, note=f"never with {KEY}")
        result = await agent.run("And now?", context=context)
        assert result.text == f"<{REDACTED}>"
        with pytest.raises(Exception, match="no run"):
            await agent.cancel("run_none", reason=KEY)
        row = await runtime.ledger.request(requests[0].request_id)
        assert row is not None
        assert REDACTED in row.arguments
        live = [event for event in seen if isinstance(event, TextDeltaEvent | ReasoningDeltaEvent)]
    known = [msgspec.json.encode(KEY)[1:-1], KEY.encode()]
    file = (tmp_path / "l.db").read_bytes()
    assert not any(form in file for form in known)
    for kind in (TextDeltaEvent, ReasoningDeltaEvent):
        for message in {event.message_id for event in live}:
            texts = [event for event in live if type(event) is kind and event.message_id == message]
            assert "".join(event.text for event in texts) == f"<{REDACTED}>"
            assert [event.offset for event in texts] == [sum(len(one.text) for one in texts[:n]) for n in range(len(texts))]
    shown = msgspec.json.encode([event for event in seen if getattr(event, "result", None) is None])
    for data in (shown, *model.sent, caplog.text.encode(), repr(seen).encode(), repr(result).encode()):
        assert not any(form in data for form in known)
        assert not any(form.replace(b'"', b'\\\\\\"') in data for form in known)
    assert f"a tool says {REDACTED}" in caplog.text
    assert b"sk-live" not in b"".join(model.sent)  # no half of it either, where a text was cut


@pytest.mark.parametrize("text", [f"{'a' * 495}{KEY}{'b' * 2_000}", f"{'a' * 2_000}{KEY}{'b' * 195}"], ids=["head", "tail"])
async def test_a_secret_at_the_place_of_a_cut_leaves_no_half_of_it(text: str) -> None:
    @tool
    def tells() -> str:
        """Says much, with the key where it is cut."""
        return text

    model = RecordingModel([calls(("tells", {})), "done"])
    async with Runtime(secrets=[KEY], limits=Limits(max_result_characters=1_000)) as runtime:
        await Agent("boss", model=model, tools=[tells], runtime=runtime).run("go")
        (result,) = (one for one in messages_of(model.requests[1]) if isinstance(one, ToolResult))
        whole = await runtime.ledger.blob(result.blobs[0].digest)
    assert whole == text.replace(KEY, REDACTED).encode()
    assert len(result.content) <= 1_000
    assert not {KEY[:3], KEY[-3:]} & {result.content[at : at + 3] for at in range(len(result.content))}


async def test_the_key_of_a_model_is_known(tmp_path: Path) -> None:
    model = OpenAIChatModel("m", base_url="http://127.0.0.1:9/v1", api_key=KEY, headers={"X-Title": "My program"}, retries=0)
    async with Runtime(ledger=tmp_path / "l.db") as runtime:
        result = await Agent("boss", model=model, runtime=runtime).run(f"Use {KEY} with My program", check=False)
        assert result.status == "failed"
        assert result.thread is not None
        journal = await runtime.ledger.journal(result.thread.key)
        row = await runtime.ledger.thread(result.thread.key)
    assert row is not None
    assert row.title == f"Use {REDACTED} with My program"
    assert KEY not in str(journal)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer token-of-mine"}, {"Bearer token-of-mine", "token-of-mine"}),
        ({"X-Api-Key": SecretRef("env:CARE_TOKEN")}, {SecretRef("env:CARE_TOKEN")}),
        ({"X-Title": "a name of no interest"}, set[str]()),
    ],
)
def test_a_model_names_its_secrets(headers: dict[str, str], expected: set[object]) -> None:
    assert set(OpenAIChatModel("m", base_url="http://127.0.0.1:9/v1", headers=headers).secrets()) == expected


@pytest.mark.parametrize("fails", [False, True])
async def test_what_only_began_like_a_secret_is_shown_at_the_end(fails: bool) -> None:
    text = f"It begins with {KEY[:9]}"
    turn = {"text": text, "chunk": 4, **({"error": {"code": "bad_request", "message": "x"}} if fails else {})}
    async with Runtime(secrets=[KEY]) as runtime:
        events = [event async for event in Agent("boss", model=ScriptedModel([turn]), runtime=runtime).stream("go")]
    assert "".join(event.text for event in events if isinstance(event, TextDeltaEvent)) == text


async def test_without_secrets_nothing_is_looked_for() -> None:
    async with Runtime() as runtime:
        agent = Agent("boss", model=ScriptedModel(["done"]), runtime=runtime)
        assert (await agent.run("go")).text == "done"
        assert not runtime._redactor


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Runtime(secrets=["abc"])


def test_a_subagent_takes_references_in_its_headers() -> None:
    child = SubAgent("far", "Far away", url="https://example.org", headers={"Authorization": SecretRef("env:CARE_TOKEN")})
    assert "CARE_TOKEN" not in repr(child)


async def test_a_secret_that_becomes_known_in_the_middle_of_a_run_is_kept_out_from_then_on() -> None:
    async with Runtime() as runtime:

        @tool
        def learn() -> str:
            """Makes the key known, and says it."""
            runtime._redactor.add([KEY])
            return KEY

        script = [{"calls": [{"name": "learn"}]}, f"It was {KEY}"]
        result = await Agent("boss", model=ScriptedModel(script), tools=[learn], runtime=runtime).run("go")
        assert result.text == f"It was {REDACTED}"
        assert result.thread is not None
        assert KEY not in str(await runtime.ledger.journal(result.thread.key))
