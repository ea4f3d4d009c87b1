"""A thread's projection is kept between its runs, and never used for a thread that is not exactly as it was left."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import Agent, Middleware, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, tool
from retinue.agent.kept import KeptProjections
from retinue.agent.projection import Projection, project
from retinue.events import Event
from retinue.ledger.port import Journal, Ledger
from retinue.messages import Entry, UserMessage
from retinue.models.port import ModelRequest
from retinue.rows import ThreadKey, ThreadRow
from retinue.testing import RecordingModel, VirtualClock, messages_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")


@tool
async def look() -> str:
    """Look around."""
    return "seen"


def reply(request: ModelRequest) -> Any:
    last = request.history[-1].message
    if not isinstance(last, UserMessage) or request.agent_id == "child":
        return f"{request.agent_id} is done"
    calls: list[dict[str, Any]] = [{"name": "look", "arguments": {}}, {"name": "child", "arguments": {"input": "x"}}]
    return {"text": "first", "calls": calls} if last.text.startswith("work") else f"heard {len(request.history)}"


def agent(runtime: Runtime, model: ScriptedModel | None = None) -> Agent:
    child = SubAgent("child", "Helps.", instructions="Help.", surface="tool", context_policy="fork")
    rules = PermissionRules(allow=["child", "look"])
    model = model or ScriptedModel(reply)
    return Agent("root", model=model, tools=[look], subagents=[child], runtime=runtime, permissions=rules)


def plain(value: Any) -> Any:
    """Everything that a projection says, in comparable form."""
    made = {name: getattr(value, name) for name in Projection.__slots__}
    made["history"] = [msgspec.to_builtins(entry.message) for entry in value.history]
    return {name: unplaced(one) if isinstance(one, Event) else one for name, one in made.items()}


def unplaced(event: Event) -> Event:
    """The event without its place, which only a decoded one has."""
    return msgspec.structs.replace(event, path=(), invocations=(), key=None, run_id="", seq=0, at=0)


async def stored(ledger: Ledger) -> Journal:
    journal = await ledger.journal(KEY)
    assert journal is not None
    return journal


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_is_kept_is_what_the_journal_says(kind: str, tmp_path: Path) -> None:
    async with Runtime(ledger="memory" if kind == "memory" else tmp_path / "l.db") as runtime:
        one = agent(runtime)
        for text in ("hello", "work", "hello", "work"):
            await one.run(text, context=HERE)
            journal = await stored(runtime.ledger)
            kept = runtime._services.projections.take(journal.row)
            assert kept is not None
            assert plain(kept) == plain(project(journal.own, journal.inherited))
            runtime._services.projections.keep(
                journal.row, generation=journal.row.generation, head=journal.row.head, projection=kept
            )


async def test_the_next_run_reads_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime() as runtime:
        one = agent(runtime)
        await one.run("hello", context=HERE)

        async def refused(_key: ThreadKey) -> None:
            raise AssertionError("the journal was read")

        monkeypatch.setattr(runtime.ledger, "journal", refused)
        assert (await one.run("again", context=HERE)).text == "heard 3"


async def test_what_another_process_wrote_is_read(tmp_path: Path) -> None:
    async with Runtime(ledger=tmp_path / "l.db") as mine, Runtime(ledger=tmp_path / "l.db") as theirs:
        assert (await agent(mine).run("one", context=HERE)).text == "heard 1"
        assert (await agent(theirs).run("two", context=HERE)).text == "heard 3"
        assert (await agent(mine).run("three", context=HERE)).text == "heard 5"


async def test_a_thread_that_was_purged_and_made_again_is_a_new_one() -> None:
    async with Runtime() as runtime:
        one = agent(runtime)
        await one.run("one", context=HERE)
        await runtime.ledger.purge(KEY)
        assert (await one.run("two", context=HERE)).text == "heard 1"


async def test_a_thread_that_was_made_again_by_somebody_else_at_the_same_moment_is_a_new_one(tmp_path: Path) -> None:
    clock = VirtualClock()  # it stands still: nothing but the run tells the two threads apart
    path, model = tmp_path / "l.db", RecordingModel(reply)
    async with Runtime(ledger=path, clock=clock) as mine, Runtime(ledger=path, clock=clock) as theirs:
        await agent(mine).run("old", context=HERE)
        await theirs.ledger.purge(KEY)
        await agent(theirs).run("new", context=HERE)
        await agent(mine, model).run("hi", context=HERE)
        sent = [message.text for message in messages_of(model.requests[0]) if isinstance(message, UserMessage)]
        assert sent == ["new", "hi"]
        assert (await agent(mine).run("and", context=HERE)).text == "heard 5"


async def test_a_model_that_changes_its_request_changes_no_thread() -> None:
    seen: list[int] = []

    def trims(request: ModelRequest) -> Any:
        seen.append(len(request.history))
        assert isinstance(request.history, tuple)
        return "x"

    async with Runtime() as runtime:
        one = Agent("root", model=ScriptedModel(trims), runtime=runtime)
        for text in ("one", "two"):
            await one.run(text, context=HERE)
    assert seen == [1, 3]


class Noting(Middleware):
    """Changes what it got from a thread's state, without setting it."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def before_reasoning(self, state: Any) -> None:
        kept = state.state("thread")
        value = kept.get("notes")
        self.found.append(deepcopy(value))
        if value is None:
            kept.set("notes", {1: ("t",), "log": ["a"]})
        else:
            value["log"].append("not set")


