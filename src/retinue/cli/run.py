"""`retinue run` and `retinue resume`: from options to an agent, and its run in front of the person."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines
from retinue.cli.keyboard import is_interactive, read_line
from retinue.cli.places import choose_model, existing_ledger, recorded_model
from retinue.cli.running import Session, can_ask, drive, run_async, tell_waiting
from retinue.cli.text import counted, one_line
from retinue.cli.unfinished import opened, still_waiting, unfinished_run, was_confirmed
from retinue.cli.viewers import choose_viewer
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError, UntrustedWorkspace

if TYPE_CHECKING:
    from retinue.config import PermissionRules
    from retinue.harness import HarnessAgent
    from retinue.rows import RunRow

__all__ = ["OnExit", "agent_of", "check_recorded", "resume_run", "run_task", "trusted_agent"]

OnExit: TypeAlias = Literal["wait", "detach", "cancel"]
AGENT_NAME: Final = "assistant"
"""The agent id of `retinue run`."""
DEFAULT_ITERS: Final = 50
FINDING_LIMIT: Final = 1_000


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
    max_tokens: int | None,
    max_requests: int | None,
    max_cost: str | None,
    max_seconds: float | None,
    on_exit: OnExit,
    quiet: bool,
) -> Exit:
    """Run a task to its end. See `retinue run --help`."""
    from retinue.config import Budget, PermissionRules, RuntimeContext
    from retinue.workspace.names import as_text

    text = _piped() if task == "-" else as_text(task)
    if not text.strip():
        raise ConfigurationError("the task is empty", remedy="write what is to be done, or pass `-` and write it to stdin")
    named = choose_model(model, workspace)
    typed = {"allow": allow, "ask": ask, "deny": deny}
    rules = PermissionRules(**{name: [as_text(one) for one in given] for name, given in typed.items()})
    budget = Budget(tokens=max_tokens, requests=max_requests, cost=max_cost, seconds=max_seconds)
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
            on_exit=on_exit,
        )
        async with agent:
            events = agent.stream(text, context=context, background=on_exit == "wait", budget=budget)
            return await drive(agent, events, viewer, Session(workspace=workspace, ledger=ledger))

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
    on_exit: OnExit = "wait",
    recovery: Literal["resume", "leave"] = "leave",
) -> "HarnessAgent":
    """A built agent for a workspace; agent files that nobody has confirmed are confirmed here first (D-23). What others have left
    is gone on with only where that is asked for."""
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
        recovery=recovery,
        on_exit=on_exit,
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
    _tell_findings(agent)
    return agent


def _tell_findings(agent: "HarnessAgent") -> None:
    """One line: what is wrong with the agent files, or how much of it there is and where it is told."""
    found = agent.diagnostics
    if not found:
        return
    command = Session(workspace=agent.workspace.root).command("agents", "list")
    text = str(found[0]) if len(found) == 1 else f"{counted(len(found), 'finding')} about the agent files: {command}"
    print(fitted(one_line(text, FINDING_LIMIT), sys.stderr), file=sys.stderr)


async def _confirmed(error: UntrustedWorkspace) -> bool:
    """Ask the person once whether the folder's agent files may be used; the answer is kept."""
    if not is_interactive():
        return False
    print(fitted(one_line(error.message, 600), sys.stderr), file=sys.stderr)
    typed = await read_line("Use them? They tell agents what to do, within the rights that you give. [y/N] ")
    return (typed or "").casefold() in ("y", "yes")


def resume_run(
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
    """Go on with a run. See `retinue resume --help`."""
    viewer = choose_viewer(as_json=as_json, quiet=quiet, describe=EventLines().describe)

    async def work() -> Exit:
        async with opened(existing_ledger(ledger, workspace)) as found:
            row = await unfinished_run(found, run_or_session, take_over=take_over)
            if row is None:
                print("nothing to resume: no run is interrupted or waiting", file=sys.stderr)
                return Exit.COMPLETED
            if take_over and not await was_confirmed(found, row, yes=yes):
                return Exit.INTERRUPTED
            root = row if row.root == row.run_id else await found.run(row.root) or row
        agent = await agent_of(root, row, model=model, ledger=ledger, trust=trust)
        session = Session(workspace=agent.workspace.root, ledger=ledger)
        async with agent:
            await agent._definition_of(row)  # before anything is said: it has to be gone on with here
            idle = None if can_ask(viewer) else await still_waiting(agent.runtime.ledger, row)
            if idle is not None:
                return tell_waiting(idle.before, idle.last, viewer, session)
            events = agent.resume_stream(row.run_id, take_over=take_over, background=True)
            return await drive(agent, events, viewer, session, resumed=root.run_id, task=row.run_id)

    return run_async(work)


async def agent_of(root: "RunRow", run: "RunRow", *, model: str | None, ledger: str | None, trust: bool) -> "HarnessAgent":
    """The agent that goes on with `run`, of the tree of `root`.

    Raises:
        ConfigurationError: `no_executor`, `unknown_model`: it needs code that is not here.
    """
    if root.workspace is None:
        raise ConfigurationError(
            f"run `{run.run_id}` was started by an agent in code, `{root.agent_id}`, and needs that code to go on",
            code="no_executor",
            remedy=f"resume it from there: `await agent.resume({run.run_id!r})`",
        )
    folder = Path(root.workspace)
    named = model or root.model or choose_model(None, folder)
    if model is None and root.model:
        check_recorded(root.run_id, root.model)
    return await trusted_agent(root.agent_id, folder, model=named, ledger=ledger, trust=trust)


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
