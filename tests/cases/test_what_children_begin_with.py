"""Public faults of what a child begins with: what its caller put into the context, and one set-up of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import (
    Agent,
    HarnessAgent,
    PermissionRules,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    ToolContext,
    ToolHarness,
    tool,
)
from retinue.testing import Recorded, StrictProvider, calls

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
Parent = Callable[..., Agent]
ALL = PermissionRules(allow=["*"])


def child(name: str, **fields: Any) -> SubAgent:
    """A child whose set-up can be told from every other."""
    return SubAgent(name, f"The subagent {name}.", instructions=f"{name.upper()}_SETUP", **fields)


def conversation(request: Recorded) -> list[str]:
    """The texts of a request without the set-up."""
    return [message["content"] for message in request.messages if message["role"] != "system"]


class Lookup(ToolHarness):
    """A tool that needs something of the request that it is called in."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[object, str, str]] = {}

    @tool
    async def look(self, context: ToolContext) -> str:
        """Look the business object up."""
        self.found[context.agent_id] = (context.get("order"), context.session_id, context.user_id)
        return "seen"


@pytest.mark.contract("A-25", "D-12")
@pytest.mark.case("B004", "HPD-41", "AS-25")
async def test_what_a_caller_puts_into_the_context_reaches_children_on_both_surfaces(parent: Parent) -> None:
    order, tools = object(), Lookup()
    look = calls(("look", {}))
    script = {
        "parent": [look, calls(("near", {"input": "x"}), ("agent_spawn", {"agent_id": "far", "task": "x"})), "done"],
        "*": [look, "seen"],
    }
    below = [child("near", surface="tool", context_policy="fresh", tool_harnesses=[tools]), child("far", tool_harnesses=[tools])]
    async with StrictProvider(script) as provider, parent(provider, tool_harnesses=[tools], subagents=below) as agent:
        attributes: dict[str, object] = {"order": order}
        context = RuntimeContext(user_id="u", session_id="s", attributes=attributes)
        assert (await agent.run("Go.", context=context)).status == "completed"
        assert provider.refused == []
    assert attributes == {"order": order}  # nothing leaks back
    assert set(tools.found) == {"parent", "near", "far"}
    assert all(given is order and user == "u" for given, _, user in tools.found.values())
    assert tools.found["parent"][1] == tools.found["near"][1] == "s"
    assert tools.found["far"][1].startswith("sub-")  # its own session, and nothing else, is on top of the parent's


@pytest.mark.contract("D-14", "H-03")
@pytest.mark.case("B007")
async def test_a_fork_of_a_fork_is_sent_one_set_up_which_is_its_own(tmp_path: Path) -> None:
    harness = ToolHarness()
    harness.add_subagent(
        child("grand", surface="tool", context_policy="fork").with_availability(SubAgentAvailability.through_depth(2))
    )
    (tmp_path / "AGENTS.md").write_text("PARENT_SETUP\n", "utf-8")
    script = {
        "parent": [calls(("first", {"input": "one"})), "done"],
        "first": [calls(("grand", {"input": "two"})), "done"],
        "grand": ["done"],
    }
    async with (
        StrictProvider(script) as provider,
        HarnessAgent(
            "parent",
            model=provider.model(),
            workspace=tmp_path,
            instructions="PARENT_SETUP",
            subagents=[child("first", surface="tool", context_policy="fork", tool_harnesses=[harness])],
            permissions=ALL,
        ) as agent,
    ):
        assert (await agent.run("Go.", context=HERE)).status == "completed"
        assert provider.refused == []
        (request,) = provider.asked("grand")
        assert "PARENT_SETUP" in provider.asked("parent")[0].system
    assert conversation(request) == ["Go.", "one", "two"]
    assert [message["role"] for message in request.messages].count("system") == 1
    raw = request.raw.decode()
    assert [raw.count(name) for name in ("GRAND_SETUP", "FIRST_SETUP", "PARENT_SETUP")] == [1, 0, 0]
