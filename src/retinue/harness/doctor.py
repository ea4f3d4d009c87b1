"""`diagnose`: environment, workspace and ledger looked at as a whole, each finding with what to do about it."""

import asyncio
import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from retinue.agent.projection import Projection, project
from retinue.clock import Clock, SystemClock
from retinue.config import ChatClientConfig
from retinue.errors import ConfigurationError, LedgerUnavailable, ModelError
from retinue.ids import new_id
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.inspect import Finding, inspect
from retinue.messages import AssistantMessage, Entry, ToolResult, UserMessage
from retinue.models.port import ChatModel, Envelope, ModelRequest
from retinue.rows import RunRow
from retinue.states import RequestState, RunState
from retinue.workspace.layout import Workspace

__all__ = ["Finding", "check_environment", "check_model", "check_runs", "check_workspace", "diagnose", "history_fault"]

OLDEST_PYTHON: Final = (3, 11)
OLDEST_SQLITE: Final = (3, 35, 0)
"""RETURNING, which the ledger's statements use."""
MODEL_SECONDS: Final = 60.0


async def diagnose(
    workspace: Path, ledger: str | Path | None = None, *, model: ChatModel | None = None, clock: Clock | None = None
) -> AsyncIterator[Finding]:
    """Every finding, in the order of looking. What needs a sound ledger is left out where there is none."""
    for finding in (*check_environment(), *check_workspace(workspace)):
        yield finding
    path = Path(ledger) if ledger is not None else workspace / ".retinue" / "ledger.sqlite3"
    found = await asyncio.to_thread(lambda: list(inspect(path)))
    for finding in found:
        yield finding
    codes = {finding.code for finding in found}
    if "no_ledger" not in codes and "older_version" not in codes and not any(one.severity == "error" for one in found):
        opened = SqliteLedger(path)
        try:
            await opened.open()
            async for finding in check_runs(opened):
                yield finding
        except LedgerUnavailable as error:
            yield Finding(severity="error", code=error.code, text=error.message, remedy=error.remedy or "")
        finally:
            await opened.close()
    if model is not None:
        yield await check_model(model, clock or SystemClock())


def check_environment() -> list[Finding]:
    """Python and SQLite."""
    made: list[Finding] = []
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        remedy = "use Python 3.11 or newer"
        made.append(Finding(severity="error", code="python", text=f"Python {python} is too old", remedy=remedy))
    else:
        made.append(Finding(severity="ok", code="python", text=f"Python {python}"))
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        text, remedy = f"SQLite {sqlite3.sqlite_version} is too old", "use a Python that was built with SQLite 3.35 or newer"
        made.append(Finding(severity="error", code="sqlite", text=text, remedy=remedy))
    else:
        made.append(Finding(severity="ok", code="sqlite", text=f"SQLite {sqlite3.sqlite_version}"))
    return made


def check_workspace(folder: Path) -> list[Finding]:
    """The folder, its `.retinue`, and whether its agent files are trusted."""
    try:
        workspace = Workspace.open(folder)
    except ConfigurationError as error:
        return [Finding(severity="error", code=error.code, text=error.message, remedy=error.remedy or "")]
    made: list[Finding] = []
    if workspace.state_dir.is_dir():
        mode = stat.S_IMODE(os.stat(workspace.state_dir).st_mode)
        if mode & 0o077:
            text = f"other users of this machine can get at `{workspace.state_dir}` (mode {mode:o})"
            remedy = f"`chmod 700 {workspace.state_dir}`"
            made.append(Finding(severity="warning", code="permissions", text=text, remedy=remedy))
    files = [workspace.instructions_path, *sorted(workspace.subagents_dir.glob("*.md"))]
    files = [path for path in files if path.is_file()]
    if files and not workspace.is_trusted():
        text = f"the workspace has agent files that nobody has confirmed ({len(files)}, for example `{files[0].name}`)"
        remedy = f"look at them; `retinue run` asks once, or confirms at once: `{workspace.trust_command}`"
        made.append(Finding(severity="info", code="untrusted_workspace", text=text, remedy=remedy))
    return made or [Finding(severity="ok", code="workspace", text=f"the workspace `{workspace.root}` can be used")]


