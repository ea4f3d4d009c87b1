"""Assertions about conversations: that a provider would take one, and that two journals say the same.

Ids and times differ from run to run; `Names` puts the same word in place of the same id, in the order in which they come.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from retinue.events import STORED, Event, RunFinishedEvent, UnknownEvent, decode
from retinue.messages import AssistantMessage, CallRef, Entry, Message, ToolResult
from retinue.models.profiles import KNOWN
from retinue.models.wire import ChatWire
from retinue.ops import Record
from retinue.testing.provider_checks import Body
from retinue.testing.provider_rules import RULES, Rule, refusal

__all__ = ["Names", "assert_same_journal", "assert_valid_transcript", "faults_of", "normalise"]

_AT_THE_END: Final = "last_assistant"  # a rule about what is sent, not about what is kept
_PLACE: Final = frozenset({"path", "invocations", "key", "runId", "seq", "at"})
_TIMES: Final = frozenset({"durationMs"})
_KINDS: Final = (*STORED, UnknownEvent)
_IDS: Final = re.compile(
    r"\b(?P<kind>ses|thr|run|inv|task|req|msg|own|mail)_[0-9a-f]{32}"
    r"|\b(?P<sub>sub-)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12})\b"
    r"|(?P<call>\bcall_)[0-9a-f]{24}\b"
    r"|(?P<agent>\bagent:[A-Za-z0-9._/-]{1,128}:)[0-9a-f]{12}\b"
)


class Names:
    """A word for each id, numbered by kind as they come: `<run 1>`, `agent:reviewer:<key 2>`.

    >>> names = Names()
    >>> names.plain("ask run_01937c…, then run_01937d…")
    'ask <run 1>, then <run 2>'
    """

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def plain(self, text: str) -> str:
        """`text` with a word in place of each id."""
        return _IDS.sub(self._name, text)

    def filled(self, text: str) -> str:
        """`text` with the ids that this one knows in place of their words: the way back from `plain`."""
        for found, word in self._named.items():
            text = text.replace(word, found)
        return text

    def _name(self, found: re.Match[str]) -> str:
        word = self._named.get(found[0])
        if word is None:
            kind = found["kind"] or ("sub" if found["sub"] else "call" if found["call"] else "key")
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            word = self._named[found[0]] = f"{found['agent'] or ''}<{kind} {number}>"
        return word


def faults_of(messages: Iterable[Message | Entry], *, sent: bool = False, rules: Sequence[Rule] = RULES) -> list[str]:
    """What is wrong with a conversation, in words; empty for one that every provider takes.

    Args:
        messages: of `thread.messages()`, or the history of a `ModelRequest`.
        sent: It is what a model is asked with, so it must not end with the model's own words.
        rules: `retinue.testing.RULES` unless given; `MISTRAL_RULES` can be added.
    """
    plain = [one.message if isinstance(one, Entry) else one for one in messages]
    wire = ChatWire(KNOWN["openai"])
    tool: Body = {"type": "function", "function": {"name": "tool", "parameters": {"type": "object", "properties": {}}}}
    body: Body = {"model": "m", "tools": [tool], "messages": [msgspec.json.decode(wire.encode(message)) for message in plain]}
    refused = refusal(body, [rule for rule in rules if sent or rule.id != _AT_THE_END]) if plain else None
    return ([] if refused is None else [f"{refused[0].id}: {refused[1]}"]) + _out_of_order(plain)


def _out_of_order(messages: Sequence[Message]) -> list[str]:
    """Results stand in call order, each with the identity of its call (M4)."""
    faults: list[str] = []
    expected: list[CallRef] = []
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            expected = [CallRef(message.id, index) for index in range(len(message.calls))]
        elif isinstance(message, ToolResult):
            wanted = expected.pop(0) if expected else None
            if message.call != wanted:
                faults.append(f"message {place} is the result of {message.call}, where that of {wanted} belongs")
    return faults


def assert_valid_transcript(messages: Iterable[Message | Entry], *, sent: bool = False, rules: Sequence[Rule] = RULES) -> None:
    """Fail, saying what is wrong, unless every provider would take this conversation (see `faults_of` for the arguments).

    >>> assert_valid_transcript(await result.thread.messages())
    """
    kept = list(messages)
    faults = faults_of(kept, sent=sent, rules=rules)
    if faults:
        shown = "\n".join(f"  {place}: {_line(one)}" for place, one in enumerate(kept))
        raise AssertionError("the transcript is not valid: " + "; ".join(faults) + f"\n{shown}")


def _line(message: Message | Entry) -> str:
    text = repr(message.message if isinstance(message, Entry) else message)
    return text if len(text) <= 200 else f"{text[:199]}…"


def normalise(events: Iterable[Event | Record], names: Names | None = None) -> list[dict[str, Any]]:
    """What a journal says, as plain data that is the same for the same conversation: without times, ids as words.

    Takes `thread.events()`, what `agent.stream()` gave (live events are left out), or records of a ledger. Give the same
    `names` to the journals of one tree, so that a thread is called the same in all of them.
    """
    names = names or Names()
    return [
        _plain_event(event, names)
        for event in (decode(one) if isinstance(one, Record) else one for one in events)
        if isinstance(event, _KINDS)
    ]


def _plain_event(event: Event, names: Names) -> dict[str, Any]:
    if isinstance(event, UnknownEvent):
        kind, fields = event.type, msgspec.json.decode(event.body)
    else:
        stored = msgspec.structs.replace(event, result=None) if isinstance(event, RunFinishedEvent) else event
        built: dict[str, Any] = msgspec.to_builtins(stored)
        kind, fields = event.TYPE, {key: value for key, value in built.items() if key not in _PLACE}
    kept = {key: value for key, value in fields.items() if key not in _TIMES}
    text = msgspec.json.encode({"type": kind, "run": event.run_id, **kept}).decode()
    return msgspec.json.decode(names.plain(text))


def assert_same_journal(found: Iterable[Event | Record], expected: Iterable[Event | Record]) -> None:
    """Fail with the difference unless two journals say the same, ids and times aside.

    >>> assert_same_journal(await resumed.thread.events(), await uninterrupted.thread.events())
    """
    ours, theirs = normalise(found), normalise(expected)
    if ours != theirs:
        lines = difflib.unified_diff(_lines(theirs), _lines(ours), "expected", "found", lineterm="", n=2)
        raise AssertionError("the journals differ:\n" + "\n".join(list(lines)[:60]))


def _lines(journal: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for event in journal:
        lines.append(str(event["type"]))
        lines += [f"    {key}: {msgspec.json.encode(value).decode()}" for key, value in event.items() if key != "type"]
    return lines
