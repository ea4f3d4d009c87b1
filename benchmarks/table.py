"""Printing: columns with figures at the right, and what a figure has to reach."""

from collections.abc import Sequence

__all__ = ["print_table", "ratio_row"]


def ratio_row(name: str, own: float, floor: float, goal: float, *, unit: str, at_least: bool = False) -> list[str]:
    """A row of: what, own figure, floor, ratio, goal, and whether it is reached."""
    ratio = own / floor if floor else float("nan")
    reached = ratio >= goal if at_least else ratio <= goal
    sign = ">=" if at_least else "<="
    return [
        name,
        f"{own:,.2f} {unit}",
        f"{floor:,.2f} {unit}",
        f"{ratio:,.2f} x",
        f"{sign} {goal:g} x",
        "yes" if reached else "NO",
    ]


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table with a title and an empty line after it."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    print(title)
    for row in [head, *rows]:
        first, rest = row[0].ljust(widths[0]), [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join([first, *rest]).rstrip())
    print(flush=True)
