"""How many commits a run takes, and what exactly is in each: counted on the ledger, not estimated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    PermissionRequest,
    PermissionRules,
    SubAgent,
    SubAgentAvailability,
    ToolHarness,
    tool,
)
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.ops import Append, CreateThread, Op, PutBlob, PutInvocation, PutMail, PutOwner, PutRequest, PutRun, TakeMail
from retinue.states import InvocationState, RunState
from retinue.testing import RecordingLedger, RecordingModel, calls
from retinue.testing.failpoints import Record

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])


def words(ops: Sequence[Op]) -> list[str]:
    """The ops of a commit, each as a few words; blobs left out (they are stored once per process)."""
    made: list[str] = []
    for op in ops:
        match op:
            case PutBlob():
                continue
            case Append():
                made += [f"{op.key.thread[:4]}: {event.type}{_role(event.body)}" for event in op.events]
            case CreateThread():
                made.append(f"create {op.row.key.thread[:4]}")
            case PutRun():
                made.append(f"run {op.row.path[-1]} {op.row.state.value}{'' if op.row.owner is None else ' leased'}")
            case PutInvocation():
                made.append(f"invocation {op.row.state.value}")
            case PutRequest():
                made.append(f"request {op.row.state.value}")
            case _:
                made.append(type(op).__name__)
    return made


def _role(body: bytes) -> str:
    message: Any = msgspec.json.decode(body).get("message")
    return f" {message['role']}" if isinstance(message, dict) else ""


def of_runs(commits: Sequence[Sequence[Op]]) -> list[list[str]]:
    """The commits of runs, without those of the runtime's own coming and going."""
    return [words(ops) for ops in commits if not any(type(op).__name__ in ("PutOwner", "DropOwner") for op in ops)]


def delegating(model: RecordingModel, ledger: Ledger, *, permissions: PermissionRules | None = ALLOW) -> Agent:
    """A parent with a child as its tool."""
    child = SubAgent("child", "D.", instructions="…", surface="tool")
    return Agent("parent", model=model, subagents=[child], ledger=ledger, permissions=permissions)


def one_delegation(count: int = 1) -> RecordingModel:
    """A parent that calls its child so many times in one message."""
    return RecordingModel({"parent": [calls(*[("child", {"input": "x"})] * count), "ok"], "child": ["Done."]})


INPUT = ["create main", "main: THREAD_CREATED", "main: RUN_STARTED", "main: MESSAGE user", "run parent running leased"]
INTENT = ["main: MESSAGE assistant", "main: MODEL_CALLED", "main: SUBAGENT_INVOCATION_STARTED"]
BIRTH = [
    "create sub-",
    "sub-: THREAD_CREATED",
    "sub-: RUN_STARTED",
    "sub-: MESSAGE user",
    "run child running leased",
    "invocation running",
]
END = ["main: SUBAGENT_INVOCATION_COMPLETED", "main: TOOL_CALL_RESULT"]
DEATH = ["sub-: MESSAGE assistant", "sub-: MODEL_CALLED", "sub-: RUN_FINISHED", "run child completed", "invocation completed"]
ANSWER = ["main: MESSAGE assistant", "main: MODEL_CALLED", "main: RUN_FINISHED", "run parent completed"]
FOUR = [INPUT, [*INTENT, *BIRTH], [*END, *DEATH], ANSWER]


@pytest.mark.contract("H-20", "D-33")
async def test_four_commits_per_delegation() -> None:
    ledger = RecordingLedger()
    async with delegating(one_delegation(), ledger) as agent:
        events = [event async for event in agent.stream("Go.")]
    assert of_runs(ledger.commits) == FOUR
    assert events[-1].TYPE == "RUN_FINISHED"


@pytest.mark.contract("H-20", "H-04")
async def test_four_commits_per_delegation_on_disk(tmp_path: Path) -> None:
    hooks = Record()
    ledger = SqliteLedger(tmp_path / "l.db", hooks=hooks)
    async with delegating(one_delegation(), ledger) as agent:
        async for _ in agent.stream("Go."):
            pass
    batches = [ops for batch in hooks.batches for ops in batch]
    assert of_runs(batches) == FOUR
    assert hooks.commits == len(FOUR) + 2  # the owner comes and goes


async def test_what_a_plain_run_is_told_rides_with_its_first_commit() -> None:
    ledger = RecordingLedger()
    async with delegating(one_delegation(), ledger) as agent:
        await agent.run("Go.")
    assert of_runs(ledger.commits) == [[*_joined(INPUT, INTENT), *BIRTH], [*END, *DEATH], ANSWER]


def _joined(first: list[str], second: list[str]) -> list[str]:
    """Two appends to one journal as one, the run's row after them."""
    return [*first[:-1], *second, first[-1]]


async def test_a_turn_without_tools_is_one_commit() -> None:
    ledger = RecordingLedger()
    async with delegating(RecordingModel({"parent": ["ok"]}), ledger) as agent:
        await agent.run("Go.")
    assert of_runs(ledger.commits) == [[*INPUT[:-1], *ANSWER]]


