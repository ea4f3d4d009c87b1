"""When an op holds: the conditions that `ops` states, as pure functions over plain data, the same for every backend.

Each `check_…` takes the op and what is stored, and raises `LedgerConflict` if the op may not be carried out.
"""

import re
from collections.abc import Hashable, Iterable
from typing import Any, Final, TypeVar

from retinue.errors import LedgerConflict, LedgerUnavailable
from retinue.json_text import mend
from retinue.ops import (
    Append,
    CreateThread,
    HideThread,
    OpenGeneration,
    PutDraft,
    PutInvocation,
    PutMail,
    PutRequest,
    PutRun,
    PutState,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, ThreadKey
from retinue.states import (
    INVOCATION_TRANSITIONS,
    REQUEST_TRANSITIONS,
    RUN_TRANSITIONS,
    InvocationState,
    RequestState,
    RunState,
)

__all__ = [
    "UNFINISHED",
    "check_append",
    "check_base",
    "check_cancel",
    "check_create",
    "check_generation",
    "check_invocation",
    "check_purge",
    "check_request",
    "check_run",
    "check_taken",
    "check_thread",
    "collectable",
    "intent_matters",
    "invocation_step_allowed",
    "label_key",
    "not_open",
    "references",
    "run_step_allowed",
    "superseded",
]

_T = TypeVar("_T", bound=Hashable)
_HEX_RUN: Final = re.compile(rb"[0-9a-f]{64,}")
_ESCAPE_DIGITS: Final = 4
"""How many hex digits of a JSON escape may stand right before a hash."""

UNFINISHED: Final = frozenset((RunState.RUNNING, RunState.WAITING))
"""The states of a run that keep its thread from being purged."""


def check_append(op: Append, at: tuple[int, int] | None, attempt: int | None) -> None:
    """`at` is the thread's (generation, head), None if there is no such thread; `attempt` that of the run that appends, as
    its row says, None if there is no such run."""
    if at is None:
        raise _no_thread(op, op.key)
    if at != (op.generation, op.head):
        raise LedgerConflict(
            f"thread {_name(op.key)} is at generation {at[0]}, sequence {at[1]}, not at {op.generation}, {op.head}",
            op=op,
            code="head_moved",
            remedy="read the journal again: somebody else has appended to it",
        )
    if attempt is not None and superseded(op, attempt):
        raise LedgerConflict(
            f"run `{op.events[0].run}` was taken over: it is at attempt {attempt}, not at {op.events[0].attempt}",
            op=op,
            code="head_moved",
            remedy="write nothing more to it: another process goes on with it",
        )


def superseded(op: Append, attempt: int) -> bool:
    """Whether the events are of an earlier attempt than `attempt`."""
    return bool(op.events) and op.events[0].attempt < attempt


def label_key(label: str | None) -> str | None:
    """What labels are compared by and stored under; None for none. Halves of characters are replaced (B175)."""
    return mend(label.casefold()) if label else None


def check_create(op: CreateThread, exists: bool, labelled: str | None) -> None:
    """`exists`: a thread with this key is there, deleted or not. `labelled`: the agent key of the child of the same session
    that has the label, "" if it has none, None if the label is free."""
    if exists:
        raise LedgerConflict(
            f"thread {_name(op.row.key)} exists already",
            op=op,
            code="exists",
            remedy="use another thread id, or purge the deleted thread first",
        )
    if labelled is not None:
        holder = f" of `{labelled}`" if labelled else ""
        raise LedgerConflict(
            f"label `{op.row.label}` is in use{holder}", op=op, code="label", remedy="choose another label for the new thread"
        )


def check_base(op: CreateThread | OpenGeneration, base: ForkPoint, head: int | None) -> None:
    """`head` is the last sequence number of the generation that `base` names, None if there is no such generation."""
    if head is None or not 0 <= base.seq <= head:
        there = "does not exist" if head is None else f"ends at sequence {head}"
        raise LedgerConflict(
            f"cannot fork {_name(base.key)} at generation {base.generation}, sequence {base.seq}: it {there}",
            op=op,
            code="missing",
            remedy="fork at a place that has been committed",
        )


def check_generation(op: OpenGeneration, at: tuple[int, int] | None) -> None:
    """`at` is the thread's (generation, head), None if there is no such thread."""
    if at is None:
        raise _no_thread(op, op.key)
    if at != (op.generation - 1, op.head):
        raise LedgerConflict(
            f"generation {op.generation} of thread {_name(op.key)} cannot follow generation {at[0]}, sequence {at[1]}",
            op=op,
            code="state",
            remedy="read the thread again: somebody else has appended to it or opened a generation",
        )


def check_thread(op: HideThread | PutMail | PutDraft, exists: bool) -> None:
    """`exists`: the thread that the op names is there, deleted or not."""
    if not exists:
        raise _no_thread(op, op.key)


def check_run(op: PutRun, stored: tuple[RunState, int] | None, intent: str | None) -> None:
    """`stored` is the run's (state, attempt), `intent` the reason of a cancel intent on its lineage (M8)."""
    _check_replacement(op, "run", op.row.run_id, op.expect, stored)
    if op.expect is not None and not run_step_allowed(op):
        raise _not_a_step(op, "run", op.row.run_id, op.expect[0], op.row.state)
    if intent is not None and intent_matters(op):
        raise LedgerConflict(
            f"run `{op.row.run_id}` is cancelled: {intent}",
            op=op,
            code="cancelled",
            remedy="end it as cancelled: after the intent it can end in no other way, and start nothing",
        )


def intent_matters(op: PutRun) -> bool:
    """Whether a cancel intent forbids this op: it inserts a run, or ends one other than cancelled."""
    return op.expect is None or (op.row.state.terminal and op.row.state is not RunState.CANCELLED)


def run_step_allowed(op: PutRun) -> bool:
    """Whether the step from the expected state to the new one is in the state table (true for an insert)."""
    return op.expect is None or op.row.state in RUN_TRANSITIONS[op.expect[0]]


def check_invocation(op: PutInvocation, stored: tuple[InvocationState, int] | None) -> None:
    """`stored` is the invocation's (state, attempt)."""
    _check_replacement(op, "invocation", op.row.invocation_id, op.expect, stored)
    if op.expect is not None and not invocation_step_allowed(op):
        raise _not_a_step(op, "invocation", op.row.invocation_id, op.expect[0], op.row.state)


def invocation_step_allowed(op: PutInvocation) -> bool:
    """Whether the step from the expected state to the new one is in the state table (true for an insert)."""
    return op.expect is None or op.row.state in INVOCATION_TRANSITIONS[op.expect[0]]


def check_request(op: PutRequest, stored: RequestState | None) -> None:
    """`stored` is the request's state: the first answer wins."""
    _check_replacement(op, "request", op.row.request_id, op.expect, stored)
    if op.expect is not None and op.row.state not in REQUEST_TRANSITIONS[op.expect]:
        raise _not_a_step(op, "request", op.row.request_id, op.expect, op.row.state)


def check_cancel(op: RequestCancel, exists: bool) -> None:
    """`exists`: the run is there."""
    if not exists:
        raise LedgerConflict(
            f"there is no run `{op.run_id}`",
            op=op,
            code="missing",
            remedy="give the id of a run; `retinue threads list --json` shows them",
        )


def check_taken(op: TakeMail, there: bool) -> None:
    """`there`: the mail lies in the mailbox."""
    if not there:
        raise LedgerConflict(
            f"mail `{op.mail_id}` is no longer in the mailbox of {_name(op.key)}",
            op=op,
            code="taken",
            remedy="go on: somebody else has taken it",
        )


def check_purge(key: ThreadKey, unfinished: str | None) -> None:
    """`unfinished` is the id of a run, in any tree that this thread takes part in, that has not ended."""
    if unfinished is not None:
        raise LedgerConflict(
            f"thread {_name(key)} belongs to the unfinished run `{unfinished}`",
            op=HideThread(key),
            code="state",
            remedy="cancel the run or bring it to its end first, then purge",
        )


def collectable(threads: Iterable[tuple[_T, bool]], bases: Iterable[tuple[_T, _T]]) -> set[_T]:
    """The threads that nothing needs. `threads`: each with whether it is kept for its own sake; `bases`: (thread, a thread
    that one of its histories begins with)."""
    needs: dict[_T, list[_T]] = {}
    for thread, base in bases:
        needs.setdefault(thread, []).append(base)
    everything: set[_T] = set()
    kept: set[_T] = set()
    look: list[_T] = []
    for thread, wanted in threads:
        everything.add(thread)
        if wanted:
            look.append(thread)
    while look:
        thread = look.pop()
        if thread not in kept:
            kept.add(thread)
            look += needs.get(thread, ())
    return everything - kept


def references(body: bytes) -> list[str]:
    """The hashes that stand in a record's or row's body, wherever they stand: events of later versions count as well."""
    found: list[str] = []
    for run in _HEX_RUN.findall(body):
        text = run.decode()
        found += [text[start : start + 64] for start in range(min(len(text) - 64, _ESCAPE_DIGITS) + 1)]
    return found


def not_open(url: str) -> LedgerUnavailable:
    """The error of a ledger that is used before `open` or after `close`."""
    return LedgerUnavailable(f"the ledger `{url}` is not open", code="not_open", remedy="call `await ledger.open()` first")


def check_state(op: PutState, stored: bytes | None) -> None:
    """`stored` is the value that is there; only called for an op that expects one."""
    if stored != op.expect:
        raise LedgerConflict(
            f"the state `{op.name}` of session `{op.session}` has been changed",
            op=op,
            code="state",
            remedy="read it again: somebody else has changed it",
        )


def _check_replacement(op: Any, kind: str, row_id: str, expect: object, stored: object) -> None:
    if expect is None:
        if stored is not None:
            raise LedgerConflict(f"{kind} `{row_id}` exists already", op=op, code="exists", remedy="use a new id")
    elif stored is None:
        raise LedgerConflict(f"there is no {kind} `{row_id}`", op=op, code="missing", remedy="insert it first")
    elif stored != expect:
        raise LedgerConflict(
            f"{kind} `{row_id}` is {_state(stored)}, not {_state(expect)}",
            op=op,
            code="state",
            remedy="read the row again: somebody else has changed it",
        )


def _not_a_step(op: Any, kind: str, row_id: str, old: str, new: str) -> LedgerConflict:
    return LedgerConflict(
        f"{kind} `{row_id}` cannot go from `{old}` to `{new}`", op=op, code="state", remedy="see the tables in `retinue.states`"
    )


def _no_thread(op: Any, key: ThreadKey) -> LedgerConflict:
    return LedgerConflict(f"there is no thread {_name(key)}", op=op, code="missing", remedy="create it first")


def _name(key: ThreadKey) -> str:
    user = f" of user `{key.user}`" if key.user else ""
    return f"`{key.thread}` in session `{key.session}`{user}"


def _state(value: Any) -> str:
    if isinstance(value, tuple):
        state, attempt = value  # pyright: ignore[reportUnknownVariableType]
        return f"`{state}` at attempt {attempt}"
    return f"`{value}`"
