"""The tree of a run drawn with rich, at a given moment and size. Pure: the same view and moment give the same picture.

Model text enters only as cleaned `Text` objects, never as markup.
"""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from retinue.cli.live_tree import TreeView
from retinue.cli.nodes import Node, NodeState
from retinue.cli.text import clean, counted, duration, money, one_line, tokens

__all__ = ["Row", "draw_tree", "rows_of"]

GLYPHS: Final = {
    NodeState.PREPARING: ("◌", ".", "dim"),
    NodeState.RUNNING: ("●", "*", "cyan"),
    NodeState.WAITING: ("?", "?", "yellow"),
    NodeState.INTERRUPTED: ("!", "!", "yellow"),
    NodeState.COMPLETED: ("✓", "+", "green"),
    NodeState.FAILED: ("✗", "x", "red"),
    NodeState.CANCELLED: ("■", "-", "magenta"),
}
UNFINISHED: Final = (NodeState.WAITING, NodeState.INTERRUPTED)
"""States in which nothing of an entry runs, and somebody is waited for."""
SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
GUIDES: Final = (("├─ ", "└─ ", "│  ", "   "), ("|- ", "`- ", "|  ", "   "))
NARROW: Final = 64
NAME_LIMIT: Final = 36

Row = tuple[Node, str]
"""An entry and the guides before its name."""


def rows_of(view: TreeView, *, ascii_only: bool = False) -> list[Row]:
    """Every entry in drawing order, with the lines that connect it to its parent."""
    tee, corner, bar, gap = GUIDES[ascii_only]
    rows: list[Row] = []

    def visit(node: Node, lead: str, own: str) -> None:
        rows.append((node, lead + own))
        below = lead + ("" if not own else gap if own == corner else bar)
        for index, child in enumerate(node.children):
            visit(view.nodes[child], below, corner if index == len(node.children) - 1 else tee)

    if view.root is not None:
        visit(view.root, "", "")
    return rows


def draw_tree(view: TreeView, *, now: int, width: int | None, height: int, ascii_only: bool = False) -> RenderableType:
    """The tree as it stands at `now` (milliseconds since the epoch), in `width` columns and at most `height` rows.

    Without a width nothing is cut: each line is as long as the longest needs.
    """
    rows = rows_of(view, ascii_only=ascii_only)
    shown, folded = _fold(rows, max(height - 1, 4))  # one row for the sum below
    wide = width is None or width >= NARROW
    cells = [_cells(node, lead, now=now, ascii_only=ascii_only, wide=wide) for node, lead in shown]
    room = _natural(cells) if width is None else width
    lines = _aligned(cells, room)
    if folded:
        lines.append(Text(f"   {one_line(_folded_line(folded), room - 3)}", style="dim"))
    usage, cost = view.totals()
    if usage.calls and len(rows) > 1:
        used = tokens(usage.input_tokens + usage.output_tokens)
        agents, calls = counted(view.children() + 1, "agent"), counted(usage.calls, "model call")
        total = f"{agents}, {calls}, {used}, {money(cost)}"
        lines.append(Text(one_line(total, room).rjust(room), style="dim"))
    return Group(*lines)


def _natural(rows: Sequence[Sequence[Text]]) -> int:
    """The width in which no cell is cut. A name may take half of it."""
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]))]
    return max(sum(size + 2 for size in widths), 2 * widths[0])


def _aligned(rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """The cells in columns: names first, what they do in the room that is left, figures at the right edge."""
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]))]
    widths[0] = min(widths[0], max(width // 2, 8))
    widths[1] = max(width - widths[0] - sum(size + 2 for size in widths[2:] if size) - 2, 0)
    lines: list[Text] = []
    for row in rows:
        line = Text(no_wrap=True, overflow="ellipsis", end="\n")
        for column, (cell, size) in enumerate(zip(row, widths, strict=True)):
            if column > 1 and not size:  # nothing to show in any row
                continue
            cell.truncate(size, overflow="ellipsis", pad=column < 2)
            line.append("  " if column else "")
            line.append(" " * (size - cell.cell_len if column > 1 else 0))
            line.append_text(cell)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _cells(node: Node, lead: str, *, now: int, ascii_only: bool, wide: bool) -> list[Text]:
    """Name, activity, elapsed, tokens, cost of one entry."""
    fancy, plain, style = GLYPHS[node.state]
    glyph = plain if ascii_only else fancy
    if node.state is NodeState.RUNNING and not ascii_only:
        glyph = SPINNER[now // 100 % len(SPINNER)]
    name = Text().append(lead, style="dim")
    name.append(glyph, style=style)
    name.append(f" {one_line(node.agent, NAME_LIMIT)}", style="bold" if not node.state.ended else "")
    if node.attempt > 1:
        name.append(f" #{node.attempt}", style="dim")
    quiet = "red" if node.state is NodeState.FAILED else "yellow" if node.state in UNFINISHED else "dim"
    activity = Text(clean(node.activity), style=quiet if node.state is not NodeState.RUNNING else "")
    cells = [name, activity, Text(duration(node.elapsed(now)) if node.started_at else "", style="dim")]
    if wide:
        used = node.usage.input_tokens + node.usage.output_tokens
        cells.append(Text(tokens(used) if node.usage.calls else "", style="dim"))
        priced = node.usage.calls and node.cost is not None  # that a price is unknown is said once, beside the sum
        cells.append(Text(money(node.cost) if priced else "", style="dim"))
    return cells


def _fold(rows: Sequence[Row], height: int) -> tuple[list[Row], list[Node]]:
    """What fits: the newest of those that have ended are left out first, then the last of the rest."""
    if len(rows) <= height:
        return list(rows), []
    excess = len(rows) - height + 1
    ended = [index for index, (node, _) in enumerate(rows) if index and node.state.ended and not node.children]
    leave = set(ended[:excess])
    for index in range(len(rows) - 1, 0, -1):
        if len(leave) >= excess:
            break
        leave.add(index)
    return [row for index, row in enumerate(rows) if index not in leave], [rows[index][0] for index in sorted(leave)]


def _folded_line(nodes: Sequence[Node]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    return f"… {len(nodes)} more: " + ", ".join(f"{count} {state}" for state, count in counts.items())
