"""What it costs to begin: imports, the first scripted delegation of a fresh process, and `retinue --help` (case A).

CPU of whole processes, net of bare Python, bytecode present; the best of several, since a shared machine only ever adds.
"""

import compileall
import os
import resource
import subprocess
import sys
from pathlib import Path

import retinue
from benchmarks.table import print_table, ratio_row

__all__ = ["starting_table"]

FIRST_DELEGATION = """
from retinue import Agent, PermissionRules, ScriptedModel, SubAgent
script = {"parent": [{"calls": [{"name": "child", "arguments": {"input": "x"}}]}, "done"], "child": ["done"]}
child = SubAgent("child", "Helps.", instructions="You help.", surface="tool")
agent = Agent("parent", model=ScriptedModel(script), subagents=[child], permissions=PermissionRules(allow=["child"]))
import asyncio
assert asyncio.run(agent.run("hello")).text == "done"
"""


def _cpu_seconds(arguments: list[str], repeats: int) -> float:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def _python(code: str, repeats: int) -> float:
    return _cpu_seconds([sys.executable, "-c", code], repeats)


def starting_table(repeats: int) -> None:
    """Ratios to `import asyncio`; of the command line to `import click`."""
    compileall.compile_dir(str(Path(retinue.__file__).parent), quiet=1)
    bare = _python("pass", repeats)
    floor = _python("import asyncio", repeats) - bare
    cases = [
        ("import retinue", _python("import retinue", repeats), 0.2),
        ("from retinue import HarnessAgent, SubAgent", _python("from retinue import HarnessAgent, SubAgent", repeats), 2.0),
        ("fresh process to the end of a first delegation", _python(FIRST_DELEGATION, repeats), 3.5),
    ]
    rows = [ratio_row(name, (own - bare) * 1e3, floor * 1e3, goal, unit="ms") for name, own, goal in cases]
    command = _cpu_seconds([str(Path(sys.executable).with_name("retinue")), "--help"], repeats)
    click = _python("import click", repeats)
    rows.append(ratio_row("retinue --help, of `import click`", command * 1e3, click * 1e3, 1.5, unit="ms"))
    print_table("Starting (CPU of processes)", ["", "own", "floor", "ratio", "goal", "reached"], rows)
