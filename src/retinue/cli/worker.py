"""`retinue worker`: a process that goes on with the runs and tasks of its agents, until it is told to stop."""

import asyncio
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from retinue.cli.exits import Exit
from retinue.cli.places import choose_model
from retinue.cli.run import trusted_agent
from retinue.cli.running import run_async
from retinue.cli.text import clean
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError

if TYPE_CHECKING:
    from retinue.harness import Agent

__all__ = ["run_worker"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_worker(
    *,
    app: str | None,
    workspace: Path,
    ledger: str | None,
    model: str | None,
    trust: bool,
    once: bool,
    orphan_after: float,
    quiet: bool,
) -> Exit:
    """Work. See `retinue worker --help`."""

    async def work() -> Exit:
        from retinue.harness.worker import Worker

        if app is None:
            named = choose_model(model, workspace)
            agents = [await trusted_agent("assistant", workspace, model=named, ledger=ledger, trust=trust, recovery="resume")]
        elif ledger is not None or model is not None:
            raise ConfigurationError(
                "`--ledger` and `--model` are for a workspace; the agents of an app have their own",
                code="invalid_argument",
                remedy="leave them out",
            )
        else:
            agents = agents_of(app)
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def signalled() -> None:
            if stop.is_set():
                os._exit(Exit.INTERRUPTED)
            stop.set()
            _say("stopping: what is not done is left in the ledger (again: at once)")

        for number in SIGNALS:
            loop.add_signal_handler(number, signalled)
        worker = Worker(agents, orphan_after=orphan_after or None, tell=None if quiet else _say)
        if not quiet:
            _say(f"working for {', '.join(agent.name for agent in agents)} on {worker.runtime.ledger.url}")
        try:
            await worker.run(stop, once=once)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        return Exit.COMPLETED

    return run_async(work)


def _say(line: str) -> None:
    print(fitted(f"{time.strftime('%H:%M:%S')} {clean(line)}", sys.stderr), file=sys.stderr, flush=True)


def agents_of(app: str) -> "list[Agent]":
    """The agents that `module:name` leads to: an agent, several, a runtime with its agents, or a function that gives these.

    Raises:
        ConfigurationError: `invalid_app`.
    """
    module, _, name = app.partition(":")
    if not module or not name:
        raise _wrong(app, "is not `module:name`")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise _wrong(app, f"cannot be imported: {error}") from error
    except AttributeError as error:
        raise _wrong(app, str(error)) from error
    from retinue.harness import Agent, Runtime

    if callable(found) and not isinstance(found, Agent | Runtime):
        found = found()
    if isinstance(found, Runtime):
        found = sorted(found.agents, key=lambda agent: agent.name)
    several = cast("Sequence[object]", found if isinstance(found, list | tuple) else [found])
    agents = [agent for agent in several if isinstance(agent, Agent)]
    if not agents or len(agents) < len(several):
        raise _wrong(app, f"is {type(several[0]).__name__ if several else 'empty'}, and no agent")
    return agents


def _wrong(app: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"app `{app}` {why}",
        code="invalid_app",
        remedy="name an `Agent`, a list of them, a `Runtime` that they were made on, or a function for these: `app:runtime`",
    )
