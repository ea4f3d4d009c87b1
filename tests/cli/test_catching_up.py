"""What a resumed run did before is shown first, and what it does then is shown as it comes, however late one looks."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RuntimeContext, ScriptedModel, SubAgent
from retinue.cli.replay import replay_tree, up_to_take_over
from retinue.events import RunFinishedEvent, RunStartedEvent

pytestmark = pytest.mark.anyio

SCRIPT: dict[str, Any] = {
    "root": [
        {"calls": [{"name": "child", "arguments": {"input": "a"}}]},
        {"calls": [{"name": "asks", "arguments": {"input": "b"}}]},
        {"calls": [{"name": "child", "arguments": {"input": "c"}}]},
        "done",
    ],
    "child": ["child is done"],
    "asks": ["it is done"],
}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_comes_after_the_take_over_is_left_to_the_stream(kind: str, tmp_path: Path) -> None:
    children = [SubAgent(name, "Helps.", instructions="Help.", surface="tool") for name in ("child", "asks")]
    ledger = "memory" if kind == "memory" else str(tmp_path / "l.db")
    rules = PermissionRules(allow=["child"], ask=["asks"])
    async with Agent("root", model=ScriptedModel(SCRIPT), subagents=children, permissions=rules, ledger=ledger) as agent:
        waiting = await agent.run("go", context=RuntimeContext(session_id="s"))
        before = await replay_tree(agent.runtime.ledger, waiting.run_id)
        assert up_to_take_over(before, waiting.run_id) == before
        await agent.answer(waiting.requests[0], allow=True)
        after = await replay_tree(agent.runtime.ledger, waiting.run_id)  # it has ended before anybody looked
    shown = up_to_take_over(after, waiting.run_id)
    assert isinstance(after[-1], RunFinishedEvent)
    taken = [event for event in shown if isinstance(event, RunStartedEvent) and event.attempt == 2]
    assert [event.run_id for event in taken] == [waiting.run_id]
    assert [event for event in shown if event not in taken] == before
