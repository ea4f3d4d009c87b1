"""Results that are too long for a conversation: the model reads a part, the whole is a blob, `read_result` pages through it.

What may be read is decided by the reader's own history: a conversation that holds the reference may read the text, no other
one can, whoever knows the id (invariant 8, M12). So forks can, and a parent that a child has named one to.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from retinue.agent.call_arguments import fault, read
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.texts import bounded
from retinue.config import Verdict
from retinue.events import SubAgentInvocationStartedEvent
from retinue.ids import sha256_hex
from retinue.json_text import mend, mend_all
from retinue.messages import BlobRef, CallRef, Entry, ToolCall, ToolResult, UserMessage
from retinue.models.port import ToolSpec
from retinue.ops import PutBlob
from retinue.permissions.gate import GatedCall
from retinue.states import ResultStatus

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["READ_RESULT", "READ_TOOL", "cut", "named_in", "plain_metadata", "with_reading"]

READ_RESULT: Final = "read_result"
PAGE_CHARACTERS: Final = 20_000
MOST_TOOLS: Final = 128
"""What providers take. An agent that has so many gets no `read_result` beside them."""

_NOTE_CHARACTERS: Final = 300
_ID: Final = re.compile(r"res_[0-9a-f]{24}")


def cut(text: str, limit: int) -> tuple[str, BlobRef, PutBlob]:
    """A text of more than `limit` characters as a model reads it: its beginning, a note, its end; and where the whole is."""
    text = mend(text)
    data = text.encode()
    ref = BlobRef(digest=sha256_hex(data), characters=len(text))
    tail = limit // 5
    head = limit - tail - _NOTE_CHARACTERS
    note = (
        f"[{ref.characters - head - tail:,} of {ref.characters:,} characters are left out here. "
        f'To read them, call `{READ_RESULT}` with {{"id": "{ref.id}", "offset": {head}}}.]'
    )
    return f"{text[:head]}\n\n{note}\n\n{text[-tail:]}", ref, PutBlob(ref.digest, data)


def held(history: Sequence[Entry]) -> Iterable[BlobRef]:
    """The references that a history holds, the newest first."""
    for entry in reversed(history):
        if isinstance(entry.message, ToolResult | UserMessage):
            yield from entry.message.blobs


def named_in(text: str, history: Sequence[Entry]) -> tuple[BlobRef, ...]:
    """The references of `history` that a text names: with the text they are handed on."""
    names = set(_ID.findall(text))
    if not names:
        return ()
    return tuple({ref.id: ref for ref in held(history) if ref.id in names}.values())


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A result's metadata as JSON: what is none becomes its text."""
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(metadata))) if metadata else {}
    except (TypeError, ValueError, OverflowError, RecursionError):
        try:
            plain = mend_all(msgspec.to_builtins(metadata, enc_hook=_told, str_keys=True))
            return dict(msgspec.json.decode(msgspec.json.encode(plain)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return {"unreadable": bounded(str(error), 200)}


def _told(value: Any) -> str:
    return bounded(mend(str(value)), 1_000)


class _Arguments(msgspec.Struct, frozen=True):
    id: str
    offset: int = 0
    limit: int = PAGE_CHARACTERS


_FORM: Final = '{"id": "res_…", "offset": 0, "limit": 20000}'


class ReadTool:
    """`CallHandler` of `read_result`: the same for every agent."""

    repeatable = True
    delegates = False
    spec = ToolSpec(
        name=READ_RESULT,
        description=(
            "Reads on in a tool result or a subagent's answer that was cut because it was too long. "
            "The note in its place names the id and the offset."
        ),
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "The id in the note, `res_…`."},
                "offset": {"type": "integer", "minimum": 0, "description": "The first character to read (default 0)."},
                "limit": {"type": "integer", "minimum": 1, "description": f"Characters to read (default {PAGE_CHARACTERS})."},
            },
            "required": ["id"],
            "additionalProperties": False,
        },
    )

    async def gated(self, run: "Run", arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`."""
        name = arguments.get("id")
        return GatedCall(
            tool=READ_RESULT,
            arguments=arguments,
            main_argument=name if isinstance(name, str) else None,
            need=Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=run.definition.agent_id,
        )

    async def refusal(self, run: "Run", call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        parsed = _parse(call)
        return parsed if isinstance(parsed, CallOutcome) else None

    async def prepare(self, run: "Run", ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        parsed = _parse(call)
        if isinstance(parsed, CallOutcome):
            return parsed

        async def execute() -> CallOutcome:
            return await _page(run, parsed)

        return Prepared(execute=execute, barrier=True)  # what it reads may only be staged

    async def reattach(
        self, run: "Run", ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`: never called, there is no child."""
        raise NotImplementedError


READ_TOOL: Final = ReadTool()


def _parse(call: ToolCall) -> _Arguments | CallOutcome:
    parsed = read(call, _Arguments, ("id", "offset", "limit"), _FORM)
    if isinstance(parsed, CallOutcome):
        return parsed
    if parsed.offset < 0 or parsed.limit < 1:
        wrong = f"`offset` was {parsed.offset}" if parsed.offset < 0 else f"`limit` was {parsed.limit}"
        return fault(call.name, wrong, f"Expected: {_FORM}")
    return parsed


async def _page(run: "Run", wanted: _Arguments) -> CallOutcome:
    name = wanted.id.strip()
    ref = next((one for one in held(run.projection.history) if one.id == name), None)
    data = None if ref is None else await run.tree.services.ledger.blob(ref.digest)
    if ref is None or data is None:
        text = f"There is no stored result `{bounded(name, 60)}` in this conversation. The note of a cut result names its id."
        return CallOutcome(content=text, status=ResultStatus.ERROR)
    if wanted.offset >= ref.characters:
        text = f"`{name}` has {ref.characters:,} characters: there is nothing at offset {wanted.offset}."
        return CallOutcome(content=text, status=ResultStatus.ERROR)
    size = min(wanted.limit, run.tree.limits.max_result_characters - _NOTE_CHARACTERS)
    end = min(wanted.offset + size, ref.characters)
    more = f"go on with offset {end}" if end < ref.characters else "this is the end"
    head = f"[{name}: characters {wanted.offset:,} to {end:,} of {ref.characters:,}; {more}]"
    return CallOutcome(content=f"{head}\n{data.decode()[wanted.offset : end]}")


def with_reading(tools: Mapping[str, CallHandler], *, needed: bool) -> Mapping[str, CallHandler]:
    """The tools of an agent, with `read_result` last: where there are tools whose results may be cut, or `needed`."""
    if READ_RESULT in tools or len(tools) >= MOST_TOOLS or not (tools or needed):
        return tools
    return MappingProxyType({**tools, READ_RESULT: READ_TOOL})
