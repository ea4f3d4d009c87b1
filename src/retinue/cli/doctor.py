"""`retinue doctor`: environment, workspace and ledger looked at, each finding with what to do about it."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.cli.agents import find_agents
from retinue.cli.exits import Exit
from retinue.cli.places import ledger_url, settings_of
from retinue.cli.text import clean, counted
from retinue.cli.wrapping import fitted
from retinue.errors import ConfigurationError

__all__ = ["look_at_all"]

_MARKS: Final = {"ok": "ok     ", "info": "note   ", "warning": "WARNING", "error": "ERROR  "}


async def look_at_all(ledger_option: str | None, workspace: Path, *, model: str | None, as_json: bool) -> Exit:
    """Every finding, and 1 as the exit code where one is an error."""
    from retinue.harness.doctor import Finding, diagnose
    from retinue.ledger import open_ledger

    path: Path | None = getattr(open_ledger(ledger_url(ledger_option, workspace)), "path", None)
    if path is None:
        raise ConfigurationError(
            "a ledger in memory has nothing to look at", code="no_ledger", remedy="name a file with `--ledger`"
        )
    asked = None
    if model is not None:
        from retinue.models.resolve import resolve_model

        asked = resolve_model(model)
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            print(fitted(f"{_MARKS[finding.severity]}  {clean(finding.text)}", sys.stdout))
            if finding.remedy and finding.severity != "ok":
                print(fitted(f"         to do: {clean(finding.remedy)}", sys.stdout))

    try:
        settings_of(workspace)
    except ConfigurationError as error:
        tell(Finding(severity="error", code=error.code, text=error.message, remedy=error.remedy or ""))
    async for finding in diagnose(workspace, path, model=asked):
        tell(finding)
    for found in find_agents(workspace, model)[2]:
        text = f"{found.place}: {found.message}" if found.place else found.message
        tell(Finding(severity=found.severity, code=found.code, text=text, remedy=found.remedy))
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        document: dict[str, Any] = {"ok": not errors, "findings": msgspec.to_builtins(findings)}
        print(json.dumps(document, ensure_ascii=True))
    elif errors:
        print(counted(errors, "error"), file=sys.stderr)
    return Exit.FAILED if errors else Exit.COMPLETED
