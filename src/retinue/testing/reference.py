"""The ledger as a model: what every backend must do, said once more in plain dicts, without a line of theirs.

It is for comparison in stateful tests: give `ReferenceLedger` and a backend the same ops; outcome and reads must agree. It
keeps whole copies where a backend keeps references, and applies ops to a copy that it throws away if one does not hold.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from retinue.ops import (
    Append,
    CreateThread,
    DropDraft,
    HideThread,
    Op,
    OpenGeneration,
    PutBlob,
    PutDraft,
    PutInvocation,
    PutMail,
    PutRequest,
    PutRun,
    PutSpend,
    PutState,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, InvocationRow, RequestRow, RunRow, SpendRow, ThreadKey

__all__ = ["NEXT", "ReferenceLedger", "Refused", "Said"]

K = TypeVar("K")
V = TypeVar("V")
Said = tuple[str, bytes, str, int]
"""What an event says: type, body, run, attempt. Forks hold the same, under their own key and place."""

_OPEN_ENDS: Final = {"completed", "failed", "cancelled"}
NEXT: Final[dict[str, dict[str, set[str]]]] = {
    "run": {
        "running": {"running", "waiting"} | _OPEN_ENDS,
        "waiting": {"running", "waiting", "failed", "cancelled"},
    },
    "invocation": {
        "pending": {"pending", "running", "waiting", "stopping", "failed", "cancelled"},
        "running": {"running", "waiting", "stopping"} | _OPEN_ENDS,
        "waiting": {"running", "waiting", "stopping", "failed", "cancelled"},
        "stopping": {"stopping", "failed", "cancelled"},
    },
    "request": {"open": {"answered", "expired", "cancelled", "abandoned"}},
}
"""What may follow a state; nothing follows a state that is not named. Said here a second time, beside `retinue.states`."""


class Refused(Exception):
    """An op did not hold: its index in the commit, and the code of the conflict."""

    def __init__(self, index: int, code: str) -> None:
        super().__init__(f"op {index}: {code}")
        self.index = index
        self.code = code


class _No(Exception):
    """An op does not hold, for the reason that the first argument names."""


class ReferenceLedger:
    """Threads, journals, runs, invocations, requests, mail, cancel intents: dicts of dicts, read as they are."""

    def __init__(self) -> None:
        self.journals: dict[tuple[ThreadKey, int], list[Said]] = {}
        self.inherited: dict[tuple[ThreadKey, int], list[Said]] = {}
        self.generations: dict[ThreadKey, int] = {}
        self.deleted: set[ThreadKey] = set()
        self.labels: dict[ThreadKey, tuple[str, str, str]] = {}
        self.runs: dict[str, RunRow] = {}
        self.invocations: dict[str, InvocationRow] = {}
        self.requests: dict[str, RequestRow] = {}
        self.cancels: dict[str, str] = {}
        self.mail: dict[ThreadKey, dict[str, bytes]] = {}
        self.taken: dict[ThreadKey, set[str]] = {}
        self.drafts: dict[ThreadKey, dict[str, str]] = {}
        self.spends: dict[str, dict[str, SpendRow]] = {}
        self.states: dict[tuple[str, str], dict[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}

    def commit(self, ops: Sequence[Op]) -> dict[ThreadKey, tuple[int, int]]:
        """Carry out all ops and give the new heads, or carry out none.

        Raises:
            Refused: the first op that does not hold.
        """
        tried = self._copy()
        heads: dict[ThreadKey, tuple[int, int]] = {}
        for index, op in enumerate(ops):
            try:
                _APPLY[type(op)](tried, op)
            except _No as no:
                raise Refused(index, no.args[0]) from None
            if isinstance(op, Append):
                heads[op.key] = tried.place(op.key) or (0, 0)
        vars(self).update(vars(tried))
        return heads

    def place(self, key: ThreadKey) -> tuple[int, int] | None:
        """A thread's generation and head, None if there is no such thread."""
        generation = self.generations.get(key)
        return None if generation is None else (generation, len(self.journals[key, generation]))

    def history(self, key: ThreadKey) -> tuple[list[Said], list[Said]] | None:
        """What a thread has inherited, and its own events; None for one that is not there or deleted."""
        generation = self.generations.get(key)
        if generation is None or key in self.deleted:
            return None
        return self.inherited[key, generation], self.journals[key, generation]

    def intent(self, lineage: Sequence[str]) -> str | None:
        """The reason of the first cancel intent on a lineage."""
        return next((self.cancels[run] for run in lineage if run in self.cancels), None)

    def purge(self, key: ThreadKey) -> bool:
        """Remove a thread with everything of it; False, and nothing happens, while its trees have an unfinished run."""
        if key not in self.generations:
            return True
        gone = {run_id: row.root for run_id, row in self.runs.items() if row.key == key}
        if any(row.root in gone.values() and row.state.value in NEXT["run"] for row in self.runs.values()):
            return False
        del self.generations[key]
        self.deleted.discard(key)
        _drop(self.journals, lambda place, _: place[0] == key)
        _drop(self.inherited, lambda place, _: place[0] == key)
        _drop(self.runs, lambda run_id, _: run_id in gone)
        _drop(self.cancels, lambda run_id, _: run_id in gone)
        _drop(self.invocations, lambda _, row: row.parent_run in gone or row.child == key)
        _drop(self.requests, lambda _, row: row.key == key and row.root_run in gone.values())
        for kept in (self.mail, self.taken, self.drafts, self.labels):
            kept.pop(key, None)
        return True

    def _copy(self) -> "ReferenceLedger":
        made = ReferenceLedger()
        for name, value in vars(self).items():
            vars(made)[name] = _copied(value, deep=True)
        return made

    def _append(self, op: Append) -> None:
        _must(op.key in self.generations, "missing")
        _must(self.place(op.key) == (op.generation, op.head), "head_moved")
        later = [self.runs[event.run].attempt > event.attempt for event in op.events if event.run in self.runs]
        _must(not any(later), "head_moved")  # the run was taken over
        self.journals[op.key, op.generation] += [(event.type, event.body, event.run, event.attempt) for event in op.events]

    def _create(self, op: CreateThread) -> None:
        key = op.row.key
        _must(key not in self.generations, "exists")
        if op.row.label and op.row.parent is not None:
            label = (*op.row.parent[:2], op.row.label.casefold())
            _must(all(place in self.deleted for place, taken in self.labels.items() if taken == label), "label")
            self.labels[key] = label
        self.inherited[key, 1] = self._based(op.row.base)
        self.journals[key, 1] = []
        self.generations[key] = 1

    def _generation(self, op: OpenGeneration) -> None:
        _must(op.key in self.generations, "missing")
        _must(self.place(op.key) == (op.generation - 1, op.head), "state")
        self.inherited[op.key, op.generation] = self._based(op.base)
        self.journals[op.key, op.generation] = []
        self.generations[op.key] = op.generation

    def _based(self, base: ForkPoint | None) -> list[Said]:
        """A fork is a copy of everything up to there."""
        if base is None:
            return []
        source = self.journals.get((base.key, base.generation))
        _must(source is not None and 0 <= base.seq <= len(source), "missing")
        return self.inherited[base.key, base.generation] + (source or [])[: base.seq]

    def _hide(self, op: HideThread) -> None:
        _must(op.key in self.generations, "missing")
        self.deleted.add(op.key)

    def _run(self, op: PutRun) -> None:
        row, intent = op.row, self.intent(op.row.lineage)
        stored = self.runs.get(row.run_id)
        _replaced("run", stored and (stored.state, stored.attempt), op.expect, row.state)
        new_or_over = op.expect is None or row.state.value in ("completed", "failed")
        _must(intent is None or not new_or_over, "cancelled")
        self.runs[row.run_id] = row

    def _invocation(self, op: PutInvocation) -> None:
        stored = self.invocations.get(op.row.invocation_id)
        _replaced("invocation", stored and (stored.state, stored.attempt), op.expect, op.row.state)
        self.invocations[op.row.invocation_id] = op.row

    def _request(self, op: PutRequest) -> None:
        stored = self.requests.get(op.row.request_id)
        _replaced("request", stored and (stored.state,), op.expect and (op.expect,), op.row.state)
        self.requests[op.row.request_id] = op.row

    def _cancel(self, op: RequestCancel) -> None:
        _must(op.run_id in self.runs, "missing")
        self.cancels.setdefault(op.run_id, op.reason)

    def _put_mail(self, op: PutMail) -> None:
        _must(op.key in self.generations, "missing")
        if op.mail.mail_id not in self.taken.get(op.key, ()):
            self.mail.setdefault(op.key, {}).setdefault(op.mail.mail_id, bytes(op.mail.body))

    def _take_mail(self, op: TakeMail) -> None:
        _must(op.mail_id in self.mail.get(op.key, {}), "taken")
        del self.mail[op.key][op.mail_id]
        self.taken.setdefault(op.key, set()).add(op.mail_id)

    def _put_draft(self, op: PutDraft) -> None:
        _must(op.key in self.generations, "missing")
        drafts = self.drafts.setdefault(op.key, {})
        drafts.pop(op.draft.message_id, None)  # the newest is the last
        drafts[op.draft.message_id] = op.draft.text

    def _drop_draft(self, op: DropDraft) -> None:
        self.drafts.get(op.key, {}).pop(op.message_id, None)

    def _state(self, op: PutState) -> None:
        kept = self.states.setdefault((op.user, op.session), {})
        _must(op.expect is msgspec.UNSET or kept.get(op.name) == op.expect, "state")
        kept[op.name] = bytes(op.value)

    def _spend(self, op: PutSpend) -> None:
        self.spends.setdefault(op.row.root, {})[op.row.run_id] = op.row

    def _blob(self, op: PutBlob) -> None:
        self.blobs.setdefault(op.digest, op.data)


