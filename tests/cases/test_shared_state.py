"""Public faults of shared state: one agent for many sessions, children side by side, several processes on one file."""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from retinue import (
    Agent,
    HarnessAgent,
    LedgerUnavailable,
    Limits,
    Middleware,
    PermissionRules,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ToolContext,
    ToolHarness,
    tool,
)
from retinue.agent.middleware import Reasoning, RunCall
from retinue.ops import PutState
from retinue.testing import Recorded, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])


def child(name: str, **fields: Any) -> SubAgent:
    """A child on the roster."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"You are {name}.", **fields)


def spawn(name: str, task: str = "x") -> tuple[str, dict[str, Any]]:
    """A call of `agent_spawn`."""
    return "agent_spawn", {"agent_id": name, "task": task}


# B150


class Counting(Middleware):
    """Counts the attempts of each thread, in the thread's own state and in the session's."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
        """Count."""
        own = call.state("thread")
        own.set("n", own.get("n", 0) + 1)
        self.counts.setdefault(call.agent_id, []).append(own.get("n"))
        return await next(call)


@pytest.mark.case("B150")
async def test_two_children_that_set_the_same_field_keep_it_apart_and_both_files_are_there(tmp_path: Path) -> None:
    script = {
        "parent": [calls(spawn("one"), spawn("two")), "ok"],
        "one": [calls(("write_file", {"path": "files/a", "content": "a"})), "done"],
        "two": [calls(("write_file", {"path": "files/b", "content": "b"})), "done"],
    }
    counting = Counting()
    async with (
        StrictProvider(script) as provider,
        HarnessAgent(
            "parent",
            model=provider.model(),
            workspace=tmp_path,
            subagents=[child(name, workspace_mode="shared") for name in ("one", "two")],
            permissions=ALL,
            middleware=[counting],
        ) as agent,
    ):
        assert (await agent.run("Go.", context=HERE)).text == "ok"
        assert (await agent.run("Again.", context=HERE)).text == "ok"
        assert provider.refused == []
    assert counting.counts == {"parent": [1, 2], "one": [1, 1], "two": [1, 1]}  # nothing of a child flows back
    assert {path.name: path.read_text() for path in (tmp_path / "files").iterdir()} == {"a": "a", "b": "b"}


# B151


class Adding(Middleware):
    """Adds a key of its own to the session's state, for each run."""

    async def before_reasoning(self, state: Reasoning) -> None:
        """Add."""
        if state.turn == 1:
            state.state("session").set(state.run_id, True)


ADD = """
import asyncio, sys
from retinue import Agent, Middleware, RuntimeContext, ScriptedModel

class Adding(Middleware):
    async def before_reasoning(self, state):
        state.state("session").set(state.run_id, True)

async def main(path, name):
    async with Agent("a", model=ScriptedModel(lambda request: "ok"), ledger=path, middleware=[Adding()]) as agent:
        print("open", flush=True)
        sys.stdin.readline()
        contexts = [RuntimeContext(session_id="s", thread_id=f"{name}-{place}") for place in range(25)]
        await asyncio.gather(*(agent.run("Go.", context=context) for context in contexts))

asyncio.run(main(*sys.argv[1:]))
"""


async def session_state(path: Path) -> dict[str, bytes]:
    """The state of the session in a ledger."""
    runtime = Runtime(ledger=path)
    await runtime.open()
    state = await runtime.ledger.state("", "s")
    await runtime.close()
    return {name: bytes(value) for name, value in state.items()}


@pytest.mark.case("B151")
async def test_fifty_runs_of_one_session_at_once_each_add_a_key_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite3"
    async with (
        StrictProvider() as provider,
        Agent("a", model=provider.model(), ledger=path, middleware=[Adding()]) as agent,
    ):
        contexts = [RuntimeContext(session_id="s", thread_id=f"t{place}") for place in range(50)]
        results = await asyncio.gather(*(agent.run("Go.", context=context) for context in contexts))
    assert set(await session_state(path)) == {f"middleware:{result.run_id}" for result in results}


@pytest.mark.case("B151")
async def test_two_processes_add_keys_to_one_session_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite3"
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", ADD, str(path), name, **pipes) for name in "ab"]
    for process in started:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    assert [errors.decode() for _, errors in ended] == ["", ""]
    assert len(await session_state(path)) == 50


class Raising(Middleware):
    """Raises a number of the session for each run, by what it was before."""

    def __init__(self, scope: Literal["session", "thread"] = "session", meanwhile: Callable[[], None] = lambda: None) -> None:
        self.scope: Literal["session", "thread"] = scope
        self.meanwhile = meanwhile
        self.values: list[int] = []

    async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
        """Raise it."""

        def more(value: int | None) -> int:
            self.meanwhile()
            return (value or 0) + 1

        self.values.append(await call.state(self.scope).update("n", more))
        assert call.state(self.scope).get("n") == self.values[-1]
        return await next(call)


