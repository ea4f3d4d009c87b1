"""`retinue resume --all`: go on with everything that nobody works on, runs and tasks in the background, and say how it ended."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retinue.cli.exits import Exit, exit_of_error, exit_of_run
from retinue.cli.places import existing_ledger
from retinue.cli.run import agent_of
from retinue.cli.running import Session, run_async
from retinue.cli.text import counted, one_line
from retinue.cli.unfinished import opened, still_waiting, unfinished
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError, RetinueError, ThreadBusy

if TYPE_CHECKING:
    from retinue.harness import HarnessAgent
    from retinue.rows import RunRow

__all__ = ["resume_all"]

AT_ONCE: Final = 8
"""Runs that are gone on with at the same time."""


def resume_all(
    *,
    run_or_session: str | None,
    workspace: Path,
    ledger: str | None,
    model: str | None,
    take_over: bool,
    yes: bool,
    trust: bool,
    as_json: bool,
    quiet: bool,
) -> Exit:
    """Go on with everything. See `retinue resume --help`."""
    if run_or_session is not None or take_over or yes:
        raise ConfigurationError(
            "`--all` is given together with an id, `--take-over` or `--yes`",
            code="invalid_argument",
            remedy="give `--all` alone: it takes what nobody works on, or name the one that is to be taken over",
        )
    return run_async(lambda: _Everything(workspace, ledger, model=model, trust=trust, as_json=as_json, quiet=quiet).run())


class _Everything:
    """One pass over what is unfinished."""

    def __init__(
        self, workspace: Path, ledger: str | None, *, model: str | None, trust: bool, as_json: bool, quiet: bool
    ) -> None:
        self._session = Session(workspace=workspace, ledger=ledger)
        self._model = model
        self._trust = trust
        self._as_json = as_json
        self._quiet = quiet or as_json
        self._ended: list[dict[str, Any]] = []
        self._codes: list[Exit] = []
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> Exit:
        """Go on with all of it; the exit code is that of the worst end."""
        for root, rows in await self._found():
            try:
                agent = await agent_of(root, root, model=self._model, ledger=self._session.ledger, trust=self._trust)
            except RetinueError as error:
                for row in rows:
                    self._tell(row, "left", error.message, exit_of_error(error), error.remedy)
                continue
            async with agent:
                await asyncio.gather(*(self._one(agent, row) for row in rows))
        if self._as_json:
            print(json.dumps(self._ended, ensure_ascii=True))
        elif not self._ended:
            print("nothing to resume: no run or task is interrupted or waiting", file=sys.stderr)
        else:
            waiting = sum(one["state"] == "waiting" for one in self._ended)
            done = sum(one["state"] == "completed" for one in self._ended)
            print(f"{counted(len(self._ended), 'run')}: {done} completed, {waiting} waiting", file=sys.stderr)
        return next((code for code in (Exit.FAILED, *sorted(self._codes, reverse=True)) if code in self._codes), Exit.COMPLETED)

    async def _found(self) -> "list[tuple[RunRow, list[RunRow]]]":
        """What is unfinished, by the agent that goes on with it: of each agent, folder and model the newest root."""
        groups: dict[tuple[str, str | None, str | None], tuple[RunRow, list[RunRow]]] = {}
        async with opened(existing_ledger(self._session.ledger, self._session.workspace)) as ledger:
            for row in await unfinished(ledger, take_over=False):
                root = row if row.root == row.run_id else await ledger.run(row.root) or row
                groups.setdefault((root.agent_id, root.workspace, root.model), (root, []))[1].append(row)
        return list(groups.values())

    async def _one(self, agent: "HarnessAgent", row: "RunRow") -> None:
        async with self._slots:
            try:
                idle = await still_waiting(agent.runtime.ledger, row)
                if idle is None:
                    result = await agent.resume(row.run_id, check=False)
                    self._tell(row, result.status, result.reason or "", exit_of_run(result.status, result.reason))
                    return
                request = idle.last.result.requests[0]
                how = self._session.command("answer", request.request_id, "allow" if request.kind == "permission" else "TEXT")
                self._tell(row, "waiting", f"for an answer to {request.request_id}", Exit.WAITING, how)
            except ThreadBusy:
                self._tell(row, "left", "another process works on it", Exit.COMPLETED)
            except RetinueError as error:
                self._tell(row, "left", error.message, exit_of_error(error), error.remedy)

    def _tell(self, row: "RunRow", state: str, why: str, code: Exit, remedy: str | None = None) -> None:
        self._codes.append(code)
        self._ended.append({"run": row.run_id, "agent": row.agent_id, "session": row.key.session, "state": state, "why": why})
        if not self._quiet:
            what = f"{row.run_id} ({one_line(row.agent_id, 60)}): {state}" + (f" ({one_line(why, 300)})" if why else "")
            print(fitted(what, sys.stderr), file=sys.stderr)
            if remedy:
                print(fitted(f"  to do: {one_line(remedy, 300)}", sys.stderr), file=sys.stderr)
