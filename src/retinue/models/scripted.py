"""A model that says what a script or a function says: for tests, examples and the demo. It needs no network and no key.

What it says follows from the transcript (agent id, turn within the run), never from a count of calls: a run that another
process resumes is answered as if nothing had happened.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from retinue.clock import Clock, SystemClock
from retinue.config import ChatClientConfig
from retinue.errors import ModelError
from retinue.messages import AssistantMessage, Message, ToolResult, Usage, UserMessage
from retinue.models.faults import Fault, Target
from retinue.models.port import Delta, Emit, ModelAnswer, ModelRequest, ReasoningDelta, TextDelta
from retinue.models.script import Script, ScriptSource, Turn, View, parse_script

__all__ = ["Reply", "ScriptedModel"]

Reply: TypeAlias = ModelAnswer | Turn | Mapping[str, Any] | str
"""What a function may answer: a whole answer, a turn, or just the text."""

ReplyFunction: TypeAlias = Callable[[ModelRequest], Reply | Awaitable[Reply]]


class _Plan:
    """A turn that is the same whatever the conversation: answer and deltas made once."""

    __slots__ = ("answer", "deltas")

    def __init__(self, answer: ModelAnswer, deltas: list[Delta]) -> None:
        self.answer = answer
        self.deltas = deltas


class _Later:
    """The reply of an async function, and what it becomes."""

    __slots__ = ("_become", "_begun", "_reply")

    def __init__(self, reply: Awaitable[Reply], become: Callable[[Reply], ModelAnswer | Awaitable[ModelAnswer]]) -> None:
        self._reply = reply
        self._become = become
        self._begun = False

    def __await__(self) -> Generator[Any, Any, ModelAnswer]:
        self._begun = True
        return self._answer().__await__()

    async def _answer(self) -> ModelAnswer:
        made = self._become(await self._reply)
        return made if isinstance(made, ModelAnswer) else await made

    def close_unbegun(self) -> None:
        if not self._begun and inspect.iscoroutine(self._reply):
            self._reply.close()


class ScriptedModel:
    """A model that follows a script (`retinue.models.script` says how one is written) or asks a function.

    >>> ScriptedModel([{"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, "It is {result[0]}."])
    >>> ScriptedModel(lambda request: f"You said {request.history[-1].message.text}")

    Args:
        script: A script, the path of one, or a function (plain or async) from the request to a `Reply`.
        name: The model's name; the script's own if left out.
        clock: For the delays of turns.

    Raises:
        ConfigurationError: the script cannot be used.
    """

    provider = "scripted"

    def __init__(self, script: ScriptSource | ReplyFunction, *, name: str | None = None, clock: Clock | None = None) -> None:
        self._function: ReplyFunction | None = None
        self._path: str | None = None
        if callable(script):
            self._function = script
            self.script = Script()
        else:
            self.script = parse_script(script)
            if isinstance(script, (str, Path)):
                self._path = str(script)
        self.name = name or self.script.model
        self._clock = clock or SystemClock()
        self._plans: dict[tuple[str, int], _Plan] = {}

    def __repr__(self) -> str:
        return f"ScriptedModel({self.reference or self.name!r})"

    @property
    def reference(self) -> str | None:
        """`scripted:<path>`, which `resolve_model` makes this model of; None if it did not come from a file."""
        return f"scripted:{self._path}" if self._path else None

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        made = self.begin_answer(request, emit)
        return made if isinstance(made, ModelAnswer) else await made

    def begin_answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer | Awaitable[ModelAnswer]:
        """The answer, unless a turn takes its time or the function is async: then what is to be awaited for it."""
        plan = self._plans.get((request.agent_id, request.step))
        if plan is not None:
            for delta in plan.deltas:
                emit(delta)
            return plan.answer
        if self._function is not None:
            reply = self._function(request)
            if inspect.isawaitable(reply):
                return _Later(reply, lambda made: self._replied(made, request, emit))
            return self._replied(reply, request, emit)
        turn = self.script.turn(request.agent_id, request.step)
        if turn is None:
            raise self._no_turn(request)
        return self._play(turn, request, emit)

    def price(self, usage: Usage, settings: ChatClientConfig) -> Decimal | None:
        """What a call would cost that used this, at the script's price; None if it has none."""
        return self.script.cost_of(usage)

    async def close(self) -> None:
        """See `ChatModel`."""

    def _replied(self, reply: Reply, request: ModelRequest, emit: Emit) -> ModelAnswer | Awaitable[ModelAnswer]:
        if isinstance(reply, ModelAnswer):
            for delta in _deltas(reply.reasoning, [reply.text] if reply.text else []):
                emit(delta)
            return reply
        if isinstance(reply, str):
            reply = Turn(text=reply)
        if not isinstance(reply, Turn):
            reply = parse_script([reply]).agents["*"].turns[0]
        return self._play(reply, request, emit, fill=False)

    def _play(self, turn: Turn, request: ModelRequest, emit: Emit, *, fill: bool = True) -> ModelAnswer | Awaitable[ModelAnswer]:
        view = _view(request)
        templates = fill and turn.has_templates()
        if templates:
            turn = turn.filled(view)
        if turn.delay or turn.chunk_delay:
            return self._play_slowly(turn, request, emit, view)
        deltas = _deltas(turn.reasoning, turn.pieces())
        for delta in deltas:
            emit(delta)
        answer = self._answer(turn, request, view)
        if fill and not (templates or turn.usage == "estimate"):
            self._plans[request.agent_id, request.step] = _Plan(answer, deltas)
        return answer

    async def _play_slowly(self, turn: Turn, request: ModelRequest, emit: Emit, view: View) -> ModelAnswer:
        if turn.delay:
            await self._clock.sleep(turn.delay)
        for delta in _deltas(turn.reasoning, turn.pieces()):
            emit(delta)
            if turn.chunk_delay:
                await self._clock.sleep(turn.chunk_delay)
        return self._answer(turn, request, view)

    def _answer(self, turn: Turn, request: ModelRequest, view: View) -> ModelAnswer:
        if turn.error is not None:
            raise self._error(turn)
        return self.script.answer(turn, request.step, view)

    def _target(self) -> Target:
        return Target(self.provider, self.name, self._path or "the script", local=True)

    def _error(self, turn: Turn) -> ModelError:
        error = turn.error
        assert error is not None
        fault = Fault(error.code, error.message, error.status, error.retry_after, final=not error.retryable)
        return fault.error(self._target())

    def _no_turn(self, request: ModelRequest) -> ModelError:
        return ModelError(
            f"the script of `scripted` model `{self.name}` has no turn {request.step} for agent `{request.agent_id}`"
            "; not retried",
            provider=self.provider,
            model=self.name,
            code="bad_request",
            remedy=self._what_to_add(request),
        )

    def _what_to_add(self, request: ModelRequest) -> str:
        """For an agent that the script has: a turn. For another: turns under its name, which may be misspelled there."""
        named = tuple(self.script.agents)
        if not named or request.agent_id in named or "*" in named:
            return "add the turn, or a `fallback`"
        there = ", ".join(f"`{name}`" for name in named[:8])
        return f"add turns for `{request.agent_id}`, or a `fallback`; the script has turns for {there}"


def _deltas(reasoning: str | None, pieces: list[str]) -> list[Delta]:
    thought: list[Delta] = [ReasoningDelta(reasoning)] if reasoning else []
    return [*thought, *(TextDelta(piece) for piece in pieces)]


def _view(request: ModelRequest) -> View:
    def last_input() -> str:
        for entry in reversed(request.history):
            message = entry.message
            if isinstance(message, UserMessage) and message.notice is None:
                return message.text
        return ""

    def results() -> list[tuple[str, str]]:
        messages = (entry.message for entry in request.history)
        return [(message.name, message.content) for message in messages if isinstance(message, ToolResult)]

    def characters() -> int:
        return len(request.envelope.instructions) + sum(_length(entry.message) for entry in request.history)

    return View(request.agent_id, last_input, results, characters)


def _length(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        return len(message.text) + sum(len(call.arguments) for call in message.calls)
    return len(message.text) if isinstance(message, UserMessage) else len(message.content)
