"""A condition of a commit did not hold: what had happened stays, what was to begin does not count (M1, M3)."""

from collections.abc import Sequence
from typing import Any

import pytest

from retinue import Agent, Limits, PermissionRules, Runtime, RuntimeContext, ScriptedModel, SubAgent, UnknownId, tool
from retinue.events import MessageEvent, ToolCallResultEvent, decode
from retinue.ledger.memory import MemoryLedger
from retinue.messages import AssistantMessage
from retinue.models.port import ModelRequest
from retinue.ops import CreateThread, HideThread, Op, PutDraft, PutRun, RequestCancel
from retinue.rows import ThreadKey, ThreadRow
from retinue.states import RunState
from retinue.testing import calls
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
KEY = ThreadKey("", "s", "main")
ALL = PermissionRules(allow=["*"])


class Hurried(MemoryLedger):
    """Another process cancels the tree just before the run of `agent` is committed as completed."""

    def __init__(self, agent: str) -> None:
        super().__init__()
        self._agent = agent
        self._done = False

    def _commit(self, ops: Sequence[Op]) -> Any:
        for op in ops:
            ends = isinstance(op, PutRun) and op.row.agent_id == self._agent and op.row.state is RunState.COMPLETED
            if isinstance(op, PutRun) and ends and not self._done:
                self._done = True
                super()._commit([RequestCancel(op.row.root, "enough", "another process", 1)])
        return super()._commit(ops)


@tool
def wipe() -> str:
    """Wipe."""
    return "wiped"


async def results(runtime: Runtime) -> list[str]:
    """What the root's calls gave."""
    journal = await runtime.ledger.journal(KEY)
    assert journal is not None
    return [event.content for event in map(decode, journal.own) if isinstance(event, ToolCallResultEvent)]


@pytest.mark.contract("D-07")
async def test_what_a_child_said_last_is_kept_and_paid_when_a_cancel_comes_before_its_end() -> None:
    script = {
        "root": [{"calls": [{"name": "kid", "arguments": {"input": "x"}}], "usage": {"input": 10, "output": 10}}, "never"],
        "kid": [{"text": "the answer", "usage": {"input": 1_000, "output": 1_000}}],
    }
    kid = SubAgent("kid", "Helps.", instructions="Help.", surface="tool")
    async with Runtime(ledger=Hurried("kid")) as runtime:
        agent = Agent("root", model=ScriptedModel(script), subagents=[kid], runtime=runtime, permissions=ALL)
        result = await agent.run("go", context=HERE, check=False)
        assert (result.status, result.usage.input_tokens, result.usage.calls) == ("cancelled", 1_010, 2)
        child = next(row for row in await runtime.ledger.tree(result.run_id) if row.agent_id == "kid")
        journal = await runtime.ledger.journal(child.key)
        assert journal is not None
        said = [event.message for event in map(decode, journal.own) if isinstance(event, MessageEvent)]
        assert [one.text for one in said if isinstance(one, AssistantMessage)] == ["the answer"]
        assert child.state is RunState.CANCELLED
        assert await audit(runtime.ledger, result.run_id) == []


class Contested(MemoryLedger):
    """Another process takes each label between the look at it and the commit."""

    taken = 0

    def _commit(self, ops: Sequence[Op]) -> Any:
        for op in ops:
            if isinstance(op, CreateThread) and op.row.label and not op.row.key.thread.startswith("rival"):
                self.taken += 1
                rival = ThreadKey("", "s", f"rival{self.taken}")
                parent = ThreadKey("", "s", "other")
                row = ThreadRow(key=rival, default_agent_id="x", created_at=1, updated_at=1, parent=parent, label=op.row.label)
                super()._commit([CreateThread(row)])
        return super()._commit(ops)


