"""What was sent once is sent again byte for byte (M11): envelope and messages, over turns, runs, forks and a resume."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, HarnessAgent, MessageEvent, PermissionRules, RuntimeContext, SubAgent, tool
from retinue.messages import AssistantMessage
from retinue.testing import Recorded, RecordingModel, StrictProvider, calls

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")


@tool(read_only=True)
async def echo(text: str) -> str:
    """Say it again."""
    return text


class Sent:
    """One request, in bytes: the envelope, and each message of the conversation."""

    def __init__(self, recorded: Recorded) -> None:
        body = msgspec.json.decode(recorded.raw, type=dict[str, msgspec.Raw])
        messages = msgspec.json.decode(body.pop("messages"), type=list[msgspec.Raw])
        self.tool_choice = bytes(body.pop("tool_choice", b""))  # comes after the messages: it is part of no prefix
        self.system = bytes(messages[0])
        self.envelope = {name: bytes(value) for name, value in body.items()}
        self.messages = [bytes(message) for message in messages[1:]]
        if "x-retinue-tail" in recorded.headers:
            self.tail: bytes | None = self.messages.pop()
        else:
            self.tail = None
        self.head = recorded.raw.partition(b'"messages":[')[0]


def check(requests: Sequence[Recorded]) -> list[Sent]:
    """Every request has the same envelope, and each conversation is a prefix of the next one's."""
    sent = [Sent(request) for request in requests]
    assert len({one.head for one in sent}) == 1
    assert len({one.system for one in sent}) == 1
    assert len({tuple(sorted(one.envelope.items())) for one in sent}) == 1
    for before, after in pairwise(sent):
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) > len(before.messages)
    return sent


def parent(provider: StrictProvider, **options: Any) -> Agent:
    """An agent with a tool, a child as tool, and children on a roster."""
    children = [
        SubAgent("forked", "D.", instructions="FORKED", surface="tool", model=f"{provider.url}#fake"),
        SubAgent("spawned", "D.", instructions="SPAWNED"),
    ]
    return Agent(
        "parent", model=provider.model(), instructions="PARENT", tools=[echo], subagents=children, permissions=ALLOW, **options
    )


SCRIPT: dict[str, Any] = {
    "parent": [
        {**calls(("echo", {"text": 'größer\u2028 "quoted" \\u0041'}), text="Ich sehe nach."), "reasoning": "hm"},
        calls(("echo", {"text": "a"}), ("echo", {"text": "b"}), ("forked", {"input": "look"})),
        calls(("agent_spawn", {"agent_id": "spawned", "task": "look", "label": "one"})),
        calls(("agent_send", {"label": "one", "message": "and again"})),
        calls(("echo", "not json")),
        "done",
    ],
    "forked": [calls(("nothing", {})), "Forked done."],
    "spawned": [calls(("echo", {"text": "c"})), "Spawned done."],
}


@pytest.mark.contract("D-15", "D-21")
async def test_prefix_is_byte_equal() -> None:
    async with StrictProvider(SCRIPT) as provider:
        async with parent(provider) as agent:
            for text in ("Go.", "And again."):
                result = await agent.run(text, context=HERE)
                assert result.status == "completed"
        assert provider.refused == []
        assert len(provider.asked("parent")) == 12
        sent = check(provider.asked("parent"))
        assert all(one.tail is None for one in sent)
        for number in (0, 1):  # each spawned child: two runs on one thread
            check(provider.asked("spawned")[number * 4 : number * 4 + 4])
        check(provider.asked("forked")[:2])


@pytest.mark.case("B020")
async def test_what_the_provider_wants_back_is_part_of_the_prefix() -> None:
    turns = [calls(("echo", {"text": "a"})), calls(("agent_spawn", {"agent_id": "spawned", "task": "look"})), "done"]
    script = {"parent": turns, "spawned": [calls(("echo", {"text": "b"})), calls(("echo", {"text": "c"})), "Done."]}
    async with StrictProvider(script, echo_extras=True) as provider:
        async with parent(provider) as agent:
            await agent.run("Go.", context=HERE)
            await agent.run("And again.", context=HERE)
        assert provider.refused == []
        check(provider.asked("parent"))
        sent = check(provider.asked("spawned")[:3])
    assert b"provider_state" in sent[-1].messages[1]


