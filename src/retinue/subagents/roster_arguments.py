"""What the roster tools are given: arguments, time limits, labels, and the child that is meant (A-26, A-27)."""

from typing import Final

import msgspec

from retinue.agent.call_arguments import fault
from retinue.agent.ports import CallOutcome
from retinue.agent.run import Run
from retinue.config import AgentInvocationModePolicy
from retinue.ids import AGENT_KEY, kind_of
from retinue.ledger.rules import label_key
from retinue.messages import ToolCall
from retinue.ops import CreateThread
from retinue.rows import ThreadRow
from retinue.states import ResultStatus
from retinue.subagents.resolved import MAX_TIMEOUT_SECONDS, ResolvedDeclaration

__all__ = [
    "SEND_FIELDS",
    "SPAWN_FIELDS",
    "SendArguments",
    "SpawnArguments",
    "Wait",
    "addressed",
    "agent_of",
    "error",
    "free_label",
    "wait_of",
]

SPAWN_FIELDS: Final = ("agent_id", "task", "label", "timeout_seconds")
SEND_FIELDS: Final = ("agent_key", "label", "message", "timeout_seconds")


class SpawnArguments(msgspec.Struct, frozen=True):
    """Of `agent_spawn`."""

    agent_id: str
    task: str | None = None
    label: str | None = None
    timeout_seconds: float | None = None


class SendArguments(msgspec.Struct, frozen=True):
    """Of `agent_send`."""

    message: str
    agent_key: str | None = None
    label: str | None = None
    timeout_seconds: float | None = None


def error(message: str, remedy: str) -> CallOutcome:
    """A call that did nothing, in the lines that the roster tools answer with."""
    text = f"status: error\nerror: {message}." + (f" {remedy[0].upper()}{remedy[1:]}." if remedy else "")
    return CallOutcome(content=text, status=ResultStatus.ERROR)


class Wait(msgspec.Struct, frozen=True):
    """How long a call waits for its child: not at all (in the background), or `seconds`; None is as long as it takes."""

    seconds: float | None = None
    background: bool = False


def wait_of(call: ToolCall, seconds: float | None, resolved: ResolvedDeclaration) -> Wait | CallOutcome:
    """How long to wait (A-26): what the model gives, else what the author set, else 30 seconds; more than 600 becomes 600, and 0
    is work in the background."""
    policy = resolved.invocation_mode_policy
    if policy is AgentInvocationModePolicy.BACKGROUND_ONLY or (seconds is not None and seconds <= 0):
        if policy is AgentInvocationModePolicy.SYNCHRONOUS_ONLY:
            return fault(
                call.name,
                f"`timeout_seconds` was {seconds:g}: this subagent does not work in the background",
                "Leave it out to wait without a limit, or give 1 to 600",
            )
        return Wait(background=True)
    return Wait(resolved.timeout_seconds if seconds is None else min(seconds, MAX_TIMEOUT_SECONDS))


def agent_of(key: object) -> str | None:
    """The agent id in an agent key."""
    match = AGENT_KEY.fullmatch(key.strip()) if isinstance(key, str) else None
    return match["agent_id"] if match else None


async def free_label(run: Run, label: str | None) -> str | CallOutcome | None:
    """The label without spaces around it if nobody in the session has it (case folded); blank is none.

    Where somebody takes it between this look and the commit, the commit is refused: the run goes on from the ledger, and
    looks again. So the run itself is committed before, if it was not.
    """
    label = (label or "").strip()
    if not label:
        return None
    if not run.journal.known:
        await run.journal.flush()
    made = [op.row for op in run.journal.pending() if isinstance(op, CreateThread) and op.row.parent == run.row.key]
    staged = any(label_key(row.label) == label_key(label) for row in made)
    if staged or await run.tree.services.ledger.child_thread(run.row.key, label=label) is not None:
        return error(f"label `{label}` is already in use in this session", "choose another one, or use `agent_send`")
    return label


async def addressed(run: Run, agent_key: str | None, label: str | None) -> ThreadRow | CallOutcome:
    """The child that is meant; an id of another kind gets an error that says which was given (A-27)."""
    if (agent_key is None) == (label is None):
        given = "both were given" if agent_key is not None else "neither was given"
        return error(f"exactly one of `agent_key` and `label` is needed, {given}", "agent_list shows both")
    if label is not None:
        label = label.strip()
        row = await run.tree.services.ledger.child_thread(run.row.key, label=label)
        return row or error(f"there is no subagent with label `{label[:60]}` in this session", "agent_list shows them")
    assert agent_key is not None
    key = agent_key.strip()
    if AGENT_KEY.fullmatch(key) is None:
        kind = kind_of(key)
        given = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" if kind else "an agent id or an incomplete key"
        return error(
            f"`{key[:80]}` is {given}, not an agent key", "give the complete `agent_key: agent:…` line that agent_spawn returned"
        )
    row = await run.tree.services.ledger.child_thread(run.row.key, agent_key=key)
    return row or error(f"there is no subagent `{key}` in this session", "agent_list shows the keys you can use")
