"""`retinue agents list`: the subagents of a workspace's folder, and what is wrong with their files. Runs nothing of theirs."""

import json
import sys
from pathlib import Path
from typing import Any

from retinue.cli.exits import Exit
from retinue.cli.text import clean, one_line
from retinue.errors import ConfigurationError
from retinue.subagents.loading import LoadReport, load_subagents
from retinue.subagents.registry import general_purpose, merge_subagents
from retinue.subagents.resolved import ResolvedDeclaration

__all__ = ["list_agents"]


def list_agents(workspace: Path, *, as_json: bool) -> Exit:
    """Print the roster of a workspace. A refused file is a failure (exit 1), but hides none of the others."""
    if not workspace.is_dir():
        raise ConfigurationError(f"`{workspace}` is not a folder", code="invalid_workspace", remedy="pass `--workspace DIR`")
    files = load_subagents(workspace / "subagents")
    merged = merge_subagents(builtin=[general_purpose()], shared_files=files)
    findings = [*files.diagnostics, *merged.diagnostics]
    if as_json:
        agents = [_described(entry) for entry in merged.roster]
        print(json.dumps({"agents": agents, "diagnostics": [_finding(found) for found in findings]}, ensure_ascii=True))
    else:
        _print(list(merged.roster))
        for found in findings:
            print(clean(str(found)), file=sys.stderr)
    return _exit(files)


def _exit(files: LoadReport) -> Exit:
    return Exit.COMPLETED if files.ok else Exit.FAILED


def _print(entries: list[ResolvedDeclaration]) -> None:
    width = max((len(entry.agent_id) for entry in entries), default=0)
    for entry in entries:
        place = entry.declaration.origin.path.name if entry.declaration.origin.path else "built in"
        print(f"{one_line(entry.agent_id, 128):<{width}}  {one_line(entry.description, 100)}  ({one_line(place, 60)})")


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
