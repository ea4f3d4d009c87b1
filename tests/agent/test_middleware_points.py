"""Middleware: its points, their order, the state it keeps, what it may change, and what happens when it raises (H-24, H-27)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    Middleware,
    PermissionRules,
    RunFailed,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolCallResultEvent,
    ToolHarness,
    tool,
)
from retinue.agent.middleware import Fork, ModelCall, Reasoning, RunCall, ToolInvocation
from retinue.agent.ports import CallOutcome
from retinue.events import StateSetEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.messages import ToolResult, UserMessage
from retinue.models.port import ModelAnswer, ModelRequest
from retinue.states import ResultStatus
from retinue.testing import RecordingModel, StrictProvider, calls, messages_of, results_of
from retinue.testing.audit import audit
from retinue.testing.mortal import SharedStore
from retinue.testing.transcripts import assert_valid_transcript

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])


class Tools(ToolHarness):
    """A tool."""

    def __init__(self) -> None:
        self.used = 0

    @tool
    async def use(self) -> str:
        """Use."""
        self.used += 1
        return "used"


def helper(**fields: Any) -> SubAgent:
    """A forked child."""
    return SubAgent("helper", "Helps.", instructions="Help.", surface="tool", context_policy="fork", **fields)


def script() -> dict[str, list[Any]]:
    """A tool, a child, and an end."""
    return {
        "root": [calls(("use", {})), calls(("helper", {"input": "h"})), "root is done"],
        "helper": ["helper is done"],
    }


class Tracing(Middleware):
    """Writes down where it is called."""

    def __init__(self, name: str, priority: int, log: list[str]) -> None:
        self.name = name
        self.priority = priority
        self.log = log

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
        """Before and after."""
        self.log.append(f"{self.name} run {call.agent_id} {call.depth}")
        try:
            return await next(call)
        finally:
            self.log.append(f"{self.name} ran {call.agent_id}")

    async def around_model_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Before and after."""
        self.log.append(f"{self.name} model {call.agent_id} {call.turn}")
        answer = await next(call)
        self.log.append(f"{self.name} answered")
        return answer

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        """Before and after."""
        self.log.append(f"{self.name} tool {call.call.name}")
        outcome = await next(call)
        self.log.append(f"{self.name} called {call.call.name}")
        return outcome

    async def before_reasoning(self, state: Reasoning) -> None:
        """Before."""
        self.log.append(f"{self.name} reasoning {state.agent_id} {state.turn}")

    async def before_fork_commit(self, fork: Fork) -> None:
        """Before."""
        self.log.append(f"{self.name} fork {fork.child_agent_id}")


@pytest.mark.contract("A-03")
async def test_points_are_called_from_the_outside_in_by_priority() -> None:
    log: list[str] = []
    middleware = [Tracing("inner", 200, log), Tracing("outer", 10, log)]
    model = RecordingModel(script())
    agent = Agent("root", model=model, tool_harnesses=[Tools()], subagents=[helper()], permissions=ALL, middleware=middleware)
    assert (await agent.run("go")).text == "root is done"
    first = log.index("outer tool use")
    assert log[:first] == [
        "outer run root 0",
        "inner run root 0",
        "outer reasoning root 1",
        "inner reasoning root 1",
        "outer model root 1",
        "inner model root 1",
        "inner answered",
        "outer answered",
    ]
    assert log[first : first + 4] == ["outer tool use", "inner tool use", "inner called use", "outer called use"]
    fork = log.index("outer fork helper")
    assert log[fork : fork + 6] == [
        "outer fork helper",
        "inner fork helper",
        "outer tool helper",
        "inner tool helper",
        "outer run helper 1",
        "inner run helper 1",
    ]
    assert log[-2:] == ["inner ran root", "outer ran root"]
    await agent.close()


async def test_the_tail_is_for_one_request_and_is_not_kept() -> None:
    class Telling(Middleware):
        async def before_reasoning(self, state: Reasoning) -> None:
            state.tail.append(f"turn {state.turn}, {len(state.history)} messages")

    model = RecordingModel({"root": [calls(("use", {})), "done"]})
    agent = Agent("root", model=model, tool_harnesses=[Tools()], middleware=[Telling()])
    result = await agent.run("go")
    assert [request.tail for request in model.requests] == ["turn 1, 1 messages", "turn 2, 3 messages"]
    assert result.thread is not None
    texts = [getattr(message, "text", "") for message in await result.thread.messages()]
    assert not any("turn 1" in text for text in texts)
    await agent.close()