async def test_a_streamed_turn_without_tools_is_two_commits() -> None:
    ledger = RecordingLedger()
    async with delegating(RecordingModel({"parent": ["ok"]}), ledger) as agent:
        async for _ in agent.stream("Go."):
            pass
    assert of_runs(ledger.commits) == [INPUT, ANSWER]


@pytest.mark.contract("H-28")
@pytest.mark.parametrize("count", [2, 5])
async def test_one_commit_makes_all_children_of_a_message(count: int) -> None:
    ledger = RecordingLedger()
    async with delegating(one_delegation(count), ledger) as agent:
        async for _ in agent.stream("Go."):
            pass
    commits = of_runs(ledger.commits)
    assert commits[0] == INPUT
    assert sorted(commits[1]) == sorted([*INTENT[:2], *([INTENT[2], *BIRTH] * count)])
    ends = [word for commit in commits[2:-1] for word in commit]
    assert sorted(ends) == sorted([*END, *DEATH] * count)
    assert all("main: TOOL_CALL_RESULT" in commit for commit in commits[2:-1])  # never an end without its parent's result
    assert commits[-1] == ANSWER


@pytest.mark.contract("D-28", "H-05")
async def test_a_permission_prompt_adds_two_commits() -> None:
    ledger = RecordingLedger()
    async with delegating(one_delegation(), ledger, permissions=None) as agent:
        async for event in agent.stream("Go."):
            if isinstance(event, PermissionRequest):
                await agent.answer(event, allow=True)
    commits = of_runs(ledger.commits)
    assert len(commits) == 6
    assert commits[0] == INPUT
    assert commits[1] == ["main: MESSAGE assistant", "main: MODEL_CALLED", "main: REQUEST_OPENED", "request open"]
    assert commits[2] == ["request answered", "PutMail"]
    assert commits[3] == ["main: REQUEST_CLOSED", "main: SUBAGENT_INVOCATION_STARTED", "TakeMail", *BIRTH]
    assert commits[4:] == [[*END, *DEATH], ANSWER]


async def test_a_nested_delegation_adds_two_commits() -> None:
    inner = SubAgent("inner", "D.", instructions="…", surface="tool", requires_permission=False)
    harness = ToolHarness()
    harness.add_subagent(inner.with_availability(SubAgentAvailability.through_depth(2)))
    outer = SubAgent("outer", "D.", instructions="…", surface="tool", tool_harnesses=[harness])
    model = RecordingModel(
        {
            "parent": [calls(("outer", {"input": "x"})), "ok"],
            "outer": [calls(("inner", {"input": "y"})), "Outer."],
            "inner": ["In."],
        }
    )
    ledger = RecordingLedger()
    async with Agent("parent", model=model, subagents=[outer], ledger=ledger, permissions=ALLOW) as agent:
        async for _ in agent.stream("Go."):
            pass
    assert len(of_runs(ledger.commits)) == 6


async def test_read_only_tools_wait_for_no_commit_and_others_are_recorded_before_the_next_question() -> None:
    async def look() -> str:
        """Look."""
        return "seen"

    async def act() -> str:
        """Act."""
        return "done"

    model = RecordingModel({"parent": [calls(("look", {})), calls(("act", {})), "ok"]})
    ledger = RecordingLedger()
    tools = [tool(read_only=True)(look), act]
    async with Agent("parent", model=model, tools=tools, ledger=ledger) as agent:
        async for _ in agent.stream("Go."):
            pass
    commits = of_runs(ledger.commits)
    intent = ["main: MESSAGE assistant", "main: MODEL_CALLED"]
    assert commits == [INPUT, intent, ["main: TOOL_CALL_RESULT", *intent], ["main: TOOL_CALL_RESULT"], ANSWER]


@pytest.mark.contract("H-20", "D-07")
async def test_each_state_of_rows_is_put_once_and_on_the_state_before_it() -> None:
    ledger = RecordingLedger()
    async with delegating(one_delegation(), ledger) as agent:
        result = await agent.run("Go.")
    runs = [op for ops in ledger.commits for op in ops if isinstance(op, PutRun)]
    assert [(op.row.path, op.expect) for op in runs] == [
        (("parent",), None),
        (("parent", "child"), None),
        (("parent", "child"), (RunState.RUNNING, 1)),
        (("parent",), (RunState.RUNNING, 1)),
    ]
    invocations = [op for ops in ledger.commits for op in ops if isinstance(op, PutInvocation)]
    assert [op.expect for op in invocations] == [None, (InvocationState.RUNNING, 1)]
    assert result.status == "completed"
    assert {type(op) for ops in ledger.commits for op in ops} >= {Append, CreateThread, PutBlob, PutOwner}
    assert not any(isinstance(op, PutMail | TakeMail) for ops in ledger.commits for op in ops)
