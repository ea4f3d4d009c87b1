"""What the fake provider knows of a request: who asked, which turn it is, and what it is to do with it."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from retinue.json_text import loads
from retinue.models.script import Script, Turn, View
from retinue.testing.provider_wire import ProviderFault

__all__ = ["Gate", "Planned", "Recorded", "read_request", "view_of"]

_SHOWN: Final = re.compile(r"\[.*\] from `.*`:")


class Gate:
    """A request that is kept waiting: `await gate.arrived.wait()`, then `gate.release()`."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()

    def release(self) -> None:
        """Let it go on."""
        self.opened.set()


@dataclass(slots=True)
class Recorded:
    """One request. `number` counts from 1, `raw` are the bytes that came, `valid` says that they were an object in JSON.

    `refused` is (rule id, words) of the rule that it broke; `turn` what it was answered; `disconnected` that the client went
    away before its answer was whole, `peer` is the other end of the connection.
    """

    number: int
    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    agent: str = ""
    run: str = ""
    step: int = 1
    valid: bool = True
    refused: tuple[str, str] | None = None
    turn: Turn | None = None
    answered: bool = False
    disconnected: bool = False
    peer: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages, those that are objects."""
        messages: Any = self.body.get("messages")
        items: list[Any] = cast("list[Any]", messages) if isinstance(messages, list) else []
        return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]

    @property
    def results(self) -> list[Any]:
        """The contents of its tool results, in order: texts, or lists of parts."""
        return [message.get("content") for message in self.messages if message.get("role") == "tool"]

    @property
    def system(self) -> str:
        """The system text."""
        return "\n".join(_text(message) for message in self.messages if message.get("role") in ("system", "developer"))

    def summary(self) -> dict[str, Any]:
        """What `GET /__record` tells: everything but keys."""
        return {
            "number": self.number,
            "headers": {name: value for name, value in self.headers.items() if name != "authorization"},
            "agent": self.agent,
            "run": self.run,
            "step": self.step,
            "body": self.body,
            "refused": self.refused,
            "answered": self.answered,
            "disconnected": self.disconnected,
        }


@dataclass(slots=True)
class Planned:
    """Something that is to happen to the next request that fits."""

    agent: str | None = None
    step: int | None = None
    gate: Gate | None = field(default=None, kw_only=True)
    fault: ProviderFault | None = field(default=None, kw_only=True)

    def fits(self, recorded: Recorded) -> bool:
        """Whether it is meant for this request."""
        return self.agent in (None, recorded.agent) and self.step in (None, recorded.step)


def read_request(raw: bytes, headers: Mapping[str, str], number: int, script: Script) -> Recorded:
    """The record of a request."""
    known = {name.lower(): value for name, value in headers.items()}
    try:
        value: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        try:  # so that the rules can name what msgspec is too strict for
            raw.decode()
            value = loads(raw)
        except ValueError:
            value = None
    valid = isinstance(value, dict)
    recorded = Recorded(number, cast("dict[str, Any]", value) if valid else {}, raw, known, valid=valid)
    recorded.agent = known.get("x-retinue-agent") or _agent(recorded, script)
    recorded.run = known.get("x-retinue-run", "")
    told = known.get("x-retinue-step", "")
    recorded.step = int(told) if told.isdecimal() else _step(recorded.messages)
    return recorded


def _agent(recorded: Recorded, script: Script) -> str:
    system = recorded.system
    for agent_id, agent in script.agents.items():
        if agent.marker and agent.marker in system:
            return agent_id
    return next(iter(script.agents), "") if len(script.agents) == 1 else ""


def _step(messages: list[dict[str, Any]]) -> int:
    step = 1
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        step += message.get("role") == "assistant"
    return step


def _text(message: dict[str, Any]) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(str(cast("dict[str, Any]", part).get("text", "")) for part in parts if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _told_result(message: dict[str, Any]) -> tuple[str, str] | None:
    """Tool and content of a result that is told in words (`tool_mode="schema"`)."""
    text = _text(message)
    if not text.startswith('{"result_of":'):
        return None
    told: Any = loads(text.encode())
    return str(told.get("result_of")), str(told.get("content"))


def _shows_results(message: dict[str, Any]) -> bool:
    """Whether a message of a user is none, but what tools gave to be seen (`retinue.models.media_parts`)."""
    content: Any = message.get("content")
    return isinstance(content, list) and _SHOWN.fullmatch(_text({"content": content[:1]})) is not None


def view_of(recorded: Recorded) -> View:
    """The conversation as templates see it."""
    messages = recorded.messages
    if "x-retinue-tail" in recorded.headers:
        messages = messages[:-1]

    def last_input() -> str:
        said = (one for one in reversed(messages) if one.get("role") == "user" and not _shows_results(one))
        return next((_text(one) for one in said if _told_result(one) is None), "")

    def results() -> list[tuple[str, str]]:
        names: dict[Any, str] = {}
        found: list[tuple[str, str]] = []
        for message in messages:
            for call in message.get("tool_calls") or ():
                names[call.get("id")] = call.get("function", {}).get("name", "")
            if message.get("role") == "tool":
                found.append((names.get(message.get("tool_call_id"), ""), _text(message)))
            elif (told := _told_result(message)) is not None:
                found.append(told)
        return found

    return View(recorded.agent, last_input, results, lambda: sum(len(_text(message)) for message in messages))