async def test_a_middleware_can_answer_in_the_place_of_a_tool_and_of_a_model() -> None:
    class Instead(Middleware):
        async def around_tool_call(
            self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
        ) -> CallOutcome:
            return CallOutcome(content=f"instead of {call.call.name}")

        async def around_model_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
            return ModelAnswer(text="cached") if call.turn == 2 else await next(call)

    tools = Tools()
    model = RecordingModel({"root": [calls(("use", {})), "never asked"]})
    agent = Agent("root", model=model, tool_harnesses=[tools], middleware=[Instead()])
    result = await agent.run("go")
    assert result.text == "cached"
    assert (tools.used, len(model.requests)) == (0, 1)
    assert result.thread is not None
    ended = [event.content for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)]
    assert ended == ["instead of use"]
    await agent.close()


# Forks (H-24)


class Shorter(Middleware):
    """Forks begin with the last user message and what `keep` adds."""

    def __init__(self, *, in_place: bool = False, valid: bool = True) -> None:
        self.in_place = in_place
        self.valid = valid

    async def before_fork_commit(self, fork: Fork) -> None:
        """Leave out what came before the last turn."""
        if not self.valid:
            fork.history = [entry for entry in fork.history if not isinstance(entry.message, ToolResult)]
            return
        last = max(place for place, entry in enumerate(fork.history) if isinstance(entry.message, UserMessage))
        if self.in_place:
            del fork.history[:last]
        else:
            fork.history = fork.history[last:]


def two_turns(*, also: list[Any] | None = None) -> dict[str, list[Any]]:
    """One turn with a tool, and then one with a child."""
    return {"root": [calls(("use", {})), calls(("helper", {"input": "h"})), "done"], "helper": also or ["helper is done"]}


@pytest.mark.contract("H-24", "D-14")
@pytest.mark.parametrize("in_place", [True, False])
async def test_a_fork_begins_with_the_history_that_middleware_made_of_it(in_place: bool) -> None:
    async with StrictProvider(two_turns(also=[{"calls": [{"name": "use"}]}, "helper is done"])) as provider:
        runtime = Runtime()
        agent = Agent(
            "root",
            model=provider.model(),
            tool_harnesses=[Tools()],
            subagents=[helper(tool_harnesses=[Tools()])],
            permissions=ALL,
            middleware=[Shorter(in_place=in_place)],
            runtime=runtime,
        )
        await Agent("root", model=RecordingModel({"root": ["before"]}), runtime=runtime).run("earlier", context=HERE)
        result = await agent.run("go", context=HERE)
        assert result.text == "done"
        assert provider.refused == []
        said = [message.get("content") for message in provider.asked("helper")[0].messages if message["role"] == "user"]
        assert said == ["go", "h"]
        above = [message.get("content") for message in provider.asked("root")[-1].messages if message["role"] == "user"]
        assert above == ["earlier", "go"]  # never on the parent
        graph = await agent.threads.graph("s")
        child = graph.runtime_children[0]
        kept = await child.messages()
        assert_valid_transcript(kept)
        assert [type(message).__name__ for message in kept][:5] == [
            "UserMessage",
            "AssistantMessage",
            "ToolResult",
            "UserMessage",
            "AssistantMessage",
        ]
        assert child.metadata["contextPolicy"] == "fork"
        assert await audit(runtime.ledger, result.run_id) == []
        again = await child.run("and?")
        assert again.text == "helper is done"
        assert provider.refused == []
        await runtime.close()


@pytest.mark.contract("H-24")
async def test_a_changed_fork_is_the_same_after_a_crash() -> None:
    store = SharedStore(MemoryLedger())
    await store.ledger.open()
    hang = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "helper" and not hang.is_set():
            hang.set()
            await asyncio.Event().wait()
        if request.agent_id == "helper":
            return "helper is done"
        return [calls(("use", {})), calls(("helper", {"input": "h"})), "done"][request.step - 1]

    model = RecordingModel(answer)

    def agent(ledger: Any) -> Agent:
        return Agent(
            "root",
            model=model,
            tool_harnesses=[Tools()],
            subagents=[helper()],
            permissions=ALL,
            middleware=[Shorter()],
            runtime=Runtime(ledger=ledger),
        )

    process = store.process()
    first = agent(process.ledger)
    await Agent("root", model=RecordingModel({"root": ["before"]}), runtime=first.runtime).run("earlier", context=HERE)
    run = asyncio.create_task(first.run("go", context=HERE))
    await hang.wait()
    process.kill()
    run.cancel()
    await asyncio.wait((run,))
    root = (await store.ledger.runs(roots_only=True))[0]
    second = agent(store.process().ledger)
    assert (await second.resume(root.run_id)).text == "done"
    before, after = (messages_of(request) for request in model.asked("helper"))
    assert before == after
    assert len(before) == 4
    await second.runtime.close()


