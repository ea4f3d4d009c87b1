"""Bad input gets a clear error, as early as it can be known, and loses nothing: what, where, and what to do."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    AgentConfig,
    ConfigurationError,
    HarnessAgent,
    LedgerUnavailable,
    Limits,
    PermissionRules,
    RetinueError,
    Runtime,
    RuntimeContext,
    ScriptedModel,
    SubAgent,
    ToolHarness,
    UnknownId,
    UntrustedWorkspace,
    tool,
)
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio

ANYTHING: Any = object()


def plain(text: str) -> str:
    """A function that could be a tool."""
    return text


class Twice(ToolHarness):
    """A harness with one tool."""

    @tool
    async def plain(self) -> str:
        """Be plain."""
        return "plain"


def roster(*names: str) -> list[SubAgent]:
    """Declarations for a roster."""
    return [SubAgent(name, "D.", instructions="…", agent_id="same") for name in names]


@pytest.mark.contract("D-27", "A-06", "D-31", "D-30")
@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Agent("two words"), ["agent name `two words`", "letters"]),
        (lambda: Agent("../up"), ["`../up`", "`..`"]),
        (lambda: Agent("a", max_iters=0), ["`max_iters`", "at least 1"]),
        (lambda: Agent("a", tools=[plain, plain]), ["agent `a`", "two capabilities named `plain`", "Rename"]),
        (lambda: Agent("a", tools=[plain], tool_harnesses=[Twice]), ["two capabilities named `plain`"]),
        (lambda: Agent("a", subagents=roster("one", "two")), ["`same`", "`one`", "`two`", "another `agent_id`"]),
        (lambda: Agent("a", tools=[SubAgent("s", "D.")]), ["`tools`", "`s`", "subagents"]),
        (lambda: Agent("a", runtime=Runtime(), limits=Limits()), ["`runtime=`", "`limits`", "Runtime"]),
        (lambda: Agent("a", ledger="postgresql://x"), ["postgresql", "not in this version", "sqlite:///"]),
        (lambda: Agent("a", ledger="nonsense"), ["`nonsense`", "sqlite:///"]),
        (lambda: HarnessAgent("a", workspace="/no/such/folder"), ["`/no/such/folder`", "does not exist", "Create the folder"]),
        (lambda: Agent("a", model=ANYTHING), ["`model` is an `object`"]),
        (lambda: SubAgent("s", "D.", model=ANYTHING), ["`model` is an `object`"]),
        (lambda: Limits(max_children=0), ["`Limits(max_children=…)`", "at least 1"]),
        (lambda: PermissionRules(allow=["act("]), ["`act(`", "tool(glob"]),
        (lambda: AgentConfig(name=" "), ["name", "blank"]),
        (lambda: SubAgent("s", "D.", url="http://h", workspace="w"), ["`s`", "`url` and `workspace`", "Leave out"]),
        (lambda: SubAgent("s", "D.", url="http://h", instructions="x"), ["`s`", "`url` and `instructions`"]),
        (lambda: SubAgent("s", "D.", workspace="w", instructions="x"), ["`s`", "`workspace` and `instructions`"]),
        (lambda: SubAgent("", "D."), ["name", "blank"]),
        (lambda: SubAgent("s", ""), ["`s`", "description", "blank"]),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(build: Callable[[], Any], told: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build()
    for text in told:
        assert text in str(raised.value)
    assert raised.value.code
    assert raised.value.remedy


def test_a_callable_among_the_names_of_inherited_tools_is_a_type_error_that_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="tool_harnesses"):
        SubAgent("s", "D.", tools=[plain])  # type: ignore[list-item]


@pytest.mark.contract("D-27")
async def test_build_is_idempotent_and_implied_by_use() -> None:
    model = RecordingModel({"parent": ["ok"]})
    one = Agent("parent", model=model)
    assert await one.build() is one
    assert await one.build() is one
    assert (await one.run("Go.")).text == "ok"
    await one.close()
    async with Agent("parent", model=model) as two:
        assert (await two.run("Go.")).text == "ok"
    assert [event.TYPE async for event in Agent("parent", model=model).stream("Go.")][-1] == "RUN_FINISHED"


def test_run_sync_is_the_same_run() -> None:
    one = Agent("parent", model=RecordingModel({"parent": ["ok"]}))
    assert one.run_sync("Go.").text == "ok"
    assert one.run_sync("Go.").status == "completed"
    one.close_sync()


async def test_run_sync_in_async_code_says_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"await agent\.run"):
        Agent("parent", model=RecordingModel(["ok"])).run_sync("Go.")


# Workspaces


@pytest.mark.contract("A-05")
def test_a_workspace_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(ConfigurationError, match=r"is not a directory") as raised:
        HarnessAgent("a", workspace=path)
    assert str(path) in str(raised.value)
    assert path.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_workspace_that_cannot_be_used_is_named(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    folder.chmod(mode)
    try:
        with pytest.raises(ConfigurationError, match=r"cannot be (read|written)"):
            HarnessAgent("a", workspace=folder)
    finally:
        folder.chmod(0o700)


@pytest.mark.contract("D-23", "D-27")
async def test_a_workspace_that_nobody_has_confirmed_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "subagents").mkdir()
    (tmp_path / "subagents" / "helper.md").write_text("---\ndescription: D.\n---\nYou help.")
    (tmp_path / "AGENTS.md").write_text("Do as I say.")
    model = RecordingModel({"parent": ["ok"]})
    with pytest.raises(UntrustedWorkspace) as raised:
        await HarnessAgent("parent", model=model, workspace=tmp_path, trust=False).run("Go.")
    assert "`AGENTS.md`, `subagents/helper.md`" in str(raised.value)
    assert "--trust" in str(raised.value)
    assert model.requests == []
    assert not (tmp_path / ".retinue").exists()
    async with HarnessAgent("parent", model=model, workspace=tmp_path) as one:  # named in code: trusted
        one.workspace.trust()
        await one.run("Go.")
    async with HarnessAgent("parent", model=model, workspace=tmp_path, trust=False) as one:
        await one.run("Go.")
    assert "Do as I say." in model.requests[-1].envelope.instructions


@pytest.mark.contract("D-23")
async def test_files_that_come_later_and_those_of_users_need_to_be_confirmed_too(tmp_path: Path) -> None:
    model = RecordingModel({"parent": ["ok"]})
    alice = RuntimeContext(user_id="alice")
    async with HarnessAgent("parent", model=model, workspace=tmp_path, trust=False) as one:
        await one.run("Go.", context=alice)  # nothing to confirm yet
        folder = tmp_path / "alice" / "subagents"
        folder.mkdir(parents=True)
        (folder / "helper.md").write_text("---\ndescription: Came later.\n---\nYou help.")
        with pytest.raises(UntrustedWorkspace, match=r"`alice/subagents/helper\.md`"):
            await one.run("Go.", context=alice)
        assert len(model.requests) == 1
        one.workspace.trust()
        await one.run("Go.", context=alice)
    assert "Came later." in model.requests[-1].envelope.instructions


@pytest.mark.contract("A-17", "A-18", "A-20", "D-05", "D-06")
@pytest.mark.case("B099", "AS-8", "AS-16")
async def test_a_bad_declaration_file_beside_a_good_one_is_reported_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "subagents"
    (folder / "deeper").mkdir(parents=True)
    (folder / "good.md").write_text("---\ndescription: Helps.\nname: Somebody Else\n---\nYou help.")
    (folder / "bad.md").write_text("---\nname: no description\n---\nYou hurt.")
    (folder / "remote.md").write_text("---\ndescription: Far away.\nurl: http://127.0.0.1:1\n---\n")
    (folder / "unknown.md").write_text("---\ndescription: D.\nmodel: opnai:x\n---\nYou think.")
    (folder / "deeper" / "hidden.md").write_text("---\ndescription: Not at the first level.\n---\nx")

    def answer(request: Any) -> Any:
        if request.agent_id == "parent" and request.step == 1:
            ids = ("good", "bad", "unknown", "Somebody Else")
            return calls(*(("agent_spawn", {"agent_id": agent_id, "task": "x"}) for agent_id in ids))
        return "ok"

    model = RecordingModel(answer)
    with caplog.at_level(logging.WARNING, "retinue"):
        async with HarnessAgent("parent", model=model, workspace=tmp_path, ledger="memory") as one:
            result = await one.run("Go.")
            await one.run("Go.")
            found = {(diagnostic.path.name if diagnostic.path else "", diagnostic.code) for diagnostic in one.diagnostics}
    assert result.status == "completed"
    assert "bad.md" in {name for name, _ in found}
    good, bad, unknown, name = results_of(model.asked("parent")[1])
    assert "reply:\nok" in good
    assert "`bad`" in bad
    assert "description" in bad
    assert "opnai:x" in unknown
    assert "there is no subagent `Somebody Else`" in name
    listed = model.asked("parent")[0].envelope.instructions
    assert "`good`" in listed
    for absent in ("`bad`", "hidden", "Somebody", "hurt"):
        assert absent not in listed
    assert len([record for record in caplog.records if "bad.md" in record.getMessage()]) == 1  # told once


# Ledgers


@pytest.mark.contract("D-32", "H-04")
async def test_a_harness_agents_ledger_lies_in_its_workspace(tmp_path: Path) -> None:
    async with HarnessAgent("parent", model=RecordingModel({"parent": ["ok"]}), workspace=tmp_path) as one:
        await one.run("Go.")
    state = tmp_path / ".retinue"
    assert (state / "ledger.sqlite3").is_file()
    assert oct(state.stat().st_mode)[-3:] == "700"
    assert (state / ".gitignore").read_text() == "*\n"


@pytest.mark.contract("D-32")
async def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    model = RecordingModel({"parent": ["ok"]})
    async with Agent("parent", model=model, ledger=path) as one:
        await one.run("Go.", context=RuntimeContext(session_id="s"))
    with sqlite3.connect(path) as store:
        store.execute("PRAGMA user_version = 9999")
    store.close()
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable) as raised:
        await Agent("parent", model=model, ledger=path).run("Go.")
    assert str(path) in str(raised.value)
    assert "9999" in str(raised.value) or "newer" in str(raised.value)
    assert raised.value.remedy
    assert path.read_bytes() == before
    assert len(model.requests) == 1


@pytest.mark.contract("D-32")
async def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    path.write_text("my notes " * 1_000)
    with pytest.raises(LedgerUnavailable) as raised:
        await Agent("parent", model=RecordingModel(["ok"]), ledger=path).run("Go.")
    assert str(path) in str(raised.value)
    assert path.read_text() == "my notes " * 1_000


# Ids


@pytest.mark.contract("D-31")
@pytest.mark.parametrize(
    ("context", "told"),
    [
        (RuntimeContext(session_id="a/b"), "`session_id` `a/b`"),
        (RuntimeContext(session_id=""), "`session_id` ``"),
        (RuntimeContext(session_id=".."), "`session_id` `..`"),
        (RuntimeContext(session_id="x" * 129), "`session_id`"),
        (RuntimeContext(thread_id="a b"), "`thread_id` `a b`"),
        (RuntimeContext(user_id="../etc"), "`user_id` `../etc`"),
    ],
)
async def test_ids_that_cannot_be_are_refused_before_anything_is_written(context: RuntimeContext, told: str) -> None:
    model = RecordingModel({"parent": ["ok"]})
    async with Agent("parent", model=model) as one:
        with pytest.raises(ConfigurationError) as raised:
            await one.run("Go.", context=context)
        with pytest.raises(ConfigurationError):
            async for _ in one.stream("Go.", context=context):
                pass
        assert await one.threads.list(hidden=True) == []
    assert told in str(raised.value)
    assert raised.value.code == "invalid_id"
    assert model.requests == []


async def test_ids_that_are_not_there_say_what_to_look_at() -> None:
    async with Agent("parent", model=RecordingModel({"parent": ["ok"]})) as one:
        result = await one.run("Go.")
        attempts: list[Callable[[], Any]] = [
            lambda: one.threads.get(session_id="none"),
            lambda: one.resume("run_none"),
            lambda: one.resume(result.run_id),  # it has ended
            lambda: one.cancel("run_none"),
            lambda: one.answer("req_none", allow=True),
        ]
        for attempt in attempts:
            with pytest.raises(UnknownId) as raised:
                await attempt()
            assert raised.value.remedy
            assert "`" in raised.value.message


@pytest.mark.contract("H-18", "D-28")
async def test_a_run_of_another_agent_is_not_resumed_by_this_one(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    model = RecordingModel({"one": [calls(("plain", {"text": "x"})), "ok"]})
    async with Agent("one", model=model, tools=[plain], ledger=path, permissions=PermissionRules(ask=["plain"])) as one:
        waiting = await one.run("Go.")
    async with Agent("two", model=model, ledger=path) as two:
        with pytest.raises(ConfigurationError) as raised:
            await two.resume(waiting.run_id)
        assert raised.value.code == "no_executor"
        assert "agent `one`" in str(raised.value)
    async with Agent("one", model=model, tools=[plain], ledger=path) as one:
        done = await one.answer(waiting.requests[0], allow=True)
    assert done is not None
    assert done.status == "completed"


def test_every_error_has_a_root_a_code_and_names_in_backticks() -> None:
    error = ConfigurationError("`x` is wrong", remedy="write `y`")
    assert isinstance(error, RetinueError)
    assert str(error) == "`x` is wrong. Write `y`."
    assert error.code == "configuration"


@pytest.mark.parametrize("given", ["", " \n", [""], ["", "  "]])
async def test_an_input_of_nothing_is_refused_before_a_run_begins(given: Any) -> None:
    async with Agent("a", model=ScriptedModel(["done"])) as agent:
        with pytest.raises(ConfigurationError, match="the input of a run is empty"):
            await agent.run(given)
        assert await agent.threads.list() == []
    with pytest.raises(ConfigurationError, match="the input of a run is empty"):
        await asyncio.to_thread(Agent("a", model=ScriptedModel(["done"])).run_sync, given)


async def test_a_depth_of_nought_forbids_delegation() -> None:
    model = RecordingModel([calls(("agent_spawn", {"agent_id": "s", "task": "Look."})), "done"])
    child = SubAgent("s", "D.", instructions="…")
    async with Agent("a", model=model, subagents=[child], limits=Limits(max_depth=0)) as agent:
        assert (await agent.run("go")).text == "done"
        (row,) = await agent.runtime.ledger.runs()
    assert row.agent_id == "a"


@pytest.mark.parametrize(
    ("message", "remedy", "shown"),
    [
        ("it is wrong", "mend it", "it is wrong. Mend it."),
        ("it is wrong.", "mend it.", "it is wrong. Mend it."),
        ("may it go on?", "is the server running?", "may it go on? Is the server running?"),
        ("it is wrong", None, "it is wrong"),
    ],
)
def test_an_error_has_one_mark_after_each_sentence(message: str, remedy: str | None, shown: str) -> None:
    assert str(RetinueError(message, remedy=remedy)) == shown