RAISE = ADD.replace("async def before_reasoning(self, state):", "async def around_run(self, call, next):").replace(
    'state.state("session").set(state.run_id, True)',
    'await call.state("session").update("n", lambda n: (n or 0) + 1)\n        return await next(call)',
)


async def test_children_that_raise_one_number_of_their_session_lose_nothing() -> None:
    script = {"parent": [calls(*(("one", {"input": f"{place}"}) for place in range(10))), "ok"], "one": ["done"]}
    raising, one = Raising(), child("one", surface="tool", context_policy="fresh")
    async with (
        StrictProvider(script) as provider,
        Agent("parent", model=provider.model(), subagents=[one], permissions=ALL, middleware=[raising]) as agent,
    ):
        assert (await agent.run("Go.", context=HERE)).text == "ok"
    assert sorted(raising.values) == list(range(1, 12))


async def test_two_processes_that_raise_one_number_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite3"
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", RAISE, str(path), name, **pipes) for name in "ab"]
    for process in started:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    assert [errors.decode() for _, errors in ended] == ["", ""]
    assert await session_state(path) == {"middleware:n": b"50"}


async def test_a_change_is_made_again_of_what_somebody_else_has_written_meanwhile() -> None:
    runtime = Runtime()
    await runtime.open()
    theirs = [b"7", b"20"]

    def somebody_else() -> None:
        if theirs:
            runtime.ledger.submit([PutState("", "s", "middleware:n", msgspec.Raw(theirs.pop(0)))])

    raising = Raising(meanwhile=somebody_else)
    agent = Agent("a", model=ScriptedModel(lambda request: "ok"), runtime=runtime, middleware=[raising])
    await agent.run("Go.", context=HERE)
    assert raising.values == [21]
    assert (await runtime.ledger.state("", "s"))["middleware:n"] == b"21"
    await runtime.close()


async def test_the_number_of_a_thread_is_raised_in_its_journal() -> None:
    raising = Raising("thread")
    async with Agent("a", model=ScriptedModel(lambda request: "ok"), middleware=[raising]) as agent:
        for context in (HERE, HERE, RuntimeContext(session_id="other")):
            await agent.run("Go.", context=context)
    assert raising.values == [1, 2, 1]


async def test_what_a_change_makes_is_stored_without_known_secrets() -> None:
    runtime = Runtime(secrets=["sk-0123456789"])
    await runtime.open()

    class Keeping(Middleware):
        async def around_run(self, call: RunCall, next: Callable[[RunCall], Awaitable[Any]]) -> Any:
            await call.state("session").update("key", lambda _: "sk-0123456789")
            return await next(call)

    agent = Agent("a", model=ScriptedModel(lambda request: "ok"), runtime=runtime, middleware=[Keeping()])
    await agent.run("Go.", context=HERE)
    assert b"sk-0123456789" not in (await runtime.ledger.state("", "s"))["middleware:key"]
    await runtime.close()


# B152


@pytest.mark.case("B152")
@pytest.mark.parametrize("damage", ['"allo', "", '"allow"'])
async def test_a_torn_record_of_a_persons_yes_allows_nothing(damage: str, tmp_path: Path) -> None:
    ran: list[str] = []

    async def touch(what: str) -> str:
        """Touch it."""
        ran.append(what)
        return "touched"

    path = tmp_path / "l.sqlite3"
    rules = PermissionRules(ask=["touch"])
    async with StrictProvider({"parent": [calls(("touch", {"what": "it"})), "ok"]}) as provider:
        async with Agent("parent", model=provider.model(), tools=[touch], ledger=path, permissions=rules) as agent:
            asked = await agent.run("Go.", context=HERE)
            await agent.answer(asked.requests[0], allow=True, remember="session")
            assert (await agent.run("Again.", context=HERE)).status == "completed"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE state SET value = ?", (damage.encode(),))
        async with Agent("parent", model=provider.model(), tools=[touch], ledger=path, permissions=rules) as agent:
            try:
                again = (await agent.run("Once more.", context=HERE)).status
            except LedgerUnavailable as error:
                again = error.code
    allowed = damage == '"allow"'
    assert again == "completed" if allowed else again in ("waiting", "damaged")
    assert len(ran) == 2 + allowed


# B155


