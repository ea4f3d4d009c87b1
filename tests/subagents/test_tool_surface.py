"""A subagent as a tool of its own: declared once, called with `input`, its text the result, its end told in the journal."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from retinue import (
    Agent,
    AgentConfig,
    ConfigurationError,
    MessageEvent,
    PermissionRules,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationFailedEvent,
    SubAgentInvocationStartedEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolHarness,
    subagent,
    tool,
)
from retinue.events import Event
from retinue.messages import Message, UserMessage
from retinue.subagents.resolved import with_defaults
from retinue.testing import RecordingModel, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
TASK = {"input": "Sum up."}


class Citations(ToolHarness):
    """Tools of a child."""

    @tool(read_only=True)
    async def cite(self, topic: str) -> str:
        """Find a source."""
        return f"Source on {topic}."


class Specialists(ToolHarness):
    """One subagent."""

    @subagent
    def summarizer(self) -> SubAgent:
        return SubAgent.from_config(
            "specialist.summarizer",
            "summarizer",
            "Sums up a request.",
            AgentConfig(name="Summarizer", instructions="Sum up in three bullets."),
            tool_harnesses=[Citations],
        )


def child(name: str = "helper", **fields: Any) -> SubAgent:
    """A plain subagent on the tool surface."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.", surface="tool", **fields)


def parent(model: RecordingModel, *children: SubAgent, permissions: PermissionRules | None = ALLOW, **options: Any) -> Agent:
    """An agent with these subagents as tools, whose calls are allowed in advance."""
    return Agent("parent", model=model, subagents=children, permissions=permissions, **options)


def said(messages: Sequence[Message]) -> list[str]:
    """What people and parents said."""
    return [message.text for message in messages if isinstance(message, UserMessage)]


def answers(**by_agent: Any) -> RecordingModel:
    """A model with turns by agent."""
    return RecordingModel(by_agent)


def result_of(model: RecordingModel, request: int = 1) -> str:
    """The last tool result that the parent was shown in its n-th request."""
    return results_of(model.asked("parent")[request])[-1]


@pytest.mark.contract("H-01", "H-02", "H-04", "H-10", "H-16", "H-14", "D-32")
@pytest.mark.case("HPD-11", "HPD-42", "HPD-82", "HPD-6", "AS-80")
async def test_a_marked_method_is_a_tool_whose_result_is_the_childs_text() -> None:
    model = RecordingModel(
        {
            "assistant": [calls(("summarizer", TASK)), "Answer: {result}"],
            "specialist.summarizer": [calls(("cite", {"topic": "forks"})), "Three bullets on: {result}"],
        }
    )
    async with Agent("assistant", model=model, tool_harnesses=[Specialists], permissions=ALLOW) as agent:
        result = await agent.run("Go.")
        assert agent.runtime.ledger.url == "memory"
        event = next(event for event in await result.thread.events() if isinstance(event, ToolCallResultEvent))  # type: ignore[union-attr]
    assert result.text == "Answer: Three bullets on: Source on forks."
    *spec, reading = model.asked("assistant")[0].envelope.tools
    assert reading.name == "read_result"  # every agent with tools has that, last
    assert [(one.name, one.description) for one in spec] == [("summarizer", "Sums up a request.")]
    assert list(spec[0].parameters["properties"]) == spec[0].parameters["required"] == ["input"]
    first = model.asked("specialist.summarizer")[0]
    assert [one.name for one in first.envelope.tools] == ["cite", "read_result"]
    assert first.envelope.instructions == "Sum up in three bullets."  # exactly the child's own (D-26)
    assert said(messages_of(first)) == ["Go.", "Sum up."]  # forked by default (H-03)
    assert event.content == "Three bullets on: Source on forks."
    started = event.metadata
    assert started["subAgentStatus"] == "completed"
    assert started["subAgentName"] == "summarizer"
    assert started["subAgentSessionId"] == result.thread.session_id  # type: ignore[union-attr]
    assert started["subAgentThreadId"].startswith("sub-")
    assert started["invocationId"].startswith("inv_")


