"""A process dies in the middle of a batch of parallel tools: what has a result keeps it, each call gets exactly one."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.events import ToolCallResultEvent
from retinue.testing.audit import audit, told

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

NAMES = {"p": "plain", "r": "read", "i": "idem"}


async def results(ledger: Any) -> dict[int, ToolCallResultEvent]:
    """The recorded results by the place of their call."""
    root = (await ledger.runs(roots_only=True))[0].run_id
    (only,) = await told(ledger, root)
    return {event.call.index: event for event in only.of(ToolCallResultEvent)}


@pytest.mark.case("B019")
@pytest.mark.parametrize("stored", [0, 1, 2, 3])
@pytest.mark.parametrize("kinds", ["ppp", "pri", "rip"])
async def test_parallel_batch_killed_after_one_of_three_results(
    tmp_path: Path, forks: Any, provider_process: Any, read: Any, kinds: str, stored: int
) -> None:
    """`stored` tools have ended, and what they wrote at once is committed; then the process is killed."""
    case, path = f"{kinds}-{stored}", tmp_path / "ledger.sqlite3"
    url, agent = provider_process.url, f"steps-{kinds}"
    end = {"die_in": stored} if stored < 3 else {"failpoint": "on:after:TOOL_CALL_RESULT:3"}
    first = forks.start("run", case, path, url, agent=agent, **end)
    assert await first.code() == -signal.SIGKILL
    async with read(path) as ledger:
        before = await results(ledger)
        assert set(before) >= {place for place in range(stored) if kinds[place] != "r"}
        assert set(before) <= set(range(stored))
        requests, effects = await provider_process.record(case)
        assert sorted(effect["name"] for effect in effects) == sorted(NAMES[kind] for kind in kinds)

        resumed = await forks.start("resume", case, path, url, agent=agent).outcome()
        assert (resumed["status"], resumed["text"]) == ("completed", "The steps are taken.")
        after = await results(ledger)
        root = (await ledger.runs(roots_only=True))[0].run_id
        assert await audit(ledger, root) == []
    requests, effects = await provider_process.record(case)
    assert [(one["step"], one["refused"]) for one in requests] == [(1, None), (2, None)]
    assert [message["role"] for message in requests[1]["body"]["messages"]][-4:] == ["assistant", "tool", "tool", "tool"]
    ran = Counter(effect["key"] for effect in effects)
    assert len(ran) == 3
    for place, kind in enumerate(kinds):
        times = next(count for key, count in ran.items() if key.endswith(f":{place}"))
        told_of = (after[place].status.value, after[place].content)
        if place in before:
            assert after[place] == before[place]
        if place in before or kind != "p":
            assert told_of == ("ok", f"{NAMES[kind]} {place}")
        else:
            assert told_of[0] == "unknown_outcome"
        assert times == (1 if place in before or kind == "p" else 2)
