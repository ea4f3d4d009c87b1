"""A child's end is committed together with its parent's result: dead before that commit or after it, nothing is in between."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.testing.audit import audit, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("which", "agent"), [(1, "helper"), (2, "worker")])
async def test_child_ended_parent_dead(
    tmp_path: Path, forks: Any, provider_process: Any, read: Any, which: int, agent: str, when: str
) -> None:
    """The `which`-th end of a child, the grandchild's first; its parent dies before or after it is recorded."""
    case, path, url = f"{agent}-ended-{when}", tmp_path / "ledger.sqlite3", provider_process.url
    failpoint = f"on:{when}:SUBAGENT_INVOCATION_COMPLETED:{which}"
    dead = forks.start("run", case, path, url, failpoint=failpoint)
    assert await dead.code() == -signal.SIGKILL
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        states = {row.agent_id: row.state.value for row in await ledger.tree(root)}
        invocations = {row.child_agent_id: row.state.value for row in await ledger.invocations(root_run=root)}
        ended = "completed" if when == "after" else "running"
        assert states[agent] == invocations[agent] == ended
        assert states["lead"] == "running"
        assert await audit(ledger, root) == []
        answered, _ = await provider_process.record(case)
        resumed = await forks.start("resume", case, path, url).outcome()
        assert resumed["text"] == "Lead is done. Worker is done. Helper is done. paid 7"
        assert await audit(ledger, root) == []
        said = await transcript(ledger, root)
        attempts = {row.agent_id: row.attempt for row in await ledger.tree(root)}
    assert "unknown_outcome" not in str(said)
    requests, effects = await provider_process.record(case)
    again = [key for key, times in Counter((one["agent"], one["step"]) for one in requests).items() if times > 1]
    last_turn = max((one["agent"], one["step"]) for one in answered if one["agent"] == agent)
    assert again == ([last_turn] if when == "before" else [])  # the answer that was not recorded, and no other
    assert attempts[agent] == (2 if when == "before" else 1)
    assert Counter(effect["name"] for effect in effects)["pay"] == 1
