"""Recorded answers: the same run without the model, and a clear word where the run is not the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    ChatModel,
    ConfigurationError,
    ModelAnswer,
    ModelError,
    ModelRequest,
    OpenAIChatModel,
    PermissionRules,
    RunResult,
    ScriptedModel,
    SubAgent,
)
from retinue.config import ChatClientConfig
from retinue.messages import ToolCall, Usage
from retinue.testing import RecordModel, ReplayModel, ScriptedAgent, StrictProvider, assert_same_journal
from retinue.testing.requests import Deltas, model_request

pytestmark = pytest.mark.anyio

TREE = ScriptedAgent("lead", ScriptedAgent("reader", says="It is blue.", task="Look up."), says="The reader says: {result}")


def lead(model: ChatModel) -> Agent:
    reader = SubAgent("reader", "Reads.", instructions="Read.")
    return Agent("lead", model=model, subagents=[reader], permissions=PermissionRules(allow=["*"]))


async def ran(model: ChatModel, text: str = "Begin.") -> tuple[RunResult, Any]:
    async with lead(model) as agent:
        result = await agent.run(text, check=False)
        assert result.thread is not None
        return result, await result.thread.events()


async def recorded(path: Path) -> tuple[RunResult, Any]:
    return await ran(RecordModel(ScriptedModel(TREE.script()), path))


async def test_a_run_is_played_back_with_new_ids(tmp_path: Path) -> None:
    first, events = await recorded(tmp_path / "tree.jsonl")
    again, other_events = await ran(ReplayModel(tmp_path / "tree.jsonl"))
    assert again.text != first.text  # the ids in it are those of this run
    assert again.text.split("session_id: ")[1].split("\n")[0] in {event.child_session_id for event in children(other_events)}
    assert (again.status, again.usage) == (first.status, first.usage)
    assert_same_journal(
        *([event for event in one if event.TYPE not in ("RUN_STARTED", "MODEL_CALLED")] for one in (other_events, events))
    )


def children(events: Any) -> list[Any]:
    return [event for event in events if event.TYPE == "SUBAGENT_INVOCATION_STARTED"]


async def test_an_id_from_the_conversation_is_that_of_this_run(tmp_path: Path) -> None:
    """A model that sends to a child by its key sends to the child of the replayed run."""

    def told(request: ModelRequest) -> Any:
        if request.agent_id == "reader":
            return "It is blue." if request.step == 1 and len(request.history) == 1 else "Still blue."
        if request.step == 1:
            return {"calls": [{"name": "agent_spawn", "arguments": {"agent_id": "reader", "task": "Look."}}]}
        result = getattr(request.history[-1].message, "content", "")
        key = result.split("agent_key: ")[1].split("\n")[0]
        if request.step == 2:
            return {"calls": [{"name": "agent_send", "arguments": {"agent_key": key, "message": "And now?"}}]}
        return result.split("reply:\n")[1]

    path = tmp_path / "sent.jsonl"
    first, _ = await ran(RecordModel(ScriptedModel(told), path))
    again, _ = await ran(ReplayModel(path))
    assert first.text == again.text == "Still blue."


async def test_what_differs_is_said(tmp_path: Path) -> None:
    await recorded(tmp_path / "tree.jsonl")
    result, _ = await ran(ReplayModel(tmp_path / "tree.jsonl"), "Start.")
    assert (result.status, result.reason) == ("failed", "replay_mismatch")
    assert "turn 1 of agent `lead`" in result.message
    assert '`messages[0].text` is "Start.", recorded was "Begin."' in result.message
    assert result.remedy is not None
    assert "record it again" in result.remedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent_id": "other"}, "it knows `agent`"),
        ({"step": 3}, "it knows turns up to 1"),
        ({"instructions": "Be rude."}, '`instructions` is "Be rude.", recorded was "You are helpful."'),
        ({"tools": ["add"]}, "`tools` has 1 entries, recorded were 0"),
        ({"settings": ChatClientConfig(temperature=0.5)}, "`settings.temperature` is 0.5, recorded was null"),
        ({"tools_allowed": False}, "`toolsAllowed` is false, recorded was true"),
        ({"tail": "Hurry."}, '`tail` is "Hurry.", recorded was ""'),
    ],
)
async def test_every_part_of_a_request_counts(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "one.jsonl"
    await RecordModel(ScriptedModel(["Hello."]), path).answer(model_request("Hi."), Deltas())
    with pytest.raises(ModelError) as failed:
        await ReplayModel(path).answer(model_request("Hi.", **changes), Deltas())
    assert words in failed.value.message
    assert failed.value.retryable is False


async def test_the_nearest_of_several_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    model = RecordModel(ScriptedModel(["Hello."]), path)
    await model.answer(model_request("One.", "Two.", "Three."), Deltas())
    await model.answer(model_request("One.", "Two."), Deltas())
    with pytest.raises(ModelError, match=r"`messages\[2\]\.text` is \"Four\.\""):
        await ReplayModel(path).answer(model_request("One.", "Two.", "Four."), Deltas())


async def test_equal_requests_get_their_answers_in_order(tmp_path: Path) -> None:
    replies = iter(["First.", "Second."])
    model = RecordModel(ScriptedModel(lambda _request: next(replies)), tmp_path / "equal.jsonl")
    for _ in range(2):
        await model.answer(model_request("Hi."), Deltas())
    replay = ReplayModel(tmp_path / "equal.jsonl")
    assert [(await replay.answer(model_request("Hi."), Deltas())).text for _ in range(3)] == ["First.", "Second.", "Second."]


async def test_an_answer_comes_back_whole(tmp_path: Path) -> None:
    whole = ModelAnswer(
        text="Hm.",
        reasoning="Well.",
        calls=(ToolCall(id="x1", name="add", arguments='{"a": 1'),),
        usage=Usage(input_tokens=3, output_tokens=2, cached_tokens=1, calls=1),
        finish_reason="tool_calls",
        extras={"signature": [1, None]},
        model="m-1",
    )
    path = tmp_path / "whole.jsonl"
    await RecordModel(ScriptedModel(lambda _request: whole), path).answer(model_request("Hi."), Deltas())
    deltas = Deltas()
    assert await ReplayModel(path).answer(model_request("Hi."), deltas) == whole
    assert [delta.text for delta in deltas] == ["Well.", "Hm."]


async def test_an_error_comes_back_as_it_was(tmp_path: Path) -> None:
    error = {"error": {"code": "rate_limited", "message": "slow down", "retry_after": 2.5, "status": 429}}
    path = tmp_path / "error.jsonl"
    with pytest.raises(ModelError) as first:
        await RecordModel(ScriptedModel([error]), path).answer(model_request("Hi."), Deltas())
    with pytest.raises(ModelError) as again:
        await ReplayModel(path).answer(model_request("Hi."), Deltas())
    one, other = first.value, again.value
    assert (one.code, one.message, one.remedy, one.retryable, one.retry_after, one.status) == (
        other.code,
        other.message,
        other.remedy,
        other.retryable,
        other.retry_after,
        other.status,
    )


async def test_no_secret_is_written(tmp_path: Path) -> None:
    path, key = tmp_path / "secret.jsonl", "sk-1234567890abcdef"

    class Keyed(ScriptedModel):
        def secrets(self) -> list[str]:
            return [key]

    settings = ChatClientConfig(extra={"api_token": "tok-0987654321fedcba"})
    request = model_request(f"My key is {key}.", instructions="Never say pw-abcdefgh.", settings=settings)
    model = RecordModel(Keyed(lambda _request: f"It is {key}."), path, secrets=["pw-abcdefgh"])
    assert (await model.answer(request, Deltas())).text == f"It is {key}."
    written = path.read_text()
    for secret in (key, "tok-0987654321fedcba", "pw-abcdefgh"):
        assert secret not in written
    assert "api_token" in written
    assert path.stat().st_mode & 0o077 == 0


async def test_a_file_is_made_anew_or_continued(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    for append, lines in ((False, 1), (True, 2), (False, 1)):
        model = RecordModel(ScriptedModel(["Hello."]), path, append=append)
        await model.answer(model_request("Hi."), Deltas())
        await model.close()
        assert len(path.read_text().splitlines()) == lines


async def test_texts_that_change_are_made_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    model = RecordModel(ScriptedModel(["Hello."]), path, plain=lambda text: text.replace("Monday", "<day>"))
    await model.answer(model_request("It is Monday."), Deltas())
    replay = ReplayModel(path, plain=lambda text: text.replace("Tuesday", "<day>"))
    assert (await replay.answer(model_request("It is Tuesday."), Deltas())).text == "Hello."


def test_a_file_that_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as missing:
        ReplayModel(tmp_path / "none.jsonl")
    assert missing.value.code == "recording_missing"
    (tmp_path / "bad.jsonl").write_text(json.dumps({"agent": "a"}))
    with pytest.raises(ConfigurationError) as invalid:
        ReplayModel(tmp_path / "bad.jsonl")
    assert invalid.value.code == "invalid_recording"


async def test_the_real_adapter_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "real.jsonl"
    async with StrictProvider(TREE.script()) as provider:
        real = OpenAIChatModel("m", base_url=provider.url, key_env=None)
        first, _ = await ran(RecordModel(real, path))
        count = len(provider.requests)
    again, _ = await ran(ReplayModel(path))
    assert (first.status, again.status, count) == ("completed", "completed", 3)
    assert again.text.split("reply:")[1] == first.text.split("reply:")[1]
