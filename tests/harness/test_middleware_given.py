"""What is no middleware, or has a method that nothing would ever call, is refused where it is given."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    CallOutcome,
    ConfigurationError,
    HarnessAgent,
    Middleware,
    ModelAnswer,
    ModelCall,
    RunCall,
    ScriptedModel,
    ToolInvocation,
)
from retinue.agent.ports import RunEnd

pytestmark = pytest.mark.anyio

MODEL = ScriptedModel({"*": ["ok"]})


class Audit(Middleware):
    """A middleware as it is to be."""

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[RunEnd]]) -> RunEnd:
        return await next(call)


class Bare:
    """Has a point's name, and not the base."""

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[RunEnd]]) -> RunEnd:
        return await next(call)


class Typo(Middleware):
    """Two letters the wrong way round."""

    async def around_modle_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        return await next(call)


class Inherited(Typo):
    """Its base has the mistake."""


class Short(Middleware):
    """The last word is missing."""

    async def around_tool(self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]) -> CallOutcome:
        return await next(call)


class Camel(Middleware):
    """As it would be called in another language."""

    @staticmethod
    async def beforeReasoning(state: Any) -> None: ...


class Words(Middleware):
    """What sorts by it would fail in the middle of a run."""

    priority: Any = "first"


def plain(given: Any, _folder: Path) -> Agent:
    return Agent("a", model=MODEL, middleware=given)


def harness(given: Any, folder: Path) -> Agent:
    return HarnessAgent("a", model=MODEL, workspace=folder, middleware=given)


def nothing(_call: Any, _next: Any) -> None: ...


AGENTS = [plain, harness]


def refused(make: Callable[[Any, Path], Agent], given: Any, folder: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        make(given, folder)
    return caught.value


@pytest.mark.contract("D-27")
@pytest.mark.parametrize("make", AGENTS)
@pytest.mark.parametrize(
    ("given", "told", "remedy"),
    [
        ([Audit], "a list with the class `Audit`", "give an instance: `Audit(…)`"),
        ([Audit(), Audit], "a list with the class `Audit`", "give an instance: `Audit(…)`"),
        (["x"], "a list with 'x'", "class Trace(Middleware)"),
        ([None], "a list with a `NoneType`", "class Trace(Middleware)"),
        ([nothing], "a list with a `function`", "class Trace(Middleware)"),
        ([lambda: None], "a list with a `function`", "class Trace(Middleware)"),
        ([Bare()], "a list with a `Bare`", "class Trace(Middleware)"),
        ([Bare], "a list with the class `Bare`", "class Trace(Middleware)"),
        (Audit(), "`middleware` is an `Audit`", "give a list"),
        ([Words()], "`Words.priority` is 'first'", "lower is outer"),
    ],
)
def test_what_is_no_middleware(make: Callable[[Any, Path], Agent], given: Any, told: str, remedy: str, tmp_path: Path) -> None:
    error = refused(make, given, tmp_path)
    assert (error.code, told in str(error), remedy in (error.remedy or "")) == ("invalid_argument", True, True)


@pytest.mark.contract("D-27")
@pytest.mark.parametrize("make", AGENTS)
@pytest.mark.parametrize(
    ("given", "name", "meant"),
    [
        (Typo(), "around_modle_call", "around_model_call"),
        (Inherited(), "around_modle_call", "around_model_call"),
        (Short(), "around_tool", "around_tool_call"),
        (Camel(), "beforeReasoning", "before_reasoning"),
    ],
)
def test_a_method_that_nothing_would_call(
    make: Callable[[Any, Path], Agent], given: Middleware, name: str, meant: str, tmp_path: Path
) -> None:
    error = refused(make, [Audit(), given], tmp_path)
    assert error.code == "unknown_middleware_point"
    assert f"`{type(given).__name__}` has `{name}`, which nothing calls; did you mean `{meant}`?" in str(error)
    assert f"name it `{meant}`" in (error.remedy or "")


class Helpers(Middleware):
    """Helpers of any name beside the points: private ones, those of a point that is overridden, and others."""

    around_model_calls: int = 0

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        return await self.around_tool_calls(call, next)

    async def around_tool_calls(self, call: Any, next: Callable[[Any], Awaitable[Any]]) -> Any:
        return await next(call)

    async def _before_reasoning(self) -> None: ...

    def after_run(self) -> Sequence[str]:
        return ()

    def report(self) -> str:
        return ""


async def test_helpers_may_have_any_other_name() -> None:
    async with Agent("a", model=ScriptedModel(["ok"]), middleware=(Helpers(), Audit(), Middleware())) as agent:
        assert (await agent.run("go")).text == "ok"
