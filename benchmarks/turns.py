"""One turn, one tool, one delegation: CPU µs in process, and the ratio to a floor measured around each (cases B to D)."""

from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import floor
from benchmarks.measure import Operation, cpu_us
from benchmarks.peers import peer_rows
from benchmarks.rows import operations_on
from benchmarks.table import print_table
from retinue.ledger.open import open_ledger
from retinue.ledger.port import Ledger

__all__ = ["turns_table"]

CASES = ("one turn", "one tool", "one delegation")
FLOOR: tuple[Operation, ...] = (floor.one_turn, floor.one_tool, floor.delegation)
ROUNDS = 5


async def _row(name: str, operations: tuple[Operation, ...], samples: int, goals: tuple[float | None, ...]) -> list[str]:
    """CPU µs and the median ratio of several rounds, each measured between two measurements of the floor."""
    cells = [name]
    for operation, bare, goal in zip(operations, FLOOR, goals, strict=True):
        ratios: list[float] = []
        owns: list[float] = []
        for _ in range(ROUNDS):
            before = await cpu_us(bare, samples=samples)
            owns.append(await cpu_us(operation, samples=samples))
            after = await cpu_us(bare, samples=samples)
            ratios.append(owns[-1] / ((before + after) / 2))
        ratio = sorted(ratios)[ROUNDS // 2]
        mark = "" if goal is None else f" <= {goal:g} {'yes' if ratio <= goal else 'NO'}"
        cells += [f"{min(owns):,.1f}", f"{ratio:,.1f} x{mark}"]
    return cells


async def turns_table(folder: Path, samples: int) -> None:
    """Retinue's rows, and peers' if there are any."""
    bare = {case: await cpu_us(operation, samples=samples) for case, operation in zip(CASES, FLOOR, strict=True)}
    rows = [["floor: hand loop, nothing stored", *(cell for value in bare.values() for cell in (f"{value:,.1f}", "1.0 x"))]]
    ledgers: list[tuple[str, Ledger, tuple[float | None, ...]]] = [
        ("Retinue, memory", open_ledger("memory"), (15, 10, 14)),
        ("Retinue, SQLite, survives SIGKILL", open_ledger(folder / "p.sqlite3", durability="process"), (None, None, 55)),
        ("Retinue, SQLite, survives power loss", open_ledger(folder / "f.sqlite3", durability="full"), (None, None, 85)),
    ]
    for name, ledger, goals in ledgers:
        async with AsyncExitStack() as stack:
            rows.append(await _row(name, await operations_on(ledger, stack), samples, goals))
    short = {"turn": bare["one turn"], "tool": bare["one tool"], "delegation": bare["one delegation"]}
    rows += peer_rows(short)
    head = ["", *(cell for case in CASES for cell in (case, "ratio, goal"))]
    print_table("In process (CPU µs)", head, rows)
