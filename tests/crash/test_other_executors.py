"""Whose code goes on with a stored run (M5), and what it sends (M11); and two processes at work on one file."""

import asyncio
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from retinue.testing.audit import audit

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


async def test_resumed_by_an_agent_of_another_name(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    case, path, url = "another-name", tmp_path / "ledger.sqlite3", provider_process.url
    dead = forks.start("run", case, path, url, agent="noter", failpoint="on:after:TOOL_CALL_RESULT:1")
    assert await dead.code() == -signal.SIGKILL
    refused = await forks.start("resume", case, path, url, agent="lead").outcome()
    assert (refused["error"], refused["code"]) == ("ConfigurationError", "no_executor")
    assert "`noter`" in refused["message"]
    async with read(path) as ledger:
        row = (await ledger.runs(roots_only=True))[0]
        assert (row.state.value, row.attempt) == ("running", 1)  # left as it was, for one who has the code
    assert (await forks.start("resume", case, path, url, agent="noter").outcome())["text"] == "Noter is done."


@pytest.mark.contract("D-21")
async def test_resumed_by_an_agent_whose_definition_changed(tmp_path: Path, forks: Any, theatre: Any, read: Any) -> None:
    """The stored envelope is sent: what was sent before stays a prefix, byte by byte."""
    path, url = tmp_path / "ledger.sqlite3", theatre.provider.url
    dead = forks.start("run", "case", path, url, agent="noter", failpoint="on:after:TOOL_CALL_RESULT:1")
    assert await dead.code() == -signal.SIGKILL
    resumed = await forks.start("resume", "case", path, url, agent="noter", instructions="Be somebody else.").outcome()
    assert resumed["text"] == "Noter is done."
    raw = [request.raw for request in theatre.provider.requests]
    assert [request.step for request in theatre.provider.requests] == [1, 2, 3]
    for before, now in pairwise(raw):
        assert before.endswith(b"]}")
        assert now.startswith(before.removesuffix(b"]}"))
        assert b"You lead." in now
        assert b"Be somebody else." not in now
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        assert await audit(ledger, root) == []
        new = await forks.start("run", "case", path, url, agent="noter", instructions="Be somebody else.", session="s2").outcome()
        assert new["status"] == "completed"  # a new thread has the new envelope
    assert "Be somebody else." in theatre.provider.requests[-1].system


async def test_two_processes_run_on_one_ledger(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    """Different threads of one file at once: both finish, and nobody is told of a locked database."""
    path, url = tmp_path / "ledger.sqlite3", provider_process.url
    both = [forks.start("run", f"both-{name}", path, url, session=name) for name in ("a", "b", "c")]
    outcomes = await asyncio.gather(*(one.outcome() for one in both))
    assert [outcome.get("status") for outcome in outcomes] == ["completed"] * 3, outcomes
    async with read(path) as ledger:
        roots = await ledger.runs(roots_only=True)
        assert sorted(row.key.session for row in roots) == ["a", "b", "c"]
        for row in roots:
            assert await audit(ledger, row.run_id) == []
    for name in ("a", "b", "c"):
        requests, effects = await provider_process.record(f"both-{name}")
        assert (len(requests), len(effects)) == (7, 6)


async def test_two_processes_on_one_thread(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    """The same thread at once: one of them runs, the other is told that it is busy, and writes nothing."""
    path, url = tmp_path / "ledger.sqlite3", provider_process.url
    both = [forks.start("run", f"same-{name}", path, url, agent="noter") for name in ("a", "b")]
    outcomes = await asyncio.gather(*(one.outcome() for one in both))
    assert all(outcome.get("status") == "completed" or outcome.get("error") == "ThreadBusy" for outcome in outcomes), outcomes
    finished = [outcome for outcome in outcomes if outcome.get("status") == "completed"]
    assert finished
    async with read(path) as ledger:
        roots = await ledger.runs(roots_only=True)
        assert len(roots) == len(finished)
        for row in roots:
            assert await audit(ledger, row.run_id) == []
