"""A model call that fails ends the run failed: with its code, its words, what to do, and never with a key."""

import os
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    ConfigurationError,
    ModelCalledEvent,
    OpenAIChatModel,
    PermissionRules,
    RunFailed,
    RunFinishedEvent,
    RuntimeContext,
    SubAgent,
    SubAgentInvocationFailedEvent,
)
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, StrictProvider, calls, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = "sk-very-secret-0123456789"


@pytest.mark.contract("D-28")
@pytest.mark.parametrize(
    "code",
    [
        "unreachable",
        "timeout",
        "stream_broken",
        "authentication",
        "rate_limited",
        "overloaded",
        "context_overflow",
        "model_not_found",
        "bad_request",
        "bad_response",
        "missing_key",
    ],
)
async def test_each_code_of_a_model_error_is_the_reason_of_the_run(code: str) -> None:
    turn = {"text": "Half an", "error": {"code": code, "message": "the provider's words"}}
    async with Agent("parent", model=RecordingModel({"parent": [turn]})) as agent:
        with pytest.raises(RunFailed) as raised:
            await agent.run("Go.", context=HERE)
        events = await (await agent.threads.get(session_id="s")).events()
    error = raised.value
    assert (error.code, error.result.status, error.result.reason) == (code, "failed", code)
    assert error.result.text == "Half an"
    assert "the provider's words" in str(error)
    assert "`scripted`" in error.message
    assert error.remedy
    assert error.result.thread is not None
    assert error.result.run_id.startswith("run_")
    called = next(event for event in events if isinstance(event, ModelCalledEvent))
    assert (called.error, called.finish_reason) == (code, "error")
    ended = events[-1]
    assert isinstance(ended, RunFinishedEvent)
    assert (ended.status, ended.reason, ended.remedy) == ("failed", code, error.remedy)


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ({"status": 401, "message": f"Incorrect API key provided: {KEY}"}, "authentication", ["the key", "may use this model"]),
        ({"status": 404, "message": "model not found"}, "model_not_found", ["`fake`", "base URL"]),
        ({"status": 400, "message": "maximum context length is 5"}, "context_overflow", ["Compact"]),
        ({"status": 500, "message": "boom", "times": 3}, "overloaded", ["tried 3 times", "later"]),
        ({"body": "<html>no</html>", "content_type": "text/html"}, "bad_response", ["HTML", "base URL"]),
    ],
)
async def test_what_a_server_says_reaches_the_caller_without_the_key(fault: dict[str, Any], code: str, told: list[str]) -> None:
    async with StrictProvider(["ok"], api_key=KEY) as provider:
        provider.fail(**fault)
        async with Agent("parent", model=provider.model(jitter=lambda: -1.0)) as agent:
            with pytest.raises(RunFailed) as raised:
                await agent.run("Go.", context=HERE)
            events = await (await agent.threads.get(session_id="s")).events()
    assert raised.value.code == code
    for text in told:
        assert text in str(raised.value)
    assert KEY not in f"{raised.value} {raised.value.result} {events}"


async def test_without_a_key_no_request_is_made_and_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(RunFailed) as raised:
        await Agent("parent", model="openai:gpt-5").run("Go.")
    assert raised.value.code == "missing_key"
    assert "`openai`" in str(raised.value)
    assert "`OPENAI_API_KEY`" in str(raised.value)


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    with pytest.raises(RunFailed) as raised:
        await Agent("parent", model=OpenAIChatModel("m", base_url="http://127.0.0.1:9/v1", retries=0)).run("Go.")
    assert raised.value.code == "unreachable"
    assert "Is the server running at http://127.0.0.1:9/v1" in str(raised.value)


@pytest.mark.contract("A-18")
@pytest.mark.parametrize("model", ["opnai:gpt-5", "gpt-5", "http://127.0.0.1:9/v1", ""])
async def test_a_model_that_is_not_known_is_said_at_build_with_the_forms(model: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        await Agent("parent", model=model).build()
    assert raised.value.code == "unknown_model"
    assert "#name" in str(raised.value)


@pytest.mark.contract("A-01")
async def test_an_agent_without_a_model_says_so_at_build() -> None:
    with pytest.raises(ConfigurationError, match=r"agent `parent` has no model.*model="):
        await Agent("parent").build()


@pytest.mark.contract("H-20")
@pytest.mark.case("HPD-44", "B028")
async def test_a_childs_model_error_is_the_parents_to_act_on() -> None:
    model = RecordingModel(
        {
            "parent": [calls(("agent_spawn", {"agent_id": "child", "task": "x"})), "I go on."],
            "child": [{"error": {"code": "rate_limited", "message": "slow down", "retry_after": 30}}],
        }
    )
    async with Agent("parent", model=model, subagents=[SubAgent("child", "D.", instructions="…")]) as agent:
        result = await agent.run("Go.", context=HERE)
        events = await (await agent.threads.graph("s")).threads[0].events()
    told = results_of(model.asked("parent")[1])[0]
    failed = next(event for event in events if isinstance(event, SubAgentInvocationFailedEvent))
    assert result.text == "I go on."
    assert failed.error_type == "rate_limited"
    assert "status: error\nerror: " in told
    assert "slow down" in told
    assert "try again in 30 s" in told


async def test_a_model_that_raises_something_else_ends_the_run_and_is_named() -> None:
    def answer(_request: ModelRequest) -> str:
        raise KeyError("mine")

    with pytest.raises(RunFailed) as raised:
        await Agent("parent", model=RecordingModel(answer)).run("Go.")
    assert raised.value.code == "model_raised"
    assert "KeyError" in str(raised.value)


async def test_a_failed_run_leaves_a_thread_that_can_go_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    failing = RecordingModel({"parent": [{"error": {"code": "overloaded"}}]})
    async with Agent("parent", model=failing, ledger=url) as agent:
        result = await agent.run("Go.", context=HERE, check=False)
        assert result.status == "failed"
    model = RecordingModel({"parent": ["Better."]})
    async with Agent("parent", model=model, ledger=url) as agent:
        assert (await agent.run("Again.", context=HERE)).text == "Better."
    assert len(model.requests[0].history) == 2


@pytest.mark.contract("A-18")
async def test_the_key_of_a_run_is_nowhere_in_its_ledger(tmp_path: Path) -> None:
    os.environ["RETINUE_TEST_KEY"] = KEY
    try:
        async with StrictProvider([calls(("nothing", {})), "ok"], api_key=KEY) as provider:
            model = provider.model(api_key="env:RETINUE_TEST_KEY")
            async with Agent("parent", model=model, ledger=tmp_path / "l.db", permissions=PermissionRules()) as agent:
                await agent.run("Go.")
    finally:
        del os.environ["RETINUE_TEST_KEY"]
    for path in tmp_path.rglob("*"):  # noqa: ASYNC240
        assert path.is_dir() or KEY.encode() not in path.read_bytes()