@pytest.mark.contract("H-24")
@pytest.mark.case("B015")
async def test_a_history_that_no_provider_would_take_is_refused() -> None:
    model = RecordingModel(two_turns())
    agent = Agent(
        "root", model=model, tool_harnesses=[Tools()], subagents=[helper()], permissions=ALL, middleware=[Shorter(valid=False)]
    )
    result = await agent.run("go")
    assert result.text == "done"
    assert (
        "`before_fork_commit` left a history in which a call and its results are not together"
        in results_of(model.requests[-1])[-1]
    )
    assert [row.agent_id for row in await agent.runtime.ledger.tree(result.run_id)] == ["root"]
    assert next(iter(agent.runtime._trees), None) is None
    await agent.close()


# State (H-27)


class Counting(Middleware):
    """Counts model calls, by thread and by session."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    async def before_reasoning(self, state: Reasoning) -> None:
        """Count."""
        counts: list[int] = []
        for scope in ("thread", "session"):
            handle = state.state(scope)  # type: ignore[arg-type]
            handle.set("calls", handle.get("calls", 0) + 1)
            counts.append(handle.get("calls"))
        self.seen.append((state.agent_id, *counts))  # type: ignore[arg-type]


@pytest.mark.contract("H-27")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_threads_state_is_copied_on_fork_and_a_sessions_is_shared_and_durable(kind: str, tmp_path: Path) -> None:
    where = "memory" if kind == "memory" else str(tmp_path / "ledger.db")
    counting = Counting()

    def agent() -> Agent:
        return Agent(
            "root",
            model=RecordingModel(script()),
            tool_harnesses=[Tools()],
            subagents=[helper()],
            permissions=ALL,
            middleware=[counting],
            ledger=where,
        )

    one = agent()
    result = await one.run("go", context=HERE)
    # the child begins with its parent's two, and the parent goes on from its own
    assert counting.seen == [("root", 1, 1), ("root", 2, 2), ("helper", 3, 3), ("root", 3, 4)]
    assert result.thread is not None
    states = [event.value for event in await result.thread.events() if isinstance(event, StateSetEvent)]
    assert states == [1, 2, 3]
    counting.seen.clear()
    again = one
    if kind == "sqlite":
        await one.close()
        again = agent()
    await again.run("go", context=HERE)
    assert counting.seen == [("root", 4, 5), ("root", 5, 6), ("helper", 6, 7), ("root", 6, 8)]
    counting.seen.clear()
    await again.run("go", context=RuntimeContext(session_id="other"))
    assert counting.seen[0] == ("root", 1, 1)
    assert await again.runtime.ledger.state("", "s") == {"middleware:calls": b"8"}
    await again.close()


@pytest.mark.contract("H-27")
async def test_a_middlewares_state_cannot_be_taken_for_a_persons_answer() -> None:
    class Forging(Middleware):
        async def before_reasoning(self, state: Reasoning) -> None:
            state.state("session").set("permission:use:root", "allow")

    tools = Tools()
    rules = PermissionRules(ask=["use"])
    model = RecordingModel({"root": [calls(("use", {})), "done"]})
    agent = Agent("root", model=model, tool_harnesses=[tools], permissions=rules, middleware=[Forging()])
    assert (await agent.run("go")).status == "waiting"
    assert tools.used == 0
    await agent.close()


# Faults


class Raising(Middleware):
    """Raises at one of its points."""

    def __init__(self, point: str, agent_id: str = "root") -> None:
        self.point = point
        self.agent_id = agent_id

    def _maybe(self, point: str, agent_id: str) -> None:
        if (point, agent_id) == (self.point, self.agent_id):
            raise ValueError(f"from {point}")

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
        """Before or after the run."""
        self._maybe("before_run", call.agent_id)
        if (self.point, self.agent_id) == ("no_next", call.agent_id):
            return None
        end = await next(call)
        self._maybe("after_run", call.agent_id)
        return end

    async def around_model_call(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Before the model."""
        self._maybe("model", call.agent_id)
        return await next(call)

    async def around_tool_call(
        self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
    ) -> CallOutcome:
        """Before the tool."""
        if call.call.name == "use":
            self._maybe("tool", call.agent_id)
        return await next(call)

    async def before_reasoning(self, state: Reasoning) -> None:
        """Before the model."""
        self._maybe("reasoning", state.agent_id)

    async def before_fork_commit(self, fork: Fork) -> None:
        """Before the fork."""
        self._maybe("fork", self.agent_id)


