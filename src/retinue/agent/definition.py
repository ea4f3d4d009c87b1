"""An agent that can run: what one run loop needs to know, resolved and immutable."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec.structs import force_setattr, replace

from retinue.agent.middleware import Middleware
from retinue.agent.output import OutputType
from retinue.agent.ports import CallHandler, Gate
from retinue.agent.results import with_reading
from retinue.config import ChatClientConfig
from retinue.damage import UNREADABLE, damaged
from retinue.ids import sha256_hex
from retinue.models.port import ChatModel, Envelope, ToolSpec
from retinue.secrets import Redactor

__all__ = ["AgentDefinition", "Deliver", "clean_envelope", "envelope_from_blob", "make_envelope"]


Deliver: TypeAlias = Literal["step", "after_turn"]


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The blob form of an envelope."""

    instructions: str
    tools: list[ToolSpec]
    settings: dict[str, object]


def _settings(settings: ChatClientConfig) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(settings)
    return plain


def make_envelope(instructions: str, tools: Mapping[str, CallHandler], settings: ChatClientConfig) -> tuple[Envelope, bytes]:
    """The envelope of an agent and its blob; `digest` is the blob's SHA-256 (M11)."""
    specs = tuple(handler.spec for handler in tools.values())
    blob = msgspec.json.encode(_Stored(instructions, list(specs), _settings(settings)))
    digest = sha256_hex(blob)
    return Envelope(instructions=instructions, tools=specs, settings=settings, digest=digest, wire={}), blob


def envelope_from_blob(blob: bytes, digest: str) -> Envelope:
    """The envelope that was stored: a resumed run sends the same bytes, whatever the code says today.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    try:
        stored = msgspec.json.decode(blob, type=_Stored)
        settings = msgspec.convert(stored.settings, ChatClientConfig)
    except UNREADABLE as error:
        raise damaged(f"the row `{digest}` of table `blob`, an envelope,", error) from error
    return Envelope(instructions=stored.instructions, tools=tuple(stored.tools), settings=settings, digest=digest, wire={})


def clean_envelope(redactor: Redactor, envelope: Envelope, blob: bytes) -> tuple[Envelope, bytes]:
    """The envelope and its blob without known secrets: what is stored is what the model is sent (invariant 10)."""
    clean = redactor.body(blob)
    if clean == blob:
        return envelope, blob
    return envelope_from_blob(clean, sha256_hex(clean)), clean


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs: model, instructions, tools by name, limits, gate and middleware.

    `model_reference` is the text that names the model in a stored run; `workspace` the folder, where there is one. `hidden`
    says of each subagent that is not offered at this place why not, for a model that calls it all the same.
    `shares_context`: its tools see the attributes of the tree's `RuntimeContext`. `output`: the form of its answers, where
    it was declared with one.
    """

    agent_id: str
    model: ChatModel
    model_reference: str
    instructions: str
    tools: Mapping[str, CallHandler]
    gate: Gate
    max_iters: int = 10
    settings: ChatClientConfig = msgspec.field(default_factory=ChatClientConfig)
    middleware: tuple[Middleware, ...] = ()
    workspace: str | None = None
    hidden: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    shares_context: bool = True
    output: OutputType | None = None
    deliver: Deliver = "step"
    """When it is told the ends of its tasks (D-20): at its next step, or after the turn of its user."""
    envelope: Envelope = cast("Envelope", None)
    """Made of the others, as its blob is: what is given here does not count."""
    envelope_blob: bytes = b""

    def __post_init__(self) -> None:
        envelope, blob = make_envelope(self.instructions, self.tools, self.settings)
        force_setattr(self, "envelope", envelope)
        force_setattr(self, "envelope_blob", blob)

    def reading(self, *, needed: bool) -> "AgentDefinition":
        """This agent on a thread whose history holds a cut result: without tools of its own it can still read on in that."""
        if not needed or self.tools:
            return self
        return replace(self, tools=with_reading(self.tools, needed=True))

    @property
    def definition_hash(self) -> str:
        """Stable over processes for the same instructions, tools and settings."""
        return self.envelope.digest[:16]
