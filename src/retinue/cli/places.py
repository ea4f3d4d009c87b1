"""Where a command looks: the workspace, its ledger, its model; and which run or session an id on the command line means."""

import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retinue.errors import ConfigurationError, UnknownId
from retinue.ids import kind_of
from retinue.near import near_names

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger
    from retinue.models.port import ChatModel
    from retinue.rows import RunRow, ThreadRow

__all__ = [
    "choose_model",
    "existing_ledger",
    "find_run",
    "find_thread",
    "ledger_url",
    "program",
    "recorded_model",
    "settings_of",
]

AGENT_KEY: Final = "agent:"
"""How the key of a roster child begins."""
MODEL_ENV: Final = "RETINUE_MODEL"
SETTINGS: Final = Path(".retinue") / "config.toml"
KEYS: Final = ("model",)
"""The keys of the settings; the value of each is text."""
LEDGER: Final = Path(".retinue") / "ledger.sqlite3"


def settings_of(workspace: Path) -> dict[str, Any]:
    """`.retinue/config.toml` of a workspace (no tool can write there); nothing if there is none.

    Raises:
        ConfigurationError: it cannot be read, has a key that nothing reads, or a value of the wrong kind.
    """
    path = workspace / SETTINGS
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"`{path}` cannot be used: {error}", code="invalid_settings", remedy='write TOML there, e.g. `model = "openai:gpt-5"`'
        ) from None
    unknown = next((key for key in settings if key not in KEYS), None)
    if unknown is not None:
        near = " or ".join(f"`{key}`" for key in near_names(unknown, KEYS))
        raise ConfigurationError(
            f"`{path}` has the key `{unknown}`, which is not known",
            code="invalid_settings",
            remedy=f"did you mean {near}?" if near else f"remove it; the keys are {', '.join(f'`{key}`' for key in KEYS)}",
        )
    wrong = next((key for key, value in settings.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise ConfigurationError(
            f"`{path}` has `{wrong}` = `{settings[wrong]}`, which is not text",
            code="invalid_settings",
            remedy='write it in quotation marks, e.g. `model = "openai:gpt-5"`',
        )
    return settings


def choose_model(given: str | None, workspace: Path) -> str:
    """The model's name: `--model`, else RETINUE_MODEL, else the workspace's configuration.

    Raises:
        ConfigurationError: none of them names one.
    """
    named: object = given or os.environ.get(MODEL_ENV) or settings_of(workspace).get("model")
    if isinstance(named, str) and named.strip():
        return named
    raise ConfigurationError(
        "no model is named",
        code="no_model",
        remedy=f"pass `--model`, set {MODEL_ENV}, or write `model = …` into `{workspace / SETTINGS}`; a model is "
        "`openai:gpt-5`, or the URL of any OpenAI-compatible server like `http://127.0.0.1:8080/v1#name`",
    )


def recorded_model(named: str) -> "dict[str, ChatModel]":
    """For `replay:FILE`, the model that answers from this recording, by its name; nothing for any other model.

    Raises:
        ConfigurationError: the file is no recording.
    """
    kind, _, path = named.partition(":")
    if kind != "replay" or not path:
        return {}
    from retinue.testing import ReplayModel

    return {named: ReplayModel(path)}


def ledger_url(given: str | None, workspace: Path) -> str:
    """`--ledger`, else the workspace's own."""
    return given or f"sqlite:///{(workspace / LEDGER).absolute()}"


def existing_ledger(given: str | None, workspace: Path) -> "Ledger":
    """The ledger to read from, not opened yet. Reading never makes one.

    Raises:
        ConfigurationError: there is none.
    """
    from retinue.ledger import open_ledger

    url = ledger_url(given, workspace)
    ledger = open_ledger(url)
    path: Path | None = getattr(ledger, "path", None)
    if path is None or not path.exists():
        raise ConfigurationError(
            f"there is no ledger at `{path or url}`",
            code="no_ledger",
            remedy="pass the `--workspace` or `--ledger` of earlier runs; `retinue run` makes one",
        )
    return ledger


def program() -> str:
    """How the person can call this program again: `retinue`, or its path where it is not on the search path."""
    called = Path(sys.argv[0])
    if called.name != "retinue" or shutil.which("retinue"):
        return "retinue"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


async def find_run(ledger: "Ledger", wanted: str) -> "RunRow":
    """The run that `wanted` means: the root of a run id (of any run of the tree), or of the newest run of a session, of a thread
    (`SESSION/THREAD`), or of a child by its agent key; by a task id that task's own.

    Raises:
        UnknownId: there is no such thing in this ledger; says which kind of id was given.
    """
    if wanted.startswith("run_"):
        run = await ledger.run(wanted)
        if run is not None:
            root = await ledger.run(run.root)
            return root or run
    elif wanted.startswith("task_"):
        task = await ledger.task(wanted) if wanted.isascii() else None
        run = None if task is None else await ledger.run(task.child_run)
        if run is not None:
            return run
    else:
        for thread in await _threads(ledger, wanted):
            run = await ledger.last_run(thread.key)
            if run is not None:
                return await ledger.run(run.root) or run
    kind = kind_of(wanted)
    raise UnknownId(
        f"there is no run or session `{wanted}` in `{ledger.url}`" + (f" (it looks like a {kind})" if kind else ""),
        remedy="`retinue threads list` shows what there is",
    )


async def find_thread(ledger: "Ledger", session: str, thread: str | None) -> "ThreadRow":
    """A thread of any user by session and thread id (`main` if left out, or the only one that there is).

    `session` alone may also be `SESSION/THREAD`, or the agent key of a child.

    Raises:
        UnknownId: there is none, or the id is ambiguous.
    """
    if thread is None and "/" in session and not session.startswith(AGENT_KEY):
        session, _, thread = session.rpartition("/")
    rows = await _threads(ledger, session)
    fitting = [row for row in rows if row.key.thread == (thread or "main")]
    if not fitting and thread is None:
        fitting = rows
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        near = ", ".join(f"`{row.key.thread}`" for row in rows[:10])
        what = f"thread `{thread or 'main'}` in session `{session}`"
        raise UnknownId(
            f"there is no {f'child `{session}`' if session.startswith(AGENT_KEY) else what}",
            remedy=f"its threads are {near}" if near else "`retinue threads list --all` shows what there is",
        )
    names = ", ".join(f"`{row.key.user}/{row.key.session}/{row.key.thread}`" for row in fitting[:10])
    raise UnknownId(f"`{session}` is not one thread: {names}", remedy="name the thread as well")


async def _threads(ledger: "Ledger", wanted: str) -> "list[ThreadRow]":
    """The threads of a session, the one of `SESSION/THREAD`, or the one of an agent key; newest first."""
    if wanted.startswith(AGENT_KEY):
        return [row for row in await ledger.threads(hidden=True, limit=100_000) if row.agent_key == wanted]
    session, slash, name = wanted.rpartition("/")
    rows = await ledger.threads(session=session if slash else wanted, hidden=True, limit=1_000)
    return [row for row in rows if row.key.thread == name] if slash else rows
