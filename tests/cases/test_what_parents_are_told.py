"""Public faults of what a parent is told of its child: the text that there is, and never a success that was none."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, PermissionRules, RuntimeContext, SubAgent
from retinue.rows import InvocationRow
from retinue.states import InvocationState
from retinue.testing import StrictProvider, VirtualClock, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
CALL = {"tool": ("helper", {"input": "x"}), "roster": ("agent_spawn", {"agent_id": "helper", "task": "x"})}


async def delegated(
    provider: StrictProvider, path: Path, *, surface: Any = "roster", model: Any = None, **options: Any
) -> tuple[str, InvocationRow]:
    """What the parent was told of its one child, and the delegation's row. The parent always comes to its end."""
    one = SubAgent("helper", "Helps.", instructions="Help.", surface=surface, model="own" if model else None)
    models = {"own": model} if model else None
    async with Agent(
        "parent", model=provider.model(**options), subagents=[one], permissions=ALL, ledger=path / "l.sqlite3", models=models
    ) as agent:
        result = await agent.run("Go.", context=HERE)
        assert (result.text, provider.refused) == ("I go on.", [])
        (row,) = await agent.runtime.ledger.invocations()
    return provider.asked("parent")[-1].messages[-1]["content"], row


def script(helper: Any, surface: str = "roster") -> dict[str, Any]:
    """A parent that delegates once and goes on."""
    return {"parent": [calls(CALL[surface]), "I go on."], "helper": helper}


def document(parts: list[dict[str, Any]]) -> str:
    """An answer whose content is in parts."""
    message = {"role": "assistant", "content": parts}
    return msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).decode()


EMPTY: dict[str, Any] = {"type": "text", "text": ""}
BLANK: dict[str, Any] = {"type": "text", "text": " \n"}
REAL: dict[str, Any] = {"type": "text", "text": "real text"}
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.case("B198")
@pytest.mark.parametrize(
    "parts",
    [[EMPTY, REAL], [REAL, EMPTY], [BLANK, REAL], [THOUGHT, REAL], [IMAGE, EMPTY, REAL], [EMPTY, THOUGHT, IMAGE, REAL, BLANK]],
)
async def test_the_text_of_an_answer_in_parts_is_all_of_its_text(parts: list[dict[str, Any]], tmp_path: Path) -> None:
    async with StrictProvider(script(["never said"])) as provider:
        provider.fail(agent="helper", body=document(parts))
        told, row = await delegated(provider, tmp_path)
    assert row.state is InvocationState.COMPLETED
    assert told.partition("reply:\n")[2].strip() == "real text"


@pytest.mark.contract("D-09", "H-20")
@pytest.mark.case("B200", "HPD-43")
@pytest.mark.parametrize("surface", ["tool", "roster"])
@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_a_child_without_a_word_has_not_completed(surface: str, text: str, tmp_path: Path) -> None:
    async with StrictProvider(script([{"text": text}], surface)) as provider:
        told, row = await delegated(provider, tmp_path, surface=surface)
        assert len(provider.asked("helper")) == 1
    assert (row.state, row.reason) == (InvocationState.FAILED, "empty_result")
    assert "answered with nothing" in told
    assert "status: ok" not in told


class Raises:
    """A model that raises."""

    provider, name = "own", "raises"

    async def answer(self, request: Any, emit: Any) -> Any:
        """See `ChatModel`."""
        raise RuntimeError("the line is dead")

    async def close(self) -> None:
        """See `ChatModel`."""


@pytest.mark.case("B202")
async def test_a_provider_that_fails_in_five_ways_is_told_in_five(tmp_path: Path) -> None:
    error_body = '{"error": {"message": "slow down", "type": "server_error", "code": 429}}'
    error_stop = 'data: {"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": "error"}]}\n\ndata: [DONE]\n\n'
    ways: dict[str, tuple[dict[str, Any], dict[str, Any] | None, Any]] = {
        "model_raised": ({}, None, Raises()),
        "overloaded": ({}, {"body": error_stop, "content_type": "text/event-stream"}, None),
        "rate_limited": ({}, {"body": error_body}, None),
        "content_filter": ({"finish_reason": "content_filter"}, None, None),
        "limit:max_tokens": ({"finish_reason": "length"}, None, None),
    }
    for reason, (turn, fault, model) in ways.items():
        async with StrictProvider(script([{"text": "I say it is done.", **turn}])) as provider:
            if fault is not None:
                provider.fail(agent="helper", **fault)
            folder = tmp_path / reason
            folder.mkdir()
            told, row = await delegated(provider, folder, model=model, retries=0)
        assert (row.state, row.reason) == (InvocationState.FAILED, reason)
        assert "status: error" in told


@pytest.mark.case("B202")
@pytest.mark.parametrize("finish", ["error", "abort", "insufficient_system_resource"])
async def test_an_answer_that_the_provider_gave_up_is_asked_for_again_and_is_no_answer(finish: str, tmp_path: Path) -> None:
    body = f'{{"choices": [{{"index": 0, "message": {{"content": ""}}, "finish_reason": "{finish}"}}]}}'
    async with StrictProvider(script(["helped"])) as provider:
        provider.fail(agent="helper", body=body, times=2)
        told, row = await delegated(provider, tmp_path, clock=VirtualClock(auto=True))
        assert len(provider.asked("helper")) == 3
    assert row.state is InvocationState.COMPLETED
    assert told.endswith("helped")


@pytest.mark.case("B204")
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 400, "message": "invalid model ID", "code": "model_not_found"},
        {"status": 404, "message": "The model `fake` does not exist", "code": "model_not_found"},
    ],
)
async def test_a_model_id_that_is_wrong_is_said_after_one_call(fault: dict[str, Any], tmp_path: Path) -> None:
    async with StrictProvider(script(["never said"])) as provider:
        provider.fail(agent="helper", **fault)
        told, row = await delegated(provider, tmp_path)
        assert len(provider.asked("helper")) == 1
    assert (row.state, row.reason) == (InvocationState.FAILED, "model_not_found")
    assert fault["message"] in told
    assert "`fake`" in told


@pytest.mark.case("B209")
async def test_a_child_that_is_rate_limited_for_ever_ends_and_its_parent_has_its_turn(tmp_path: Path) -> None:
    clock = VirtualClock(auto=True)
    async with StrictProvider(script(["never said"])) as provider:
        provider.fail(agent="helper", status=429, message="weekly limit reached", times=100)
        told, row = await delegated(provider, tmp_path, clock=clock)
        assert len(provider.asked("helper")) == 3
    assert (row.state, row.reason) == (InvocationState.FAILED, "rate_limited")
    assert "weekly limit reached" in told
    assert clock.monotonic() < 60
