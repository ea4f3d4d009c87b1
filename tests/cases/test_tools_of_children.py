"""Public faults of the tools that a child has: one that came late is there, one that nobody has is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from retinue import Agent, HarnessAgent, RuntimeContext, SubAgent, ToolHarness
from retinue.testing import ScriptedModel, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
LEAVE_OUT = "correct the tool's name, or leave it out"


async def late() -> str:
    """Come late."""
    return "it came late"


@pytest.mark.case("B009")
async def test_a_tool_that_is_added_after_the_agent_was_made_is_there_for_its_child(parent: Parent) -> None:
    harness = ToolHarness()
    script = {
        "parent": [calls(("agent_spawn", {"agent_id": "helper", "task": "x"})), "ok"],
        "helper": [calls(("late", {})), "{{ results[-1] }}"],
    }
    one = SubAgent("helper", "Helps.", instructions="Help.", tool_harnesses=[harness])
    async with StrictProvider(script) as provider, parent(provider, subagents=[one]) as agent:
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
