"""Requests to models, built in one line: for tests of a `ChatModel`, ours or a user's own."""

from collections.abc import Iterable, Sequence
from typing import Any

from retinue.config import ChatClientConfig
from retinue.messages import AssistantMessage, CallRef, Entry, Message, ToolResult, UserMessage
from retinue.models.port import Delta, Envelope, ModelAnswer, ModelRequest, ToolSpec

__all__ = ["Deltas", "answered", "model_request", "tool_spec"]


class Deltas(list[Delta]):
    """An `emit` that keeps what it was told."""

    def __call__(self, delta: Delta) -> None:
        self.append(delta)


def tool_spec(name: str, **properties: Any) -> ToolSpec:
    """A tool with these properties: `tool_spec("add", a={"type": "integer"})`."""
    return ToolSpec(name=name, description=f"The tool {name}.", parameters={"type": "object", "properties": properties})


def model_request(
    *messages: Message | Entry | str,
    instructions: str = "You are helpful.",
    tools: Iterable[ToolSpec | str] = (),
    settings: ChatClientConfig | None = None,
    envelope: Envelope | None = None,
    agent_id: str = "agent",
    run_id: str = "run",
    step: int = 1,
    tail: str = "",
    tools_allowed: bool = True,
) -> ModelRequest:
    """A request; a text among the messages is a user message, a text among the tools a tool without parameters."""
    specs = tuple(tool_spec(tool) if isinstance(tool, str) else tool for tool in tools)
    return ModelRequest(
        envelope=envelope or Envelope(instructions=instructions, tools=specs, settings=settings or ChatClientConfig()),
        history=[_entry(message, place) for place, message in enumerate(messages)],
        agent_id=agent_id,
        run_id=run_id,
        step=step,
        tail=tail,
        tools_allowed=tools_allowed,
    )


def answered(answer: ModelAnswer, *results: str, provider: str | None = None, message_id: str = "msg_1") -> Sequence[Entry]:
    """The entries that an answer and the results of its calls make in a history."""
    message = AssistantMessage(
        id=message_id,
        text=answer.text,
        reasoning=answer.reasoning,
        calls=answer.calls,
        provider=provider,
        extras=answer.extras,
    )
    return [
        Entry(message),
        *(
            Entry(ToolResult(call=CallRef(message_id, place), call_id=call.id, name=call.name, content=result))
            for place, (call, result) in enumerate(zip(answer.calls, results, strict=True))
        ),
    ]


def _entry(message: Message | Entry | str, place: int) -> Entry:
    if isinstance(message, Entry):
        return message
    return Entry(UserMessage(id=f"msg_u{place}", text=message) if isinstance(message, str) else message)
