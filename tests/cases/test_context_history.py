"""Public faults of context and history: what a delegation leaves of its parent's conversation, and what a child is given."""

from itertools import pairwise
from pathlib import Path

import pytest

from retinue import Agent, HarnessAgent, PermissionRules, RuntimeContext, SubAgent, ToolHarness
from retinue.messages import AssistantMessage, ToolResult, UserMessage
from retinue.testing import ScriptedModel, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
ALL = PermissionRules(allow=["*"])
LEAVE_OUT = "correct the tool's name, or leave it out"
POLICIES = ["fork", "fresh", "isolated"]


# B002


@pytest.mark.case("B002")
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_delegation_leaves_the_parents_earlier_messages_as_they_were(policy: str, tmp_path: Path) -> None:
    answers = iter(["one", "two", calls(("helper", {"input": "the child's task"})), "ok", "still here"])
    one = SubAgent("helper", "Helps.", instructions="Help.", surface="tool", context_policy=policy)  # type: ignore[arg-type]
    async with (
        StrictProvider(lambda request: next(answers) if request.agent == "parent" else "helped") as provider,
        Agent("parent", model=provider.model(), subagents=[one], permissions=ALL, ledger=tmp_path / "l.sqlite3") as agent,
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


# B009


async def late() -> str:
    """Come late."""
    return "it came late"


@pytest.mark.case("B009")
async def test_a_tool_that_is_added_after_the_agent_was_made_is_there_for_its_child(tmp_path: Path) -> None:
    harness = ToolHarness()
    script = {
        "parent": [calls(("agent_spawn", {"agent_id": "helper", "task": "x"})), "ok"],
        "helper": [calls(("late", {})), "{{ results[-1] }}"],
    }
    one = SubAgent("helper", "Helps.", instructions="Help.", tool_harnesses=[harness])
    async with (
        StrictProvider(script) as provider,
        Agent("parent", model=provider.model(), subagents=[one], permissions=ALL, ledger=tmp_path / "l.sqlite3") as agent,
    ):
        harness.add_tool(late)
        await agent.run("Go.", context=HERE)
        assert provider.refused == []
        assert provider.asked("helper")[-1].messages[-1]["content"] == "it came late"


FILE = """---
name: filed
description: Is a file.
tools: [lat, read_file, "gre*"]
---
Help.
"""


@pytest.mark.case("B009")
async def test_a_declared_tool_that_nobody_has_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "subagents").mkdir()
    (tmp_path / "subagents" / "filed.md").write_text(FILE, "utf-8")
    declared = [
        SubAgent("coded", "Is code.", instructions="Help.", tools=["late", "missing"]),
        SubAgent("shown", "Is a tool.", instructions="Help.", surface="tool", disallowed_tools=["other_*"]),
    ]
    model = ScriptedModel({"parent": ["ok"]})
    agent = HarnessAgent("parent", model=model, workspace=tmp_path, ledger="memory", tools=[late], subagents=declared)
    async with agent:
        await agent.run("Go.", context=HERE)
    found = [(str(one.path or ""), one.message, one.remedy) for one in agent.diagnostics if one.code == "unknown_tool_named"]
    assert sorted(found) == [
        ("", "subagent `coded`: `tools` names `missing`, a tool that no agent here has", LEAVE_OUT),
        ("", "subagent `shown`: `disallowed_tools` names `other_*`, a tool that no agent here has", LEAVE_OUT),
        (
            str(tmp_path / "subagents" / "filed.md"),
            "subagent `filed`: `tools` names `lat`, a tool that no agent here has",
            "write `late`",
        ),
    ]
    assert all(any(message in line for line in caplog.messages) for _, message, _ in found)
