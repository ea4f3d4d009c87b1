"""Writes a golden ledger: what this version stores of a few small conversations, as SQL text.

    python tests/ledger/golden/make.py v3

Golden files of earlier versions are never written again: they are what this version must be able to read and go on with.
"""

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from retinue import Agent, PermissionRules, RuntimeContext, ScriptedModel, SubAgent, tool

SCRIPT = {
    "boss": [
        {"text": "Asking the helper.", "calls": [{"name": "helper", "arguments": {"input": "count the lines"}}]},
        {"calls": [{"name": "write_note", "arguments": {"text": 'größer "quoted" \n note'}}]},
        "All done.",
    ],
    "helper": ["There are three lines."],
}


@tool
def write_note(text: str) -> str:
    """Keep a note."""
    if text == "die":
        os._exit(9)
    return f"noted: {text}"


def boss(ledger: Path, *, ask: bool, script: object = SCRIPT) -> Agent:
    """The agent that wrote the golden files, and that a test goes on with."""
    helper = SubAgent("helper", "Counts lines", instructions="Count.", surface="tool", context_policy="fork")
    rules = PermissionRules(allow=["helper"], ask=["write_note"] if ask else [])
    model = ScriptedModel(script)  # pyright: ignore[reportArgumentType]
    return Agent("boss", model=model, tools=[write_note], subagents=[helper], ledger=ledger, permissions=rules)


async def conversations(ledger: Path) -> None:
    """One that is done, in two runs; one that waits for an answer."""
    async with boss(ledger, ask=False) as agent:
        for text in ("First task", "Second task"):
            result = await agent.run(text, context=RuntimeContext(session_id="done", user_id="ann"))
            assert result.status == "completed", result
    async with boss(ledger, ask=True) as agent:
        result = await agent.run("Ask first", context=RuntimeContext(session_id="asking"))
        assert result.status == "waiting", result


async def interrupted(ledger: Path) -> None:
    """One whose process dies in the middle of a tool."""
    script = [{"calls": [{"name": "write_note", "arguments": {"text": "die"}}]}, "Never said here."]
    await boss(ledger, ask=False, script=script).run("Die", context=RuntimeContext(session_id="interrupted"))


def dump(ledger: Path) -> str:
    """The file as SQL text, with what `.dump` leaves out."""
    database = sqlite3.connect(ledger)
    pragmas = [
        f"PRAGMA {name}={database.execute(f'PRAGMA {name}').fetchone()[0]};" for name in ("application_id", "user_version")
    ]
    # rows of this table are made by SQLite itself when a table with AUTOINCREMENT is filled
    lines = [line for line in database.iterdump() if "sqlite_sequence" not in line]
    database.close()
    return "\n".join([*pragmas, *lines, ""])


def main() -> None:
    """Write one golden file."""
    socket.gethostname = lambda: "golden"  # the name of a machine has no place in the repository
    if sys.argv[1] == "--interrupted":
        asyncio.run(interrupted(Path(sys.argv[2])))
        return
    with TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.sqlite3"
        asyncio.run(conversations(ledger))
        ended = subprocess.run([sys.executable, __file__, "--interrupted", str(ledger)], check=False).returncode
        assert ended == 9, ended
        Path(__file__).with_name(f"{sys.argv[1]}.sql").write_text(dump(ledger), encoding="utf-8")


if __name__ == "__main__":
    main()
