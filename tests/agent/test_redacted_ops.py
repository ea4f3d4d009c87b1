"""No op carries a known secret, whatever field it stands in, and none reaches the ledger's file, an event, or a log."""

import logging
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue import Agent, Runtime, ScriptedModel, SubAgent
from retinue.agent.redacting import PLACES, clean_op
from retinue.messages import CallRef
from retinue.models.port import ModelRequest
from retinue.ops import NewEvent, Op, PutBlob
from retinue.rows import ForkPoint, ThreadKey
from retinue.secrets import REDACTED, Redactor
from retinue.testing import calls

pytestmark = pytest.mark.anyio

KEY = 'sk-live/4f"9+tail'
OPS: tuple[type[msgspec.Struct], ...] = typing.get_args(Op)
UNNAMED = [one for one in OPS if one is not PutBlob]
SCOPE = {"PutState": {"user", "session", "name", "expect"}, "PutBlob": {"data"}}
"""What is a name in one op only: a session's state is found by it."""


def redactor() -> Redactor:
    made = Redactor()
    made.require(KEY)
    return made


def filled(kind: Any, text: str, *, name: str = "") -> Any:
    """A value of this type, in which every text that is no place is `text`."""
    made: Any = text
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        made = filled(typing.get_args(kind)[0], text, name=name)
    elif typing.get_origin(kind) is tuple:
        made = (filled(typing.get_args(kind)[0], text, name=name),)
    elif typing.get_origin(kind) is dict or kind is dict:
        made = {text: [text, {"k": text}]}
    elif kind is ThreadKey:
        made = ThreadKey("user", "session", "thread")
    elif kind in (CallRef, ForkPoint):
        made = CallRef("m", 0) if kind is CallRef else ForkPoint(ThreadKey("user", "session", "thread"), 1, 1)
    elif kind is str:
        made = "place" if name in PLACES else text
    elif kind is bytes:
        made = msgspec.json.encode({"text": text, "key": "place"})
    elif kind is msgspec.Raw:
        made = msgspec.Raw(msgspec.json.encode({"text": [text]}))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        made = next(iter(kind))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        kept = SCOPE.get(kind.__name__, set())
        made = kind(**{one: filled(hints[one], "place" if one in kept else text, name=one) for one in kind.__struct_fields__})
    elif kind in (int, float, bool):
        made = kind(1)
    elif typing.get_origin(kind) is typing.Literal:
        made = typing.get_args(kind)[0]
    return made


def everything(op: msgspec.Struct) -> str:
    """All that would be written of an op, bytes included, as one text without its escapes."""
    values: list[Any] = [op]
    texts: list[str] = []
    while values:
        value = values.pop()
        if isinstance(value, msgspec.Struct):
            values += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            values += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            values += list(cast("list[Any]", value))
        elif isinstance(value, bytes | msgspec.Raw):
            values.append(msgspec.json.decode(bytes(value)))
        elif isinstance(value, str):
            texts.append(value)
    return "\n".join(texts)


@pytest.mark.parametrize("kind", UNNAMED)
@given(before=st.text(alphabet='a"\\/ ü', max_size=3), after=st.text(alphabet='b"\\/ ü', max_size=3))
def test_no_text_of_any_op_keeps_a_secret(kind: type[msgspec.Struct], before: str, after: str) -> None:
    op = filled(kind, f"{before}{KEY}{after}")
    clean = clean_op(redactor(), op)
    assert KEY not in everything(clean)
    assert (REDACTED in everything(clean)) == (KEY in everything(op))


@pytest.mark.parametrize("kind", OPS)
def test_an_op_without_a_secret_stays_the_same_object(kind: type[msgspec.Struct]) -> None:
    op = filled(kind, "harmless")
    assert clean_op(redactor(), op) is op


def test_places_in_the_body_of_an_event_stay() -> None:
    op = filled(NewEvent, KEY)
    assert msgspec.json.decode(redactor().record(op.body))["key"] == "place"


class Kept(logging.Handler):
    """Keeps what is logged, as it would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def reply(request: ModelRequest) -> Any:
    if request.agent_id != "boss" or request.step > 1:
        return f"done {KEY}"
    return calls(
        ("helper", {"input": f"use {KEY}"}),
        ("agent_spawn", {"agent_id": "worker", "label": f"with {KEY}"}),
        ("agent_spawn", {"agent_id": "worker", "task": KEY, "label": KEY}),
        (f"no_{KEY}", {"x": KEY}),
    )


@pytest.mark.parametrize("by_reason", [False, True])
async def test_the_file_of_a_ledger_events_and_logs_are_free_of_a_secret_in_metadata(tmp_path: Path, by_reason: bool) -> None:
    metadata = {"token": KEY, KEY: "x", "nested": [{"k": KEY}]}
    children = [
        SubAgent("helper", f"D {KEY}.", instructions=f"I {KEY}.", surface="tool", metadata=metadata, requires_permission=False),
        SubAgent("worker", f"D {KEY}.", instructions=f"I {KEY}.", metadata=metadata, requires_permission=False),
    ]
    kept = Kept()
    logger = logging.getLogger("retinue")
    logger.addHandler(kept)
    seen: list[Any] = []
    try:
        async with Runtime(ledger=tmp_path / "l.db", secrets=[KEY]) as runtime:
            boss = Agent("boss", model=ScriptedModel(reply), instructions=KEY, subagents=children, runtime=runtime)
            async for event in boss.stream(f"go {KEY}"):
                seen.append(event)
                if by_reason and event.TYPE == "SUBAGENT_INVOCATION_STARTED":
                    await boss.cancel(reason=f"because of {KEY}")
            logger.warning("said %s", KEY)
            threads = await runtime.ledger.threads(hidden=True)
            data = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())  # noqa: ASYNC240
    finally:
        logger.removeHandler(kept)
    assert len(threads) == 4 or by_reason
    data += b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())  # noqa: ASYNC240
    for form in redactor().forms:
        assert form.encode() not in data
        assert form not in "\n".join(kept.lines)
        assert form not in repr(seen)
    assert REDACTED.encode() in data
    assert any("said" in line for line in kept.lines)