@pytest.mark.contract("D-15")
async def test_forks_send_the_bytes_of_their_parent() -> None:
    turns = [calls(("echo", {"text": "größer"}), text="Ja."), calls(("forked", {"input": "look"})), "done"]
    async with StrictProvider({"parent": turns, "forked": ["Done."]}) as provider:
        async with parent(provider) as agent:
            await agent.run("Go.", context=HERE)
        mine = Sent(provider.asked("parent")[1])
        theirs = Sent(provider.asked("forked")[0])
        assert theirs.messages[:-1] == mine.messages
        assert theirs.envelope["model"] == mine.envelope["model"]
        assert theirs.system != mine.system


async def test_a_fork_shares_the_encoded_entries_of_its_parent() -> None:
    turns = [calls(("echo", {"text": "a"})), calls(("forked", {"input": "look"})), "done"]
    model = RecordingModel({"parent": turns, "forked": ["Done."]})
    child = SubAgent("forked", "D.", instructions="FORKED", surface="tool")
    await Agent("parent", model=model, tools=[echo], subagents=[child], permissions=ALLOW).run("Go.")
    mine, theirs = model.asked("parent")[1].history, model.asked("forked")[0].history
    assert [entry is other for entry, other in zip(mine, theirs, strict=False)] == [True] * 3


@pytest.mark.contract("D-32")
async def test_the_prefix_holds_in_another_process_of_the_same_agent(tmp_path: Path) -> None:
    async with StrictProvider(SCRIPT) as provider:
        for text in ("Go.", "And again."):
            async with parent(provider, ledger=f"sqlite:///{tmp_path}/l.db") as agent:
                await agent.run(text, context=HERE)
        check(provider.asked("parent"))
        assert provider.refused == []


async def test_the_prefix_holds_over_a_resume(tmp_path: Path) -> None:
    """A run that waits for a person is gone on with by another process, which has the journal only."""
    url = f"sqlite:///{tmp_path}/l.db"
    async with StrictProvider(SCRIPT) as provider:
        agent = parent(provider, ledger=url)
        agent._permissions = None
        async with agent:
            result = await agent.run("Go.", context=HERE)
        assert result.status == "waiting"
        async with parent(provider, ledger=url) as agent:
            resumed = await agent.answer(result.requests[0], allow=True)
        assert resumed is not None
        assert resumed.status == "completed"
        assert len(provider.asked("parent")) == 6
        check(provider.asked("parent"))
        check(provider.asked("forked"))