@pytest.mark.contract("D-30")
@pytest.mark.parametrize("task", ["work", ""])
async def test_conflicts_that_were_resolved_do_not_add_up(task: str) -> None:
    """Neither towards giving up, nor as children that were never made."""

    def reply(request: ModelRequest) -> Any:
        if request.agent_id != "root":
            return "kid is done"
        turn = request.step
        return calls(("agent_spawn", {"agent_id": "kid", "task": task, "label": f"l{turn}"})) if turn < 7 else "done"

    kid = SubAgent("kid", "Helps.", instructions="Help.")
    limits = Limits(max_tree_children=2)
    async with Runtime(ledger=Contested(), limits=limits) as runtime:
        agent = Agent("root", model=ScriptedModel(reply), subagents=[kid], runtime=runtime, permissions=ALL)
        result = await agent.run("go", context=HERE)
        assert result.text == "done"
        told = await results(runtime)
        assert sum("is already in use" in one for one in told) == 6
        assert not any("max_tree_children" in one for one in told)


@pytest.mark.contract("D-30")
async def test_children_without_a_task_count_in_another_process_too() -> None:
    spawns = [("agent_spawn", {"agent_id": "kid"})]
    script = {"root": [calls(*spawns * 2), calls(("wipe", {})), calls(*spawns), "done"]}
    rules, kid = PermissionRules(allow=["agent_spawn"], ask=["wipe"]), SubAgent("kid", "Helps.", instructions="Help.")
    async with Runtime(limits=Limits(max_tree_children=2)) as runtime:
        agent = Agent("root", model=ScriptedModel(script), subagents=[kid], tools=[wipe], runtime=runtime, permissions=rules)
        first = await agent.run("go", context=HERE)
        assert first.status == "waiting"
        result = await agent.answer(first.requests[0], allow=True)
        assert result is not None
        assert result.status == "completed"
        assert len(await runtime.ledger.children(KEY)) == 2
        assert "`Limits(max_tree_children=…)` is 2" in (await results(runtime))[-1]


async def test_a_run_on_a_deleted_thread_says_so() -> None:
    async with Runtime() as runtime:
        agent = Agent("root", model=ScriptedModel(["one", "two"]), runtime=runtime)
        await agent.run("go", context=HERE)
        await runtime.ledger.commit([HideThread(KEY)])
        with pytest.raises(UnknownId, match="was deleted") as raised:
            await agent.run("go", context=HERE)
        assert raised.value.code == "deleted"
        assert "purge" in (raised.value.remedy or "")


class Counting(MemoryLedger):
    """Counts the text of the drafts that it is given."""

    drafted = 0

    def _commit(self, ops: Sequence[Op]) -> Any:
        self.drafted += sum(len(op.draft.text) for op in ops if isinstance(op, PutDraft))
        return super()._commit(ops)


async def test_the_drafts_of_a_long_answer_are_some_times_its_length() -> None:
    text = "word " * 200_000
    ledger = Counting()
    async with Runtime(ledger=ledger) as runtime:
        agent = Agent("root", model=ScriptedModel([{"text": text, "chunk": 1_000}]), runtime=runtime)
        assert (await agent.run("go")).text == text
        assert 0 < ledger.drafted < 12 * len(text)


@pytest.mark.contract("D-28", "D-07")
async def test_no_answer_stands_before_what_it_answers_to() -> None:
    """A denial and the model's last word are refused together, because a cancel came first: the word is not kept without it."""

    @tool(read_only=True)
    def look() -> str:
        """Look: what it gives need not be stored before the model is asked."""
        return "seen"

    script = [calls(("look", {})), "the last word"]
    async with Runtime(ledger=Hurried("root")) as runtime:
        rules = PermissionRules(ask=["look"])
        agent = Agent("root", model=ScriptedModel(script), tools=[look], runtime=runtime, permissions=rules)
        waiting = await agent.run("go", context=HERE)
        result = await agent.answer(waiting.requests[0], allow=False)
        assert result is not None
        assert result.thread is not None
        assert (result.status, result.usage.calls) == ("cancelled", 2)
        kept = [type(message).__name__ for message in await result.thread.messages()]
        assert kept == ["UserMessage", "AssistantMessage", "ToolResult"]
        assert "Not allowed" in (await results(runtime))[0]
        assert await audit(runtime.ledger, result.run_id) == []
