"""One model call of a run: the request, the deltas, the answer into the journal."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from retinue.agent.answers import call_name, checked_answer, checked_delta
from retinue.agent.begun import until_done
from retinue.agent.budget import set_aside, settle
from retinue.agent.media import loader
from retinue.agent.middleware import ModelCall, Reasoning, accepted, chain, overriding
from retinue.agent.next_step import AskModel
from retinue.agent.slots import Hold
from retinue.agent.started_call import called_twice
from retinue.errors import LedgerError, ModelError
from retinue.events import MessageEvent, ModelCalledEvent, ReasoningDeltaEvent, TextDeltaEvent
from retinue.ids import new_id, sha256_hex
from retinue.messages import AssistantMessage, ToolCall
from retinue.models.port import Begin, ChatModel, Delta, ModelAnswer, ModelRequest, TextDelta
from retinue.ops import Draft, DropDraft, PutDraft
from retinue.secrets import RedactedStream
from retinue.tools.errors import is_fault

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["ask"]

T = TypeVar("T")

DRAFT_BYTES = 8 * 1024
DRAFT_MS = 2_000
MAX_ANSWER = 4_000_000
"""Characters of text, or of reasoning, in one answer."""
TASKS_TOLD = 10
WRAP_UP = (
    "This is the last turn: no more tools can be called. Write your final answer now from what you have, "
    "and say plainly what is missing."
)


class _Stream:
    """What has been streamed of a message: shown to viewers, and kept over a kill by draft checkpoints (D-33)."""

    __slots__ = ("_checked_at", "_checked_size", "_clean", "_ended", "_reasoned", "_run", "_size", "message_id", "parts")

    def __init__(self, run: "Run", message_id: str) -> None:
        self._run = run
        self.message_id = message_id
        self.parts: list[str] = []
        self._size = 0
        self._reasoned = 0
        self._checked_size = 0
        self._checked_at = 0
        self._ended = False
        redactor = run.tree.services.redactor
        self._clean = (RedactedStream(redactor), RedactedStream(redactor)) if redactor.active else None

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def drafted(self) -> bool:
        return self._checked_size > 0

    def __call__(self, delta: Delta) -> None:
        if self._ended:
            return  # a call that was given up, or a model that emits after its answer
        text, reasoning = checked_delta(self._run.definition.model, delta), not isinstance(delta, TextDelta)
        if self._clean is not None:
            text = self._clean[reasoning].feed(text)
            if not text:
                return
        self._take(text, reasoning)

    def end(self) -> None:
        """Nothing comes any more: what was held back, because it might have been the beginning of a secret, is none."""
        self._ended = True
        if self._clean is not None:
            for reasoning, clean in enumerate(self._clean):
                if rest := clean.flush():
                    self._take(rest, bool(reasoning))

    def _take(self, text: str, reasoning: bool) -> None:
        run = self._run
        if reasoning:
            if run.tree.viewers:
                run.show(ReasoningDeltaEvent(message_id=self.message_id, offset=self._reasoned, text=text))
            self._reasoned += len(text)
            if self._reasoned > MAX_ANSWER:
                raise self._endless()
            return
        if run.tree.viewers:
            run.show(TextDeltaEvent(message_id=self.message_id, offset=self._size, text=text))
        self.parts.append(text)
        self._size += len(text)
        if self._size > MAX_ANSWER:
            raise self._endless()
        now = run.journal.clock.now_ms()
        if not self._checked_at:
            self._checked_at = now
        # of a long text, all drafts together are some times it
        grown = self._size - self._checked_size >= max(DRAFT_BYTES, self._size // 8)
        if (grown or now - self._checked_at >= DRAFT_MS) and not run.journal.busy:
            self._checked_size, self._checked_at = self._size, now
            run.journal.stage_op(PutDraft(run.journal.key, Draft(self.message_id, self.text, now)))
            run.journal.flush_soon()

    def _endless(self) -> ModelError:
        """A model that does not come to an end must not fill the memory."""
        model = self._run.definition.model
        return ModelError(
            f"model `{model.name}` ({model.provider}) has said {MAX_ANSWER:,} characters and comes to no end; not retried",
            provider=model.provider,
            model=model.name,
            code="answer_too_long",
            remedy="set `max_tokens`, or use a model that stops; the text so far is kept",
        )


async def ask(run: "Run", step: AskModel) -> None:
    """Ask the run's model once and stage what it answered, or that it failed; and what its budget has left (M13)."""
    try:
        await _ask(run, step)
    finally:
        if run.row.allowances:
            settle(run)


