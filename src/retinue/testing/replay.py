"""Record what a real model answered, and play it back without network, key or cost: `RecordModel` and `ReplayModel`.

A recording is a file with one JSON object a line. An answer is found by agent, turn, and what was asked; ids, which differ
from run to run, are words in it. A request that is not in the recording is an error that says what differs.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.errors import ModelError
from retinue.json_text import dumps
from retinue.models.port import ChatModel, Emit, ModelAnswer, ModelRequest, ReasoningDelta, TextDelta
from retinue.secrets import Redactor, SecretRef
from retinue.testing.recorded import Asked, Exchange, Failure, Plain, difference, read_recording
from retinue.testing.transcripts import Names

__all__ = ["MISMATCH", "RecordModel", "ReplayModel"]

MISMATCH: Final = "replay_mismatch"
"""The code of the error for a request that is not in the recording."""


class RecordModel:
    """Asks another model, and writes each request and answer to a file as they come.

    The file is made anew with the first answer, readable by its owner only; with `append=True` it is continued. Keys that the
    model knows (`secrets()`), and `secrets` given here, are taken out; headers and settings of the connection are never seen.

    Args:
        model: Any `ChatModel`, or the real adapter of `resolve_model("openai:gpt-5")`.
        plain: Makes texts that differ from run to run the same (a folder's path, today's date). Give `ReplayModel` the same.

    >>> agent = Agent("lead", model=RecordModel(resolve_model("openai:gpt-5"), "lead.jsonl"))
    """

    def __init__(
        self,
        model: ChatModel,
        path: str | Path,
        *,
        append: bool = False,
        plain: Plain | None = None,
        secrets: Iterable[str | SecretRef] = (),
    ) -> None:
        self.model = model
        self.path = Path(path)
        self.provider = model.provider
        self.name = model.name
        self._plain = plain
        self._started = append
        self._redactor = Redactor()
        self._redactor.add(secrets)
        self._redactor.watch(self.secrets)

    @property
    def reference(self) -> str | None:
        """That of the model: a run that was recorded can go on without the recorder."""
        return getattr(self.model, "reference", None)

    def secrets(self) -> Iterable[str | SecretRef]:
        """What the model wants kept out of everything that is written."""
        known: Callable[[], Iterable[str | SecretRef]] | None = getattr(self.model, "secrets", None)
        return () if known is None else known()

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        self._redactor.refresh()
        asked = Asked(request, self._plain, self._redactor)
        try:
            answer = await self.model.answer(request, emit)
        except ModelError as error:
            failure = Failure(
                code=error.code,
                message=self._redactor.text(error.message),
                remedy=error.remedy,
                retryable=error.retryable,
                retry_after=error.retry_after,
                status=error.status,
            )
            self._write(request, asked, error=failure)
            raise
        self._write(request, asked, answer=self._clean(answer, asked))
        return answer

    def _clean(self, answer: ModelAnswer, asked: Asked) -> ModelAnswer:
        """The answer to keep. Ids of calls stay: the run loop makes them unique wherever they are played back."""
        texts: dict[str, Any] = {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "extras": answer.extras,
            "arguments": [call.arguments for call in answer.calls],
        }
        kept = asked.named(self._redactor.value(texts))
        calls = zip(answer.calls, kept.pop("arguments"), strict=True)
        return msgspec.structs.replace(
            answer, calls=tuple(msgspec.structs.replace(call, arguments=arguments) for call, arguments in calls), **kept
        )

    def _write(self, request: ModelRequest, asked: Asked, **outcome: Any) -> None:
        exchange = Exchange(agent=request.agent_id, step=request.step, digest=asked.digest, asked=asked.fields, **outcome)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self._started else os.O_TRUNC)
        with os.fdopen(os.open(self.path, flags, 0o600), "ab" if self._started else "wb") as file:
            file.write(dumps(exchange) + b"\n")
        self._started = True

    async def close(self) -> None:
        """See `ChatModel`."""
        await self.model.close()


class ReplayModel:
    """Answers from a recording of `RecordModel`: the same request gets the same answer, anything else an error.

    Requests that were equal get their answers in the order of the recording, the last one again and again.

    Raises:
        ConfigurationError: the file cannot be read, or is no recording.

    >>> agent = Agent("lead", model=ReplayModel("lead.jsonl"))
    """

    provider = "replay"

    def __init__(self, path: str | Path, *, plain: Plain | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.stem
        self._plain = plain
        self.exchanges: Sequence[Exchange] = read_recording(self.path)
        self._told: dict[tuple[str, int, str], int] = {}

    @property
    def reference(self) -> str:
        """`replay:<path>`, which the command line takes as `--model`."""
        return f"replay:{self.path}"

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        asked = Asked(request, self._plain)
        key = (request.agent_id, request.step, asked.digest)
        found = [one for one in self.exchanges if (one.agent, one.step, one.digest) == key]
        if not found:
            raise self._unknown(request, asked)
        times = self._told[key] = self._told.get(key, 0) + 1
        exchange = found[min(times, len(found)) - 1]
        if exchange.answer is None:
            raise self._failed(exchange.error or Failure(code="bad_response", message="the recording has no answer"))
        return self._said(exchange.answer, asked.names, emit)

    def _said(self, kept: ModelAnswer, names: Names, emit: Emit) -> ModelAnswer:
        """A kept answer with the ids of this run in it, told in one delta."""
        calls = tuple(msgspec.structs.replace(call, arguments=names.filled(call.arguments)) for call in kept.calls)
        reasoning = None if kept.reasoning is None else names.filled(kept.reasoning)
        answer = msgspec.structs.replace(kept, text=names.filled(kept.text), reasoning=reasoning, calls=calls)
        if answer.reasoning:
            emit(ReasoningDelta(answer.reasoning))
        if answer.text:
            emit(TextDelta(answer.text))
        return answer

    def _failed(self, failure: Failure) -> ModelError:
        return ModelError(
            failure.message,
            provider=self.provider,
            model=self.name,
            code=failure.code,
            remedy=failure.remedy,
            retryable=failure.retryable,
            retry_after=failure.retry_after,
            status=failure.status,
        )

    def _unknown(self, request: ModelRequest, asked: Asked) -> ModelError:
        agents = sorted({one.agent for one in self.exchanges})
        turns = [one for one in self.exchanges if one.agent == request.agent_id]
        same = [one for one in turns if one.step == request.step]
        if not turns:
            why = f"it knows {', '.join(f'`{agent}`' for agent in agents) or 'no agent at all'}"
        elif not same:
            why = f"it knows turns up to {max(one.step for one in turns)}"
        else:
            why = min((difference(one.asked, asked.fields) for one in same), key=lambda found: found[0])[1]
        return ModelError(
            f"the recording `{self.path}` has no answer to turn {request.step} of agent `{request.agent_id}`: {why}",
            provider=self.provider,
            model=self.name,
            code=MISMATCH,
            remedy="record it again with `RecordModel`, or make the same what differs (`plain=` for paths and dates)",
        )

    async def close(self) -> None:
        """See `ChatModel`."""
