"""Who is asked, when, and what an answer does: requests from any depth, answered in process, by the caller, or later."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    Event,
    PermissionRequest,
    PermissionRules,
    RetinueError,
    RunFinishedEvent,
    RunResult,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolHarness,
    UnknownId,
    tool,
)
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, StrictProvider, calls, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")


class Acts(ToolHarness):
    """A tool that asks first, and counts how often it was run."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    @tool(requires_permission=True)
    async def act(self, what: str) -> str:
        """Do something."""
        self.done[what] += 1
        return f"did {what}"


def agent(model: Any, acts: Acts, **options: Any) -> Agent:
    """An agent with a tool that asks, and children down to depth 2 that have it too."""
    inner = SubAgent("inner", "D.", instructions="…", surface="tool", requires_permission=False, tool_harnesses=[acts])
    deeper = ToolHarness()
    deeper.add_subagent(inner.with_availability(SubAgentAvailability.through_depth(2)))
    outer = SubAgent("outer", "D.", instructions="…", surface="tool", requires_permission=False, tool_harnesses=[acts, deeper])
    return Agent("parent", model=model, tool_harnesses=[acts], subagents=[outer], **options)


def acting(count: int = 1) -> RecordingModel:
    """A model that acts so many times in one message, then says what came of it."""

    def answer(request: ModelRequest) -> Any:
        if request.step == 1:
            return calls(*(("act", {"what": f"{number}"}) for number in range(count)))
        return " | ".join(results_of(request))

    return RecordingModel(answer)


def result_of(event: Event) -> RunResult:
    """What the last event of a stream carries."""
    assert isinstance(event, RunFinishedEvent)
    assert isinstance(event.result, RunResult)
    return event.result


NESTED: dict[str, Any] = {
    "parent": [calls(("outer", {"input": "x"})), "{result}"],
    "outer": [calls(("inner", {"input": "y"})), "{result}"],
    "inner": [calls(("act", {"what": "deep"})), "{result}"],
}


@pytest.mark.contract("D-28")
@pytest.mark.case("HPD-68", "B074")
async def test_with_nobody_there_the_run_ends_waiting_and_an_answer_goes_on_with_it() -> None:
    acts, model = Acts(), acting()
    async with agent(model, acts) as one:
        result = await asyncio.wait_for(one.run("Go.", context=HERE), 10)
        assert (result.status, acts.done) == ("waiting", Counter())
        request = result.requests[0]
        assert (request.tool, request.arguments, request.path) == ("act", '{"what":"0"}', ("parent",))
        assert request.description == "Do something."
        assert await one.requests("s") == [request]
        done = await one.answer(request, allow=True)
        assert done is not None
        assert (done.status, done.text, done.run_id) == ("completed", "did 0", result.run_id)
        assert await one.requests("s") == []
    assert acts.done == Counter(["0"])
    assert len(model.requests) == 2  # no recorded answer is asked again


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("allow", [True, False])
async def test_a_callback_answers_in_process(allow: bool) -> None:
    async def decide(request: PermissionRequest) -> bool:
        assert request.tool == "act"
        return allow

    acts = Acts()
    result = await agent(acting(), acts, on_request=decide).run("Go.")
    assert result.status == "completed"
    assert acts.done == (Counter(["0"]) if allow else Counter())
    assert ("denied" in result.text) is not allow


@pytest.mark.contract("D-28")
@pytest.mark.parametrize(
    ("rules", "status", "done"),
    [
        (PermissionRules(allow=["act"]), "completed", 1),
        (PermissionRules(allow=["act(0)"]), "completed", 1),
        (PermissionRules(allow=["act(1)"]), "waiting", 0),
        (PermissionRules(deny=["act"]), "completed", 0),
        (PermissionRules(allow=["act"], ask=["act(0)"]), "waiting", 0),
        (PermissionRules(allow=["act"], deny=["act(0)"]), "completed", 0),
    ],
)
async def test_rules_answer_in_advance(rules: PermissionRules, status: str, done: int) -> None:
    acts = Acts()
    result = await agent(acting(), acts, permissions=rules).run("Go.")
    assert (result.status, acts.done.total()) == (status, done)