_APPLY: Final[dict[type, Callable[[ReferenceLedger, Any], None]]] = {
    Append: ReferenceLedger._append,
    CreateThread: ReferenceLedger._create,
    OpenGeneration: ReferenceLedger._generation,
    HideThread: ReferenceLedger._hide,
    PutRun: ReferenceLedger._run,
    PutInvocation: ReferenceLedger._invocation,
    PutRequest: ReferenceLedger._request,
    RequestCancel: ReferenceLedger._cancel,
    PutMail: ReferenceLedger._put_mail,
    TakeMail: ReferenceLedger._take_mail,
    PutDraft: ReferenceLedger._put_draft,
    DropDraft: ReferenceLedger._drop_draft,
    PutState: ReferenceLedger._state,
    PutSpend: ReferenceLedger._spend,
    PutBlob: ReferenceLedger._blob,
}


def _must(holds: bool, code: str) -> None:
    if not holds:
        raise _No(code)


def _replaced(kind: str, stored: Any, expect: Any, new: str) -> None:
    """A row is inserted where none is, or replaced where it is as expected and the new state may follow."""
    if expect is None:
        _must(stored is None, "exists")
        return
    _must(stored is not None, "missing")
    _must(stored == expect and str(new) in NEXT[kind].get(str(expect[0]), set()), "state")


def _drop(kept: dict[K, V], gone: Callable[[K, V], bool]) -> None:
    for key in [key for key, value in kept.items() if gone(key, value)]:
        del kept[key]


def _copied(value: Any, *, deep: bool = False) -> Any:
    """A copy of a collection, or of a collection of collections; anything else as it is."""
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: _copied(one) if deep else one for key, one in entries.items()}
    return cast("Any", value).copy() if isinstance(value, list | set) else value
