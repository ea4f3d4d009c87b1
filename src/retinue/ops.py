"""What a commit is made of: plain data (M1).

`Ledger.commit(ops)` carries out all ops of one call or none. Each op names the condition under which it holds; the first
one that does not hold raises `LedgerConflict` with that op, and nothing of the call is written.
"""

from typing import TypeAlias

import msgspec

from retinue.rows import ForkPoint, InvocationRow, Mail, OwnerRow, RequestRow, RunRow, SpendRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = [
    "Append",
    "CreateThread",
    "Draft",
    "DropDraft",
    "DropOwner",
    "HideThread",
    "NewEvent",
    "Op",
    "OpenGeneration",
    "PutBlob",
    "PutDraft",
    "PutInvocation",
    "PutMail",
    "PutOwner",
    "PutRequest",
    "PutRun",
    "PutSpend",
    "PutState",
    "Receipt",
    "Record",
    "RequestCancel",
    "TakeMail",
]


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event on its way into a journal. `body` is the JSON of its fields, in camelCase."""

    type: str
    body: bytes
    run: str
    attempt: int
    at: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored event. (key, generation, seq) is its place; `body` is the raw JSON as it was appended."""

    key: ThreadKey
    generation: int
    seq: int
    type: str
    run: str
    attempt: int
    at: int
    body: bytes


class Draft(msgspec.Struct, frozen=True):
    """The coalesced text of a message that is still being streamed (M2). Not an event."""

    message_id: str
    text: str
    at: int


class Append(msgspec.Struct, frozen=True):
    """Append `events`, all of one run and attempt, to (key, generation) after `head`: this is the fence (M3).

    `head_moved` if the head is elsewhere, or if a later attempt of the run has begun: of commits that were handed in before
    anybody knew of a take-over, the second may find the head where it expects it.
    """

    key: ThreadKey
    generation: int
    head: int
    events: tuple[NewEvent, ...]


class CreateThread(msgspec.Struct, frozen=True):
    """Create a thread at head 0; with `row.base` its history begins with that of another. `exists` if it is there.

    `label` if the threads of the parent's session have made another one with this label that is not deleted: labels are
    compared case folded (A-26).
    """

    row: ThreadRow


class OpenGeneration(msgspec.Struct, frozen=True):
    """Open generation `generation` of a thread at head 0, leaving the old one as it is (M12).

    `state` unless the current generation is `generation - 1` with the given `head`. With `base`, the new generation's
    history begins with what `base` names.
    """

    key: ThreadKey
    generation: int
    head: int
    base: ForkPoint | None = None


class HideThread(msgspec.Struct, frozen=True):
    """Delete hides: the thread leaves every list; forks of it still read what they refer to. `missing` if unknown."""

    key: ThreadKey


class PutRun(msgspec.Struct, frozen=True):
    """Insert a run (`expect` None; `exists` if there) or replace it if state and attempt match (else `state`).

    `cancelled` if a cancel intent exists for any run of its lineage and the op inserts it, or ends it other than cancelled (M8).
    """

    row: RunRow
    expect: tuple[RunState, int] | None = None


class PutInvocation(msgspec.Struct, frozen=True):
    """Insert an invocation or replace it if state and attempt match; by the same rules as `PutRun` (`cancelled` excepted)."""

    row: InvocationRow
    expect: tuple[InvocationState, int] | None = None


class PutRequest(msgspec.Struct, frozen=True):
    """Insert a request, or replace it if it is in state `expect`: the first answer wins."""

    row: RequestRow
    expect: RequestState | None = None


class PutMail(msgspec.Struct, frozen=True):
    """Put something into a thread's mailbox. A mail id that is or was there is ignored: delivery is told once."""

    key: ThreadKey
    mail: Mail


class TakeMail(msgspec.Struct, frozen=True):
    """Take a mail out of the mailbox; `taken` if it is no longer there."""

    key: ThreadKey
    mail_id: str


class RequestCancel(msgspec.Struct, frozen=True):
    """Record the intent to cancel a run and everything below it. Idempotent; `missing` if there is no such run."""

    run_id: str
    reason: str
    by: str
    at: int


class PutDraft(msgspec.Struct, frozen=True):
    """Overwrite the draft of a message that is being streamed."""

    key: ThreadKey
    draft: Draft


class DropDraft(msgspec.Struct, frozen=True):
    """Remove a draft, if there is one: the message's own commit does this."""

    key: ThreadKey
    message_id: str


class PutBlob(msgspec.Struct, frozen=True):
    """Store bytes under their hash (`sha256` hex). Storing the same again does nothing."""

    digest: str
    data: bytes


class PutState(msgspec.Struct, frozen=True):
    """Set session-wide state (remembered permissions, middleware): one JSON value under (user, session, name).

    With `expect` only in the place of that value, None for no value at all; else `state`.
    """

    user: str
    session: str
    name: str
    value: msgspec.Raw
    expect: bytes | msgspec.UnsetType | None = msgspec.UNSET


class PutSpend(msgspec.Struct, frozen=True):
    """Put what a run has used. No condition of its own: it travels with what only the holder of the run's lease can write."""

    row: SpendRow


class PutOwner(msgspec.Struct, frozen=True):
    """Register this process as an owner of leases."""

    row: OwnerRow


class DropOwner(msgspec.Struct, frozen=True):
    """Remove an owner that ended in good order."""

    owner_id: str


Op: TypeAlias = (
    Append
    | CreateThread
    | OpenGeneration
    | HideThread
    | PutRun
    | PutInvocation
    | PutRequest
    | PutMail
    | TakeMail
    | RequestCancel
    | PutDraft
    | DropDraft
    | PutBlob
    | PutState
    | PutSpend
    | PutOwner
    | DropOwner
)


class Receipt(msgspec.Struct, frozen=True):
    """What a commit did: the new head of every journal it appended to, as (generation, seq)."""

    heads: dict[ThreadKey, tuple[int, int]]
