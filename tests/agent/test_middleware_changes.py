"""What a middleware gives to `next` is what runs, no right is widened by it, and what it may not change is refused (H-27)."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from retinue import Agent, Middleware, PermissionRules, RunFailed, SubAgent, ToolCallResultEvent, ToolContext, tool
from retinue.agent.around_call import CHANGED_ARGUMENTS
from retinue.agent.middleware import RunCall, ToolInvocation
from retinue.agent.ports import CallOutcome
from retinue.states import ResultStatus
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

ALL = PermissionRules(allow=["*"])


class Passing(Middleware):
    """Gives to `next` of one point what `change` makes of the call."""

    def __init__(self, point: str, change: Callable[[Any], Any]) -> None:
        self.point, self.change = point, change
        self.got: list[Any] = []

    async def _pass(self, point: str, call: Any, next: Callable[[Any], Any]) -> Any:
        self.got.append(await next(self.change(call) if point == self.point else call))
        return self.got[-1]

    async def around_run(self, call: Any, next: Callable[[Any], Any]) -> Any:
        """Pass."""
        return await self._pass("run", call, next)

    async def around_model_call(self, call: Any, next: Callable[[Any], Any]) -> Any:
        """Pass."""
        return await self._pass("model", call, next)

    async def around_tool_call(self, call: Any, next: Callable[[Any], Any]) -> Any:
        """Pass."""
        return await self._pass("tool", call, next)


class Desk:
    """A tool that writes down what it was given."""

    def __init__(self) -> None:
        self.wrote: list[str] = []

    def tools(self) -> list[Any]:
        """The tool."""

        @tool(main_argument="path")
        async def write(context: ToolContext, path: str, count: int = 1) -> str:
            """Write."""
            assert not context.cancelled
            self.wrote.append(path * count)
            return f"wrote {path * count}"

        return [write]


def to(arguments: Any) -> Passing:
    """A middleware that makes the arguments of each tool call these."""
    return Passing("tool", lambda call: call.with_arguments(arguments))


async def one_write(rules: PermissionRules, *middleware: Middleware) -> tuple[list[str], ToolCallResultEvent]:
    """What was written, and the result of a model's call that wanted to write to `a`."""
    desk = Desk()
    model = RecordingModel({"a": [calls(("write", {"path": "a"})), "done"]})
    async with Agent("a", model=model, tools=desk.tools(), permissions=rules, middleware=middleware) as agent:
        result = await agent.run("go")
        assert result.thread is not None
        (ended,) = [event for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)]
    return desk.wrote, ended


async def test_changed_arguments_of_a_tool_are_what_runs_and_the_result_says_so() -> None:
    wrote, ended = await one_write(ALL, to({"path": "b"}))
    assert wrote == ["b"]
    assert (ended.content, ended.metadata) == ("wrote b", {CHANGED_ARGUMENTS: '{"path":"b"}'})


async def test_unchanged_arguments_leave_no_trace() -> None:
    wrote, ended = await one_write(ALL, to({"path": "a"}), Passing("", lambda call: call))
    assert (wrote, ended.content, ended.metadata) == (["a"], "wrote a", {})


@pytest.mark.parametrize(
    ("rules", "because"),
    [
        (PermissionRules(allow=["write(a)"], deny=["write(b)"]), "was denied ("),
        (PermissionRules(allow=["write(a)"], ask=["write(b)"]), "a middleware changed its arguments, and these"),
    ],
)
@pytest.mark.contract("H-27")
async def test_changed_arguments_go_past_the_gate_and_nothing_runs_unasked(rules: PermissionRules, because: str) -> None:
    wrote, ended = await one_write(rules, to({"path": "b"}))
    assert wrote == []
    assert ended.status is ResultStatus.DENIED
    assert because in ended.content


async def test_a_yes_for_some_arguments_is_none_for_others() -> None:
    desk = Desk()
    model = RecordingModel({"a": [calls(("write", {"path": "a"})), "done"]})
    rules = PermissionRules(ask=["write"])
    async with Agent("a", model=model, tools=desk.tools(), permissions=rules, middleware=[to({"path": "b"})]) as agent:
        waiting = await agent.run("go")
        assert await agent.answer(waiting.requests[0], allow=True) is not None
    assert desk.wrote == []


async def test_changed_arguments_that_do_not_fit_are_told() -> None:
    wrote, ended = await one_write(ALL, to({"count": "many"}))
    assert wrote == []
    assert ended.status is ResultStatus.ERROR
    assert "many" in ended.content