class Here(ToolHarness):
    """A tool that meets another session's call of itself, and then says where it is."""

    def __init__(self) -> None:
        self.barrier = asyncio.Barrier(2)
        self.seen: dict[str, tuple[str, str, object]] = {}

    @tool
    async def meet(self, context: ToolContext, mine: str) -> str:
        """Meet."""
        await self.barrier.wait()
        self.seen[mine] = (context.user_id, context.session_id, context.get("whose"))
        await self.barrier.wait()
        return f"{context.user_id} in {context.session_id}"


class Watching(Middleware):
    """Notes for each model call on whose behalf it is."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    async def before_reasoning(self, state: Reasoning) -> None:
        """Note."""
        own = state.state("session")
        own.set("first", own.get("first", state.run_id))
        self.seen.add((state.run_id, own.get("first")))


@pytest.mark.case("B155")
async def test_one_agent_serves_two_users_at_once_and_each_call_sees_its_own(tmp_path: Path) -> None:
    here, watching = Here(), Watching()

    def answer(request: Recorded) -> Any:
        whose = next(message["content"] for message in request.messages if message["role"] == "user")
        return calls(("meet", {"mine": whose})) if request.step == 1 else "ok"

    async with (
        StrictProvider(answer) as provider,
        Agent(
            "a",
            model=provider.model(),
            tool_harnesses=[here],
            permissions=ALL,
            middleware=[watching],
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        contexts = [RuntimeContext(user_id=name, session_id=f"of-{name}", attributes={"whose": name}) for name in ("ann", "ben")]
        results = await asyncio.gather(*(agent.run(str(context.user_id), context=context) for context in contexts))
        assert provider.refused == []
        told = [request.messages[-1]["content"] for request in provider.requests if request.step == 2]
    assert here.seen == {"ann": ("ann", "of-ann", "ann"), "ben": ("ben", "of-ben", "ben")}
    assert sorted(told) == ["ann in of-ann", "ben in of-ben"]
    assert watching.seen == {(result.run_id, result.run_id) for result in results}


# B156


@pytest.mark.case("B156")
async def test_what_one_user_has_on_the_roster_is_offered_to_no_other_now_or_later(tmp_path: Path) -> None:
    for user, name in (("ann", "xray"), ("ben", "yoga")):
        (tmp_path / user / "subagents").mkdir(parents=True)
        (tmp_path / user / "subagents" / f"{name}.md").write_text(f"---\ndescription: The {name} group.\n---\nYou are {name}.\n")
    barrier = asyncio.Barrier(2)

    async def meet() -> str:
        """Meet."""
        await barrier.wait()
        return "met"

    offered: dict[str, set[frozenset[str]]] = {}

    def answer(request: Recorded) -> Any:
        who = next(message["content"] for message in request.messages if message["role"] == "user").removesuffix(".")
        shown = frozenset(name for name in ("xray", "yoga") if name in request.system)
        offered.setdefault(who, set()).add(shown)
        return calls(("meet", {})) if request.step == 1 else "ok"

    async with StrictProvider(answer) as provider:
        for _ in range(2):  # the second time from what the first has stored
            async with HarnessAgent("a", model=provider.model(), workspace=tmp_path, tools=[meet], permissions=ALL) as agent:
                contexts = [RuntimeContext(user_id=name, session_id="s") for name in ("ann", "ben")]
                await asyncio.gather(*(agent.run(f"{context.user_id}.", context=context) for context in contexts))
        assert provider.refused == []
    assert offered == {"ann": {frozenset({"xray"})}, "ben": {frozenset({"yoga"})}}


# B158


@pytest.mark.case("B158")
async def test_five_children_at_once_have_five_ids_that_lead_back_to_their_parent(tmp_path: Path) -> None:
    barrier, ids = asyncio.Barrier(5), dict[str, str]()

    async def browse(context: ToolContext) -> str:
        """A browser for this run."""
        ids[context.run_id] = context.session_id
        await barrier.wait()
        return context.run_id

    harness = ToolHarness()
    harness.add_tool(browse)
    script = {
        "parent": [calls(*(spawn("helper", str(place)) for place in range(5))), "ok"],
        "helper": [calls(("browse", {})), "{result}"],
    }
    async with (
        StrictProvider(script) as provider,
        Agent(
            "parent",
            model=provider.model(),
            subagents=[child("helper", tool_harnesses=[harness])],
            permissions=ALL,
            limits=Limits(max_children=5),
            ledger=tmp_path / "l.sqlite3",
        ) as agent,
    ):
        result = await agent.run("Go.", context=HERE)
        rows = {row.run_id: row for row in await agent.runtime.ledger.tree(result.run_id)}
    assert (len(ids), len(set(ids.values()))) == (5, 5)
    assert {rows[run_id].lineage for run_id in ids} == {(result.run_id, run_id) for run_id in ids}
    assert {rows[run_id].key.session for run_id in ids} == set(ids.values())