@pytest.mark.contract("D-28")
@pytest.mark.case("B076")
async def test_a_denial_tells_the_model_who_and_why() -> None:
    acts, model = Acts(), acting()
    async with agent(model, acts) as one:
        result = await one.run("Go.")
        done = await one.answer(result.requests[0], allow=False, note="Not on a Friday.", by="alice")
    assert done is not None
    assert done.status == "completed"
    assert "`act` was denied (by alice)" in done.text
    assert "Not on a Friday." in done.text
    assert acts.done == Counter()


@pytest.mark.contract("D-28")
@pytest.mark.case("HPD-65", "B077", "B078")
async def test_three_calls_of_a_message_ask_three_times_and_none_twice() -> None:
    acts, model = Acts(), acting(3)
    async with agent(model, acts) as one:
        result: RunResult | None = await one.run("Go.", context=HERE)
        seen: list[str] = []
        for expected in (3, 2, 1):
            assert result is not None
            assert len(await one.requests("s")) == expected
            assert len(result.requests) == expected
            seen.append(result.requests[-1].request_id)  # answered in any order
            result = await one.answer(result.requests[-1], allow=expected != 2)
        assert result is not None
    assert result.status == "completed"
    assert len(set(seen)) == 3
    first, second, third = result.text.split(" | ")
    assert (first, third) == ("did 0", "did 2")
    assert "denied" in second
    assert acts.done == Counter(["0", "2"])
    assert len(model.requests) == 2


@pytest.mark.contract("D-28", "H-27")
@pytest.mark.case("HPD-64")
async def test_a_remembered_yes_holds_for_the_session_and_no_other() -> None:
    acts = Acts()
    asked: list[str] = []

    def answer(request: ModelRequest) -> Any:
        return calls(("act", {"what": "x"})) if request.step == 1 else "ok"

    async with agent(RecordingModel(answer), acts) as one:
        for session, thread in (("s", "main"), ("s", "main"), ("s", "second"), ("other", "main")):
            context = RuntimeContext(session_id=session, thread_id=thread)
            async for event in one.stream("Go.", context=context):
                if isinstance(event, PermissionRequest):
                    asked.append(f"{session}/{thread}")
                    await one.answer(event, allow=True, remember="session")
    assert asked == ["s/main", "other/main"]
    assert acts.done == Counter({"x": 4})


@pytest.mark.contract("D-28", "D-29")
async def test_a_remembered_yes_lifts_no_denial_and_is_for_one_agent() -> None:
    acts, model = Acts(), RecordingModel({"parent": [calls(("act", {"what": "x"})), "ok"]})
    denying = PermissionRules(deny=["act"])
    async with agent(model, acts) as one:
        result = await one.run("Go.", context=HERE)
        await one.answer(result.requests[0], allow=True, remember="session")
        ledger = one.runtime.ledger
        state = await ledger.state("", "s")
        assert state == {"permission:act:parent": b'"allow"'}
        again = Agent("parent", model=model, tool_harnesses=[acts], runtime=one.runtime, permissions=denying)
        await again.run("Go.", context=HERE)
        child = Agent("other", model=acting(), tool_harnesses=[acts], runtime=one.runtime)
        assert (await child.run("Go.", context=RuntimeContext(session_id="s", thread_id="t"))).status == "waiting"
    assert acts.done == Counter(["x"])


@pytest.mark.contract("D-10", "H-22", "D-28", "H-21")
@pytest.mark.case("HPD-66", "B072", "B075")
async def test_a_grandchilds_question_reaches_the_root_and_its_answer_goes_down() -> None:
    acts, model = Acts(), RecordingModel(NESTED)
    async with agent(model, acts) as one:
        async for event in one.stream("Go.", context=HERE):
            if isinstance(event, PermissionRequest):
                assert event.path == ("parent", "outer", "inner")
                assert len(event.invocations) == 2
                graph = await one.threads.graph("s")
                assert event.key == graph.runtime_children[-1].key
                assert await one.requests("s") == [event_as_stored(event, (await one.requests("s"))[0])]
                assert await one.answer(event, allow=True) is None  # it goes on in this stream
            last = event
        result = result_of(last)  # type: ignore[possibly-undefined]
    assert result.text == "did deep"
    assert acts.done == Counter(["deep"])
    assert len(model.requests) == 6


