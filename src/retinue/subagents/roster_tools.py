"""The roster surface: `agent_spawn`, `agent_send`, `agent_list`, with documented parameters and result lines (A-26 to A-28)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.agent.call_arguments import fault, read
from retinue.agent.definition import AgentDefinition
from retinue.agent.journal import Batch
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.run import Run
from retinue.config import RuntimeContext, SubAgentContextPolicy, Unset, Verdict
from retinue.errors import ConfigurationError, UnknownId
from retinue.events import SubAgentInvocationStartedEvent
from retinue.ids import AGENT_KEY, kind_of, new_agent_key, new_sub_session
from retinue.ledger.port import Ledger
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.rows import ThreadKey, ThreadRow
from retinue.states import ResultStatus
from retinue.subagents.delegate import ChildEnd, Delegation, Format, create_idle_child, delegate, limit_refusal, reattach
from retinue.subagents.equipment import Equipment, assemble, check_supported, child_equipment
from retinue.subagents.registry import Roster
from retinue.subagents.resolved import MAX_TIMEOUT_SECONDS, ResolvedDeclaration

__all__ = ["roster_handlers"]

FINISHED_LISTED: Final = 10

_TIMEOUT: Final = {
    "type": "number",
    "description": "Seconds to wait, at most 600; left out: no limit. At the limit it is stopped, and you get what it has.",
}


class _Lines(Format):
    """The documented lines: keys, `status:`, then `reply:` or `error:`."""

    def __init__(self, head: Sequence[str]) -> None:
        self._head = head

    def content(self, end: ChildEnd) -> str:
        """See `Format`."""
        if end.status == "completed":
            return "\n".join([*self._head, "status: ok", "reply:", end.text])
        status = {"failed": "error", "timeout": "timeout", "cancelled": "cancelled"}[end.status]
        why = end.message or end.reason or end.status
        remedy = f" ({end.remedy})" if end.remedy else ""
        lines = [*self._head, f"status: {status}", f"error: {why}{remedy}"]
        if end.text.strip():
            lines += ["partial_reply:", end.text]
        return "\n".join(lines)


class _Spawn(msgspec.Struct, frozen=True):
    agent_id: str
    task: str | None = None
    label: str | None = None
    timeout_seconds: float | None = None


class _Send(msgspec.Struct, frozen=True):
    message: str
    agent_key: str | None = None
    label: str | None = None
    timeout_seconds: float | None = None


class Children:
    """The children that one agent can make from its roster: each definition is made once for this place."""

    def __init__(self, parent: Equipment, roster: Roster) -> None:
        self.parent = parent
        self.roster = roster
        self._definitions: dict[str, AgentDefinition] = {}

    def check(self, tools: Mapping[str, CallHandler], *, skip: Sequence[str]) -> None:
        """Raise at build what the declarations of code would raise at the first spawn (D-27)."""
        for resolved in self.roster.spawnable:
            if resolved.declaration.source not in skip:
                assemble(child_equipment(self.parent, tools, resolved, RuntimeContext(), trial=True))

    def definition(self, run: Run, resolved: ResolvedDeclaration, session: str) -> AgentDefinition:
        """The child as it runs here. A factory is asked for each child."""
        known = self._definitions.get(resolved.agent_id)
        if known is not None:
            return known
        context = RuntimeContext(user_id=run.row.key.user or None, session_id=session, attributes=dict(run.tree.attributes))
        made = assemble(child_equipment(self.parent, run.definition.tools, resolved, context))
        if resolved.declaration.source != "factory":
            self._definitions[resolved.agent_id] = made
        return made


class _RosterTool:
    """What the three have in common."""

    repeatable = False
    delegates = True
    spec: ToolSpec

    def __init__(self, children: Children) -> None:
        self.children = children

    def gated(self, arguments: Mapping[str, Any], agent_id: str) -> GatedCall:
        """See `CallHandler`. Roster tools allow by default (D-26)."""
        target = str(arguments.get("agent_id") or _agent_of(arguments.get("agent_key")) or "")
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=target or None,
            need=Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=target or agent_id,
        )

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`: these check their arguments in `prepare`, and ask nobody before by default."""
        return None

    async def reattach(
        self, run: Run, ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        resolved = self.children.roster.find(started.child_agent_id)
        definition = self.children.definition(run, resolved, started.child_session_id)
        key = ThreadKey(run.row.key.user, started.child_session_id, started.child_thread_id)
        row = await run.tree.services.ledger.thread(key)
        return await reattach(run, started, definition, _Lines(self._head(row) if row is not None else []))

    def _head(self, row: ThreadRow) -> list[str]:
        return [f"agent_key: {row.agent_key}"]


class SpawnTool(_RosterTool):
    """`agent_spawn`: make a child and, with `task`, let it work (A-26)."""

    def __init__(self, children: Children) -> None:
        super().__init__(children)
        properties = {
            "agent_id": {"type": "string", "description": "One of the available agent ids."},
            "task": {"type": "string", "description": "The task, with everything it needs to know. Left out: only create it."},
            "label": {"type": "string", "description": "A short name of your own, to address it later."},
            "timeout_seconds": _TIMEOUT,
        }
        self.spec = ToolSpec(
            name="agent_spawn",
            description="Create a subagent and give it a task. Several calls in one turn work side by side.",
            parameters={
                "type": "object",
                "properties": properties,
                "required": ["agent_id"],
                "additionalProperties": False,
            },
        )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        arguments = read(
            call,
            _Spawn,
            ("agent_id", "task", "label", "timeout_seconds"),
            '{"agent_id": "…", "task": "…", "label": "…", "timeout_seconds": 120}',
        )
        if isinstance(arguments, CallOutcome):
            return arguments
        found = self._find(arguments.agent_id)
        if isinstance(found, CallOutcome):
            return found
        timeout = _timeout(call, arguments.timeout_seconds, found)
        if isinstance(timeout, CallOutcome):
            return timeout
        refused = limit_refusal(run, self.children.parent.ceiling)
        if refused is not None:
            return refused
        label = (arguments.label or "").strip() or None
        if label is not None and not await _label_free(run, label):
            return _error(f"label `{label}` is already in use in this session", "choose another one, or use `agent_send`")
        return await self._make(run, ref, call, found, arguments.task, label, timeout)

    async def _make(
        self,
        run: Run,
        ref: CallRef,
        call: ToolCall,
        resolved: ResolvedDeclaration,
        task: str | None,
        label: str | None,
        timeout: float | None,
    ) -> Prepared | CallOutcome:
        key = ThreadKey(run.row.key.user, new_sub_session(), "main")
        try:
            check_supported(resolved)
            definition = self.children.definition(run, resolved, key.session)
        except ConfigurationError as error:
            return _error(error.message, error.remedy or "use another subagent")
        wanted = Delegation(
            definition=definition,
            name=resolved.name,
            source=resolved.declaration.source,
            surface="roster",
            text=(task or "").strip(),
            context_policy=resolved.context_policy,
            timeout_seconds=timeout,
            agent_key=new_agent_key(resolved.agent_id),
            label=label,
            metadata=resolved.declaration.metadata,
            inherits_output=resolved.inherits_output,
        )
        if wanted.context_policy is SubAgentContextPolicy.MODEL_CHOICE:
            wanted.context_policy = SubAgentContextPolicy.ISOLATED
        head = [f"agent_key: {wanted.agent_key}", f"agent_id: {resolved.agent_id}", f"session_id: {key.session}"]
        if not wanted.text:
            create_idle_child(run, call, wanted, key)
            return CallOutcome(content="\n".join([*head, "status: accepted"]), batch=Batch())
        return await delegate(run, ref, call, wanted, _Lines(head), key=key)

    def _find(self, agent_id: str) -> ResolvedDeclaration | CallOutcome:
        try:
            return self.children.roster.find(agent_id)
        except UnknownId as error:
            return _error(error.message, error.remedy or "")

    def _head(self, row: ThreadRow) -> list[str]:
        return [
            f"agent_key: {row.agent_key}",
            f"agent_id: {row.default_agent_id}",
            f"session_id: {row.key.session}",
        ]


class SendTool(_RosterTool):
    """`agent_send`: go on with a child that was spawned, by its full key or its label (A-27)."""

    def __init__(self, children: Children) -> None:
        super().__init__(children)
        properties = {
            "agent_key": {"type": "string", "description": "The complete `agent_key` that agent_spawn returned."},
            "label": {"type": "string", "description": "Or the label that you gave it."},
            "message": {"type": "string", "description": "What to tell it. It remembers its conversation."},
            "timeout_seconds": _TIMEOUT,
        }
        self.spec = ToolSpec(
            name="agent_send",
            description="Send a follow-up message to a subagent that you spawned, also a finished one, and wait for its reply.",
            parameters={"type": "object", "properties": properties, "required": ["message"], "additionalProperties": False},
        )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        arguments = read(
            call,
            _Send,
            ("agent_key", "label", "message", "timeout_seconds"),
            '{"agent_key": "agent:…", "message": "…"} or {"label": "…", "message": "…"}',
        )
        if isinstance(arguments, CallOutcome):
            return arguments
        if not arguments.message.strip():
            return fault(call.name, "`message` is blank", "Write what the subagent is to do")
        row = await _addressed(run, arguments.agent_key, arguments.label)
        if isinstance(row, CallOutcome):
            return row
        refused = limit_refusal(run, self.children.parent.ceiling)
        if refused is not None:
            return refused
        last = await run.tree.services.ledger.last_run(row.key)
        if row.key in run.tree.busy or (last is not None and not last.state.terminal):
            return _error(f"`{row.agent_key}` is still at work on its last message", "wait for its reply first")
        return await self._go_on(run, ref, call, row, arguments)

    async def _go_on(self, run: Run, ref: CallRef, call: ToolCall, row: ThreadRow, arguments: _Send) -> Prepared | CallOutcome:
        try:
            resolved = self.children.roster.find(row.default_agent_id)
            timeout = _timeout(call, arguments.timeout_seconds, resolved)
            if isinstance(timeout, CallOutcome):
                return timeout
            definition = self.children.definition(run, resolved, row.key.session)
        except (UnknownId, ConfigurationError) as error:
            return _error(error.message, error.remedy or "spawn another subagent")
        wanted = Delegation(
            definition=definition,
            name=resolved.name,
            source=resolved.declaration.source,
            surface="roster",
            text=arguments.message.strip(),
            context_policy=SubAgentContextPolicy(str(row.metadata.get("contextPolicy", "isolated"))),
            timeout_seconds=timeout,
            existing=row,
            agent_key=row.agent_key,
        )
        return await delegate(run, ref, call, wanted, _Lines(self._head(row)), key=row.key)


class ListTool(_RosterTool):
    """`agent_list`: the children of this session, and what can be resumed (A-28)."""

    repeatable = True
    delegates = False
    spec = ToolSpec(
        name="agent_list",
        description="List the subagents that you spawned in this session, with their keys and states.",
        parameters={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    )

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        ledger = run.tree.services.ledger
        active: list[list[str]] = []
        finished: list[list[str]] = []
        for row in await _roster_children(run):
            state = await _state(ledger, row)
            entry = [f"- agent_key: {row.agent_key}", f"  agent_id: {row.default_agent_id}"]
            if row.label:
                entry.append(f"  label: {row.label}")
            entry += [f"  status: {state}", f"  depth: {row.depth}"]
            (active if state in ("idle", "running", "waiting") else finished).append(entry)
        lines = [f"Active subagents ({len(active)}):" if active else "No active subagents."]
        lines += [line for entry in active for line in entry]
        if finished:
            lines.append(f"Finished, resumable with agent_send ({len(finished)}, newest first):")
            lines += [line for entry in finished[::-1][:FINISHED_LISTED] for line in entry]
        return CallOutcome(content="\n".join(lines))


async def _roster_children(run: Run) -> list[ThreadRow]:
    """The children that were spawned from any thread of this session (D-16), the oldest first."""
    ledger, key = run.tree.services.ledger, run.row.key
    threads = await ledger.threads(user=key.user, session=key.session, hidden=True, limit=1_000)
    rows = [row for thread in threads for row in await ledger.children(thread.key) if row.agent_key is not None]
    return sorted(rows, key=lambda row: row.created_at)


async def _state(ledger: Ledger, row: ThreadRow) -> str:
    last = await ledger.last_run(row.key)
    return "idle" if last is None else last.state.value


def roster_handlers(parent: Equipment, roster: Roster) -> list[CallHandler]:
    """The roster tools of an agent (A-02, its synchronous part)."""
    children = Children(parent, roster)
    return [SpawnTool(children), SendTool(children), ListTool(children)]


def _error(message: str, remedy: str) -> CallOutcome:
    text = f"status: error\nerror: {message}." + (f" {remedy[0].upper()}{remedy[1:]}." if remedy else "")
    return CallOutcome(content=text, status=ResultStatus.ERROR)


def _timeout(call: ToolCall, seconds: float | None, resolved: ResolvedDeclaration) -> float | CallOutcome | None:
    """The time limit (A-26): what the model gives, else what the author set; more than 600 becomes 600. 0 would be
    background work, which this version does not have, so that left out by both it is no limit."""
    if seconds is None:
        return None if isinstance(resolved.declaration.timeout_seconds, Unset) else resolved.timeout_seconds
    if seconds <= 0:
        return fault(
            call.name,
            f"`timeout_seconds` was {seconds:g}: running in the background is not available here",
            "Leave it out to wait without a limit, or give 1 to 600",
        )
    return min(seconds, MAX_TIMEOUT_SECONDS)


def _agent_of(key: object) -> str | None:
    match = AGENT_KEY.fullmatch(key) if isinstance(key, str) else None
    return match["agent_id"] if match else None


async def _label_free(run: Run, label: str) -> bool:
    folded = label.casefold()
    taken = run.tree.labels.setdefault(run.row.key, set())
    if folded in taken or await run.tree.services.ledger.child_thread(run.row.key, label=label) is not None:
        return False
    taken.add(folded)
    return True


async def _addressed(run: Run, agent_key: str | None, label: str | None) -> ThreadRow | CallOutcome:
    """The child that is meant; an id of another kind gets an error that says which was given (A-27)."""
    if (agent_key is None) == (label is None):
        given = "both were given" if agent_key is not None else "neither was given"
        return _error(f"exactly one of `agent_key` and `label` is needed, {given}", "agent_list shows both")
    if label is not None:
        row = await run.tree.services.ledger.child_thread(run.row.key, label=label.strip())
        return row or _error(f"there is no subagent with label `{label.strip()[:60]}` in this session", "agent_list shows them")
    assert agent_key is not None
    key = agent_key.strip()
    if AGENT_KEY.fullmatch(key) is None:
        kind = kind_of(key)
        given = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" if kind else "an agent id or an incomplete key"
        return _error(
            f"`{key[:80]}` is {given}, not an agent key", "give the complete `agent_key: agent:…` line that agent_spawn returned"
        )
    row = await run.tree.services.ledger.child_thread(run.row.key, agent_key=key)
    return row or _error(f"there is no subagent `{key}` in this session", "agent_list shows the keys you can use")
