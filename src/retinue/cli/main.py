"""The command line: options and their help. What a command does is imported when it runs, so that `--help` is quick."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

__all__ = ["main"]

F = TypeVar("F", bound=Callable[..., Any])

EPILOGUE: Final = "Exit codes: 0 completed, 1 failed, 2 usage or configuration, 3 waiting for an answer, 4 limit, \
5 model unreachable, 130 cancelled by Ctrl-C (what was done is kept)."


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"retinue {version('retinue')}")
        context.exit()


def place_options(function: F) -> F:
    """Where: the workspace and its ledger."""
    folder = click.Path(path_type=Path, file_okay=False)
    function = click.option("--ledger", metavar="URL", help="Ledger to use instead of the workspace's own.")(function)
    return click.option(
        "--workspace", type=folder, default=Path("."), metavar="DIR", help="Folder to work in (default: this one)."
    )(function)


def json_option(function: F) -> F:
    """Output for programs."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(function)


@click.group(epilog=EPILOGUE, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """Retinue: subagents that can be trusted.

    Try `retinue demo` first. It needs no model and no key.
    """


@cli.command()
@click.option("--kill", is_flag=True, help="Kill the process midway and let another one go on.")
@click.option("--fast", is_flag=True, help="Without the pauses that let you watch.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Work in DIR (default: a new one)."
)
@click.option("--stage", type=click.Choice(["start", "resume"]), hidden=True)
def demo(**options: Any) -> int:
    """Watch an agent delegate to three subagents at once, over real files. The model is scripted; all else is real."""
    from retinue.cli.demo.run import run_demo

    return run_demo(**options)


@cli.command()
@click.argument("task")
@place_options
@click.option("--model", metavar="M", help="`openai:gpt-5`, `http://127.0.0.1:8080/v1#name`, … (default: RETINUE_MODEL).")
@click.option("--session", metavar="S", help="Continue this session (default: a new one).")
@click.option("--thread", metavar="T", help="Thread of the session (default: main).")
@json_option
@click.option("--trust", is_flag=True, help="Use the folder's agent files without asking.")
@click.option("--allow", multiple=True, metavar="RULE", help="Allow `tool` or `tool(glob)`. May be repeated.")
@click.option("--ask", multiple=True, metavar="RULE", help="Ask before `tool` or `tool(glob)`. May be repeated.")
@click.option("--deny", multiple=True, metavar="RULE", help="Deny `tool` or `tool(glob)`. May be repeated.")
@click.option("--max-iters", type=click.IntRange(min=1), metavar="N", help="Turns of the agent at most (default: 50).")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Tokens that the whole tree may use.")
@click.option("--max-requests", type=click.IntRange(min=1), metavar="N", help="Model calls that the whole tree may make.")
@click.option("--max-cost", metavar="USD", help="US dollars that the whole tree may cost.")
@click.option("--max-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds that it may be at work.")
@click.option(
    "--on-exit",
    type=click.Choice(["wait", "detach", "cancel"]),
    default="wait",
    show_default=True,
    help="Tasks in the background that are not done at the end: wait for them, leave them to be resumed, or stop them.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show the answer only.")
def run(**options: Any) -> int:
    """Give TASK to an agent that works in a folder and may delegate. `-` reads the task from stdin.

    The answer goes to stdout, progress to stderr. Ctrl-C cancels the whole tree and keeps what was done; its session can
    be continued. A second Ctrl-C leaves at once, and `retinue resume` brings the run to its end. When only tasks in the
    background are left, Ctrl-C leaves those, for `retinue resume --all`.
    """
    from retinue.cli.run import run_task

    return run_task(**options)


@cli.command()
@click.argument("run_or_session", metavar="[RUN|SESSION|TASK]", required=False)
@place_options
@click.option("--all", "everything", is_flag=True, help="Everything that nobody works on, tasks in the background too.")
@click.option("--model", metavar="M", help="Model to go on with (default: the run's own).")
@click.option("--take-over", is_flag=True, help="Take the run from a process that still lives but is stopped or stuck.")
@click.option("--yes", "-y", is_flag=True, help="With --take-over: do not ask, though that process is not stopped.")
@click.option("--trust", is_flag=True, help="Use the folder's agent files without asking.")
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show the answer only.")
def resume(**options: Any) -> int:
    """Go on with a run or task whose process is gone, or that waits for an answer: the newest one, or that of an id."""
    if options.pop("everything"):
        from retinue.cli.resume_all import resume_all

        return resume_all(**options)
    from retinue.cli.run import resume_run

    return resume_run(**options)


@cli.command()
@click.argument("request")
@click.argument("answer", metavar="allow|deny|TEXT")
@place_options
@click.option("--remember", is_flag=True, help="Do not ask again for this tool and agent in this session.")
@click.option("--note", default="", metavar="TEXT", help="Told to the model with a denial.")
@click.option("--model", metavar="M", help="Model to go on with (default: the run's own).")
@click.option("--trust", is_flag=True, help="Use the folder's agent files without asking.")
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show the answer only.")
def answer(**options: Any) -> int:
    """Answer REQUEST, and go on with its run if no other process does.

    A permission is allowed or denied; the answer to a question is a text, or `deny` where it gets none.
    """
    from retinue.cli.steer import answer_request

    return answer_request(**options)


@cli.command()
@click.argument("run_or_session")
@place_options
@click.option("--reason", default="cancelled", show_default=True, metavar="TEXT", help="Kept with the run.")
@json_option
def cancel(**options: Any) -> int:
    """Stop a run and everything below it. What was done is kept.

    Of one that another process drives the stop is recorded; that process carries it out within a second, and its grace for
    what does not stop at once. This command waits for it.
    """
    from retinue.cli.steer import cancel_run

    return cancel_run(**options)


@cli.group()
def tasks() -> None:
    """Work in the background: look at it, wait for it, stop it, answer what it asks.

    TASK is its id, or the agent key, label or name of its child where only one fits.
    """


@tasks.command("list")
@place_options
@click.option("--session", metavar="S", help="Only those given in this session.")
@click.option(
    "--status",
    type=click.Choice(["running", "waiting", "completed", "failed", "cancelled", "all"]),
    default="all",
    show_default=True,
    help="`running` are all that have not ended.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@json_option
def tasks_list(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """List tasks, newest first."""
    from retinue.cli.running import run_async
    from retinue.cli.tasks import list_tasks

    return run_async(lambda: list_tasks(ledger, workspace, **options))


@tasks.command("show")
@click.argument("task")
@place_options
@json_option
def tasks_show(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Show how far TASK is: who works on it, what it waits for, what it has said."""
    from retinue.cli.running import run_async
    from retinue.cli.tasks import show_task

    return run_async(lambda: show_task(ledger, workspace, **options))


@tasks.command("wait")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@place_options
@click.option("--any", "first", is_flag=True, help="Until the first of them has ended.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Seconds to wait at most.")
@json_option
def tasks_wait(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Wait until tasks have ended or wait for an answer (without ids: all that run). Ctrl-C leaves them alone.

    Exit code 0: all completed; 1: one failed or was cancelled; 3: one is still at work or waits.
    """
    from retinue.cli.running import run_async
    from retinue.cli.tasks import wait_for_tasks

    return run_async(lambda: wait_for_tasks(ledger, workspace, **options))


@tasks.command("cancel")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@place_options
@click.option("--reason", default="cancelled", show_default=True, metavar="TEXT", help="Kept with the task.")
@json_option
def tasks_cancel(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Stop tasks and everything below them. What was done is kept."""
    from retinue.cli.running import run_async
    from retinue.cli.tasks import cancel_tasks

    return run_async(lambda: cancel_tasks(ledger, workspace, **options))


@tasks.command("answer")
@click.argument("task")
@click.argument("answer", metavar="[allow|deny|TEXT]", required=False)
@place_options
@click.option("--remember", is_flag=True, help="Do not ask again for this tool and agent in this session.")
@click.option("--note", default="", metavar="TEXT", help="Told to the model with a denial.")
@click.option("--model", metavar="M", help="Model to go on with (default: the run's own).")
@click.option("--trust", is_flag=True, help="Use the folder's agent files without asking.")
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show the answer only.")
def tasks_answer(*, task: str, answer: str | None, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Answer what TASK waits for, and go on with it if no other process does. Without an answer you are asked."""
    import asyncio

    from retinue.cli.steer import answer_request
    from retinue.cli.tasks import answer_task

    found = asyncio.run(answer_task(ledger, workspace, task=task, answer=answer))
    if found is None:
        return 3
    return answer_request(request=found[0], answer=found[1], ledger=ledger, workspace=workspace, **options)


@cli.command()
@click.argument("app", required=False, metavar="[MODULE:NAME]")
@place_options
@click.option("--model", metavar="M", help="Model of a workspace's agent (default: RETINUE_MODEL).")
@click.option("--trust", is_flag=True, help="Use the folder's agent files without asking.")
@click.option("--once", is_flag=True, help="Do what there is, then exit.")
@click.option(
    "--orphan-after",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="S",
    help="Seconds after which a task that no code here can go on with ends as failed (0: never).",
)
@click.option("--quiet", "-q", is_flag=True, help="Say nothing of what begins and ends.")
def worker(**options: Any) -> int:
    """Go on with runs and tasks that nobody drives: after a crash, after an answer, or left by `--on-exit detach`.

    MODULE:NAME leads to an agent, a list of agents, a Runtime with its agents, or a function that gives one of these. Without
    it the worker is for the agent of a workspace. Several workers may share a ledger. Ctrl-C leaves what is not done.
    """
    from retinue.cli.worker import run_worker

    return run_worker(**options)


@cli.group()
def threads() -> None:
    """Look at conversations and trees, or delete them. Only `delete` changes anything."""


@threads.command("list")
@place_options
@click.option("--session", metavar="S", help="Only this session.")
@click.option("--all", "hidden", is_flag=True, help="Also threads of subagents.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@json_option
def threads_list(*, ledger: str | None, workspace: Path, session: str | None, hidden: bool, limit: int, as_json: bool) -> int:
    """List threads, newest first."""
    from retinue.cli.running import run_async
    from retinue.cli.threads import list_threads

    return run_async(lambda: list_threads(ledger, workspace, session=session, hidden=hidden, limit=limit, as_json=as_json))


@threads.command("show")
@click.argument("session")
@click.argument("thread", required=False)
@place_options
@json_option
def threads_show(*, ledger: str | None, workspace: Path, session: str, thread: str | None, as_json: bool) -> int:
    """Show the conversation of a thread (default: main)."""
    from retinue.cli.running import run_async
    from retinue.cli.threads import show_thread

    return run_async(lambda: show_thread(ledger, workspace, session=session, thread=thread, as_json=as_json))


@threads.command("tree")
@click.argument("run_or_session", required=False)
@place_options
@json_option
def threads_tree(*, ledger: str | None, workspace: Path, run_or_session: str | None, as_json: bool) -> int:
    """Draw the tree of a run (default: the newest) from its journals."""
    from retinue.cli.running import run_async
    from retinue.cli.threads import show_tree

    return run_async(lambda: show_tree(ledger, workspace, wanted=run_or_session, as_json=as_json))


def removal_options(function: F) -> F:
    """What goes along, and whether to ask."""
    children = "--children/--keep-children"
    function = click.option(children, default=True, show_default=True, help="Also the threads of its subagents.")(function)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)


@threads.command("delete")
@click.argument("session")
@click.argument("thread", required=False)
@place_options
@removal_options
@json_option
def threads_delete(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Take a session, or one THREAD of it, off every list. Forks of it keep what they begin with."""
    from retinue.cli.purge import delete
    from retinue.cli.running import run_async

    return run_async(lambda: delete(ledger, workspace, **options))


@cli.command()
@click.argument("session")
@click.argument("thread", required=False)
@place_options
@removal_options
@json_option
def purge(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Remove a session, or one THREAD of it, for good. Refused while one of its runs is not finished."""
    from retinue.cli.purge import purge
    from retinue.cli.running import run_async

    return run_async(lambda: purge(ledger, workspace, **options))


@cli.command()
@place_options
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    metavar="H",
    help="Keep so long what other processes that live may refer to again.",
)
@click.option("--quiet", "-q", is_flag=True, help="Without progress.")
@json_option
def gc(*, ledger: str | None, workspace: Path, **options: Any) -> int:
    """Remove what no thread and no fork refers to: deleted threads, blobs, old drafts and mail, dead owners."""
    from retinue.cli.gc import collect_garbage
    from retinue.cli.running import run_async

    return run_async(lambda: collect_garbage(ledger, workspace, **options))


@cli.command()
@click.argument("wanted", metavar="ID")
@place_options
@json_option
def explain(*, ledger: str | None, workspace: Path, wanted: str, as_json: bool) -> int:
    """Say why ID is in its state, who holds it, what it waits for, and the command that moves it on.

    ID is that of a run, delegation, task, request, session, SESSION/THREAD, owner, or an agent key.
    """
    from retinue.cli.explain import explain_id
    from retinue.cli.running import run_async

    return run_async(lambda: explain_id(ledger, workspace, wanted=wanted, as_json=as_json))


@cli.command()
@place_options
@click.option("--model", metavar="M", help="Also ask this model for a word.")
@json_option
def doctor(*, ledger: str | None, workspace: Path, model: str | None, as_json: bool) -> int:
    """Look at environment, workspace and ledger, and say what to do about what is wrong. Exit code 1 where there is an error."""
    from retinue.cli.doctor import look_at_all
    from retinue.cli.running import run_async

    return run_async(lambda: look_at_all(ledger, workspace, model=model, as_json=as_json))


@cli.group()
def agents() -> None:
    """Look at the agents of a workspace."""


@agents.command("list")
@click.option("--workspace", type=click.Path(path_type=Path), default=Path("."), metavar="DIR")
@json_option
def agents_list(*, workspace: Path, as_json: bool) -> int:
    """List the subagents that the folder offers, and what is wrong with their files."""
    from retinue.cli.agents import list_agents

    return list_agents(workspace, as_json=as_json)


def main(arguments: list[str] | None = None) -> None:
    """The entry point of `retinue`. Exits with a documented code; shows no traceback unless RETINUE_DEBUG=1."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    try:
        sys.exit(cli.main(arguments, prog_name="retinue", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        if as_json:
            import json

            click.echo(
                json.dumps({"type": "ERROR", "code": "usage", "message": error.format_message(), "remedy": None, "exit": 2})
            )
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  the last line of defence: one clear message
        from retinue.cli.exits import report

        sys.exit(report(error, as_json=as_json))