@pytest.mark.contract("H-01")
def test_a_subagent_added_at_run_time_is_the_same_as_a_declared_one() -> None:
    declared = Specialists().capabilities()[0]
    harness = ToolHarness()
    harness.add_subagent(Specialists().summarizer())
    added = harness.capabilities()[0]
    assert isinstance(declared, SubAgent)
    assert isinstance(added, SubAgent)
    assert declared == added
    assert declared.fingerprint() == added.fingerprint()
    assert Agent("a", tool_harnesses=[harness])._capabilities == (added,)


@pytest.mark.contract("D-02")
@pytest.mark.parametrize(
    ("surface", "tools"), [("tool", {"helper"}), ("roster", {"agent_spawn"}), ("both", {"helper", "agent_spawn"})]
)
async def test_the_surface_decides_how_a_subagent_is_reached(surface: str, tools: set[str]) -> None:
    model = answers(parent=["ok"])
    await Agent("parent", model=model, subagents=[SubAgent("helper", "Helps.", surface=surface)]).run("Go.")  # type: ignore[arg-type]
    names = {one.name for one in model.requests[0].envelope.tools}
    assert names & {"helper", "agent_spawn"} == tools


@pytest.mark.contract("D-26", "D-01")
@pytest.mark.case("HPD-2", "HPD-4")
def test_what_is_left_out_means_what_the_table_says() -> None:
    resolved = with_defaults(Specialists().summarizer(), "tool")
    assert (resolved.context_policy, resolved.invocation_mode_policy) == ("fork", "synchronous_only")
    assert resolved.availability == SubAgentAvailability.ROOT_ONLY
    assert (resolved.requires_permission, resolved.timeout_seconds, resolved.inherits_tools) == (True, None, False)
    for policy in ("fresh", "isolated"):
        with pytest.raises(ConfigurationError, match="fork_compaction"):
            child(context_policy=policy, fork_compaction=object())
    assert child(context_policy="model_choice", fork_compaction=object()).fork_compaction is not None


@pytest.mark.contract("H-05", "D-26", "H-29", "D-28")
@pytest.mark.case("HPD-63", "HPD-29")
async def test_a_denied_call_leaves_no_thread_and_no_lifecycle_and_the_model_is_told() -> None:
    model = answers(parent=[calls(("helper", TASK)), "Without it, then."])
    asked: list[str] = []

    async def no(request: Any) -> bool:
        asked.append(request.tool)
        return False

    async with parent(model, child(), permissions=None, on_request=no) as agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s"))
        graph = await agent.threads.graph("s")
        events = await graph.threads[0].events()
    assert asked == ["helper"]  # asked by default
    assert result.text == "Without it, then."
    assert "denied" in result_of(model)
    assert graph.runtime_children == []
    assert [event for event in events if type(event).__name__.startswith("SubAgentInvocation")] == []
    assert model.asked("helper") == []


@pytest.mark.contract("H-29", "D-29")
async def test_a_rule_that_denies_is_told_without_asking_anyone() -> None:
    model = answers(parent=[calls(("helper", TASK)), "Fine."])
    agent = parent(model, child(), permissions=PermissionRules(allow=["*"], deny=["helper"]))
    result = await agent.run("Go.")
    assert result.status == "completed"
    assert "`helper` was denied" in result_of(model)
    assert model.asked("helper") == []


