"""Public faults of calls and their results: every request that follows an accident is one that a strict provider takes."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Limits, RuntimeContext, SubAgent, ToolHarness
from retinue.messages import AssistantMessage, ToolResult, UserMessage
from retinue.testing import Recorded, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]


def child(name: str = "helper", **fields: Any) -> SubAgent:
    """A child on the tool surface."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.", surface="tool", **fields)


def paired(request: Recorded) -> list[tuple[str, str]]:
    """The calls of a request, each with the text of its one result, which follow in the same order, next to the calls."""
    found: list[tuple[str, str]] = []
    messages = request.messages
    for place, message in enumerate(messages):
        made = message.get("tool_calls") or ()
        results = messages[place + 1 : place + 1 + len(made)]
        assert [one.get("tool_call_id") for one in results] == [call["id"] for call in made]
        found += [(call["function"]["name"], one["content"]) for call, one in zip(made, results, strict=True)]
    assert len(found) == sum(message["role"] == "tool" for message in messages)
    return found


async def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.case("B002")
@pytest.mark.parametrize("policy", ["fork", "fresh", "isolated"])
async def test_a_delegation_leaves_the_parents_earlier_messages_as_they_were(policy: str, parent: Parent) -> None:
    answers = iter(["one", "two", calls(("helper", {"input": "the child's task"})), "ok", "still here"])
    one = SubAgent("helper", "Helps.", instructions="Help.", surface="tool", context_policy=policy)  # type: ignore[arg-type]
    async with (
        StrictProvider(lambda request: next(answers) if request.agent == "parent" else "helped") as provider,
        parent(provider, subagents=[one]) as agent,
    ):
        await agent.run("First.", context=HERE)
        await agent.run("Second.", context=HERE)
        thread = await agent.threads.get(session_id="s")
        before = await thread.messages()
        assert len(before) == 4
        await agent.run("Delegate.", context=HERE)
        after = await thread.messages()
        await agent.run("And?", context=HERE)
        sent = [request.messages for request in provider.asked("parent")]
        assert provider.refused == []
    assert after[:4] == before
    assert [type(message) for message in after[4:]] == [UserMessage, AssistantMessage, ToolResult, AssistantMessage]
    assert isinstance(after[6], ToolResult)
    assert after[6].content == "helped"
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier
    assert [message["role"] for message in sent[-1]] == [*["user", "assistant"] * 3, "tool", "assistant", "user"]


@pytest.mark.case("B012")
async def test_an_interrupt_with_one_of_three_children_done_leaves_three_calls_with_three_results(parent: Parent) -> None:
    names = ("quick", "slow", "slower")

    def answer(request: Recorded) -> dict[str, Any] | str:
        if request.agent != "parent":
            return "Done."
        return "ok" if request.messages[-1]["content"] == "continue" else calls(*((name, {"input": "x"}) for name in names))

    async with StrictProvider(answer) as provider, parent(provider, subagents=[child(name) for name in names]) as agent:
        gates = [provider.hold(agent=name) for name in names[1:]]
        done = asyncio.Event()

        async def follow() -> None:
            async for event in agent.stream("Go.", context=HERE):
                if event.TYPE == "TOOL_CALL_RESULT":
                    done.set()

        following = asyncio.create_task(follow())
        await asyncio.gather(done.wait(), *(gate.arrived.wait() for gate in gates))
        await agent.cancel(reason="interrupted")
        await asyncio.gather(following, return_exceptions=True)
        result = await agent.run("continue", context=HERE)
        assert (result.text, provider.refused) == ("ok", [])
        real, *cancelled = paired(provider.asked("parent")[-1])
    assert real == ("quick", "Done.")
    assert [name for name, _ in cancelled] == ["slow", "slower"]
    assert all("was stopped" in text for _, text in cancelled)


