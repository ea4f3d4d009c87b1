"""`retinue agents list`: the subagents of a workspace's folder, and what is wrong with their files. Runs nothing of theirs."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from retinue.agent.results import READ_RESULT
from retinue.cli.exits import Exit
from retinue.cli.places import choose_model
from retinue.cli.text import clean, one_line
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.loading import LoadReport, load_subagents
from retinue.subagents.mistaken_models import mistaken_models
from retinue.subagents.mistaken_tools import mistaken_tools
from retinue.subagents.registry import Roster, general_purpose, merge_subagents
from retinue.subagents.resolved import ResolvedDeclaration
from retinue.subagents.roster_tools import ROSTER_TOOLS
from retinue.workspace.tools import FILE_TOOLS

__all__ = ["find_agents", "list_agents"]

LIMIT: Final = 1_000


def list_agents(workspace: Path, *, as_json: bool) -> Exit:
    """Print the roster of a workspace. A refused file is a failure (exit 1), but hides none of the others."""
    if not workspace.is_dir():
        raise ConfigurationError(f"`{workspace}` is not a folder", code="invalid_workspace", remedy="pass `--workspace DIR`")
    files, roster, findings = find_agents(workspace)
    if as_json:
        agents = [_described(entry) for entry in roster]
        print(json.dumps({"agents": agents, "diagnostics": [_finding(found) for found in findings]}, ensure_ascii=True))
    else:
        _print(list(roster))
        for found in findings:
            print(fitted(clean(str(found)), sys.stderr), file=sys.stderr)
    return _exit(files)


def find_agents(workspace: Path, model: str | None = None) -> tuple[LoadReport, Roster, list[Diagnostic]]:
    """The files of a workspace, the roster that they make, and all that is wrong with them, for an agent of the command line
    with this model, else with that of the environment or the settings."""
    files = load_subagents(workspace / "subagents")
    merged = merge_subagents(builtin=[general_purpose()], shared_files=files)
    tools = (*FILE_TOOLS, *ROSTER_TOOLS, READ_RESULT)
    named = [found for one in files.declarations for found in mistaken_tools(one, tools)]
    models = mistaken_models(files.declarations, partial(_resolve, workspace=workspace, given=model))
    return files, merged.roster, [*files.diagnostics, *merged.diagnostics, *named, *models]


def _resolve(model: str, *, workspace: Path, given: str | None) -> object:
    """The model of a file, as a child of the agent that would run here; a bare name is one of its parent's provider."""
    from retinue.models.resolve import resolve_model

    try:
        parent = choose_model(given, workspace)
    except ConfigurationError:  # nobody has said yet
        return _without_parent(model)
    return resolve_model(model, parent_provider=parent)


def _without_parent(model: str) -> object:
    from retinue.models.resolve import resolve_model

    try:
        return resolve_model(model)
    except ConfigurationError:
        resolve_model(model, parent_provider="openai")  # what is no model of any provider is told as that
        raise ConfigurationError(
            f"model `{model}` names no provider, and nobody has named the model of its parent yet",
            code="unknown_model",
            remedy=f"write the provider before it, like `openai:{model}`, or set `RETINUE_MODEL`, and it is one of that provider",
        ) from None


def _exit(files: LoadReport) -> Exit:
    return Exit.COMPLETED if files.ok else Exit.FAILED


def _print(entries: list[ResolvedDeclaration]) -> None:
    """One line each, as long as the terminal is wide; a file or a pipe gets all of it."""
    width = max((len(entry.agent_id) for entry in entries), default=0)
    for entry in entries:
        place = one_line(entry.declaration.origin.path.name if entry.declaration.origin.path else "built in", 60)
        room = shutil.get_terminal_size().columns - width - len(place) - 6 if sys.stdout.isatty() else LIMIT
        print(f"{one_line(entry.agent_id, 128):<{width}}  {one_line(entry.description, max(room, 20))}  ({place})")


def _described(entry: ResolvedDeclaration) -> dict[str, Any]:
    declaration = entry.declaration
    return {
        "agentId": entry.agent_id,
        "name": declaration.name,
        "description": entry.description,
        "source": declaration.origin.kind,
        "path": str(declaration.origin.path) if declaration.origin.path else None,
        "model": declaration.model,
        "tools": list(declaration.tools) if declaration.tools is not None else None,
        "hidden": declaration.hidden,
    }


def _finding(found: Any) -> dict[str, Any]:
    return {
        "severity": found.severity,
        "code": found.code,
        "message": found.message,
        "remedy": found.remedy,
        "path": str(found.path) if found.path else None,
        "line": found.line,
    }
