"""`python -m benchmarks [CASE…] [--quick]`: tables of ratios, each to a floor that is measured in the same run.

Cases: turns, fanout, history, body, waiting, http, starting, crowd (all if none is named). `python -m benchmarks.chaos` kills.
CPU unless a table says otherwise.
`RETINUE_PEERS=DIR` adds other frameworks to `turns` (see `benchmarks/peers.py`).
"""

import asyncio
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks.bodies import body_table
from benchmarks.crowd import crowd_table
from benchmarks.fanout import fan_out_table, history_table
from benchmarks.loopback import loopback_table
from benchmarks.starting import starting_table
from benchmarks.turns import turns_table
from benchmarks.waiting import waiting_table

CASES = ("turns", "fanout", "history", "body", "waiting", "http", "starting", "crowd")


async def run(cases: list[str], quick: bool, folder: Path) -> None:
    """Measure and print the tables of `cases`."""
    if "turns" in cases:
        await turns_table(folder, 2 if quick else 7)
    if "fanout" in cases:
        await fan_out_table(folder, 3 if quick else 7)
    if "history" in cases:
        await history_table(3 if quick else 9)
    if "body" in cases:
        body_table(9 if quick else 31)
    if "waiting" in cases:
        waiting_table()
    if "http" in cases:
        await loopback_table(folder, 1 if quick else 4)
    if "starting" in cases:
        starting_table(5 if quick else 15)
    if "crowd" in cases:
        await crowd_table(folder)


def main(arguments: list[str]) -> int:
    """See the docstring of the module."""
    named = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [name for name in named if name not in CASES]
    if unknown:
        print(f"unknown case {', '.join(unknown)}; use {', '.join(CASES)}", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    with tempfile.TemporaryDirectory(prefix="retinue-benchmarks-") as folder:
        asyncio.run(run(named or list(CASES), "--quick" in arguments, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
