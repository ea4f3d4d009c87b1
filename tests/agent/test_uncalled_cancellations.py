"""A `CancelledError` that nobody asked for is a fault of the code that raised it: the caller is not cancelled."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from retinue import Agent, Middleware, ModelAnswer, PermissionRules, Runtime, ScriptedModel, SubAgent
from retinue.agent import asking
from retinue.models.port import TextDelta

pytestmark = pytest.mark.anyio


async def _inner(_request: Any) -> str:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


def _at_once(_request: Any) -> str:
    raise asyncio.CancelledError


class Own:
    provider, name = "own", "one"

    async def answer(self, request: Any, emit: Any) -> ModelAnswer:
        raise asyncio.CancelledError

    async def close(self) -> None: ...


class Before(Middleware):
    async def before_reasoning(self, state: Any) -> None:
        raise asyncio.CancelledError


class Around(Middleware):
    async def around_run(self, call: Any, next: Any) -> Any:
        raise asyncio.CancelledError


class AroundModel(Middleware):
    async def around_model_call(self, call: Any, next: Any) -> Any:
        raise asyncio.CancelledError


@pytest.mark.case("B028")
@pytest.mark.parametrize("model", [ScriptedModel(_inner), ScriptedModel(_at_once), Own()], ids=["waits", "at_once", "own"])
async def test_of_a_model(model: Any) -> None:
    async with Agent("a", model=model) as agent:
        result = await agent.run("go", check=False)
    assert (result.status, result.reason) == ("failed", "model_raised")


@pytest.mark.parametrize("middleware", [Before(), Around(), AroundModel()], ids=["before", "around", "model"])
async def test_of_a_middleware(middleware: Middleware) -> None:
    async with Agent("a", model=ScriptedModel(["x"]), middleware=[middleware]) as agent:
        result = await agent.run("go", check=False)
    assert result.status == "failed"
    assert result.reason in ("middleware_raised", "model_raised")


@pytest.mark.case("B028")
async def test_of_a_childs_model_is_the_calls_error() -> None:
    script: dict[str, Any] = {"a": [{"calls": [{"name": "child", "arguments": {"input": "x"}}]}, "went on"]}
    child = SubAgent("child", "Helps.", instructions="Help.", model="broken", surface="tool")
    runtime = Runtime(models={"broken": ScriptedModel(_inner)})
    rules = PermissionRules(allow=["child"])
    async with runtime, Agent("a", model=ScriptedModel(script), subagents=[child], permissions=rules, runtime=runtime) as agent:
        result = await agent.run("go")
    assert (result.status, result.text) == ("completed", "went on")


async def test_a_model_that_does_not_come_to_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_ANSWER", 1_000)

    class Endless:
        provider, name = "own", "endless"

        async def answer(self, request: Any, emit: Any) -> ModelAnswer:
            while True:
                emit(TextDelta("x" * 100))
                await asyncio.sleep(0)

        async def close(self) -> None: ...

    async with Agent("a", model=Endless()) as agent:
        result = await agent.run("go", check=False)
    assert (result.status, result.reason) == ("failed", "answer_too_long")
    assert 900 <= len(result.text) <= 1_100


async def test_what_a_run_sets_in_a_context_variable_is_not_its_callers() -> None:
    var: ContextVar[int] = ContextVar("var", default=0)

    def answer(_request: Any) -> str:
        var.set(99)
        return "done"

    async with Agent("a", model=ScriptedModel(answer)) as agent:
        await agent.run("go")
    assert var.get() == 0