async def _ask(run: "Run", step: AskModel) -> None:
    """Ask, and stage what came.

    A partial text of a call that was cancelled or broke is staged as a message without calls: a half call is dropped whole.
    """
    definition, journal = run.definition, run.journal
    projection = journal.projection
    hold = run.place.hold()
    request = ModelRequest(
        envelope=run.envelope,
        history=tuple(projection.history),  # a model may keep it, or change it: the thread is not its own
        agent_id=definition.agent_id,
        run_id=run.row.run_id,
        step=step.turn,
        depth=run.row.depth,
        tail=_tail(run, step),
        tools_allowed=not (step.wrap_up or step.repair),
        output=projection.output,
        pause=hold.pause,
        media=loader(run) if projection.media else None,
    )
    stream, started = _Stream(run, new_id("msg")), journal.clock.monotonic()
    run.stopping.interruptible = True
    try:
        if definition.middleware:
            request = await _before_reasoning(run, step, request)
        if run.stop_reason is not None:  # asked to stop meanwhile: next_step decides
            return
        if run.row.allowances:
            await set_aside(run, request)
        answer = checked_answer(definition.model, await _call_model(run, step, request, stream, hold))
    except ModelError as error:
        _stage_partial(run, stream)
        _stage_error(run, stream, error, started)
        run.stopping.interruptible = False
        await run.stopping.absorb()
        return
    except BaseException:
        _stage_partial(run, stream)
        raise
    finally:
        run.stopping.interruptible = False
    stream.end()
    message = AssistantMessage(
        id=stream.message_id,
        text=answer.text,
        reasoning=answer.reasoning,
        calls=_calls(run, stream.message_id, answer.calls) if answer.calls else (),
        provider=definition.model.provider if answer.extras or answer.reasoning else None,
        extras=answer.extras,
    )
    journal.stage(MessageEvent(message=message))
    journal.stage(
        ModelCalledEvent(
            provider=definition.model.provider,
            model=answer.model or definition.model.name,
            message_id=stream.message_id,
            usage=answer.usage,
            cost=answer.cost,
            envelope_hash=run.envelope.digest,
            finish_reason=answer.finish_reason,
            duration_ms=int((journal.clock.monotonic() - started) * 1000),
        )
    )
    if stream.drafted:
        journal.stage_op(DropDraft(journal.key, stream.message_id))
    await run.stopping.absorb()


def _tail(run: "Run", step: AskModel) -> str:
    """What is told after the conversation, and never becomes part of it (M11): that this is the last turn, which tasks go on."""
    parts = [WRAP_UP] if step.wrap_up else []
    if tasks := list(run.projection.tasks.values()):
        listed = ", ".join(f"{task_id} (`{name}`)" for task_id, name in tasks[-TASKS_TOLD:])
        more = f", and {len(tasks) - TASKS_TOLD} more" if len(tasks) > TASKS_TOLD else ""
        parts.append(f"Tasks in the background whose end you have not been told: {listed}{more}.")
    return "\n\n".join(parts)


async def _before_reasoning(run: "Run", step: AskModel, request: ModelRequest) -> ModelRequest:
    middleware = overriding(run.definition.middleware, "before_reasoning")
    if not middleware:
        return request
    state = Reasoning(agent_id=request.agent_id, run_id=request.run_id, turn=step.turn, history=request.history, state=run.state)

    async def all_of_them() -> None:
        for one in middleware:
            await one.before_reasoning(state)

    try:
        await _within_grace(run, all_of_them, "before_reasoning of a middleware")
    except BaseException as error:
        stopped = run.stop_reason is not None and isinstance(error, asyncio.CancelledError)  # before it began
        if stopped or not is_fault(error):
            raise
        raise _author_fault(run, error, "a middleware", "middleware_raised") from error
    if not state.tail:
        return request
    tail = "\n\n".join(part for part in (*state.tail, request.tail) if part)
    return msgspec.structs.replace(request, tail=run.tree.services.redactor.text(tail))


async def _call_model(run: "Run", step: AskModel, request: ModelRequest, stream: _Stream, hold: Hold) -> ModelAnswer:
    model = run.definition.model
    faults: list[BaseException] = []
    middleware = overriding(run.definition.middleware, "around_model_call") if run.definition.middleware else ()
    begin = _begin_of(model)
    try:
        async with hold:
            if not middleware:
                if begin is not None:
                    made = begin(request, stream)
                    if isinstance(made, ModelAnswer):
                        return made
                    try:
                        return await _within_grace(run, lambda: made)
                    finally:
                        _close_unbegun(made)
                if _heeds_cancellation(model):
                    await run.branch.land()
                    return await model.answer(request, stream)
                return await _within_grace(run, lambda: model.answer(request, stream))
            return await _within_grace(run, lambda: _around_model(run, step, request, stream, faults))
    except ModelError:
        raise
    except BaseException as error:
        stopped = run.stop_reason is not None and isinstance(error, asyncio.CancelledError)  # before its call began
        unread = isinstance(error, LedgerError) and request.media is not None  # no fault of the model: it can be resumed
        if stopped or unread or not is_fault(error):
            raise
        if middleware and error not in faults:
            raise _author_fault(run, error, "a middleware", "middleware_raised") from error
        raise _author_fault(run, error, f"model `{model.name}` ({model.provider})", "model_raised") from error