async def test_state_is_what_another_process_would_find() -> None:
    noting = Noting()
    async with Runtime() as runtime:
        one = Agent("root", model=ScriptedModel(["x"]), middleware=[noting], runtime=runtime)
        for text in ("one", "two", "three"):
            await one.run(text, context=HERE)
    assert noting.found[0] is None
    assert noting.found[2] == {"1": ["t"], "log": ["a"]}


async def test_a_failed_run_leaves_a_thread_that_goes_on_from_its_journal() -> None:
    def fails(request: ModelRequest) -> Any:
        if len(request.history) == 3:
            raise ValueError("mine")
        return f"heard {len(request.history)}"

    async with Runtime() as runtime:
        one = Agent("root", model=ScriptedModel(fails), runtime=runtime)
        await one.run("one", context=HERE)
        assert (await one.run("two", context=HERE, check=False)).status == "failed"
        assert (await one.run("three", context=HERE)).text == "heard 4"
        journal = await stored(runtime.ledger)
        kept = runtime._services.projections.take(journal.row)
        assert plain(kept) == plain(project(journal.own, journal.inherited))


def ended(messages: int) -> Projection:
    projection = project([])
    projection.history = [Entry(UserMessage(id=f"m{number}", text="x")) for number in range(messages)]
    projection.finished = object()  # type: ignore[assignment]
    return projection


def row(name: str, **more: Any) -> ThreadRow:
    return ThreadRow(key=ThreadKey("", "s", name), default_agent_id="root", created_at=1, generation=1, head=5, **more)


def test_those_used_last_are_kept_within_the_bound() -> None:
    kept = KeptProjections(max_messages=10)
    for name in ("a", "b", "c"):
        kept.keep(row(name), generation=1, head=5, projection=ended(4))
    assert kept.take(row("a")) is None
    assert kept.take(row("b")) is not None
    few = KeptProjections(max_threads=2)
    for name in ("a", "b", "c"):
        few.keep(row(name), generation=1, head=5, projection=ended(1))
    assert [few.take(row(name)) is not None for name in ("a", "b", "c")] == [False, True, True]
    large = KeptProjections(max_characters=10)
    for name, size in (("a", 6), ("b", 6), ("c", 11)):
        projection = ended(1)
        projection.size = size
        large.keep(row(name), generation=1, head=5, projection=projection)
    assert [large.take(row(name)) is not None for name in ("a", "b", "c")] == [False, True, False]
    kept.keep(row("big"), generation=1, head=5, projection=ended(11))
    assert kept.take(row("big")) is None
    assert kept.take(row("c")) is not None


@pytest.mark.parametrize("other", [{"created_at": 2}, {"generation": 2}, {"head": 6}])
def test_a_thread_that_is_not_as_it_was_left_is_not_found(other: dict[str, int]) -> None:
    kept = KeptProjections()
    kept.keep(row("a"), generation=1, head=5, projection=ended(1))
    assert kept.take(msgspec.structs.replace(row("a"), **other)) is None


def test_what_is_open_is_not_kept() -> None:
    kept = KeptProjections()
    running = ended(1)
    running.finished = None
    kept.keep(row("a"), generation=1, head=5, projection=running)
    assert kept.take(row("a")) is None
