"""Asking a person for permission on the terminal, one request after the other (D-28)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from retinue.cli.keyboard import read_line
from retinue.cli.text import bounded, clean, main_argument, one_line
from retinue.cli.viewers import Viewer
from retinue.events import Event, PermissionRequest, RequestClosedEvent

__all__ = ["Answer", "Asker", "describe_request", "parse_answer"]

ARGUMENT_LIMIT = 1_200
LINES = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person said."""

    allow: bool
    remember: Literal["once", "session"] = "once"


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
    lines = [
        f"Permission: {who}",
        f"  wants to call {one_line(request.tool, 80)} {one_line(main_argument(request.arguments), 120)}",
    ]
    if request.description:
        lines.append(f"  {one_line(request.description, 200)}")
    shown = bounded(clean(request.arguments), ARGUMENT_LIMIT).splitlines()
    if len(shown) > LINES:
        shown = [*shown[:LINES], f"… ({len(shown) - LINES} lines more)"]
    return "\n".join([*lines, *(f"  | {line}" for line in shown)])


class Asker:
    """Collects requests and asks them in order, while the viewer leaves the terminal alone.

    `answer` hands an answer to the run. A request that is closed meanwhile is not asked. At the end of input nothing more is
    asked and `gave_up` is called: the run is to end `waiting`.
    """

    def __init__(
        self,
        viewer: Viewer,
        answer: Callable[[PermissionRequest, Answer], Awaitable[object]],
        gave_up: Callable[[], Awaitable[object]],
        read: Callable[[str], Awaitable[str | None]] = read_line,
    ) -> None:
        self._viewer = viewer
        self._answer = answer
        self._gave_up = gave_up
        self._read = read
        self._open: dict[str, PermissionRequest] = {}
        self._more = asyncio.Event()
        self._asking: tuple[str, asyncio.Task[str | None]] | None = None

    def take(self, event: Event) -> None:
        """Take a request in, or drop the one that was closed."""
        if isinstance(event, PermissionRequest):
            self._open[event.request_id] = event
            self._more.set()
        elif isinstance(event, RequestClosedEvent):
            self._open.pop(event.request_id, None)
            if self._asking is not None and self._asking[0] == event.request_id:
                self._asking[1].cancel()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._more.wait()
            self._viewer.pause()
            try:
                while self._open:
                    request = next(iter(self._open.values()))
                    answer = await self._ask(request)
                    if answer is None and request.request_id in self._open:
                        await self._gave_up()
                        return
                    self._open.pop(request.request_id, None)
                    if answer is not None:
                        await self._answer(request, answer)
            finally:
                self._viewer.resume()
            self._more.clear()

    async def _ask(self, request: PermissionRequest) -> Answer | None:
        """The answer to one request; None at the end of input, or if it was closed meanwhile."""
        self._viewer.say(describe_request(request))
        while True:
            reading = asyncio.ensure_future(self._read("  allow? [y] yes  [n] no  [a] yes, for this session: "))
            self._asking = (request.request_id, reading)
            try:
                typed = await reading
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if request.request_id in self._open or (current is not None and current.cancelling()):
                    raise
                return None
            finally:
                self._asking = None
                reading.cancel()
            if typed is None:
                return None
            answer = parse_answer(typed)
            if answer is not None:
                return answer
            self._viewer.say("  please type y, n or a")
