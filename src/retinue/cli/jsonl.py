"""Events as JSON lines: the stored record plus `path` and `live`; the last line carries the result."""

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from retinue.events import Event, RunFinishedEvent, RunStartedEvent, ThreadCreatedEvent, UnknownEvent, decode, encode
from retinue.messages import Usage
from retinue.ops import Record
from retinue.rows import ThreadKey

if TYPE_CHECKING:
    from retinue.harness.results import RunResult

__all__ = ["EventLines", "event_of_line", "record_line", "result_json"]

PLACE: Final = ("path", "invocations", "key", "runId", "seq", "at")


class EventLines:
    """Makes lines of events. Remembers each thread's generation and each run's attempt, which events do not carry."""

    def __init__(self) -> None:
        self._generations: dict[ThreadKey, int] = {}
        self._attempts: dict[str, int] = {}

    def describe(self, event: Event) -> dict[str, Any]:
        """One event as a JSON object, in the shape of a stored record."""
        key = event.key or ThreadKey("", "", "")
        if isinstance(event, RunStartedEvent):
            self._attempts[event.run_id] = event.attempt
        if isinstance(event, ThreadCreatedEvent) and event.seq == 1:
            self._generations[key] = self._generations.get(key, 0) + 1
        line: dict[str, Any] = {
            "type": event.type if isinstance(event, UnknownEvent) else event.TYPE,
            "user": key.user,
            "session": key.session,
            "thread": key.thread,
            "generation": self._generations.get(key, 1),
            "seq": event.seq or None,  # what is live only has no place in a journal
            "run": event.run_id,
            "attempt": self._attempts.get(event.run_id, 1),
            "at": event.at,
            "path": list(event.path),
            "invocations": list(event.invocations),
            "live": event.live,
            "body": _body(event),
        }
        if isinstance(event, RunFinishedEvent) and event.result is not None:
            line["result"] = result_json(event.result, key)
        return line


def _body(event: Event) -> dict[str, Any]:
    """The event's own fields, as they are stored."""
    if isinstance(event, UnknownEvent):
        return json.loads(bytes(event.body))
    if isinstance(event, RunFinishedEvent) and event.result is not None:
        event = replace(event, result=None)
    body: dict[str, Any] = json.loads(encode(event))
    for name in PLACE:
        body.pop(name, None)
    return body


def record_line(record: Record, path: tuple[str, ...] = (), invocations: tuple[str, ...] = ()) -> dict[str, Any]:
    """A stored record as a line of the same shape."""
    return {
        "type": record.type,
        "user": record.key.user,
        "session": record.key.session,
        "thread": record.key.thread,
        "generation": record.generation,
        "seq": record.seq,
        "run": record.run,
        "attempt": record.attempt,
        "at": record.at,
        "path": list(path),
        "invocations": list(invocations),
        "live": False,
        "body": json.loads(record.body),
    }


def event_of_line(line: dict[str, Any]) -> Event | None:
    """The stored event that a line was made of; None for a live one."""
    if line.get("live", True):
        return None
    key = ThreadKey(line["user"], line["session"], line["thread"])
    record = Record(
        key,
        line["generation"],
        line["seq"],
        line["type"],
        line["run"],
        line["attempt"],
        line["at"],
        json.dumps(line["body"]).encode(),
    )
    return replace(decode(record), path=tuple(line["path"]), invocations=tuple(line["invocations"]))


def usage_json(usage: Usage) -> dict[str, int]:
    """Tokens, in camelCase."""
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cachedTokens": usage.cached_tokens,
        "calls": usage.calls,
    }


def cost_json(cost: Decimal | None) -> str | None:
    """US dollars as text, so that no digit is lost; null where a price is not known."""
    return None if cost is None else format(cost, "f")


def result_json(result: "RunResult", key: ThreadKey) -> dict[str, Any]:
    """How a run of thread `key` ended. `usage` and `cost` are of the whole tree."""
    return {
        "status": result.status,
        "reason": result.reason,
        "text": result.text,
        "usage": usage_json(result.usage),
        "cost": cost_json(result.cost),
        "session": key.session or None,
        "thread": key.thread or None,
        "requests": [
            {"requestId": one.request_id, "tool": one.tool, "agentId": one.agent_id, "arguments": one.arguments}
            for one in result.requests
        ],
    }
