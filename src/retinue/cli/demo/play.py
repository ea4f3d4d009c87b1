"""What the demonstration's model says: a script that reads the results of the real tools and counts in them.

Each function gets the conversation so far as (tool name, result) pairs and gives a turn. Nothing is counted beforehand:
without a sample file the answers are others. It decides by agent and turn alone, so a resumed run is answered the same way.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from msgspec.structs import replace

from retinue.messages import ToolResult
from retinue.models.port import ModelRequest
from retinue.models.script import Price, Script, ScriptCall, Turn
from retinue.models.scripted import ScriptedModel

__all__ = ["PAUSE", "TASK", "scripted_model"]

TASK: Final = "Prepare the release review of Tidewatch."

Result = tuple[str, str]
Results = Sequence[Result]
_MATCH: Final = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+): (?P<text>.*)$", re.MULTILINE)
PAUSE: Final = 0.75


def scripted_model(*, pause: float = PAUSE) -> ScriptedModel:
    """The model of the demonstration. `pause` is the least number of seconds before an answer, so that a person can watch."""

    def reply(request: ModelRequest) -> Turn:
        messages = (entry.message for entry in request.history)
        results = [(message.name, message.content) for message in messages if isinstance(message, ToolResult)]
        turns = PLAY.get(request.agent_id, ())
        turn = turns[request.step - 1](results) if 0 < request.step <= len(turns) else Turn(text="Nothing more to say.")
        uneven = 1 + (len(request.agent_id) % 3) / 3
        return replace(turn, usage="estimate", delay=pause * uneven, chunk=6, chunk_delay=pause / 40)

    model = ScriptedModel(reply, name="demo")
    model.script = Script(model="demo", price=Price(input=Decimal("1.25"), output=Decimal(10)))  # made up, to have figures
    return model


def _call(name: str, **arguments: Any) -> ScriptCall:
    return ScriptCall(name=name, arguments=arguments)


def _of(results: Results, name: str) -> list[str]:
    return [content for tool, content in results if tool == name]


def _first(results: Results, name: str) -> str:
    return next(iter(_of(results, name)), "")


def _matches(text: str) -> list[re.Match[str]]:
    return list(_MATCH.finditer(text))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _code_looks(results: Results) -> Turn:
    return Turn(
        text="First what there is, and what is marked as unfinished.",
        calls=(_call("list_files", path="src", pattern="*.js"), _call("grep_files", pattern="TODO|FIXME", path="src")),
    )


def _code_reads(results: Results) -> Turn:
    marks = _matches("\n".join(_of(results, "grep_files")))
    worst = next((mark for mark in marks if "FIXME" in mark["text"]), marks[0] if marks else None)
    if worst is None:
        return Turn(text="Nothing is marked; one look at the folder again.", calls=(_call("list_files", path="src"),))
    return Turn(text=f"The worst is in {worst['path']}.", calls=(_call("read_file", path=worst["path"]),))


def _code_reports(results: Results) -> Turn:
    files = [line for line in _first(results, "list_files").splitlines() if line.endswith("bytes)")]
    marks = _matches(_first(results, "grep_files"))
    fixes = [mark for mark in marks if "FIXME" in mark["text"]]
    lines = sum(len(text.splitlines()) for text in _of(results, "read_file"))
    text = f"{_count(len(files), 'source file')}, {_count(len(marks), 'open mark')}, {len(fixes)} of them a FIXME."
    for mark in fixes:
        said = mark["text"].partition("FIXME:")[2].strip()
        text += f"\nFIXME in {mark['path']}:{mark['line']} ({_count(lines, 'line')} read): {said}"
    return Turn(text=text)


def _log_searches(results: Results) -> Turn:
    return Turn(text="Errors and warnings first.", calls=(_call("grep_files", pattern=r"\b(ERROR|WARN)\b", path="logs"),))


def _log_reads(results: Results) -> Turn:
    return Turn(text="Now how much there is in all.", calls=(_call("list_files", path="logs"),))


def _log_reports(results: Results) -> Turn:
    found = [match["text"].split(maxsplit=3) for match in _matches(_first(results, "grep_files"))]
    errors = [parts for parts in found if len(parts) == 4 and parts[1] == "ERROR"]
    warnings = [parts for parts in found if len(parts) == 4 and parts[1] == "WARN"]
    text = f"{_count(len(errors), 'error')} and {_count(len(warnings), 'warning')} in the log."
    if errors:
        worst, count = Counter(parts[2] for parts in errors).most_common(1)[0]
        text += f"\n{worst} has {count} of the errors; the newest error is at {errors[-1][0]}: {errors[-1][2]} {errors[-1][3]}"
    return Turn(text=text)


def _notes_list(results: Results) -> Turn:
    return Turn(text="Which notes are there?", calls=(_call("list_files", path="notes", pattern="*.md"),))


def _notes_read(results: Results) -> Turn:
    listed = [line.rpartition(" (")[0] for line in _first(results, "list_files").splitlines() if line.endswith("bytes)")]
    if not listed:
        return Turn(text="There are no notes.", calls=(_call("list_files", path="."),))
    return Turn(text=f"All of them: {len(listed)}.", calls=tuple(_call("read_file", path=path) for path in listed[:8]))


def _notes_report(results: Results) -> Turn:
    lines = "\n".join(_of(results, "read_file")).splitlines()
    decisions = [line for line in lines if line.startswith("- Decision:")]
    questions = [line.partition(":")[2].strip() for line in lines if line.startswith("- Open:")]
    text = f"{_count(len(decisions), 'decision')}, {_count(len(questions), 'open question')}."
    return Turn(text="\n".join([text, *(f"Open: {question}" for question in questions)]))


def _lead_hands_out(results: Results) -> Turn:
    tasks = {
        "code-reader": "List what is marked as unfinished in src/, and look at the worst place.",
        "log-analyst": "Count errors and warnings in logs/ and name the component with most of them.",
        "notes-keeper": "Report the decisions and the open questions in notes/.",
    }
    return Turn(
        text="Three pieces that do not depend on each other: three specialists at once.",
        calls=tuple(_call("agent_spawn", agent_id=agent, task=task) for agent, task in tasks.items()),
    )


_AREAS: Final = ("Code", "Log", "Notes")
_NOTHING: Final = ("status:", "0 source files", "0 errors and 0 warnings", "0 decisions, 0 open")
"""How a part begins that says nothing of its area: its specialist did not answer, or there was nothing to read."""


def _lead_reviews(results: Results) -> Turn:
    parts = [_reply_of(content) for content in _of(results, "agent_spawn")]
    unseen = [area for area, part in zip(_AREAS, parts, strict=False) if part.startswith(_NOTHING)]
    fixes = sum(part.count("FIXME in ") for part in parts)
    errors = sum(int(number) for part in parts for number in re.findall(r"(\d+) errors? and", part))
    questions = sum(part.count("Open: ") for part in parts)
    blockers = [_count(fixes, "FIXME"), _count(errors, "error"), _count(questions, "open question")]
    ready = not fixes and not errors and not questions
    verdict = "It can go out." if ready else f"It should wait: {blockers[0]}, {blockers[1]}, {blockers[2]}."
    if unseen:
        verdict = f"It should wait: {' and '.join(unseen).lower()} could not be checked, nothing was found there."
    body = "\n".join(f"{area}: {part}" for area, part in zip(_AREAS, parts, strict=False))
    return Turn(text=f"Release review of Tidewatch\n\n{body}\n\n{verdict}")


def _reply_of(content: str) -> str:
    """The child's answer in the result lines of `agent_spawn`; a result without one is passed on as it is."""
    return content.partition("reply:")[2].strip() or content


PLAY: Final[dict[str, tuple[Callable[[Results], Turn], ...]]] = {
    "orchestrator": (_lead_hands_out, _lead_reviews),
    "code-reader": (_code_looks, _code_reads, _code_reports),
    "log-analyst": (_log_searches, _log_reads, _log_reports),
    "notes-keeper": (_notes_list, _notes_read, _notes_report),
}
