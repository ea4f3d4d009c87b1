"""`retinue run` and `retinue resume`: from options to an agent, and its run in front of the person."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines
from retinue.cli.keyboard import is_interactive, read_line
from retinue.cli.places import choose_model, existing_ledger, find_run, recorded_model
from retinue.cli.running import Session, drive, run_async
from retinue.cli.text import duration, one_line
from retinue.cli.viewers import choose_viewer
from retinue.errors import ConfigurationError, UnknownId, UntrustedWorkspace

if TYPE_CHECKING:
    from retinue.config import PermissionRules
    from retinue.harness import HarnessAgent
    from retinue.ledger.port import Ledger
    from retinue.rows import RunRow

__all__ = ["check_recorded", "resume_run", "run_task", "trusted_agent"]

AGENT_NAME: Final = "assistant"
"""The agent id of `retinue run`."""
DEFAULT_ITERS: Final = 50


def run_task(
    *,
    task: str,
    workspace: Path,
    ledger: str | None,
    model: str | None,
    session: str | None,
    thread: str | None,
    as_json: bool,
    trust: bool,
    allow: Sequence[str],
    ask: Sequence[str],
    deny: Sequence[str],
    max_iters: int | None,
    quiet: bool,
) -> Exit:
    """Run a task to its end. See `retinue run --help`."""
    from retinue.config import PermissionRules, RuntimeContext
    from retinue.workspace.names import as_text

    text = _piped() if task == "-" else as_text(task)
    if not text.strip():
        raise ConfigurationError("the task is empty", remedy="write what is to be done, or pass `-` and write it to stdin")
    named = choose_model(model, workspace)
    typed = {"allow": allow, "ask": ask, "deny": deny}
    rules = PermissionRules(**{name: [as_text(one) for one in given] for name, given in typed.items()})
    viewer = choose_viewer(as_json=as_json, quiet=quiet, describe=EventLines().describe)
    context = RuntimeContext(session_id=session, thread_id=thread)

    async def work() -> Exit:
        agent = await trusted_agent(
            AGENT_NAME,
            workspace,
            model=named,
            ledger=ledger,
            trust=trust,
            rules=rules,
            max_iters=max_iters or DEFAULT_ITERS,
        )
        async with agent:
            return await drive(agent, agent.stream(text, context=context), viewer, Session(workspace=workspace, ledger=ledger))

    return run_async(work)


def _piped() -> str:
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="surrogateescape")  # whatever the locale says
    return sys.stdin.read()


async def trusted_agent(
    name: str,
    workspace: Path,
    *,
    model: str,
    ledger: str | None,
    trust: bool,
    rules: "PermissionRules | None" = None,
    max_iters: int = DEFAULT_ITERS,
) -> "HarnessAgent":
    """A built agent for a workspace; agent files that nobody has confirmed are confirmed here first (D-23)."""
    from retinue.harness import HarnessAgent
    from retinue.harness.mistaken import UNKNOWN_TOOL

    agent = HarnessAgent(
        name,
        model=model,
        models=recorded_model(model),
        workspace=workspace,
        ledger=ledger,
        permissions=rules,
        trust=False,
        max_iters=max_iters,
    )
    if trust:
        agent.workspace.trust()
    try:
        await agent.build()
    except UntrustedWorkspace as error:
        if not await _confirmed(error):
            raise
        agent.workspace.trust()
        await agent.build()
    for found in agent.diagnostics:
        if found.code == UNKNOWN_TOOL:  # a rule that was typed here, and protects or allows nothing
            raise ConfigurationError(found.message, code="invalid_permission_rule", remedy=found.remedy)
    return agent


async def _confirmed(error: UntrustedWorkspace) -> bool:
    """Ask the person once whether the folder's agent files may be used; the answer is kept."""
    if not is_interactive():
        return False
    print(one_line(error.message, 600), file=sys.stderr)
    typed = await read_line("Use them? They tell agents what to do, within the rights that you give. [y/N] ")
    return (typed or "").casefold() in ("y", "yes")


def resume_run(
    *,
    run_or_session: str | None,
    workspace: Path,
    ledger: str | None,
    model: str | None,
    take_over: bool,
    trust: bool,
    as_json: bool,
    quiet: bool,
) -> Exit:
    """Go on with a run. See `retinue resume --help`."""
    viewer = choose_viewer(as_json=as_json, quiet=quiet, describe=EventLines().describe)

    async def work() -> Exit:
        row = await _wanted(run_or_session, workspace, ledger, take_over=take_over)
        if row is None:
            print("nothing to resume: no run is interrupted or waiting", file=sys.stderr)
            return Exit.COMPLETED
        if row.workspace is None:
            raise ConfigurationError(
                f"run `{row.run_id}` was started by an agent in code, `{row.agent_id}`, and needs that code to go on",
                code="no_executor",
                remedy="resume it from there: `await agent.resume(run_id)`",
            )
        folder = Path(row.workspace)
        named = model or row.model or choose_model(None, folder)
        if model is None and row.model:
            check_recorded(row.run_id, row.model)
        agent = await trusted_agent(row.agent_id, folder, model=named, ledger=ledger, trust=trust)
        async with agent:
            events = agent.resume_stream(row.run_id, take_over=take_over)
            return await drive(agent, events, viewer, Session(workspace=folder, ledger=ledger), resumed=row.run_id)

    return run_async(work)


def check_recorded(run_id: str, named: str) -> None:
    """Say it where a run's model was an object or a name of somebody's code, which no text leads to.

    Raises:
        ConfigurationError: `unknown_model`.
    """
    from retinue.models.resolve import resolve_model

    kind, _, rest = named.partition(":")
    if kind == "replay" or (kind == "scripted" and Path(rest).suffix):
        return  # a file: what is wrong with it is said where it is read
    try:
        resolve_model(named)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"run `{run_id}` was started with model `{named}`, which exists only in code",
            code="unknown_model",
            remedy="pass `--model`, or resume it from the code that made the model",
        ) from error


async def _wanted(run_or_session: str | None, workspace: Path, ledger_option: str | None, *, take_over: bool) -> "RunRow | None":
    """The run to go on with. Those that are left aside are listed on stderr."""
    ledger = existing_ledger(ledger_option, workspace)
    await ledger.open()
    try:
        if run_or_session is not None:
            row = await find_run(ledger, run_or_session)
            if row.state.terminal:
                raise UnknownId(
                    f"run `{row.run_id}` has ended: {row.state}",
                    code="run_ended",
                    remedy=f"go on with its conversation: `retinue run --session {row.key.session} TASK`",
                )
            return row
        waiting = await _unfinished(ledger, take_over=take_over)
    finally:
        await ledger.close()
    for row in waiting[1:]:
        print(one_line(f"also unfinished: {_described(row)}", 300), file=sys.stderr)
    return waiting[0] if waiting else None


async def _unfinished(ledger: "Ledger", *, take_over: bool) -> "list[RunRow]":
    """Root runs that wait for an answer or whose process is gone, newest first. `take_over`: of one that lives too."""
    from retinue.states import RunState

    found: list[RunRow] = []
    for row in await ledger.runs(states=(RunState.RUNNING, RunState.WAITING), roots_only=True):
        if take_over or row.state is RunState.WAITING or row.owner is None or not await ledger.owner_alive(row.owner):
            found.append(row)
    return found


def _described(row: "RunRow") -> str:
    ago = duration(time.time_ns() // 1_000_000 - row.started_at)
    return f"{row.run_id} (session {row.key.session}, {row.state}, begun {ago} ago)"
