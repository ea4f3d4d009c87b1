"""Asking a person for permission on the terminal, one request after the other (D-28)."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from retinue.cli.keyboard import read_line
from retinue.cli.text import bounded, clean, main_argument, one_line
from retinue.cli.viewers import Viewer
from retinue.events import PermissionRequest

__all__ = ["Answer", "Asker", "covered", "describe_request", "parse_answer"]

ARGUMENT_LIMIT = 1_200
LINES = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person said."""

    allow: bool | None
    remember: Literal["once", "session"] = "once"
    text: str | None = None


def parse_answer(typed: str) -> Answer | None:
    """The answer that was typed; None if it is none, and the question is to be asked again."""
    match typed.strip().casefold():
        case "y" | "yes":
            return Answer(allow=True)
        case "a" | "always" | "session":
            return Answer(allow=True, remember="session")
        case "n" | "no" | "":
            return Answer(allow=False)
        case _:
            return None


def describe_request(request: PermissionRequest) -> str:
    """The question as it is shown: who asks, for what, with which arguments, bounded and harmless."""
    who = " > ".join(one_line(agent, 60) for agent in request.path) or one_line(request.agent_id, 60)
    if request.kind == "question":
        asked = bounded(clean(request.description), ARGUMENT_LIMIT).splitlines()
        return "\n".join([f"Question: {who}", *(f"  | {line}" for line in asked)])
    lines = [
        f"Permission: {who}",
        f"  wants to call {one_line(request.tool, 80)} {one_line(main_argument(request.arguments), 120)}",
    ]
    if request.description:
        lines.append(f"  {one_line(request.description, 200)}")
    shown = bounded(clean(_readable(request.arguments)), ARGUMENT_LIMIT).splitlines()
    if len(shown) > LINES:
        shown = [*shown[:LINES], f"… ({len(shown) - LINES} lines more)"]
    return "\n".join([*lines, *(f"  | {line}" for line in shown)])


def covered(request: PermissionRequest) -> str:
    """What "for this session" allows: it does not depend on the arguments that are shown."""
    tool, agent = one_line(request.tool, 80), one_line(request.agent_id, 60)
    return f"[a] is for every {tool} of {agent} in this session, whatever its arguments"


def _readable(arguments: str) -> str:
    """Arguments one a line, texts as they are; what is no JSON object is shown as it came."""
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict):
        return arguments
    named = cast("dict[str, Any]", values).items()
    return "\n".join(f"{name}: {_value(value)}" for name, value in named)


def _value(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "\n" + "\n".join(f"  {line}" for line in value.splitlines()) if "\n" in value else value


class Asker:
    """Asks a person for permission, one request at a time, while the viewer leaves the terminal alone.

    After "for this session" the same tool of the same agent is not asked for again: requests that were opened before that
    answer are answered alike. At the end of input (Ctrl-D) nothing more is asked; the run then ends `waiting`.
    """

    def __init__(self, viewer: Viewer, read: Callable[[str], Awaitable[str | None]] = read_line) -> None:
        self._viewer = viewer
        self._read = read
        self._remembered: set[tuple[str, str]] = set()
        self._left = False

    async def ask(self, request: PermissionRequest) -> Answer | None:
        """What the person says; None if no one answers any more."""
        subject = (request.tool, request.agent_id)
        if subject in self._remembered:
            return Answer(allow=True, remember="session")
        if self._left:
            return None
        self._viewer.pause()
        try:
            answer = await self._asked(request)
        finally:
            self._viewer.resume()
        self._left = answer is None
        if answer is not None and answer.remember == "session":
            self._remembered.add(subject)
        return answer

    async def _asked(self, request: PermissionRequest) -> Answer | None:
        self._viewer.say(describe_request(request))
        if request.kind == "question":
            typed = await self._read("  answer (empty: none): ")
            return None if typed is None else Answer(None, text=typed) if typed.strip() else Answer(allow=False)
        self._viewer.say(f"  {covered(request)}")
        while True:
            typed = await self._read("  allow? [y] yes, once  [n] no  [a] yes, all of these: ")
            if typed is None:
                return None
            answer = parse_answer(typed)
            if answer is not None:
                return answer
            self._viewer.say("  please type y, n or a")