@pytest.mark.parametrize("agent_id", ["root", "helper"])
@pytest.mark.parametrize("point", ["before_run", "no_next", "after_run", "model", "tool", "reasoning", "fork"])
async def test_a_middleware_that_raises_ends_its_run_or_its_call_and_nothing_else(
    point: str, agent_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = {**script(), "helper": [calls(("use", {})), "helper is done"]}
    runtime = Runtime()
    agent = Agent(
        "root",
        model=RecordingModel(said),
        tool_harnesses=[Tools()],
        subagents=[helper(tool_harnesses=[Tools()])],
        permissions=ALL,
        middleware=[Raising(point, agent_id)],
        runtime=runtime,
    )
    failing = point in ("before_run", "no_next", "model", "reasoning")
    if failing and agent_id == "root":
        with pytest.raises(RunFailed) as raised:
            await agent.run("go", context=HERE)
        assert raised.value.result.reason == "middleware_raised"
    else:
        assert (await agent.run("go", context=HERE)).text == "root is done"
    root = (await runtime.ledger.runs(roots_only=True))[0]
    assert await audit(runtime.ledger, root.run_id) == []
    states = {row.agent_id: row.state.value for row in await runtime.ledger.tree(root.run_id)}
    assert states["root"] == ("failed" if failing and agent_id == "root" else "completed")
    if agent_id == "helper" and point != "fork":
        assert states["helper"] == ("failed" if failing else "completed")
    if point == "after_run":
        assert "had ended when a middleware raised ValueError: from after_run" in caplog.text
    await _results_say(runtime, root.key, point, agent_id)
    fine = Agent("root", model=RecordingModel({"root": ["fine"]}), runtime=runtime)
    assert (await fine.run("and now?", context=HERE)).text == "fine"
    await runtime.close()


async def _results_say(runtime: Runtime, key: Any, point: str, agent_id: str) -> None:
    stored = await runtime.ledger.journal(key)
    assert stored is not None
    results = {event.name: event for event in map(decode, stored.own) if isinstance(event, ToolCallResultEvent)}
    if (point, agent_id) == ("tool", "root"):
        assert results["use"].content == "`use` failed: ValueError: from tool"
        assert results["use"].status is ResultStatus.ERROR
    if point == "fork":
        assert results["helper"].content == "`helper` failed: ValueError: from fork"
    if agent_id == "helper" and point in ("before_run", "reasoning", "model"):
        assert results["helper"].status is ResultStatus.ERROR
        assert f"from {point}" in results["helper"].content


async def test_an_interrupted_middleware_leaves_its_run_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    here = asyncio.Event()

    class Hanging(Middleware):
        async def before_reasoning(self, state: Reasoning) -> None:
            if state.agent_id == "helper":
                here.set()
                await asyncio.Event().wait()

    runtime = Runtime()
    agent = Agent(
        "root",
        model=RecordingModel(script()),
        tool_harnesses=[Tools()],
        subagents=[helper()],
        permissions=ALL,
        middleware=[Hanging()],
        runtime=runtime,
    )
    run = asyncio.create_task(agent.run("go", check=False))
    await here.wait()
    await agent.cancel()
    result = await asyncio.wait_for(run, 5)
    assert result.status == "cancelled"
    assert await audit(runtime.ledger, result.run_id) == []
    assert caplog.records == []
    await runtime.close()


@pytest.mark.parametrize("how", ["hides", "itself"])
async def test_a_model_that_hides_its_cancellation_is_stopped_all_the_same(how: str) -> None:
    here = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            await asyncio.sleep(0)
            return calls(("helper", {"input": "h"})) if request.step == 1 else "root is done"
        here.set()
        if how == "itself":  # stopped from inside, where nothing is waited for: the cancellation is still to come
            await agent.cancel(request.run_id)
            return "said all the same"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "said all the same"

    runtime = Runtime()
    agent = Agent("root", model=RecordingModel(answer), subagents=[helper()], permissions=ALL, runtime=runtime)
    run = asyncio.create_task(agent.run("go", check=False))
    await here.wait()
    root = (await runtime.ledger.runs(roots_only=True))[0]
    child = (await runtime.ledger.tree(root.run_id))[1]
    if how == "hides":
        await agent.cancel(child.run_id)
    result = await asyncio.wait_for(run, 5)
    assert (result.status, result.text) == ("completed", "root is done")
    rows = await runtime.ledger.tree(root.run_id)
    assert [row.state.value for row in rows] == ["completed", "cancelled"]
    journal = await runtime.ledger.journal(child.key)
    assert journal is not None
    kept = [record.type for record in journal.own if b"said all the same" in record.body]
    assert kept == ["MESSAGE"]
    await runtime.close()
