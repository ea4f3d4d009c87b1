"""A scripted model and a ledger in memory that keep what they were asked: to look at requests and commits, in one process."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Outcome
from retinue.messages import Message, ToolResult
from retinue.models.port import Emit, ModelAnswer, ModelRequest
from retinue.models.script import ScriptSource
from retinue.models.scripted import Reply, ScriptedModel
from retinue.ops import Op, Receipt

__all__ = ["RecordingLedger", "RecordingModel", "calls", "messages_of", "results_of"]


class RecordingModel(ScriptedModel):
    """A `ScriptedModel` that keeps each request as it was sent, in order: the history is copied.

    >>> model = RecordingModel({"parent": [{"calls": [{"name": "agent_list"}]}, "done"]})
    >>> [request.agent_id for request in model.requests]
    """

    def __init__(self, script: ScriptSource | Callable[[ModelRequest], Reply | Awaitable[Reply]], **options: Any) -> None:
        super().__init__(script, **options)
        self.requests: list[ModelRequest] = []

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        self.requests.append(msgspec.structs.replace(request, history=list(request.history)))
        return await super().answer(request, emit)

    def asked(self, agent_id: str) -> list[ModelRequest]:
        """The requests of one agent."""
        return [request for request in self.requests if request.agent_id == agent_id]


class RecordingLedger(MemoryLedger):
    """A ledger in memory that keeps the ops of each commit that succeeded, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[Op, ...]] = []

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """See `Ledger`."""
        receipt = await super().commit(ops)
        self.commits.append(tuple(ops))
        return receipt

    def submit(self, ops: Sequence[Op]) -> Outcome[Receipt]:
        """See `Ledger`."""
        future = super().submit(ops)
        if future.exception() is None:
            self.commits.append(tuple(ops))
        return future


def calls(*made: tuple[str, Mapping[str, Any] | str], text: str = "") -> dict[str, Any]:
    """A turn of a script that makes these calls, each a name and its arguments (an object, or text sent as it is)."""
    turn: dict[str, Any] = {"calls": [{"name": name, "arguments": arguments} for name, arguments in made]}
    return {**turn, "text": text} if text else turn


def messages_of(request: ModelRequest) -> list[Message]:
    """The messages of a request's history."""
    return [entry.message for entry in request.history]


def results_of(request: ModelRequest) -> list[str]:
    """The texts of the tool results in a request's history, in order."""
    return [message.content for message in messages_of(request) if isinstance(message, ToolResult)]