@pytest.mark.contract("H-10")
@pytest.mark.case("HPD-15", "HPD-16", "HPD-17")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("not json", ["helper", "not json", "JSON object"]),
        ("[1]", ["helper", "Expected `object`", "[1]"]),
        ({}, ["missing", "`input`", '{"input"']),
        ({"input": 3}, ["`input`", "3", "str"]),
        ({"input": "  "}, ["`input` is blank"]),
        ({"task": "x"}, ["no argument `task`", "`input`"]),
        ({"input": "x", "invocationMode": "background"}, ["`background`", "synchronously only", "invalid_invocation_mode"]),
        ({"input": "x", "context": "fresh"}, ["`fresh`", "always `fork`"]),
    ],
)
async def test_arguments_that_do_not_fit_make_no_child_and_say_what_is_expected(arguments: Any, told: list[str]) -> None:
    model = answers(parent=[calls(("helper", arguments)), "ok"], helper=["never"])
    async with parent(model, child()) as agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s"))
        assert (await agent.threads.graph("s")).runtime_children == []
    assert result.status == "completed"
    for text in told:
        assert text in result_of(model)
    assert model.asked("helper") == []


@pytest.mark.contract("D-25")
@pytest.mark.case("HPD-18", "HPD-16")
@pytest.mark.parametrize(
    "extra", [{}, {"invocationMode": "synchronous"}, {"invocation_mode": "SYNCHRONOUS"}, {"context": "Fork"}]
)
async def test_a_fixed_choice_may_be_repeated_in_either_spelling(extra: dict[str, str]) -> None:
    model = answers(parent=[calls(("helper", {**TASK, **extra})), "ok"], helper=["Done."])
    await parent(model, child()).run("Go.")
    assert result_of(model) == "Done."


@pytest.mark.contract("H-19")
@pytest.mark.case("HPD-25", "HPD-26")
async def test_a_childs_thread_says_whose_it_is_and_an_author_cannot_overwrite_that() -> None:
    model = answers(parent=[calls(("helper", TASK)), "ok"], helper=["Done."])
    async with parent(model, child(metadata={"kind": "x", "team": "w", "createdBy": "me"})) as agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s"))
        graph = await agent.threads.graph("s")
        listed = await agent.threads.list(session_id="s")
        events = await graph.threads[0].events()
    started = next(event for event in events if isinstance(event, SubAgentInvocationStartedEvent))
    assert graph.runtime_children[0].metadata == {
        "team": "w",
        "kind": "subagent",
        "defaultAgentId": "helper",
        "subAgentName": "helper",
        "subAgentSourceKind": "declaration",
        "parentSessionId": "s",
        "parentThreadId": "main",
        "parentToolCallId": started.parent_tool_call_id,
        "invocationId": started.invocation_id,
        "contextPolicy": "fork",
        "visibility": "hidden",
        "createdBy": "subagent",
    }
    assert [thread.thread_id for thread in listed] == ["main"]  # hidden from ordinary lists
    assert graph.runtime_children[0].default_agent_id == "helper"
    assert result.status == "completed"


@pytest.mark.contract("H-20", "D-33")
@pytest.mark.case("HPD-46", "HPD-47")
async def test_the_parents_journal_tells_the_delegation_in_order_and_the_childs_has_its_own_run() -> None:
    model = answers(parent=[calls(("helper", TASK)), "ok"], helper=[{"text": "Done in parts.", "chunk": 4}])
    async with parent(model, child()) as agent:
        await agent.run("Go.", context=RuntimeContext(session_id="s"))
        graph = await agent.threads.graph("s")
        mine, childs = await graph.threads[0].events(), await graph.runtime_children[0].events()
    kinds = [event.TYPE for event in mine]
    assert kinds == [
        "THREAD_CREATED",
        "RUN_STARTED",
        "MESSAGE",
        "MESSAGE",
        "MODEL_CALLED",
        "SUBAGENT_INVOCATION_STARTED",
        "SUBAGENT_INVOCATION_COMPLETED",
        "TOOL_CALL_RESULT",
        "MESSAGE",
        "MODEL_CALLED",
        "RUN_FINISHED",
    ]
    assert [event.TYPE for event in childs] == [
        "THREAD_CREATED",
        "RUN_STARTED",
        "MESSAGE",
        "MESSAGE",
        "MODEL_CALLED",
        "RUN_FINISHED",
    ]
    started, completed = mine[5], mine[6]
    assert isinstance(started, SubAgentInvocationStartedEvent)
    assert isinstance(completed, SubAgentInvocationCompletedEvent)
    key = graph.runtime_children[0].key
    for event in (started, completed):
        assert event.child_agent_id == "helper"
        assert (event.child_session_id, event.child_thread_id) == (key.session, key.thread)
        assert (event.context_policy, event.mode, event.depth) == ("fork", "synchronous", 1)
        assert event.invocation_id == started.invocation_id
    assert completed.summary == "Done in parts."


