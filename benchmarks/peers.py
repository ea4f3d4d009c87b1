"""Other frameworks as rows, if they are installed: `RETINUE_PEERS=DIR` names a folder of virtual environments.

Each `DIR/<name>` is a virtual environment with a script `bench.py` in it that takes one of `turn`, `tool`, `delegation` and
prints CPU microseconds of one operation on the last line. Nothing of a peer is in this repository.
"""

import os
import subprocess
from pathlib import Path

__all__ = ["peer_rows"]

CASES = ("turn", "tool", "delegation")


def peer_rows(floor: dict[str, float]) -> list[list[str]]:
    """A row for every peer that could be measured: figures and ratios to this run's floor."""
    root = os.environ.get("RETINUE_PEERS")
    if not root:
        return []
    rows: list[list[str]] = []
    for folder in sorted(path for path in Path(root).iterdir() if (path / "bench.py").is_file()):
        cells = [folder.name]
        for case in CASES:
            done = subprocess.run(
                [str(folder / "bin" / "python"), str(folder / "bench.py"), case],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            own = float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else float("nan")
            cells += [f"{own:,.1f}", f"{own / floor[case]:,.1f} x"]
        rows.append(cells)
    return rows
