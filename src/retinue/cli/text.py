"""Text of models, tools and files made harmless for a terminal, and cut to a bounded size.

Nothing that a model says may move the cursor, change colours, set the window's title or turn the reading direction: every
such character is replaced by a visible one. Markup never comes in question, because views build `rich.text.Text` objects.
"""

import json
from decimal import Decimal
from typing import Any, Final, cast

__all__ = ["bounded", "clean", "counted", "describe_call", "duration", "main_argument", "money", "one_line", "tail", "tokens"]

_VISIBLE: Final = "\N{REPLACEMENT CHARACTER}"
_DIRECTION: Final = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
_REPLACED: Final[dict[int, str | None]] = {
    **dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)), _VISIBLE),
    **dict.fromkeys(map(ord, _DIRECTION), _VISIBLE),
    0x0A: "\n",
    0x0D: None,
    0x09: "    ",
    0x2028: "\n",
    0x2029: "\n",
}
_MAIN_ARGUMENTS: Final = ("pattern", "path", "command", "task", "input", "message", "agent_id", "agent_key", "task_id", "query")


def clean(text: str) -> str:
    """`text` with every control, direction and surrogate character replaced. Line ends stay, tabs become spaces."""
    return text if text.isprintable() else text.translate(_REPLACED)


def one_line(text: str, limit: int) -> str:
    """The clean text on one line of at most `limit` characters; `…` says that there was more."""
    line = " ".join(clean(text[: limit * 4 + 400]).split())
    cut = len(line) > limit or len(text) > limit * 4 + 400
    return f"{line[: limit - 1].rstrip()}…" if cut and limit > 0 else line


def bounded(text: str, limit: int) -> str:
    """The first `limit` characters, and how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} characters more)"


def tail(text: str, limit: int) -> str:
    """The last `limit` characters; `…` says that there was more before them."""
    return text if len(text) <= limit else f"…{text[1 - limit :]}"


def main_argument(arguments: str) -> str:
    """What a call is about, for a person: its best known argument, else the first. Arguments may be any text."""
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict) or not values:
        return ""
    known = cast("dict[str, Any]", values)
    if "agent_id" in known and isinstance(known.get("task"), str):
        return f"{known['agent_id']}: {known['task']}"
    name = next((name for name in _MAIN_ARGUMENTS if known.get(name)), next(iter(known)))
    value = known[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def describe_call(name: str, arguments: str, limit: int = 80) -> str:
    """One call on one line: `read_file src/app.py`."""
    return one_line(f"{name} {main_argument(arguments[:10_000])}", limit)


def counted(number: int, word: str, many: str = "") -> str:
    """`1 turn`, `2 turns`, `1,200 entries`."""
    return f"{number:,} {word if number == 1 else many or f'{word}s'}"


def duration(milliseconds: int) -> str:
    """`0.4 s`, `12 s`, `3:07 min`, `1:02 h`."""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def tokens(count: int) -> str:
    """`812 tok`, `12.4k tok`, `3.1M tok`."""
    if count < 1_000:
        return f"{count} tok"
    return f"{count / 1_000:.1f}k tok" if count < 999_950 else f"{count / 1_000_000:.1f}M tok"


def money(cost: Decimal | None) -> str:
    """`$0.0123`, or `price unknown`."""
    if cost is None:
        return "price unknown"
    return f"${cost:.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"