def event_as_stored(event: PermissionRequest, stored: PermissionRequest) -> PermissionRequest:
    """The request as the ledger shows it: its place in the journal is not part of that view."""
    return msgspec.structs.replace(event, seq=stored.seq, at=stored.at)


@pytest.mark.contract("D-10", "D-28")
@pytest.mark.case("HPD-66", "B056", "B075", "B078")
async def test_a_waiting_tree_is_gone_on_with_by_another_process_and_asks_no_model_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    async with StrictProvider(NESTED) as provider:
        acts = Acts()
        async with agent(provider.model(), acts, ledger=url) as one:
            waiting = await one.run("Go.", context=HERE)
        assert waiting.status == "waiting"
        async with agent(provider.model(), acts, ledger=url) as two:
            (request,) = await two.requests("s")
            done = await two.answer(request, allow=True)
        assert done is not None
        assert (done.status, done.text) == ("completed", "did deep")
        assert [request.agent for request in provider.requests] == ["parent", "outer", "inner", "inner", "outer", "parent"]
        assert provider.refused == []
    assert acts.done == Counter(["deep"])


@pytest.mark.contract("D-28")
@pytest.mark.case("HPD-67", "B073")
async def test_an_answer_to_nothing_and_a_second_answer_say_so() -> None:
    acts = Acts()
    async with agent(acting(), acts) as one:
        result = await one.run("Go.", context=HERE)
        with pytest.raises(UnknownId, match="req_none"):
            await one.answer("req_none", allow=True)
        await one.answer(result.requests[0], allow=False)
        with pytest.raises(RetinueError) as raised:
            await one.answer(result.requests[0], allow=True)
    assert raised.value.code == "already_answered"
    assert acts.done == Counter()


@pytest.mark.contract("D-28")
async def test_a_stream_that_does_not_answer_ends_waiting_after_its_other_branches() -> None:
    acts = Acts()
    turns = [calls(("act", {"what": "x"}), ("outer", {"input": "y"})), "ok"]
    model = RecordingModel({"parent": turns, "outer": ["Done."]})
    async with agent(model, acts) as one:
        events = [event async for event in one.stream("Go.", context=HERE)]
        result = result_of(events[-1])
    assert result.status == "waiting"
    assert [request.tool for request in result.requests] == ["act"]
    assert [event.TYPE for event in events if event.TYPE == "SUBAGENT_INVOCATION_COMPLETED"] == ["SUBAGENT_INVOCATION_COMPLETED"]


@pytest.mark.contract("D-28", "D-29")
async def test_a_rule_that_came_meanwhile_is_stricter_than_the_answer(tmp_path: Path) -> None:
    """Decided again on every resume, as the stricter of stored and current (M10)."""
    acts, url = Acts(), f"sqlite:///{tmp_path}/l.db"
    async with agent(acting(), acts, ledger=url) as one:
        waiting = await one.run("Go.", context=HERE)
    model = acting()
    async with agent(model, acts, ledger=url, permissions=PermissionRules(deny=["act"])) as two:
        done = await two.answer(waiting.requests[0], allow=True)
    assert done is not None
    assert "denied" in done.text
    assert acts.done == Counter()


@pytest.mark.contract("D-28")
async def test_a_callback_that_raises_stops_the_run_and_hangs_nothing() -> None:
    async def decide(_request: PermissionRequest) -> bool:
        raise LookupError("no terminal")

    acts = Acts()
    result = await asyncio.wait_for(agent(acting(), acts, on_request=decide).run("Go.", check=False), 20)
    assert result.status in ("cancelled", "failed")
    assert "LookupError" in f"{result.reason} {result.message}"
    assert acts.done == Counter()


@pytest.mark.contract("D-28", "H-29")
async def test_what_cannot_be_done_anyway_is_not_asked_for() -> None:
    model = RecordingModel({"parent": [calls(("outer", {"task": "wrong"}), ("act", "{")), "ok"]})
    child = SubAgent("outer", "D.", instructions="…", surface="tool")
    acts = Acts()
    result = await Agent("parent", model=model, subagents=[child], tool_harnesses=[acts]).run("Go.")
    assert result.status == "completed"
    wrong, broken = results_of(model.requests[1])
    assert "no argument `task`" in wrong
    assert "not valid JSON" in broken