async def _around_model(
    run: "Run", step: AskModel, request: ModelRequest, stream: _Stream, faults: list[BaseException]
) -> ModelAnswer:
    """The model call with the middleware around it; what the model itself raised is kept in `faults`."""
    call = ModelCall(request=request, agent_id=request.agent_id, run_id=request.run_id, turn=step.turn, state=run.state)

    at_work: list[ModelRequest] = []

    async def innermost(passed: ModelCall) -> ModelAnswer:
        asked = accepted(call, passed).request
        if at_work:
            raise called_twice(
                f"the model call of `{call.agent_id}`", "while the first call is still at work", "wait for it first"
            )
        at_work.append(asked)
        try:
            return await run.definition.model.answer(asked, stream)
        except BaseException as error:
            faults.append(error)
            raise
        finally:
            at_work.clear()

    middleware = overriding(run.definition.middleware, "around_model_call")
    return await chain(middleware, "around_model_call", innermost)(call)


def _close_unbegun(made: Awaitable[ModelAnswer]) -> None:
    """What was never awaited, because a stop came first, is closed: nobody else knows of it."""
    if inspect.iscoroutine(made):
        if inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
            made.close()
    elif (close := getattr(made, "close_unbegun", None)) is not None:
        close()


def _begin_of(model: ChatModel) -> Begin | None:
    """How the model answers at once, unless a class derived from it has an `answer` of its own."""
    for kind in type(model).__mro__:
        if "begin_answer" in kind.__dict__:
            return cast("Any", model).begin_answer
        if "answer" in kind.__dict__:
            return None
    return None


def _heeds_cancellation(model: ChatModel) -> bool:
    """Whether the call can run in the run's own task: the adapters are ours."""
    return type(model).__module__.startswith("retinue.models.")


async def _within_grace(run: "Run", work: Callable[[], Awaitable[T]], what: str | None = None) -> T:
    """A call of an author's code in a task of its own: at a stop it is waited for no longer than the grace, then given up.
    `what` is how a run's end names it then, the model unless given."""
    task = asyncio.create_task(_guarded(run, work), name=f"retinue model call of {run.definition.agent_id}")
    try:
        await until_done(task)
    except asyncio.CancelledError:
        task.cancel()
        clock = run.journal.clock
        deadline = run.stopping.deadline if run.stop_reason is not None else clock.monotonic() + run.tree.limits.stop_grace
        try:
            if (left := deadline - clock.monotonic()) > 0:
                await run.wait_any([task], left)
        finally:
            if not task.done():
                run.stopping.give_up(task, what or f"model {run.definition.model.name}")
        if not task.done() or task.cancelled() or not run.stopping.interrupting:
            raise
    outcome = task.result()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _guarded(run: "Run", work: Callable[[], Awaitable[T]]) -> T | BaseException:
    """What `SystemExit` would do in a task of its own is end the loop: it is handed on as a value."""
    if run.stop_reason is not None:  # asked to stop before it began: nothing starts (M8)
        raise asyncio.CancelledError
    try:
        return await work()
    except BaseException as error:
        if not is_fault(error):
            raise
        return error


def _author_fault(run: "Run", error: BaseException, who: str, code: str) -> ModelError:
    """What a model of the user's own or a middleware raised: it ends this run as failed."""
    model = run.definition.model
    return ModelError(
        f"{who} raised {type(error).__name__}: {error}",
        provider=model.provider,
        model=model.name,
        code=code,
        remedy="mend the model or middleware that raised it",
    )


def _stage_partial(run: "Run", stream: _Stream) -> None:
    stream.end()
    text = stream.text
    if text.strip():
        run.journal.stage(MessageEvent(message=AssistantMessage(id=stream.message_id, text=text)))
    if stream.drafted:
        run.journal.stage_op(DropDraft(run.journal.key, stream.message_id))


def _stage_error(run: "Run", stream: _Stream, error: ModelError, started: float) -> None:
    run.journal.stage(
        ModelCalledEvent(
            provider=error.provider,
            model=error.model,
            message_id=stream.message_id,
            envelope_hash=run.envelope.digest,
            finish_reason="error",
            duration_ms=int((run.journal.clock.monotonic() - started) * 1000),
            error=error.code,
            message=error.message,
            remedy=error.remedy,
        )
    )


def _calls(run: "Run", message_id: str, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls as they enter the journal: with names that any provider takes back, and ids that are unique."""
    tools = run.definition.tools
    named: list[ToolCall] = []
    for call in calls:
        name = call.name if call.name in tools else call_name(call.name, tools)
        named.append(call if name == call.name else msgspec.structs.replace(call, name=name))
    return _unique_calls(run.journal.projection.call_ids, message_id, named)


def _unique_calls(used: set[str], message_id: str, calls: list[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with ids that are unique in their thread: providers repeat them (`call_0` in every turn), or send none."""
    seen: set[str] = set()
    made: list[ToolCall] = []
    for index, call in enumerate(calls):
        if call.id and call.id not in used and call.id not in seen:
            made.append(call)
        else:
            derived = sha256_hex(f"{message_id}:{index}".encode())[:24]
            sent = call.provider_id or call.id or None  # an adapter may have made the ids of one message differ already
            made.append(ToolCall(id=f"call_{derived}", name=call.name, arguments=call.arguments, provider_id=sent))
        seen.add(made[-1].id)
    return tuple(made)
