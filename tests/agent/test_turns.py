"""Turns: where a run ends, what a model is told of calls that went wrong, and what a run says it has used."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from retinue import (
    Agent,
    AgentConfig,
    Limits,
    ModelAnswer,
    ModelCalledEvent,
    PermissionRules,
    RunFailed,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    ToolCallResultEvent,
    ToolHarness,
    Usage,
)
from retinue.messages import ToolCall
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, StrictProvider, calls, results_of

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")


async def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


async def breaks(what: str) -> str:
    """Fail."""
    raise OSError(f"{what} is broken")


def talker(model: Any, **options: Any) -> Agent:
    """An agent with two tools."""
    return Agent("parent", model=model, tools=[echo, breaks], **options)


ENDLESS = {"turns": [{**calls(("echo", {"text": "x"})), "text": f"finding {number}"} for number in range(1, 10)]}


# The limit of turns


@pytest.mark.contract("D-08")
@pytest.mark.case("B018", "B030", "B031", "B032")
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_at_the_limit_a_run_gets_one_last_turn_to_wrap_up_and_its_text_is_kept(limit: int) -> None:
    def answer(request: ModelRequest) -> Any:
        if not request.tools_allowed:
            return "All I have."
        return {**calls(("echo", {"text": "x"})), "text": f"finding {request.step}"}

    model = RecordingModel(answer)
    with pytest.raises(RunFailed) as raised:
        await talker(model, max_iters=limit).run("Go.")
    result = raised.value.result
    assert (result.status, result.reason, result.text) == ("failed", "limit:max_iters", "All I have.")
    assert raised.value.code == "limit:max_iters"
    assert f"its {limit} turns" in str(raised.value)
    assert "max_iters" in str(raised.value.remedy)
    assert len(model.requests) == limit + 1
    assert [request.tools_allowed for request in model.requests] == [True] * limit + [False]
    assert "last turn" in model.requests[-1].tail
    assert results_of(model.requests[-1]) == ["x"] * limit  # every recorded call was carried out


@pytest.mark.case("B018")
async def test_a_call_in_the_wrap_up_turn_is_answered_and_not_carried_out() -> None:
    script = {"parent": {"turns": [*ENDLESS["turns"][:3]], "fallback": "Later."}}
    async with StrictProvider(script) as provider:
        async with talker(provider.model(), max_iters=2) as agent:
            result = await agent.run("Go.", check=False, context=HERE)
            thread = await agent.threads.get(session_id="s")
            events = [event for event in await thread.events() if isinstance(event, ToolCallResultEvent)]
            assert (result.status, result.reason, result.text) == ("failed", "limit:max_iters", "finding 3")
            assert [event.status for event in events] == ["ok", "ok", "limit"]
            assert "turns" in events[-1].content
            assert len(provider.requests) == 3
            await agent.run("And now?", check=False, context=HERE)  # the transcript is valid for what comes next
        assert provider.refused == []
        assert len(provider.requests) > 3


async def test_a_run_that_ends_within_its_turns_is_completed() -> None:
    model = RecordingModel({"parent": [calls(("echo", {"text": "x"})), "ok"]})
    assert (await talker(model, max_iters=2).run("Go.")).status == "completed"
    assert all(request.tools_allowed for request in model.requests)


@pytest.mark.contract("A-18", "D-26", "A-26")
@pytest.mark.case("B030", "B031", "B032", "AS-1", "AS-6")
@pytest.mark.parametrize(("fields", "turns"), [({}, 10), ({"max_iters": 3}, 3)])
async def test_a_childs_limit_is_its_own_and_its_findings_reach_the_parent(fields: dict[str, Any], turns: int) -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "parent":
            return "ok" if request.step > 1 else calls(("agent_spawn", {"agent_id": "child", "task": "x"}))
        return {**calls(("echo", {"text": "x"})), "text": f"finding {request.step}"}

    model = RecordingModel(answer)
    child = SubAgent("child", "D.", instructions="…", **fields)
    async with talker(model, subagents=[child]) as agent:
        result = await agent.run("Go.", context=HERE)
        events = await (await agent.threads.graph("s")).threads[0].events()
    failed = next(event for event in events if isinstance(event, SubAgentInvocationFailedEvent))
    told = results_of(model.asked("parent")[1])[0]
    assert result.status == "completed"
    assert len(model.asked("child")) == turns + 1
    assert failed.error_type == "limit:max_iters"
    assert failed.partial_text == f"finding {turns + 1}"
    assert "status: error" in told
    assert f"finding {turns + 1}" in told
    assert "max_iters" in told


@pytest.mark.contract("H-14", "A-22")
async def test_a_configured_childs_limit_comes_from_its_config_and_a_mirror_has_its_parents() -> None:
    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "parent":
            names = ("child", "twin")
            return "ok" if request.step > 1 else calls(*((name, {"input": "x"}) for name in names))
        return calls(("echo", {"text": "x"}))

    model = RecordingModel(answer)
    config = AgentConfig(name="C", max_iters=4)
    children = [
        SubAgent.from_config("c", "child", "D.", config, surface="tool", context_policy="fresh"),
        SubAgent.from_parent("t", "twin", "D.", surface="tool", context_policy="fresh"),
    ]
    await talker(model, subagents=children, max_iters=6, permissions=ALLOW).run("Go.")
    assert (len(model.asked("c")), len(model.asked("t"))) == (5, 7)


# How an answer ends


@pytest.mark.contract("D-09")
@pytest.mark.case("AS-43")
@pytest.mark.parametrize(
    ("turn", "reason", "told"),
    [
        ("", "empty_result", "nothing"),
        ({"text": "  \n"}, "empty_result", "nothing"),
        ({"text": "half", "finish_reason": "length"}, "limit:max_tokens", "max_tokens"),
        ({"text": "", "finish_reason": "length"}, "limit:max_tokens", "max_tokens"),
        ({"text": "withheld", "finish_reason": "content_filter"}, "content_filter", "withheld"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure_with_what_there_is(turn: Any, reason: str, told: str) -> None:
    with pytest.raises(RunFailed) as raised:
        await talker(RecordingModel({"parent": [turn]})).run("Go.")
    result = raised.value.result
    assert (result.status, result.reason) == ("failed", reason)
    assert result.text == (turn if isinstance(turn, str) else turn["text"])
    assert told in str(raised.value)
    assert raised.value.remedy
    assert result.thread is not None


async def test_a_cut_answer_with_whole_calls_goes_on() -> None:
    model = RecordingModel({"parent": [{**calls(("echo", {"text": "x"})), "finish_reason": "length"}, "ok"]})
    assert (await talker(model).run("Go.")).text == "ok"


# Calls that go wrong


@pytest.mark.contract("H-10")
@pytest.mark.case("B091", "B021")
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("ecko", {"text": "x"}, ["no tool `ecko`", "Did you mean `echo`", "`breaks`, `echo`"]),
        ("", {"text": "x"}, ["no tool `unnamed`", "`echo`"]),
        ("echo", "{text: x}", ["`echo`", "not valid JSON", "column 2", "one JSON object"]),
        ("echo", "[]", ["`echo`", "one JSON object", "[]"]),
        ("echo", {}, ["`text`", "is missing", "string"]),
        ("echo", {"text": 5}, ["`text`", "valid string", "but 5 was given", "expected: string"]),
        ("echo", {"text": "x", "times": "many"}, ["`times`", '"many" was given', "expected: integer"]),
        ("echo", {"text": "x", "volume": 3}, ["`volume`", "no such argument", "`text`, `times`"]),
        ("breaks", {"what": "the disk"}, ["`breaks`", "OSError", "the disk is broken"]),
    ],
)
async def test_a_call_that_goes_wrong_is_told_so_that_the_model_can_mend_it(name: str, arguments: Any, told: list[str]) -> None:
    model = RecordingModel({"parent": [calls((name, arguments)), "I see."]})
    async with talker(model) as agent:
        result = await agent.run("Go.", context=HERE)
        thread = await agent.threads.get(session_id="s")
        event = next(event for event in await thread.events() if isinstance(event, ToolCallResultEvent))
    assert result.text == "I see."
    assert event.status == "error"
    for text in told:
        assert text in results_of(model.requests[1])[0]


@pytest.mark.contract("H-28")
@pytest.mark.case("B019", "B012")
async def test_the_results_of_a_message_stand_in_the_order_of_its_calls_whatever_ended_first() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def slow() -> str:
        """End last."""
        await gate.wait()
        order.append("slow")
        return "slow"

    async def fast() -> str:
        """End first."""
        order.append("fast")
        gate.set()
        return "fast"

    model = RecordingModel({"parent": [calls(("slow", {}), ("nothing", {}), ("fast", {})), "ok"]})
    await Agent("parent", model=model, tools=[slow, fast]).run("Go.")
    assert order == ["fast", "slow"]
    first, second, third = results_of(model.requests[1])
    assert (first, third) == ("slow", "fast")
    assert "no tool `nothing`" in second


@pytest.mark.contract("H-29")
@pytest.mark.case("B078")
async def test_the_siblings_of_a_denied_and_of_a_failed_call_go_on() -> None:
    model = RecordingModel(
        {
            "parent": [calls(("breaks", {"what": "it"}), ("child", {"input": "x"}), ("echo", {"text": "y"})), "ok"],
            "child": ["Done."],
        }
    )
    child = SubAgent("child", "D.", instructions="…", surface="tool")
    result = await talker(model, subagents=[child], permissions=PermissionRules(deny=["child"])).run("Go.")
    broken, denied, fine = results_of(model.requests[1])
    assert "it is broken" in broken
    assert "denied" in denied
    assert fine == "y"
    assert result.text == "ok"


# Usage and cost


def spending(agents: dict[str, list[Any]], price: str | None = "1") -> RecordingModel:
    """A model that reports 10 tokens in and 1 out for each call."""
    used = {"input": 10, "output": 1, "cached": 4}
    turns = {
        name: [{**({"text": turn} if isinstance(turn, str) else turn), "usage": used} for turn in made]
        for name, made in agents.items()
    }
    script: dict[str, Any] = {"agents": turns}
    if price is not None:
        script["price"] = {"input": price, "output": price, "cached": price}
    return RecordingModel(script)


async def recorded(agent: Agent) -> tuple[Usage, Decimal]:
    """What all MODEL_CALLED records of the session say, added up."""
    usage, cost = Usage(), Decimal(0)
    graph = await agent.threads.graph("s")
    for thread in (*graph.threads, *graph.runtime_children):
        for event in await thread.events():
            if isinstance(event, ModelCalledEvent):
                usage, cost = usage + event.usage, cost + (event.cost or 0)
    return usage, cost


@pytest.mark.contract("H-20")
async def test_usage_and_cost_are_those_of_the_tree_and_own_is_the_runs() -> None:
    inner = SubAgent("inner", "D.", instructions="…", surface="tool").with_availability(SubAgentAvailability.through_depth(2))
    harness = ToolHarness()
    harness.add_subagent(inner)
    outer = SubAgent("outer", "D.", instructions="…", surface="tool", tool_harnesses=[harness])
    again = calls(("inner", {"input": "x"}), ("inner", {"input": "y"}))
    model = spending({"parent": [calls(("outer", {"input": "x"})), "ok"], "outer": [again, "Outer."], "inner": ["Inner."]})
    async with Agent("parent", model=model, subagents=[outer], permissions=ALLOW) as agent:
        result = await agent.run("Go.", context=HERE)
        assert (result.usage, result.cost) == await recorded(agent)
        events = await (await agent.threads.graph("s")).threads[0].events()
    assert result.usage == Usage(input_tokens=60, output_tokens=6, cached_tokens=24, calls=6)
    assert result.cost == Decimal(66) / 1_000_000
    assert result.own is not None
    assert result.own.usage == Usage(input_tokens=20, output_tokens=2, cached_tokens=8, calls=2)
    assert result.own.cost == Decimal(22) / 1_000_000
    completed = next(event for event in events if isinstance(event, SubAgentInvocationCompletedEvent))
    assert completed.usage.calls == 4


async def test_a_second_run_counts_from_the_beginning() -> None:
    model = spending({"parent": ["ok"]})
    async with talker(model) as agent:
        await agent.run("Go.", context=HERE)
        result = await agent.run("Again.", context=HERE)
    assert result.usage.calls == 1


async def test_a_failed_child_has_cost_what_it_used_until_then() -> None:
    model = spending({"parent": [calls(("child", {"input": "x"})), "ok"], "child": [calls(("echo", {"text": "x"})), ""]})
    child = SubAgent("child", "D.", instructions="…", surface="tool")
    async with talker(model, subagents=[child], permissions=ALLOW) as agent:
        result = await agent.run("Go.", context=HERE)
        assert (result.usage, result.cost) == await recorded(agent)
    assert result.usage.calls == 4


async def test_an_unknown_price_makes_the_cost_unknown_and_not_zero() -> None:
    model = spending({"parent": [calls(("child", {"input": "x"})), "ok"], "child": ["Done."]}, price=None)
    result = await talker(model, subagents=[SubAgent("child", "D.", instructions="…", surface="tool")], permissions=ALLOW).run(
        "Go."
    )
    assert result.cost is None
    assert result.own is not None
    assert result.own.cost is None
    assert result.usage.input_tokens == 30


async def test_a_childs_unknown_price_does_not_hide_what_the_parents_own_calls_cost() -> None:
    priced = spending({"parent": [calls(("child", {"input": "x"})), "ok"]})
    unpriced = spending({"child": ["Done."]}, price=None)
    child = SubAgent("child", "D.", instructions="…", surface="tool", model="cheap")
    result = await talker(priced, subagents=[child], permissions=ALLOW, models={"cheap": unpriced}).run("Go.")
    assert result.cost is None
    assert result.own is not None
    assert result.own.cost == Decimal(22) / 1_000_000


async def test_a_model_of_ones_own_may_answer_everything_itself() -> None:
    answer = ModelAnswer(text="", calls=(ToolCall(id="1", name="echo", arguments='{"text": "x"}'),), usage=Usage(calls=1))
    model = RecordingModel(lambda request: answer if request.step == 1 else "ok")
    result = await talker(model, limits=Limits()).run("Go.")
    assert result.text == "ok"
    assert results_of(model.requests[1]) == ["x"]