@pytest.mark.contract("H-20")
@pytest.mark.case("HPD-32", "HPD-46", "AS-76", "AS-77", "AS-78", "AS-79")
async def test_a_stream_shows_the_whole_tree_in_order_each_event_with_its_place() -> None:
    model = answers(parent=[calls(("helper", TASK)), "ok"], helper=[{"text": "Done.", "chunk": 2}])
    agent = parent(model, child())
    events: list[Event] = [event async for event in agent.stream("Go.")]
    mine = [event for event in events if event.path == ("parent",)]
    theirs = [event for event in events if event.path == ("parent", "helper")]
    assert len(mine) + len(theirs) == len(events)
    order = [type(event) for event in mine]
    places = [order.index(kind) for kind in _IN_ORDER]
    assert places == sorted(places)
    started = next(event for event in mine if isinstance(event, SubAgentInvocationStartedEvent))
    completed = next(event for event in mine if isinstance(event, SubAgentInvocationCompletedEvent))
    assert all(event.invocations == (started.invocation_id,) for event in theirs)
    assert all(event.key is not None and event.key.thread == started.child_thread_id for event in theirs)
    assert {event.TYPE for event in theirs} >= {"RUN_STARTED", "TEXT_DELTA", "RUN_FINISHED"}
    assert events.index(mine[0]) == 0
    assert (events[-1].TYPE, events[-1].path) == ("RUN_FINISHED", ("parent",))
    assert events.index(theirs[-1]) < events.index(completed)
    assert all(event.TYPE != "TEXT_DELTA" or not event.seq for event in events)


_IN_ORDER = [
    ToolCallStartEvent,
    ToolCallEndEvent,
    SubAgentInvocationStartedEvent,
    SubAgentInvocationCompletedEvent,
    ToolCallResultEvent,
]


@pytest.mark.contract("H-18", "H-19")
@pytest.mark.case("HPD-23")
async def test_each_call_makes_a_new_thread_and_a_new_invocation() -> None:
    model = answers(parent=[calls(("helper", TASK)), calls(("helper", TASK)), "ok"], helper=["Done."])
    async with parent(model, child()) as agent:
        await agent.run("Go.", context=RuntimeContext(session_id="s"))
        children = (await agent.threads.graph("s")).runtime_children
    assert len({one.thread_id for one in children}) == 2
    assert len({one.metadata["invocationId"] for one in children}) == 2


@pytest.mark.contract("H-28")
@pytest.mark.case("HPD-24")
async def test_calls_of_one_message_run_side_by_side_and_do_not_mix() -> None:
    together = asyncio.Barrier(3)

    async def answer(request: Any) -> Any:
        if request.agent_id == "parent":
            if request.step > 1:
                return " | ".join(results_of(request))
            return calls(*(("helper", {"input": f"task {place}"}) for place in range(3)))
        await together.wait()  # none goes on before all three are there
        return f"did {said(messages_of(request))[-1]}"

    model = RecordingModel(answer)
    async with parent(model, child()) as agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s"))
        graph = await agent.threads.graph("s")
        events = await graph.threads[0].events()
        tasks = {one.thread_id: said(await one.messages())[-1] for one in graph.runtime_children}
    assert result.text == "did task 0 | did task 1 | did task 2"
    began = [event for event in events if isinstance(event, SubAgentInvocationStartedEvent)]
    ended = [event for event in events if isinstance(event, SubAgentInvocationCompletedEvent)]
    assert len({event.invocation_id for event in began}) == 3
    assert {event.invocation_id: event.call for event in began} == {event.invocation_id: event.call for event in ended}
    for event in ended:
        assert event.summary == f"did task {event.call.index}" == f"did {tasks[event.child_thread_id]}"


