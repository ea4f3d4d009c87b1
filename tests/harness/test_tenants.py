"""Tenants are apart (invariant 8): what belongs to another user or session is unknown, whatever id one holds of it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue import (
    Agent,
    ConfigurationError,
    HarnessAgent,
    PermissionRules,
    RetinueError,
    RuntimeContext,
    SubAgent,
    ThreadBusy,
    UnknownId,
)
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

KEY = re.compile(r"^agent_key: (\S+)$", re.MULTILINE)


def said(request: ModelRequest) -> str:
    """What the run was asked."""
    return [message.text for message in messages_of(request) if isinstance(message, UserMessage)][-1]


def spawner() -> RecordingModel:
    """A parent that does what it is told: `spawn LABEL`, `send KEY`, `send-label LABEL`, `list`."""

    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return f"heard: {said(request)}"
        if request.step > 1:
            return results_of(request)[-1]
        command, _, rest = said(request).partition(" ")
        match command:
            case "spawn":
                return calls(("agent_spawn", {"agent_id": "helper", "task": "x", "label": rest}))
            case "send":
                return calls(("agent_send", {"agent_key": rest, "message": "y"}))
            case "send-label":
                return calls(("agent_send", {"label": rest, "message": "y"}))
            case _:
                return calls(("agent_list", {}))

    return RecordingModel(answer)


def agent(model: RecordingModel, **options: Any) -> Agent:
    """A parent with one child on its roster."""
    return Agent("parent", model=model, subagents=[SubAgent("helper", "D.", instructions="…")], **options)


ALICE = RuntimeContext(user_id="alice", session_id="s")
OTHERS = [
    RuntimeContext(user_id="bob", session_id="s"),
    RuntimeContext(session_id="s"),
    RuntimeContext(user_id="alice", session_id="t"),
]


@pytest.mark.contract("D-16", "A-27", "A-28")
@pytest.mark.case("AS-19")
@pytest.mark.parametrize("other", OTHERS)
async def test_a_child_of_another_user_or_session_cannot_be_sent_to_or_seen(other: RuntimeContext) -> None:
    async with agent(spawner()) as one:
        spawned = await one.run("spawn scout", context=ALICE)
        key = KEY.search(spawned.text)
        assert key
        assert "there is no subagent" in (await one.run(f"send {key[1]}", context=other)).text
        assert "no subagent with label `scout`" in (await one.run("send-label scout", context=other)).text
        assert (await one.run("list", context=other)).text == "No active subagents."
        again = await one.run("spawn scout", context=other)  # a label is free in another scope
        assert "status: ok" in again.text
        assert "heard: y" in (await one.run(f"send {key[1]}", context=ALICE)).text
        assert "heard: y" in (await one.run("send-label scout", context=ALICE)).text


@pytest.mark.contract("H-23", "H-18")
async def test_threads_are_found_by_their_user_only() -> None:
    async with agent(spawner()) as one:
        await one.run("list", context=ALICE)
        await one.run("spawn a", context=ALICE)
        child = (await one.threads.graph("s", user_id="alice")).runtime_children[0]
        assert (await one.threads.get(session_id="s", user_id="alice")).key.user == "alice"
        for user in (None, "bob"):
            for session, thread in (("s", "main"), (child.session_id, child.thread_id)):
                with pytest.raises(UnknownId):
                    await one.threads.get(session_id=session, thread_id=thread, user_id=user)
            graph = await one.threads.graph("s", user_id=user)
            assert (graph.threads, graph.runtime_children) == ([], [])
            assert await one.threads.list(user_id=user, hidden=True) == []
        with pytest.raises(UnknownId):
            await one.threads.get(session_id="t", user_id="alice")


@pytest.mark.contract("H-22", "D-28")
async def test_requests_and_runs_of_another_user_are_unknown() -> None:
    model = RecordingModel({"parent": [calls(("act", {})), "ok"]})

    async def act() -> str:
        """Act."""
        return "done"

    rules = PermissionRules(ask=["act"])
    async with Agent("parent", model=model, tools=[act], permissions=rules) as one:
        result = await one.run("Go.", context=ALICE)
        request = result.requests[0]
        assert await one.requests("s") == []
        assert await one.requests("s", user_id="bob") == []
        assert await one.requests("s", user_id="alice") == [request]
        for user in (None, "bob"):
            with pytest.raises(UnknownId, match="no request"):
                await one.answer(request.request_id, allow=True, user_id=user)
        with pytest.raises(UnknownId, match="no run"):
            await one.resume(result.run_id, context=RuntimeContext(user_id="bob"))
        assert await one.requests("s", user_id="alice") == [request]
        done = await one.answer(request.request_id, allow=True, user_id="alice")
        assert done is not None
        assert done.status == "completed"


@pytest.mark.parametrize("driven", [True, False])
async def test_a_run_of_another_user_cannot_be_cancelled(driven: bool) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def act() -> str:
        """Act."""
        started.set()
        await go.wait()
        return "done"

    ids: list[str] = []

    def answer(request: ModelRequest) -> Any:
        ids.append(request.run_id)
        return calls(("act", {})) if request.step == 1 else "ok"

    rules = PermissionRules() if driven else PermissionRules(ask=["act"])
    async with Agent("parent", model=RecordingModel(answer), tools=[act], permissions=rules) as one:
        running = asyncio.create_task(one.run("Go.", context=ALICE, check=False))
        await (started.wait() if driven else running)
        for user in (None, "bob"):
            with pytest.raises(UnknownId, match="no run"):
                await one.cancel(ids[0], user_id=user)
        await one.cancel(user_id="bob")
        row = await one.runtime.ledger.run(ids[0])
        assert row is not None
        assert not row.state.terminal
        assert await one.runtime.ledger.cancel_intent(row.lineage) is None
        await one.cancel(ids[0], user_id="alice")
        await running
        row = await one.runtime.ledger.run(ids[0])
        assert row is not None
        assert row.state.value == "cancelled"


@pytest.mark.contract("D-28")
async def test_a_remembered_answer_is_the_users_own() -> None:
    model = RecordingModel({"parent": [calls(("act", {})), "ok"]})

    async def act() -> str:
        """Act."""
        return "done"

    async with Agent("parent", model=model, tools=[act], permissions=PermissionRules(ask=["act"])) as one:
        result = await one.run("Go.", context=ALICE)
        await one.answer(result.requests[0], allow=True, remember="session")
        assert (await one.run("Go.", context=ALICE)).status == "completed"
        for other in OTHERS:
            assert (await one.run("Go.", context=other)).status == "waiting"


@pytest.mark.contract("A-17", "D-05")
@pytest.mark.case("AS-18", "AS-19")
async def test_a_users_own_files_are_seen_by_that_user_only(tmp_path: Path) -> None:
    for place, name, text in (
        ("subagents", "shared", "shared"),
        ("alice/subagents", "alice", "alice's"),
        ("bob/subagents", "bob", "bob's"),
    ):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / f"{name}-helper.md").write_text(f"---\ndescription: {text} helper\n---\nYou are {text}.\n")
        (folder / "both.md").write_text(f"---\ndescription: {text} version\n---\nYou are {text}.\n")
    model = RecordingModel({"parent": ["ok"]})
    async with HarnessAgent("parent", model=model, workspace=tmp_path, ledger="memory", general_purpose=False) as one:
        for user in ("alice", "bob", "alice", None):
            await one.run("Go.", context=RuntimeContext(user_id=user))
    listed = [re.findall(r"^- `(.+?)`: (.+)$", request.envelope.instructions, re.MULTILINE) for request in model.requests]
    of_alice = [("alice-helper", "alice's helper"), ("both", "alice's version"), ("shared-helper", "shared helper")]
    of_bob = [("bob-helper", "bob's helper"), ("both", "bob's version"), ("shared-helper", "shared helper")]
    assert listed[0] == listed[2] == of_alice
    assert listed[1] == of_bob
    assert listed[3] == [("both", "shared version"), ("shared-helper", "shared helper")]


ids = st.text(max_size=12) | st.sampled_from(["..", ".", "a/b", "a b", "x" * 129, "sub-1", "é", "a\n", "a\x00", "-", "_"])


@pytest.mark.contract("D-31")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids, ids, ids)
async def test_ids_of_people_are_taken_as_they_are_or_refused(user: str, session: str, thread: str) -> None:
    model = RecordingModel({"parent": ["ok"]})
    one = Agent("parent", model=model)
    context = RuntimeContext(user_id=user or None, session_id=session, thread_id=thread or None)
    good = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}")
    if all(good.fullmatch(text) for text in (user or "x", session, thread or "x")):
        result = await one.run("Go.", context=context)
        assert result.thread is not None
        assert result.thread.key == (user, session, thread or "main")
    else:
        with pytest.raises(ConfigurationError, match="is not valid"):
            await one.run("Go.", context=context)
        assert await one.runtime.ledger.threads(hidden=True) == []
    await one.close()


@pytest.mark.contract("D-16")
async def test_two_users_run_on_threads_of_the_same_name_at_once() -> None:
    model = RecordingModel({"parent": [calls(("act", {})), "ok"]})

    async def act() -> str:
        """Act."""
        return "done"

    async with Agent("parent", model=model, tools=[act], permissions=PermissionRules(ask=["act"])) as one:
        await one.run("Go.", context=ALICE)
        assert (await one.run("Go.", context=RuntimeContext(user_id="bob", session_id="s"))).status == "waiting"
        with pytest.raises(ThreadBusy) as raised:
            await one.run("Go.", context=ALICE)
    assert isinstance(raised.value, RetinueError)
    assert raised.value.code == "waiting_for_answer"
    assert "retinue answer req_" in str(raised.value)
