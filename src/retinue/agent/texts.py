"""One line for the model for every call that has no result of its own: what happened, and what it can do."""

from collections.abc import Iterable

from retinue.near import near_names

__all__ = ["CANCELLED", "LIMIT_TURNS", "UNKNOWN_OUTCOME", "bounded", "denied", "notice", "unanswered", "unknown_tool"]

CANCELLED = "Not run: the run was stopped before this call began."
STOPPED = "Stopped before it ended: the run was cancelled. It may have had an effect."
LIMIT_TURNS = "Not run: the turns of this run are used up. Write your final answer from what you have."
UNKNOWN_OUTCOME = (
    "The outcome of this call is unknown: it was started, then the process ended before a result was recorded. "
    "It was not repeated. Check whether it had its effect before you call it again."
)


def denied(tool: str, because: str, note: str = "") -> str:
    """A call that was not allowed."""
    reason = f" ({because})" if because else ""
    said = f' The answer says: "{bounded(note, 500)}".' if note else ""
    return (
        f"Not allowed: `{tool}` was denied{reason}.{said} Do not try the same call again; go on without it or say what you need."
    )


def unanswered(note: str) -> str:
    """A question that nobody answers."""
    said = f' It was said: "{bounded(note, 500)}".' if note else ""
    return f"Not answered.{said} Go on with what you know, and say in your answer what you assumed."


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """A call of a name that this agent does not have."""
    names = sorted(known)
    near = near_names(name, names, count=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    listing = ", ".join(f"`{one}`" for one in names[:40]) or "none"
    return f"There is no tool `{bounded(name, 80)}`.{hint} Available tools: {listing}."


def notice(kind: str, text: str) -> str:
    """What the harness says to a model in a user's place, in a tag that tells it from a person's words."""
    return f'<notice kind="{kind}">\n{text}\n</notice>'


def bounded(text: str, limit: int) -> str:
    """`text`, cut at `limit` characters with a mark."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
