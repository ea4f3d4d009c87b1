"""What a resumed run did before is shown first, and what it does then is shown as it comes, however late one looks."""

from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, PermissionRules, RuntimeContext, ScriptedModel, SubAgent
from retinue.cli.jsonl import EventLines
from retinue.cli.replay import replay_tree, up_to_take_over
from retinue.events import RunFinishedEvent, RunStartedEvent
from retinue.harness import Runtime
from retinue.testing import VirtualClock

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


async def test_the_end_of_a_run_that_waits_again_is_dated() -> None:
    clock = VirtualClock()
    children = [SubAgent("asks", "Helps.", instructions="Help.", surface="tool")]
    script = {"root": [{"calls": [{"name": "asks", "arguments": {"input": "b"}}]}, "done"], "asks": ["it is done"]}
    async with Runtime(clock=clock) as runtime:
        agent = Agent("root", model=ScriptedModel(script), subagents=children, runtime=runtime)
        first = [event async for event in agent.stream("go", context=RuntimeContext(session_id="s"))]
        await clock.advance(3.6)
        again = [event async for event in agent.resume_stream(first[-1].run_id)]
    last = again[-1]
    assert isinstance(last, RunFinishedEvent)
    assert last.status == "waiting"
    assert last.at == clock.now_ms() == first[-1].at + 3_600
    line = EventLines().describe(last)
    assert (line["live"], line["seq"], line["at"]) == (True, None, last.at)
