"""The ledger's rows: what is current, beside the journals that say how it came to be.

A row is replaced as a whole by an op that names the state it expects (see `ops`). Times are milliseconds since the epoch.
"""

from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from retinue.messages import CallRef
from retinue.states import InvocationState, RequestState, RunState

__all__ = [
    "Allowance",
    "ForkPoint",
    "InvocationRow",
    "Mail",
    "OwnerRow",
    "RequestRow",
    "RunRow",
    "SpendRow",
    "ThreadKey",
    "ThreadRow",
]


class ThreadKey(NamedTuple):
    """The key of a thread and, with it, of everything: user ("" for none), session, thread."""

    user: str
    session: str
    thread: str


class ForkPoint(msgspec.Struct, frozen=True, array_like=True):
    """A place in a journal: everything of (thread, generation) up to and with `seq`."""

    key: ThreadKey
    generation: int
    seq: int


class ThreadRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One conversation. `head` is the last sequence number of the current generation (0: empty).

    `parent` is the thread that delegated to it, `metadata` the documented keys (H-19) and the author's own.
    `agent_key` and `label` address a roster child (A-26).
    """

    key: ThreadKey
    default_agent_id: str
    created_at: int
    updated_at: int = 0
    generation: int = 1
    head: int = 0
    base: ForkPoint | None = None
    hidden: bool = False
    deleted: bool = False
    parent: ThreadKey | None = None
    depth: int = 0
    agent_key: str | None = None
    label: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}


class Allowance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the run `run_id` and all below it may use of model calls (M13). `cost` is in US dollars."""

    run_id: str
    tokens: int | None = None
    requests: int | None = None
    cost: Decimal | None = None


class SpendRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What one run has used of model calls, itself, and what is set aside for a call of it that `owner` makes now."""

    run_id: str
    root: str
    lineage: tuple[str, ...]
    tokens: int = 0
    requests: int = 0
    cost: Decimal = Decimal(0)
    owner: str | None = None
    held_tokens: int = 0
    held_requests: int = 0
    held_cost: Decimal = Decimal(0)


class RunRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One execution of an agent on a thread.

    `lineage` is the chain of run ids from the root to this run; `path` the agent ids along it, `invocations` the
    invocation ids. `owner` holds the lease while the run is `running`. `workspace` and `model` let a process that has no
    code of the author's go on with an agent that is only a workspace and a model (M5). `branch` is the run of the background
    task that it belongs to, if it belongs to one.
    """

    run_id: str
    key: ThreadKey
    agent_id: str
    state: RunState
    attempt: int
    lineage: tuple[str, ...]
    path: tuple[str, ...]
    started_at: int
    updated_at: int
    owner: str | None = None
    reason: str | None = None
    definition_hash: str | None = None
    depth: int = 0
    invocations: tuple[str, ...] = ()
    invocation_id: str | None = None
    workspace: str | None = None
    model: str | None = None
    branch: str | None = None
    woken: bool = False
    """Whether the end of a task began it, and nobody waits for it: whoever starts next goes on with it, as with a task."""
    allowances: tuple[Allowance, ...] = ()
    """What limits it: of itself and of the runs above it, the root's first."""
    spends_with: str | None = None
    """The tree whose budget it is under as well, for it was woken by one of its tasks; and so is what is below it."""
    active_seconds: float | None = None
    """How long it may be at work, all attempts together."""

    @property
    def root(self) -> str:
        """The run id of the tree's root."""
        return self.lineage[0]

    @property
    def spend_root(self) -> str:
        """The tree in which it counts what it has used."""
        return self.spends_with or self.lineage[0]

    @property
    def lead(self) -> str:
        """The run id of the run that is driven together with this one, and leads: the root's or a background task's."""
        return self.branch or self.lineage[0]


class InvocationRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One delegation: from the call in the parent's journal to the child's thread and run. In the background it is a task, and
    has a `task_id`, and the parent's model is told of the ends in `notify`.

    While it is `stopping`: `owner` is the process in which something of it has not stopped yet, `ends_as` the state that
    follows.
    """

    invocation_id: str
    parent: ThreadKey
    parent_run: str
    call: CallRef
    call_id: str
    tool: str
    child: ThreadKey
    child_run: str
    child_agent_id: str
    name: str
    surface: str
    state: InvocationState
    attempt: int
    depth: int
    context_policy: str
    root_run: str
    started_at: int
    updated_at: int
    mode: str = "synchronous"
    task_id: str | None = None
    notify: tuple[str, ...] = ("completed", "failed")
    strategy: str | None = None
    """The name of the strategy that decides in the place of `notify`, where the process that ends it has one."""
    reason: str | None = None
    timeout_seconds: float | None = None
    owner: str | None = None
    ends_as: InvocationState | None = None
    metadata: dict[str, Any] = {}


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A question from a run to a person. `arguments` is redacted JSON text; `key` is the asking thread."""

    request_id: str
    kind: str
    key: ThreadKey
    run_id: str
    root_run: str
    root: ThreadKey
    call: CallRef
    tool: str
    agent_id: str
    path: tuple[str, ...]
    invocations: tuple[str, ...]
    arguments: str
    state: RequestState
    opened_at: int
    description: str = ""
    options: tuple[str, ...] = ("allow", "deny")
    answer: str | None = None
    remember: str | None = None
    note: str | None = None
    by: str | None = None
    answered_at: int | None = None


class Mail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something that others wrote for a thread: an answer, steering text. `body` is raw JSON."""

    mail_id: str
    kind: str
    body: msgspec.Raw
    at: int


class OwnerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A process that holds leases (M7). Whether it lives is not in the row: the backend knows (a file lock)."""

    owner_id: str
    pid: int
    host: str
    started_at: int
    command: str = ""
