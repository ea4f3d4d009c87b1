"""What a chat model is: one coroutine that answers a request, telling deltas as they come."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

import msgspec

from retinue.config import ChatClientConfig
from retinue.messages import Entry, FinishReason, MediaRef, OutputSpec, ToolCall, Usage

__all__ = [
    "ChatModel",
    "Delta",
    "Emit",
    "Envelope",
    "LoadMedia",
    "ModelAnswer",
    "ModelRequest",
    "ReasoningDelta",
    "TextDelta",
    "ToolSpec",
]


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request before the conversation: the same, byte for byte, until compaction (M11).

    `wire` is a place for an adapter to keep the bytes it made, by format.
    """

    instructions: str
    tools: tuple[ToolSpec, ...]
    settings: ChatClientConfig = ChatClientConfig()
    digest: str = ""
    wire: dict[str, Any] = {}


LoadMedia: TypeAlias = Callable[[MediaRef], Awaitable[bytes]]
"""Gives the bytes of a picture or a file.

Raises:
    LedgerError: they cannot be read."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Envelope, history, tail. `tail` is volatile text after the conversation. `tools_allowed` False asks for text only:
    the tools stay in the envelope, so that the prefix does not move. `output` is the form that the final text must have:
    a model is told of it after the conversation, as its provider knows how, for the prefix must not move for it either.
    `async with request.pause():` is for a wait that is no work, as before a retry: others may work meanwhile (M9).
    `await request.media(ref)` gives the bytes of a picture or a file of the history; None where it holds none."""

    envelope: Envelope
    history: Sequence[Entry]
    agent_id: str
    run_id: str
    step: int
    depth: int = 0
    tail: str = ""
    tools_allowed: bool = True
    output: OutputSpec | None = None
    pause: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    media: LoadMedia | None = None


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Some more text of the answer."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Some more reasoning."""

    text: str


Delta: TypeAlias = TextDelta | ReasoningDelta
Emit: TypeAlias = Callable[[Delta], None]


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. `calls` hold the provider's own ids; `extras` go back to the same provider with the message.

    `cost` is None where the price is not known.
    """

    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    cost: Decimal | None = None
    finish_reason: FinishReason = "stop"
    extras: dict[str, Any] = {}
    model: str | None = None


Begin: TypeAlias = Callable[["ModelRequest", Emit], ModelAnswer | Awaitable[ModelAnswer]]
"""What a model may have as `begin_answer`, beside `answer`: the answer if it is there at once, else what is to be awaited for it.

If that has `close_unbegun`, it is called in the end, and does nothing where it was awaited."""


class ChatModel(Protocol):
    """A model that can be asked. Implementations own no state of a conversation.

    One that holds a key may have `secrets() -> Iterable[str | SecretRef]`: those are kept out of journals and prompts.
    """

    provider: str
    """Who serves it, for errors, prices and extras: `openai`, `127.0.0.1:8080`, `scripted`."""
    name: str
    """The model's name at that provider."""

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """Ask once. Deltas go to `emit` in order; the answer returned is complete, or nothing is.

        Raises:
            ModelError: naming provider, model, whether a retry may help, and what to do.
        """
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...
