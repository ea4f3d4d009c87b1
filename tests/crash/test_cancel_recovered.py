"""M8: a process dies after the intent to cancel is committed: recovery finishes the cancel and never resumes the work."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from retinue.testing.audit import audit, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


async def tree_states(ledger: Any) -> dict[str, str]:
    """The state of each agent's run."""
    root = (await ledger.runs(roots_only=True))[0].run_id
    return {row.agent_id: row.state.value for row in await ledger.tree(root)}


@pytest.mark.contract("D-07")
async def test_a_waiting_run_is_cancelled_by_whoever_resumes_it(
    tmp_path: Path, forks: Any, provider_process: Any, read: Any
) -> None:
    """Killed between the intent and the end."""
    case, path, url = "cancel-waiting", tmp_path / "ledger.sqlite3", provider_process.url
    first = await forks.start("run", case, path, url, answers=False).outcome()
    assert first["status"] == "waiting"
    killed = forks.start("cancel", case, path, url, answers=False, failpoint="on:after:RequestCancel:1")
    assert await killed.code() == -signal.SIGKILL
    before = await provider_process.record(case)
    resumed = await forks.start("resume", case, path, url).outcome()  # where somebody would answer
    assert (resumed["status"], resumed["reason"]) == ("cancelled", "enough")
    assert await provider_process.record(case) == before
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        assert await tree_states(ledger) == dict.fromkeys(("lead", "worker", "helper"), "cancelled")
        assert [row.state.value for row in await ledger.requests(root_run=root)] == ["cancelled"]
        assert await audit(ledger, root) == []
        said = await transcript(ledger, root)
        assert "'noted that'" in str(said)  # what was done stays
    late = await forks.start("answer", case, path, url, request=first["requests"][0]).outcome()
    assert late["code"] == "already_answered"


@pytest.mark.contract("D-07")
@pytest.mark.parametrize(
    ("agent", "step", "happened", "unfinished"),
    [
        ("helper", 1, 4, ("lead", "worker", "helper")),  # the deepest is with its model
        ("helper", 3, 6, ("lead", "worker", "helper")),
        ("lead", 2, 6, ("lead",)),  # the children have ended
    ],
)
async def test_killed_after_the_intent_was_committed(
    tmp_path: Path,
    forks: Any,
    theatre: Any,
    read: Any,
    stand_still: Any,
    agent: str,
    step: int,
    happened: int,
    unfinished: tuple[str, ...],
) -> None:
    """The intent comes from another process, the owner dies before it sees it."""
    path, url = tmp_path / "ledger.sqlite3", theatre.provider.url
    gate = theatre.provider.hold(agent=agent, step=step)
    owner = forks.start("run", "owner", path, url)
    await theatre.reached(gate, owner)
    await theatre.happened(happened)
    stand_still(await owner.pid(), path)  # alive, but it looks at nothing any more
    told = await forks.start("cancel", "canceller", path, url).outcome()
    assert told["status"] is None
    os.kill(await owner.pid(), signal.SIGKILL)
    assert await owner.code() == -signal.SIGKILL
    gate.release()
    asked, effects = list(theatre.asked()), list(theatre.names())
    resumed = await forks.start("resume", "resumer", path, url).outcome()
    assert (resumed["status"], resumed["reason"]) == ("cancelled", "enough")
    assert (theatre.asked(), theatre.names()) == (asked, effects)
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        states = await tree_states(ledger)
        assert {name for name, state in states.items() if state == "cancelled"} == set(unfinished)
        assert {state for name, state in states.items() if name not in unfinished} <= {"completed"}
        assert await audit(ledger, root) == []


@pytest.mark.contract("D-07")
async def test_only_a_child_was_cancelled(tmp_path: Path, forks: Any, theatre: Any, read: Any) -> None:
    """The intent is for a run below the root: recovery ends that branch and goes on with the rest."""
    path, url = tmp_path / "ledger.sqlite3", theatre.provider.url
    gate = theatre.provider.hold(agent="helper", step=1)
    owner = forks.start("run", "owner", path, url)
    await theatre.reached(gate, owner)
    await theatre.happened(4)
    async with read(path) as ledger:
        root = (await ledger.runs(roots_only=True))[0].run_id
        worker = next(row for row in await ledger.tree(root) if row.agent_id == "worker")
        await forks.start("cancel", "canceller", path, url, run=worker.run_id).outcome()
        os.kill(await owner.pid(), signal.SIGKILL)
        await owner.code()
        gate.release()
        asked = list(theatre.asked())
        resumed = await forks.start("resume", "resumer", path, url).outcome()
        assert resumed["status"] == "completed"
        assert theatre.asked() == [*asked, ("lead", 2)]
        assert await tree_states(ledger) == {"lead": "completed", "worker": "cancelled", "helper": "cancelled"}
        assert await audit(ledger, root) == []


@pytest.mark.contract("D-07")
async def test_killed_while_it_cancels(tmp_path: Path, forks: Any, provider_process: Any, read: Any) -> None:
    """Killed after each commit of the cancel itself: from the intent on, there is one way to end."""
    case, waiting, url = "cancelling", tmp_path / "waiting.sqlite3", provider_process.url
    assert (await forks.start("run", case, waiting, url, answers=False).outcome())["status"] == "waiting"
    asked = await provider_process.record(case)

    async def cancelled_after(n: int) -> bool:
        """False if the cancel has no such commit."""
        path = tmp_path / f"{n}.sqlite3"
        shutil.copy(waiting, path)
        if await forks.start("cancel", case, path, url, failpoint=f"kill:after:{n}").code() == 0:
            return False
        async with read(path) as ledger:
            root = (await ledger.runs(roots_only=True))[0].run_id
            intent = await ledger.cancel_intent([root])
            if intent is None:
                assert n == 1  # the owner's row: the run waits as before
                return True
            resumed = await forks.start("resume", case, path, url).outcome()
            assert resumed.get("status", "cancelled") == "cancelled"
            assert resumed.get("code", "run_ended") == "run_ended"
            assert set((await tree_states(ledger)).values()) == {"cancelled"}
            assert await audit(ledger, root) == []
        return True

    for n in range(1, 20, 2):
        if not all(await asyncio.gather(cancelled_after(n), cancelled_after(n + 1))):
            assert n > 2
            break
    else:
        pytest.fail("the cancel has no end")
    assert await provider_process.record(case) == asked