async def test_a_resumed_run_keeps_the_envelope_it_began_with_whatever_the_code_says_now(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    async with StrictProvider(SCRIPT) as provider:
        agent = parent(provider, ledger=url)
        agent._permissions = None
        async with agent:
            result = await agent.run("Go.", context=HERE)
        changed = parent(provider, ledger=url)
        changed._instructions = "CHANGED"
        async with changed:
            await changed.resume(result.run_id) if not result.requests else await changed.answer(result.requests[0], allow=True)
        check(provider.asked("parent"))


async def test_the_wrap_up_moves_no_prefix() -> None:
    """The last turn forbids tools in the tail of the request, not in its envelope."""
    script = {"parent": {"turns": [calls(("echo", {"text": "a"}))] * 2, "fallback": "That is all I have."}}
    async with StrictProvider(script) as provider:
        agent = Agent("parent", model=provider.model(), tools=[echo], max_iters=2)
        async with agent:
            await agent.run("Go.", check=False, context=HERE)
            await agent.run("Again.", check=False, context=HERE)
        sent = check(provider.asked("parent"))
    assert [one.tail is not None for one in sent] == [False, False, True] * 2
    assert [one.tool_choice for one in sent] == [b"", b"", b'"none"'] * 2
    assert b"last turn" in (sent[2].tail or b"")


async def test_side_by_side_children_have_one_envelope_each(tmp_path: Path) -> None:
    together = asyncio.Barrier(3)

    async def meet(text: str) -> str:
        """Wait for the others."""
        await together.wait()
        return text

    script = {
        "parent": [calls(*(("agent_spawn", {"agent_id": "general-purpose", "task": f"{n}"}) for n in range(3))), "done"],
        "general-purpose": [calls(("meet", {"text": "{input}"})), "Done."],
    }
    async with StrictProvider(script) as provider:
        agent = HarnessAgent("parent", model=provider.model(), workspace=tmp_path, tools=[meet], ledger="memory")
        async with agent:
            await agent.run("Go.")
        by_run: dict[str, list[Recorded]] = {}
        for request in provider.asked("general-purpose"):
            by_run.setdefault(request.run, []).append(request)
    heads = {Sent(request).head + Sent(request).system for requests in by_run.values() for request in requests}
    assert len(by_run) == 3
    assert len(heads) == 1
    for requests in by_run.values():
        check(requests)


# Duplicate ids


def repeating(turns: int) -> dict[str, Any]:
    """A provider that numbers its calls from 0 in every message, doubles one and sends one without an id."""
    made = [
        {"name": "echo", "arguments": {"text": text}, "id": name}
        for text, name in zip("abcd", ("call_0", "call_1", "call_1", ""), strict=True)
    ]
    return {"parent": [*({"calls": made} for _ in range(turns)), "done"]}


@pytest.mark.contract("H-20")
async def test_duplicate_provider_call_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    async with StrictProvider(repeating(3)) as provider:
        async with Agent("parent", model=provider.model(), tools=[echo], ledger=url) as agent:
            await agent.run("Go.", context=HERE)
        async with Agent("parent", model=provider.model(), tools=[echo], ledger=url) as agent:
            result = await agent.run("Again.", context=HERE)
            assert result.thread is not None
            messages = [message for message in await result.thread.messages() if isinstance(message, AssistantMessage)]
        assert provider.refused == []
        check(provider.asked("parent"))
    made = [call for message in messages for call in message.calls]
    assert len(made) == 24
    assert len({call.id for call in made}) == 24
    assert all(call.id for call in made)
    first = messages[0].calls
    assert (first[0].id, first[0].provider_id) == ("call_0", None)  # its own id where that is unique
    assert [call.provider_id for call in first[1:]] == [None, "call_1", None]
    assert [call.provider_id for call in messages[1].calls[:3]] == ["call_0", "call_1", "call_1"]


async def test_made_up_call_ids_are_the_same_after_a_resume(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"

    @tool(requires_permission=True)
    async def ask(text: str) -> str:
        """Ask first."""
        return text

    made = [{"name": "ask", "arguments": {"text": text}, "id": "call_0"} for text in "ab"]
    script = {"parent": [{"calls": made}, {"calls": made}, "done"]}
    async with StrictProvider(script) as provider:
        ids: list[list[str]] = []
        result = None
        for _ in range(5):
            async with Agent("parent", model=provider.model(), tools=[ask], ledger=url) as agent:
                if result is None:
                    result = await agent.run("Go.", context=HERE)
                else:
                    result = await agent.answer(result.requests[0], allow=True)
                assert result is not None
                thread = await agent.threads.get(session_id="s")
                messages = [event.message for event in await thread.events() if isinstance(event, MessageEvent)]
                ids.append([call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls])
        assert result is not None
        assert result.status == "completed"
        assert provider.refused == []
        check(provider.asked("parent"))
    assert all(after[: len(before)] == before for before, after in pairwise(ids))
    assert len(set(ids[-1])) == 4
