"""A recording of model calls: its lines, what of a request is kept, and how two requests differ. Plain data, no model."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from retinue.errors import ConfigurationError
from retinue.json_text import dumps
from retinue.messages import AssistantMessage, Message, UserMessage
from retinue.models.port import ModelAnswer, ModelRequest
from retinue.secrets import Redactor
from retinue.testing.transcripts import Names

__all__ = ["Asked", "Exchange", "Failure", "Plain", "difference", "read_recording"]

Plain: TypeAlias = Callable[[str], str]
"""Makes texts that differ from run to run the same."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A `ModelError` as it was raised."""

    code: str
    message: str
    remedy: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    status: int | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One line of a recording: who asked, in which turn, what, and the answer or the error."""

    agent: str
    step: int
    digest: str
    asked: dict[str, Any]
    answer: ModelAnswer | None = None
    error: Failure | None = None


class Asked:
    """A request as it is recorded: without ids, and with the way back from the words for them."""

    def __init__(self, request: ModelRequest, plain: Plain | None, redactor: Redactor | None = None) -> None:
        self.names = Names()
        self._plain: Plain = plain or str
        fields = _fields(request)
        self.fields: dict[str, Any] = self.named(fields if redactor is None else redactor.value(fields))
        self.digest = hashlib.sha256(dumps(self.fields)).hexdigest()[:32]

    def named(self, value: Any) -> Any:
        """A JSON value with words in place of ids, and what `plain` makes of each text."""
        return _each_text(value, lambda text: self.names.plain(self._plain(text)))


def _each_text(value: Any, change: Plain) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {key: _each_text(item, change) for key, item in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [_each_text(item, change) for item in cast("list[Any]", value)]
        case _:
            return value


def _fields(request: ModelRequest) -> dict[str, Any]:
    """What a model is told, and nothing else. Values of `ChatClientConfig.extra` may hold keys: only their names are kept."""
    settings = request.envelope.settings
    told: dict[str, Any] = {
        "instructions": request.envelope.instructions,
        "tools": [msgspec.to_builtins(tool) for tool in request.envelope.tools],
        "settings": {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "maxTokens": settings.max_tokens,
            "stop": list(settings.stop),
            "extra": sorted(settings.extra),
        },
        "messages": [_message(entry.message) for entry in request.history],
        "tail": request.tail,
        "toolsAllowed": request.tools_allowed,
        "output": None if request.output is None else msgspec.to_builtins(request.output),
    }
    return told


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, UserMessage):
        return {"role": "user", "text": message.text}
    if isinstance(message, AssistantMessage):
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
        return {"role": "assistant", "text": message.text, "calls": calls}
    return {"role": "tool", "name": message.name, "text": message.content}


def read_recording(path: Path) -> list[Exchange]:
    """The lines of a recording.

    Raises:
        ConfigurationError: the file cannot be read, or is no recording.
    """
    decoder = msgspec.json.Decoder(Exchange)
    try:
        return [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigurationError(
            f"recording `{path}` cannot be read: {error.strerror or error}",
            code="recording_missing",
            remedy="make it with `RecordModel(model, path)`",
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"`{path}` is no recording: {error}", code="invalid_recording", remedy="make it anew with `RecordModel(model, path)`"
        ) from None


def difference(recorded: Any, asked: Any, place: str = "") -> tuple[int, str]:
    """How much two requests differ (a number to compare), and the first difference in words."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        one, other = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        found = [
            difference(one.get(key), other.get(key), f"{place}.{key}" if place else key)
            for key in {**one, **other}
            if one.get(key) != other.get(key)
        ]
    elif isinstance(recorded, list) and isinstance(asked, list):
        first, second = cast("list[Any]", recorded), cast("list[Any]", asked)
        pairs = enumerate(zip(first, second, strict=False))
        found = [difference(mine, yours, f"{place}[{index}]") for index, (mine, yours) in pairs if mine != yours]
        if len(first) != len(second):
            words = f"`{place}` has {len(second)} entries, recorded were {len(first)}"
            found.append((abs(len(first) - len(second)), words))
    else:
        return 1, f"`{place}` is {_short(asked)}, recorded was {_short(recorded)}"
    return sum(weight for weight, _ in found), found[0][1] if found else "nothing differs"


def _short(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) <= 300 else f"{text[:299]}…"
