"""The body of a request in which calls travel as JSON (`tool_mode="schema"`): tools in the system text, history as words.

For servers whose own tool calling is unreliable but who hold a model to a JSON schema: llama.cpp, vLLM, Ollama.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from retinue.config import ChatClientConfig
from retinue.json_text import dumps
from retinue.messages import AssistantMessage, Entry, Message, ToolCall, ToolResult
from retinue.models.form import FORM_NAME, MOST_CALLS, FormReader, form_of, manual_of
from retinue.models.port import Emit, Envelope, ModelRequest
from retinue.models.profiles import Profile
from retinue.models.wire import RESERVED, ChatWire, arguments_of

__all__ = ["FormWire"]

_NARROWING: Final = frozenset({"tool_choice", "parallel_tool_calls"})


class FormWire(ChatWire):
    """As `ChatWire`; only user and assistant messages, and a `response_format` where there are tools.

    `tool_choice` (`none`, `required`, or one function) and `parallel_tool_calls` (False: one call at a time) among the
    settings (`ChatClientConfig(extra=…)`) are not sent; they narrow the form.
    """

    reserved = RESERVED | {"response_format"}

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.format = "/".join(("form/1", *profile.media))

    @property
    def shows_results(self) -> bool:
        """Always: results are messages of a user in this wire."""
        return True

    def encode(self, message: Message) -> bytes:
        """One message of the history. Calls and results are JSON inside a text, so that neither can be taken for words."""
        if isinstance(message, ToolResult):
            told = {"result_of": message.name, "call": message.call.index + 1, "content": self.told_result(message)}
            return dumps({"role": "user", "content": dumps(told).decode()})
        if isinstance(message, AssistantMessage):
            return dumps({"role": "assistant", "content": _said(message)})
        return super().encode(message)

    def _prefix(self, envelope: Envelope, model: str, *, stub: bool) -> bytes:
        texts = [envelope.instructions, manual_of(envelope.tools) if envelope.tools else ""]
        system = "\n\n".join(text for text in texts if text.strip())
        return super()._prefix(msgspec.structs.replace(envelope, instructions=system, tools=()), model, stub=False)

    def settings(self, settings: ChatClientConfig) -> dict[str, Any]:
        """See `ChatWire`."""
        extra = {key: value for key, value in settings.extra.items() if key not in _NARROWING}
        return super().settings(replace(settings, extra=extra))

    def needs_stub(self, request: ModelRequest) -> bool:
        """Never: there are no calls in this wire."""
        return False

    def ending(self, request: ModelRequest, *, stub: bool) -> bytes:
        """The form that is asked for, made once for an envelope."""
        if not self.asks_form(request):
            return super().ending(request, stub=False)
        if request.output is not None:
            return self._ending(request)
        wire, key = request.envelope.wire, f"{self.format}/ending/{request.tools_allowed}"
        cached = wire.get(key)
        if cached is None:
            cached = wire[key] = self._ending(request)
        return cast("bytes", cached)

    def _ending(self, request: ModelRequest) -> bytes:
        extra = request.envelope.settings.extra
        choice = extra.get("tool_choice") if request.tools_allowed else "none"
        answer = request.output.schema if request.output is not None else None
        most = 1 if extra.get("parallel_tool_calls") is False else MOST_CALLS
        form = form_of(request.envelope.tools, choice, answer, most_calls=most)
        # Not `strict`: the schemas of tools are what their authors made them.
        wanted = {"type": "json_schema", "json_schema": {"name": FORM_NAME, "schema": form}}
        return b'],"response_format":' + dumps(wanted) + b"}"

    def asks_form(self, request: ModelRequest) -> bool:
        """Whether the answer comes in the form. An agent without tools is asked for words."""
        return bool(request.envelope.tools)

    def reader(self, request: ModelRequest, emit: Emit) -> FormReader | None:
        """See `ChatWire`."""
        if not self.asks_form(request):
            return None
        return FormReader(emit, strict=request.tools_allowed, structured=request.output is not None)

    def tail_text(self, request: ModelRequest) -> str:
        """See `ChatWire`."""
        if request.output is None or not self.asks_form(request):
            return super().tail_text(request)
        schema = dumps(request.output.schema).decode()
        words = f'Your final answer is not a text: write {{"answer": …}} with JSON that fits this schema:\n{schema}'
        return f"{words}\n\n{request.tail}" if request.tail.strip() else words

    def tail(self, request: ModelRequest) -> tuple[Sequence[Entry], bytes]:
        """See `ChatWire`. Always a message of its own: what is joined to a result would be data."""
        text = self.tail_text(request)
        return request.history, dumps({"role": "user", "content": text}) if text else b""


def _said(message: AssistantMessage) -> str:
    if not message.calls:
        return message.text if message.text.strip() else "(no answer)"
    said: dict[str, Any] = {"answer": message.text} if message.text.strip() else {}
    return dumps(said | {"calls": [_call(call) for call in message.calls]}).decode()


def _call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": msgspec.Raw(arguments_of(call.arguments).encode())}
