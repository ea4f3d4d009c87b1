"""`retinue demo`: the same path as `retinue run`, with a scripted model, over sample files in a folder of its own."""

import shutil
import sys
import tempfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from retinue.cli.demo.play import PAUSE, TASK, scripted_model
from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines
from retinue.cli.places import program
from retinue.cli.running import Session, drive, run_async
from retinue.cli.viewers import choose_viewer
from retinue.errors import ConfigurationError
from retinue.models.port import ChatModel

if TYPE_CHECKING:
    from retinue.harness import HarnessAgent

__all__ = ["demo_agent", "prepare_folder", "run_demo"]

AGENT_NAME: Final = "orchestrator"
SAMPLE: Final = Path(__file__).parent / "sample"
INTRODUCTION: Final = """\
Retinue demonstration. The model is SCRIPTED: it asks no server and costs nothing; its price is made up.
All else is real: the agent, its three subagents, the ledger, the permission gate, the file tools, the files.
"""


def run_demo(*, kill: bool, fast: bool, folder: Path | None, stage: str | None) -> Exit:
    """Run the demonstration. `stage` is the part that a killed demonstration's own processes play."""
    if stage is not None:
        from retinue.cli.demo.stages import run_stage

        assert folder is not None
        return run_stage(stage, folder, fast=fast)
    place = prepare_folder(folder)
    print(f"{INTRODUCTION}Folder: {place} (kept)\n", file=sys.stderr)
    if kill:
        from retinue.cli.demo.kill import kill_and_resume

        code = run_async(lambda: kill_and_resume(place, fast=fast))
    else:
        code = run_async(lambda: _watch(place, fast=fast))
    _say_what_next(quote(str(place)), quote(program()), reviewed=code is Exit.COMPLETED)
    return code


def _say_what_next(folder: str, command: str, *, reviewed: bool) -> None:
    """Where to look. Of a review only if there is one."""
    if reviewed:
        print("\nEvery figure in the review was read from the files. Delete one and see it change:", file=sys.stderr)
        print(f"  rm {folder}/src/gauge.js && {command} demo --folder {folder}", file=sys.stderr)
    else:
        print("\nIt did not come to its review. What was done:", file=sys.stderr)
    print(f"  {command} threads tree --workspace {folder}", file=sys.stderr)


async def _watch(folder: Path, *, fast: bool) -> Exit:
    viewer = choose_viewer(as_json=False, quiet=False, describe=EventLines().describe)
    async with demo_agent(folder, scripted_model(pause=0.0 if fast else PAUSE)) as agent:
        return await drive(agent, agent.stream(TASK), viewer, Session(workspace=folder, can_go_on=False))


def demo_agent(folder: Path, model: ChatModel) -> "HarnessAgent":
    """The orchestrator. It is told what to do by the folder's `AGENTS.md`, and its subagents are the folder's files."""
    from retinue.harness import HarnessAgent

    return HarnessAgent(AGENT_NAME, model=model, workspace=folder, trust=True)


def prepare_folder(folder: Path | None) -> Path:
    """A folder with the sample files: a new one, or the given one; one that holds files already is used as it is.

    Raises:
        ConfigurationError: it cannot be made, or is no folder of the demonstration.
    """
    if folder is None:
        place = Path(tempfile.mkdtemp(prefix="retinue-demo-"))
    else:
        place = folder.absolute()
        if place.is_dir() and any(place.iterdir()):
            if (place / "subagents").is_dir() and (place / "AGENTS.md").exists():
                return place
            raise ConfigurationError(
                f"`{place}` holds other files", code="invalid_workspace", remedy="name an empty folder, or leave `--folder` out"
            )
    try:
        shutil.copytree(SAMPLE, place, dirs_exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the sample files cannot be written to `{place}`: {error}",
            code="invalid_workspace",
            remedy="name another `--folder`",
        ) from None
    return place