@pytest.mark.contract("D-33")
@pytest.mark.case("B014")
@pytest.mark.parametrize("text", ["", "I call it."], ids=["nothing_shown", "text_shown"])
async def test_half_a_call_leaves_neither_a_call_nor_a_result_behind(text: str, tmp_path: Path) -> None:
    script = {"parent": [calls(("echo", {"text": "x" * 40}), text=text), "ok"]}
    async with (
        StrictProvider(script) as provider,
        Agent("parent", model=provider.model(retries=0), tools=[echo], ledger=tmp_path / "l.sqlite3") as agent,
    ):
        provider.fail(half_call=True)
        broken = await agent.run("Go.", context=HERE, check=False)
        assert (broken.status, broken.reason, broken.text) == ("failed", "stream_broken", text)
        await agent.run("Go on.", context=HERE)
        assert provider.refused == []
        assert paired(provider.requests[1]) == []
        assert b"tool_call_id" not in provider.requests[1].raw


@pytest.mark.contract("D-14", "D-26")
@pytest.mark.case("B012", "B015", "B022")
@pytest.mark.parametrize("order", [("echo", "helper"), ("helper", "echo")])
async def test_a_fork_is_not_sent_the_call_that_made_it_and_its_parent_is_told_all(
    order: tuple[str, str], parent: Parent
) -> None:
    arguments, told = {"echo": {"text": "beside"}, "helper": {"input": "x"}}, {"echo": "beside", "helper": "helped"}
    script = {
        "parent": [calls(("echo", {"text": "before"})), calls(*((name, arguments[name]) for name in order)), "ok"],
        "helper": [calls(("nothing", {})), "helped"],
    }
    async with (
        StrictProvider(script) as provider,
        parent(provider, tools=[echo], subagents=[child(context_policy="fork")]) as agent,
    ):
        result = await agent.run("Go.", context=HERE)
        assert (result.text, provider.refused) == ("ok", [])
        assert paired(provider.asked("helper")[0]) == [("echo", "before")]
        assert paired(provider.asked("parent")[-1]) == [("echo", "before"), *((name, told[name]) for name in order)]
        assert len(provider.requests) == 5


@pytest.mark.case("B020")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_a_child_sends_back_what_its_provider_wants_back(surface: str, parent: Parent) -> None:
    named = ("helper", {"input": "x"}) if surface == "tool" else ("agent_spawn", {"agent_id": "helper", "task": "x"})
    thinking = {**calls(("echo", {"text": "a"})), "reasoning": "hm"}
    script = {"parent": [calls(named), "ok"], "helper": [thinking, thinking, "helped"]}
    harness = ToolHarness()
    harness.add_tool(echo)
    one = SubAgent("helper", "Helps.", instructions="Help.", surface=surface, tool_harnesses=[harness])  # type: ignore[arg-type]
    async with StrictProvider(script, echo_extras=True) as provider, parent(provider, subagents=[one]) as agent:
        assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert provider.refused == []
        last = provider.asked("helper")[-1]
        assert paired(last) == [("echo", "a")] * 2
    asked = [message for message in last.messages if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in asked] == ["hm", "hm"]
    assert all("provider_state" in message for message in asked)


@pytest.mark.contract("D-30")
@pytest.mark.case("B021", "B047", "B057")
@pytest.mark.parametrize("surface", ["tool", "roster"])
async def test_delegations_beyond_the_limit_are_refused_each_with_a_result_and_none_is_taken_out(
    surface: str, parent: Parent
) -> None:
    def named(place: int) -> tuple[str, dict[str, Any]]:
        return ("helper", {"input": str(place)}) if surface == "tool" else ("agent_spawn", {"agent_id": "helper", "task": "x"})

    script = {"parent": [calls(*(named(place) for place in range(5))), "ok"], "helper": ["helped"]}
    one = SubAgent("helper", "Helps.", instructions="Help.", surface=surface)  # type: ignore[arg-type]
    async with StrictProvider(script) as provider, parent(provider, subagents=[one], limits=Limits(max_tree_children=3)) as agent:
        assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert provider.refused == []
        told = [text for _, text in paired(provider.asked("parent")[-1])]
    assert len(told) == 5
    assert ["helped" in text for text in told] == [True, True, True, False, False]
    assert all("Not run" in text and "`Limits(max_tree_children=…)` is 3" in text for text in told[3:])
    assert len(provider.asked("helper")) == 3
