"""Small rows, events and ops for the checks, and what turns a function into a check."""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import msgspec

from retinue.errors import LedgerConflict
from retinue.ledger.port import Journal, Ledger
from retinue.messages import CallRef
from retinue.ops import Append, CreateThread, NewEvent, Op, PutRun, Receipt
from retinue.rows import ForkPoint, InvocationRow, Mail, OwnerRow, RequestRow, RunRow, ThreadKey, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = [
    "Check",
    "LedgerFactory",
    "append",
    "check",
    "create",
    "event",
    "invocation_row",
    "key_of",
    "mail",
    "owner_row",
    "refused",
    "request_row",
    "run_row",
    "running",
    "same",
    "seen",
    "thread_row",
    "told",
]

LedgerFactory: TypeAlias = Callable[[], Ledger]
Check: TypeAlias = Callable[[LedgerFactory], Awaitable[None]]


def check(function: Callable[[Ledger], Awaitable[None]]) -> Check:
    """A check from a function that takes an open, empty ledger."""

    @wraps(function)
    async def opened(make: LedgerFactory) -> None:
        ledger = make()
        await ledger.open()
        try:
            await function(ledger)
        finally:
            await ledger.close()

    return opened


def same(found: object, expected: object) -> None:
    """Fail with both values if they differ. (Plain `assert` is not rewritten in a package that is installed.)"""
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


async def refused(ledger: Ledger, code: str, *ops: Op, op: int = -1) -> None:
    """Commit `ops`; fail unless `LedgerConflict` with this code names the op at index `op`."""
    try:
        receipt: Receipt = await ledger.commit(ops)
    except LedgerConflict as conflict:
        same((conflict.code, conflict.op), (code, ops[op]))
        return
    raise AssertionError(f"`{code}` was expected, found {receipt!r}")


async def told(outcome: Awaitable[Receipt]) -> str | None:
    """The code of the conflict that a commit ended with, None if it was carried out."""
    try:
        await outcome
    except LedgerConflict as conflict:
        return conflict.code
    return None


def key_of(thread: str = "main", *, session: str = "ses", user: str = "") -> ThreadKey:
    """A thread's key."""
    return ThreadKey(user, session, thread)


def event(text: str = "one", *, type: str = "MESSAGE", run: str = "run_1", attempt: int = 1, at: int = 10) -> NewEvent:
    """An event whose body holds `text`."""
    return NewEvent(type, msgspec.json.encode({"text": text}), run, attempt, at)


def append(key: ThreadKey, head: int, *texts: str, generation: int = 1, at: int = 10) -> Append:
    """Append one event per text after `head`."""
    return Append(key, generation, head, tuple(event(text, at=at) for text in texts))


def thread_row(key: ThreadKey, **changes: Any) -> ThreadRow:
    """A thread's row."""
    return msgspec.structs.replace(ThreadRow(key=key, default_agent_id="helper", created_at=1), **changes)


def create(key: ThreadKey, *, base: ForkPoint | None = None, **changes: Any) -> CreateThread:
    """Create a thread."""
    return CreateThread(thread_row(key, base=base, **changes))


def run_row(run_id: str, key: ThreadKey, *, lineage: Sequence[str] = (), **changes: Any) -> RunRow:
    """A running run; its lineage ends with itself."""
    chain = (*lineage, run_id)
    row = RunRow(
        run_id=run_id,
        key=key,
        agent_id="helper",
        state=RunState.RUNNING,
        attempt=1,
        lineage=chain,
        path=("helper",) * len(chain),
        started_at=5,
        updated_at=5,
    )
    return msgspec.structs.replace(row, **changes)


def running(run_id: str, key: ThreadKey, *, lineage: Sequence[str] = ()) -> PutRun:
    """Insert a running run."""
    return PutRun(run_row(run_id, key, lineage=lineage))


def invocation_row(invocation_id: str, parent: ThreadKey, child: ThreadKey, **changes: Any) -> InvocationRow:
    """A running invocation."""
    row = InvocationRow(
        invocation_id=invocation_id,
        parent=parent,
        parent_run="run_1",
        call=CallRef("msg_1", 0),
        call_id="call_1",
        tool="helper",
        child=child,
        child_run="run_2",
        child_agent_id="helper",
        name="helper",
        surface="tool",
        state=InvocationState.RUNNING,
        attempt=1,
        depth=1,
        context_policy="fresh",
        root_run="run_1",
        started_at=5,
        updated_at=5,
    )
    return msgspec.structs.replace(row, **changes)


def request_row(request_id: str, root: ThreadKey, **changes: Any) -> RequestRow:
    """An open permission request."""
    row = RequestRow(
        request_id=request_id,
        kind="permission",
        key=root,
        run_id="run_1",
        root_run="run_1",
        root=root,
        call=CallRef("msg_1", 0),
        tool="execute",
        agent_id="helper",
        path=("helper",),
        invocations=(),
        arguments="{}",
        state=RequestState.OPEN,
        opened_at=5,
    )
    return msgspec.structs.replace(row, **changes)


def mail(mail_id: str, text: str = "hello") -> Mail:
    """A mail whose body holds `text`."""
    return Mail(mail_id=mail_id, kind="steer", body=msgspec.Raw(msgspec.json.encode({"text": text})), at=5)


def owner_row(owner_id: str) -> OwnerRow:
    """An owner's row."""
    return OwnerRow(owner_id=owner_id, pid=1, host="here", started_at=1)


def seen(journal: Journal | None) -> list[str]:
    """The texts of a whole history, inherited and own."""
    if journal is None:
        raise AssertionError("there is no such journal")
    return [msgspec.json.decode(record.body)["text"] for record in (*journal.inherited, *journal.own)]