async def check_runs(ledger: Ledger) -> AsyncIterator[Finding]:
    """Runs that nobody drives, questions that nobody has answered, and histories that could not be sent to a model."""
    unfinished = await ledger.runs(states=(RunState.RUNNING, RunState.WAITING), limit=100_000)
    requests = await ledger.requests(state=RequestState.OPEN)
    for row in unfinished:
        alive = row.owner is not None and await ledger.owner_alive(row.owner)
        if row.run_id == row.root and row.state is RunState.RUNNING and not alive:
            owner = await ledger.owner(row.owner) if row.owner is not None else None
            whose = f"process {owner.pid} on `{owner.host}`" if owner is not None else "its process"
            text = f"run `{row.run_id}` of agent `{row.agent_id}` is interrupted: {whose} has ended"
            yield Finding(
                severity="warning", code="orphaned_run", text=text, remedy=f"`retinue resume {row.run_id}` goes on with it"
            )
        try:
            fault = await _run_fault(ledger, row)
        except LedgerUnavailable as error:
            fault = error.message
        if fault is not None:
            remedy = f"restore the ledger from a copy, or cancel the run; `retinue explain {row.run_id}` says more"
            yield Finding(
                severity="error", code="invalid_history", text=f"run `{row.run_id}` cannot go on: {fault}", remedy=remedy
            )
    for request in requests:
        text = f"request `{request.request_id}` is open: may agent `{request.agent_id}` call `{request.tool}`?"
        yield Finding(
            severity="info", code="open_request", text=text, remedy=f"`retinue answer {request.request_id} allow`, or deny"
        )
    if not unfinished:
        yield Finding(severity="ok", code="runs", text="no run is unfinished")


async def _run_fault(ledger: Ledger, row: RunRow) -> str | None:
    journal = await ledger.journal(row.key)
    if journal is None:
        return f"its thread `{row.key.session}/{row.key.thread}` is not there"
    projection = project(journal.own, journal.inherited)
    if projection.finished is not None and projection.run_id == row.run_id:
        return f"its journal says that it has ended ({projection.finished.status}), its row that it is {row.state}"
    if projection.envelope_hash and await ledger.blob(projection.envelope_hash) is None:
        return "its envelope is not there"
    return history_fault(projection)


def history_fault(projection: Projection) -> str | None:
    """What is wrong with a history for a model: each call has one result, adjacent, in call order (invariant 6)."""
    fault = _order_fault([entry.message for entry in projection.history])
    if fault is None and projection.open is not None:
        extra = set(projection.open.results) - set(range(len(projection.open.message.calls)))
        fault = "a result belongs to no call" if extra else None
    return fault


def _order_fault(messages: Sequence[UserMessage | AssistantMessage | ToolResult]) -> str | None:
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResult):
            if not waiting or waiting.pop(0) != message.call_id:
                return f"the result `{message.call_id}` does not follow its call"
        elif waiting:
            return f"the call `{waiting[0]}` has no result"
        elif isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.calls]
    return f"the call `{waiting[0]}` has no result" if waiting else None


async def check_model(model: ChatModel, clock: Clock) -> Finding:
    """Ask the model for a word."""
    entry = Entry(UserMessage(id=new_id("msg"), text="Answer with the one word: ready"))
    envelope = Envelope(instructions="", tools=(), settings=ChatClientConfig(max_tokens=16))
    request = ModelRequest(envelope=envelope, history=[entry], agent_id="doctor", run_id="", step=1)
    started = clock.monotonic()
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            await model.answer(request, lambda delta: None)
    except ModelError as error:
        return Finding(severity="error", code=error.code, text=error.message, remedy=error.remedy or "")
    except TimeoutError:
        text = f"model `{model.name}` ({model.provider}) gave no answer in {MODEL_SECONDS:g} s"
        return Finding(severity="error", code="timeout", text=text, remedy="try again, or look at the server")
    finally:
        await model.close()
    took = clock.monotonic() - started
    return Finding(severity="ok", code="model", text=f"model `{model.name}` ({model.provider}) answers, in {took:.1f} s")