class Again(Middleware):
    """Makes each tool call twice, with others than the first arguments the second time."""

    async def around_tool_call(self, call: ToolInvocation, next: Callable[[ToolInvocation], Any]) -> Any:
        """Twice."""
        await next(call)
        return await next(call.with_arguments({**call.arguments, "count": 2}))


async def test_a_tool_can_be_called_again_and_has_a_context_of_its_own_then() -> None:
    wrote, ended = await one_write(ALL, Again())
    assert wrote == ["a", "aa"]
    assert ended.content == "wrote aa"


NOT_OF_A_TOOL_CALL: list[tuple[Callable[[Any], Any], str]] = [
    (lambda call: replace(call, depth=call.depth + 1), "changed `depth` of a `ToolInvocation`"),
    (lambda call: replace(call, call=replace(call.call, name="other")), "changed `call.name`"),
    (lambda call: replace(call, call=replace(call.call, id="other")), "changed `call.id`"),
    (lambda call: call.call, "gave `next` a ToolCall, not a `ToolInvocation`"),
    (lambda _: None, "gave `next` a NoneType, not a `ToolInvocation`"),
    (lambda call: replace(call, call=None), "made `call` of a `ToolInvocation` a NoneType"),
]


@pytest.mark.parametrize(("change", "said"), NOT_OF_A_TOOL_CALL)
async def test_what_a_middleware_may_not_change_of_a_tool_call_is_refused(change: Callable[[Any], Any], said: str) -> None:
    wrote, ended = await one_write(ALL, Passing("tool", change))
    assert wrote == []
    assert ended.status is ResultStatus.ERROR
    assert said in ended.content
    assert "Pass on `call`, or `call.with_arguments(…)`." in ended.content


async def test_the_arguments_of_a_delegation_stand() -> None:
    model = RecordingModel({"a": [calls(("helper", {"input": "h"})), "done"], "helper": ["never"]})
    helper = SubAgent("helper", "Helps.", instructions="Help.", surface="tool")
    async with Agent("a", model=model, subagents=[helper], permissions=ALL, middleware=[to({"input": "other"})]) as agent:
        result = await agent.run("go")
        assert result.thread is not None
        (ended,) = [event for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)]
    assert model.asked("helper") == []
    assert "changed the arguments of the delegation `helper`, whose child is committed" in ended.content


async def test_a_changed_request_is_what_the_model_is_asked() -> None:
    model = RecordingModel({"a": ["done"]})
    short = Passing("model", lambda call: call.with_request(tail="Be short."))
    async with Agent("a", model=model, middleware=[short]) as agent:
        await agent.run("go")
    assert model.requests[0].tail == "Be short."


NOT_OF_OTHERS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("model", lambda call: replace(call, turn=7), "changed `turn` of a `ModelCall`"),
    ("model", lambda call: call.request, "gave `next` a ModelRequest, not a `ModelCall`"),
    ("model", lambda call: replace(call, request="hello"), "made `request` of a `ModelCall` a str"),
    ("run", lambda call: replace(call, depth=0, agent_id="other"), "changed `agent_id` of a `RunCall`"),
    ("run", lambda _: None, "gave `next` a NoneType, not a `RunCall`"),
]


@pytest.mark.parametrize(("point", "change", "said"), NOT_OF_OTHERS)
async def test_what_may_not_be_changed_of_a_run_or_a_model_call_ends_the_run(
    point: str, change: Callable[[Any], Any], said: str
) -> None:
    model = RecordingModel({"a": ["never"]})
    async with Agent("a", model=model, middleware=[Passing(point, change)]) as agent:
        with pytest.raises(RunFailed) as raised:
            await agent.run("go")
    assert raised.value.result.reason == "middleware_raised"
    assert said in raised.value.result.message
    assert model.requests == []


async def test_next_is_called_once_around_a_run() -> None:
    class Twice(Middleware):
        async def around_run(self, call: RunCall, next: Callable[[RunCall], Any]) -> Any:
            await next(call)
            with pytest.raises(Exception, match="called `next` twice around the run of `a`"):
                await next(call)

    async with Agent("a", model=RecordingModel({"a": ["done"]}), middleware=[Twice()]) as agent:
        assert (await agent.run("go")).text == "done"


async def test_a_call_cannot_be_changed_in_place() -> None:
    class InPlace(Middleware):
        async def around_tool_call(self, call: ToolInvocation, next: Callable[[ToolInvocation], Any]) -> Any:
            with pytest.raises(AttributeError, match="immutable"):
                call.depth = 3  # type: ignore[misc]
            return CallOutcome(content="instead")

    wrote, ended = await one_write(ALL, InPlace())
    assert (wrote, ended.content) == ([], "instead")
