"""A finished child can be found, read and gone on with: by its agent, or by another one; also after a restart."""

from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    PermissionRules,
    RunFailed,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationStartedEvent,
    ToolHarness,
    UnknownId,
)
from retinue.messages import AssistantMessage, UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")


def tree(model: RecordingModel, **options: Any) -> Agent:
    """A parent with a child and a grandchild as tools, and one more on its roster."""
    inner = SubAgent("inner", "D.", instructions="INNER", surface="tool", agent_id="team/inner")
    deeper = ToolHarness()
    deeper.add_subagent(inner.with_availability(SubAgentAvailability.through_depth(2)))
    outer = SubAgent("outer", "D.", instructions="OUTER", surface="tool", tool_harnesses=[deeper], context_policy="fresh")
    spare = SubAgent("spare", "D.", instructions="SPARE")
    return Agent("parent", model=model, subagents=[outer, spare], permissions=ALLOW, **options)


def nested() -> RecordingModel:
    """Each delegates to the next in its first turn, and says who it is."""

    def answer(request: ModelRequest) -> Any:
        if request.step == 1 and len(messages_of(request)) < 3:
            if request.agent_id == "parent":
                return calls(("outer", {"input": "for outer"}))
            if request.agent_id == "outer":
                return calls(("inner", {"input": "for inner"}))
        return f"{request.agent_id} at {request.depth}"

    return RecordingModel(answer)


def spoken(request: ModelRequest) -> list[str]:
    """The texts of a conversation."""
    return [
        message.text for message in messages_of(request) if isinstance(message, UserMessage | AssistantMessage) and message.text
    ]


@pytest.mark.contract("H-18", "H-23")
@pytest.mark.case("HPD-78", "HPD-26")
async def test_a_child_is_continued_by_its_three_ids_and_remembers() -> None:
    model = nested()
    async with tree(model) as one:
        await one.run("Go.", context=HERE)
        child = (await one.threads.graph("s")).runtime_children[0]
        scope = (child.default_agent_id, child.session_id, child.thread_id)
        before = await (await one.threads.graph("s")).threads[0].events()
        thread = await one.threads.get(session_id=scope[1], thread_id=scope[2])
        result = await thread.run("And now?")
        assert thread.default_agent_id == scope[0] == "outer"
        graph = await one.threads.graph("s")
        assert [one.thread_id for one in graph.runtime_children].count(child.thread_id) == 1
        assert len(graph.runtime_children) == 2  # no new thread
        assert await graph.threads[0].events() == before  # nothing new in the parent's journal
    assert result.text == "outer at 1"
    assert spoken(model.requests[-1]) == ["for outer", "outer at 1", "And now?"]
    assert model.requests[-1].envelope.instructions == "OUTER"
    assert result.thread is not None
    assert result.thread.key == child.key


@pytest.mark.contract("H-18")
@pytest.mark.case("HPD-79")
async def test_another_agent_may_be_chosen_for_a_run_and_the_default_stays() -> None:
    model = nested()
    async with tree(model) as one:
        await one.run("Go.", context=HERE)
        child = (await one.threads.graph("s")).runtime_children[0]
        result = await child.run("Check that.", agent_id="spare")
        again = await one.threads.get(session_id="s", thread_id=child.thread_id)
        with pytest.raises(UnknownId, match=r"`parent` has no agent `nobody`"):
            await child.run("x", agent_id="nobody")
    assert result.text == "spare at 1"
    assert again.default_agent_id == "outer"
    assert "SPARE" in model.requests[-1].envelope.instructions
    assert spoken(model.requests[-1])[-1] == "Check that."


@pytest.mark.contract("H-18", "H-23", "D-03")
async def test_a_grandchild_is_continued_too_at_its_depth() -> None:
    model = nested()
    async with tree(model) as one:
        await one.run("Go.", context=HERE)
        grandchild = (await one.threads.graph("s")).runtime_children[1]
        assert (grandchild.default_agent_id, grandchild.metadata["subAgentName"]) == ("team/inner", "inner")
        result = await grandchild.run("And you?")
    assert result.text == "team/inner at 2"
    assert model.requests[-1].envelope.instructions == "INNER"
    assert model.requests[-1].envelope.tools == ()


@pytest.mark.contract("H-18", "H-04")
@pytest.mark.case("HPD-80")
async def test_a_child_is_there_after_a_restart_hidden_linked_and_continuable(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    async with tree(nested(), ledger=path) as one:
        await one.run("Go.", context=HERE)
    model = nested()
    async with tree(model, ledger=path) as one:
        assert [thread.thread_id for thread in await one.threads.list()] == ["main"]
        outer, inner = (await one.threads.graph("s")).runtime_children
        assert outer.metadata["parentThreadId"] == "main"
        assert inner.metadata["parentThreadId"] == outer.thread_id
        assert [type(message).__name__ for message in await outer.messages()][:2] == ["UserMessage", "AssistantMessage"]
        assert (await outer.run("And now?")).text == "outer at 1"
        assert (await inner.run("And you?")).text == "team/inner at 2"


@pytest.mark.contract("H-18", "D-26")
async def test_the_same_tool_makes_a_new_thread_also_after_a_child_was_continued() -> None:
    model = nested()
    async with tree(model) as one:
        await one.run("Go.", context=HERE)
        child = (await one.threads.graph("s")).runtime_children[0]
        await child.run("More.")
        await one.run("Go on.", context=RuntimeContext(session_id="s", thread_id="second"))
        children = (await one.threads.graph("s")).runtime_children
    assert len(children) == 4
    assert len({one.thread_id for one in children}) == 4


@pytest.mark.contract("D-03", "D-30")
async def test_a_continued_child_delegates_as_deep_as_before_and_no_deeper() -> None:
    def answer(request: ModelRequest) -> Any:
        names = [spec.name for spec in request.envelope.tools]
        if request.step == 1 and "outer" in names:
            return calls(("outer", {"input": "x"}))
        if request.step == 1 and "inner" in names:
            return calls(("inner", {"input": "x"}))
        return f"{request.agent_id} at {request.depth}: {'/'.join(results_of(request))}"

    model = RecordingModel(answer)
    async with tree(model, max_subagent_depth=1) as one:
        await one.run("Go.", context=HERE)
        child = (await one.threads.graph("s")).runtime_children[0]
        again = await child.run("More.")
    assert again.text.startswith("outer at 1")
    assert "team/inner" not in [request.agent_id for request in model.requests]


@pytest.mark.contract("H-20")
async def test_a_continued_run_that_fails_is_the_callers_and_leaves_the_parent_alone() -> None:
    model = nested()
    async with tree(model) as one:
        await one.run("Go.", context=HERE)
        graph = await one.threads.graph("s")
        child = graph.runtime_children[0]
        before = await graph.threads[0].events()
        model._function = lambda _request: ""
        with pytest.raises(RunFailed) as raised:
            await child.run("And now?")
        assert await graph.threads[0].events() == before
    assert raised.value.result.reason == "empty_result"
    assert len([event for event in before if isinstance(event, SubAgentInvocationStartedEvent)]) == 1


@pytest.mark.contract("H-18")
async def test_a_thread_can_be_read_after_its_agent_was_closed(tmp_path: Path) -> None:
    one = tree(nested(), ledger=tmp_path / "l.db")
    async with one:
        result = await one.run("Go.", context=HERE)
    assert result.thread is not None
    assert len(await result.thread.messages()) == 4
    assert len(await result.thread.events()) > 4
    await one.close()