@pytest.mark.contract("H-20")
@pytest.mark.case("HPD-44")
async def test_a_childs_failure_is_an_error_for_its_parent_which_goes_on_and_its_siblings_too() -> None:
    model = answers(
        parent=[calls(("helper", TASK), ("other", TASK)), "I go on."],
        helper=[{"text": "So far", "error": {"code": "overloaded", "message": "no capacity"}}],
        other=["Fine."],
    )
    async with parent(model, child(), child("other")) as agent:
        result = await agent.run("Go.", context=RuntimeContext(session_id="s"))
        events = await (await agent.threads.graph("s")).threads[0].events()
    failed = next(event for event in events if isinstance(event, SubAgentInvocationFailedEvent))
    first, second = results_of(model.asked("parent")[1])
    assert result.text == "I go on."
    assert failed.error_type == "overloaded"
    assert failed.partial_text == "So far"
    assert "no capacity" in failed.message
    assert all(text in first for text in ("no capacity", "So far", "another model"))  # what, how far, what to do
    assert second == "Fine."


@pytest.mark.contract("H-02", "D-27", "D-31")
@pytest.mark.case("HPD-1", "HPD-5", "HPD-85")
@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: child("two words"), ["two words", "letter"]),
        (lambda: child(" "), ["name", "blank"]),
        (lambda: SubAgent("x", " ", surface="tool"), ["`x`", "description"]),
        (lambda: SubAgent("x", "d", agent_id="../x"), ["`x`", "../x", ".."]),
        (lambda: child(url="http://127.0.0.1:1"), ["helper", "url", "instructions"]),
        (lambda: Agent("a", subagents=[child(), child()]), ["`a`", "`helper`", "Rename"]),
        (lambda: Agent("a", subagents=[SubAgent("r", "d", url="http://127.0.0.1:1")]), ["`r`", "`url`", "not in this version"]),
        (lambda: Agent("a", subagents=[SubAgent.from_agent_id("t/x", "x", "d", surface="tool")]), ["`x`", "from_agent_id"]),
    ],
)
def test_what_cannot_work_is_said_where_it_is_declared(build: Callable[[], Any], told: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build()
    for text in told:
        assert text.lower() in str(raised.value).lower()
    assert raised.value.remedy


@pytest.mark.contract("H-02")
@pytest.mark.case("HPD-12")
async def test_a_model_choice_of_mode_offers_the_argument_only_where_it_can_be_met() -> None:
    model = answers(parent=["ok"])
    await parent(model, child(invocation_mode_policy="model_choice")).run("Go.")
    assert list(model.requests[0].envelope.tools[0].parameters["properties"]) == ["input", "invocationMode"]
    await parent(model, child()).run("Go.")
    assert list(model.requests[1].envelope.tools[0].parameters["properties"]) == ["input"]


@pytest.mark.contract("H-20")
async def test_a_call_in_the_journal_names_the_same_call_as_its_message() -> None:
    model = answers(parent=[calls(("helper", TASK)), "ok"], helper=["Done."])
    async with parent(model, child()) as agent:
        await agent.run("Go.", context=RuntimeContext(session_id="s"))
        events = await (await agent.threads.graph("s")).threads[0].events()
    message = next(event.message for event in events if isinstance(event, MessageEvent) and getattr(event.message, "calls", ()))
    result = next(event for event in events if isinstance(event, ToolCallResultEvent))
    assert (result.call.message_id, result.call.index) == (message.id, 0)
    assert result.call_id == message.calls[0].id  # type: ignore[union-attr]
