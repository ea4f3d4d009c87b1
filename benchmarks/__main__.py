"""`python -m benchmarks`: the table. `--quick` takes fewer samples."""

import asyncio
import platform
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import floor
from benchmarks.measure import Operation, cpu_us
from benchmarks.rows import operations_on
from retinue.ledger.open import open_ledger
from retinue.ledger.port import Ledger

CASES = ("one turn", "one tool", "one delegation")
FLOOR: tuple[Operation, ...] = (floor.one_turn, floor.one_tool, floor.delegation)


async def measure_row(name: str, operations: tuple[Operation, ...], samples: int) -> list[str]:
    """One row: CPU µs and the ratio to the floor, measured around it."""
    cells = [name]
    for operation, bare in zip(operations, FLOOR, strict=True):
        before = await cpu_us(bare, samples=samples)
        own = before if operation is bare else await cpu_us(operation, samples=samples)
        after = before if operation is bare else await cpu_us(bare, samples=samples)
        cells.append(f"{own:,.1f}")
        cells.append(f"{own / ((before + after) / 2):,.1f} x")
    return cells


def print_table(rows: list[list[str]]) -> None:
    """Columns with figures at the right."""
    head = ["CPU µs (ratio to the floor)"]
    for case in CASES:
        head += [case, ""]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        first, rest = row[0].ljust(widths[0]), [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([first, *rest]).rstrip())


async def run(samples: int, folder: Path) -> None:
    """Measure all rows and print them."""
    print(
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; median of {samples} samples, in process"
    )
    rows = [await measure_row("floor: hand loop, nothing stored", FLOOR, samples)]
    ledgers: list[tuple[str, Ledger]] = [
        ("Retinue, memory", open_ledger("memory")),
        ("Retinue, SQLite, survives SIGKILL", open_ledger(folder / "process.sqlite3", durability="process")),
        ("Retinue, SQLite, survives power loss", open_ledger(folder / "full.sqlite3", durability="full")),
    ]
    for name, ledger in ledgers:
        async with AsyncExitStack() as stack:
            rows.append(await measure_row(name, await operations_on(ledger, stack), samples))
    print_table(rows)


def main(arguments: list[str]) -> None:
    """See the docstring of the module."""
    with tempfile.TemporaryDirectory(prefix="retinue-benchmarks-") as folder:
        asyncio.run(run(7 if "--quick" in arguments else 25, Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
