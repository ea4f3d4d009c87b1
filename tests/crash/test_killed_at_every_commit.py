"""Invariant 12: killed at any commit, before or after it is durable, another process reaches the same transcript.

How many commits a process makes is a matter of time, because commits that meet share one: a case that is not killed has made
fewer commits than it was to die at, and nothing else is expected of their number.
"""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.events import ModelCalledEvent
from retinue.testing.audit import audit, told, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

TOOLS = {"look": "read-only", "note": "plain", "put": "idempotent", "pay": "plain"}
Key = tuple[str, int]


async def committed_answers(ledger: Any, root: str) -> set[Key]:
    """(agent, turn) of each model answer that the ledger holds."""
    found: set[Key] = set()
    for one in await told(ledger, root):
        found |= {(one.row.agent_id, turn) for turn, _ in enumerate(one.of(ModelCalledEvent), 1)}
    return found


def asked(requests: list[dict[str, Any]], process: int | None = None) -> Counter[Key]:
    """How often each turn of each agent was asked for, by all or by one process.

    To be looked at when the last process has ended: what another one had sent when it was killed may still be on its way.
    """
    mine = [one for one in requests if process is None or one["headers"]["x-process"] == str(process)]
    return Counter((one["agent"], one["step"]) for one in mine)


def unfinished(conversation: dict[str, Any]) -> int:
    """How many calls of plain tools have no result."""
    calls = [message[1:] for message in conversation["messages"] if message[0] == "call"]
    below = sum(unfinished(one) for _, _, one, _ in calls if one is not None)
    return below + sum(TOOLS.get(name) == "plain" and ended is None for name, _, _, ended in calls)


def without_unknown(conversation: dict[str, Any] | None) -> Any:
    """The transcript up to results whose outcome is not known, and what was said because of them."""
    if conversation is None:
        return None
    messages: list[Any] = []
    for message in conversation["messages"]:
        if message[0] == "call":
            name, arguments, below, ended = message[1:]
            unknown = name in ("note", "pay") and ended is not None and ended[0] == "unknown_outcome"
            told_of = None if unknown or name in ("note", "pay", "worker", "helper") else ended
            messages.append(["call", name, arguments, without_unknown(below), told_of])
        else:
            messages.append([message[0], message[1].partition(" done.")[0]])
    return {**conversation, "messages": messages}


class Faults(list[str]):
    """What was found wrong, with the case it was found in."""

    def check(self, right: bool, case: str, what: str) -> None:
        """Keep `what` if it is not right."""
        if not right:
            self.append(f"{case}: {what}")


@pytest.mark.timeout(300)
async def test_killed_at_every_commit(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    ledger = tmp_path / "undisturbed.sqlite3"
    outcome = await forks.start("run", "undisturbed", ledger, provider_process.url).outcome()
    assert outcome["status"] == "completed", outcome
    async with read(ledger) as opened:
        root = (await opened.runs(roots_only=True))[0].run_id
        undisturbed = await transcript(opened, root)
        assert await audit(opened, root) == []
        assert [(row.agent_id, row.depth) for row in await opened.tree(root)] == [("lead", 0), ("worker", 1), ("helper", 2)]
        assert [row.answer for row in await opened.requests(root_run=root)] == ["allow"]
    assert outcome["text"] == "Lead is done. Worker is done. Helper is done. paid 7"
    requests, _ = await provider_process.record("undisturbed")
    assert set(asked(requests).values()) == {1}
    assert "unknown_outcome" not in str(undisturbed)

    faults, killed, made = Faults(), set[tuple[str, int]](), [outcome["commits"]]
    numbers = iter(range(1, 100))

    async def work() -> None:
        for n in numbers:
            ends = [await one_case(n, when) for when in ("before", "after")]
            if ends == [False, False] and n > outcome["commits"]:
                return

    async def one_case(n: int, when: str) -> bool:
        """Kill and resume; False if the process had made all its commits before."""
        case = f"{when}-{n}"
        path = tmp_path / f"{case}.sqlite3"
        first = forks.start("run", case, path, provider_process.url, failpoint=f"kill:{when}:{n}")
        if await first.code() == 0:
            told_of = await first.outcome()
            faults.check(told_of.get("status") == "completed" and told_of["commits"] < n, case, f"was not killed: {told_of}")
            made.append(told_of["commits"])
            return False
        faults.check(await first.code() == -signal.SIGKILL, case, f"ended with {await first.code()}")
        killed.add((when, n))
        async with read(path) as opened:
            roots = await opened.runs(roots_only=True)
            known = await committed_answers(opened, roots[0].run_id) if roots else set[Key]()
            before = await audit(opened, roots[0].run_id) if roots else []
            open_calls = unfinished(await transcript(opened, roots[0].run_id)) if roots else 0
        faults.check(before == [], case, f"after the kill: {before}")
        resumed = await forks.start("resume", case, path, provider_process.url).outcome()
        if not roots:
            faults.check(resumed.get("code") == "unknown_id", case, f"nothing is recorded, and resuming says {resumed}")
            return True
        if roots[0].state.terminal:
            faults.check(resumed.get("code") == "run_ended", case, f"it had ended, and resuming says {resumed}")
        else:
            faults.check(resumed.get("status") == "completed", case, f"resuming gave {resumed}")
        requests, effects = await provider_process.record(case)
        asked_before = asked(requests, first.number)
        for key, times in asked(requests).items():
            again = key in asked_before and key not in known
            faults.check(times == 1 + again, case, f"{key} was asked {times} times, its answer was recorded: {key in known}")
        refused = [one["refused"] for one in requests if one["refused"]]
        faults.check(not refused, case, f"the provider refused {refused}")
        await compare(case, path, roots[0].run_id, open_calls)
        for (agent, name), keys in effects_by_tool(effects).items():
            if TOOLS[name] == "plain":
                faults.check(len(keys) == 1, case, f"`{name}` ran {len(keys)} times")
            elif TOOLS[name] == "idempotent":
                faults.check(len(set(keys)) == 1, case, f"`{name}` of {agent} was repeated under other keys: {keys}")
        return True

    async def compare(case: str, path: Path, root: str, open_calls: int) -> None:
        async with read(path) as opened:
            broken = await audit(opened, root)
            now = await transcript(opened, root)
        faults.check(not broken, case, f"{broken}")
        faults.check(without_unknown(now) == without_unknown(undisturbed), case, f"another transcript: {now}")
        unknown = str(now).count("'unknown_outcome'")
        if not unknown:
            faults.check(now == undisturbed, case, f"another transcript, though nothing is unknown: {now}")
        faults.check(unknown <= open_calls, case, f"{unknown} outcomes are unknown, {open_calls} calls were without a result")

    await asyncio.gather(work(), work())
    assert faults == []
    assert killed >= {(when, n) for when in ("before", "after") for n in range(1, min(made) + 1)}


def effects_by_tool(effects: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """The idempotency keys under which each tool of each agent ran."""
    made: dict[tuple[str, str], list[str]] = {}
    for effect in effects:
        made.setdefault((effect["agent"], effect["name"]), []).append(effect["key"])
    return made
