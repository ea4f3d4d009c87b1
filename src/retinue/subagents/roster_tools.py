"""The roster surface: `agent_spawn`, `agent_send`, `agent_list`, with documented parameters and result lines (A-26 to A-28)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from retinue.agent.call_arguments import fault, read
from retinue.agent.definition import AgentDefinition
from retinue.agent.journal import Batch
from retinue.agent.messages_sent import message_to
from retinue.agent.ports import CallHandler, CallOutcome, Prepared
from retinue.agent.run import Run
from retinue.config import RuntimeContext, SubAgentContextPolicy, Verdict
from retinue.errors import ConfigurationError, UnknownId
from retinue.events import SubAgentInvocationStartedEvent
from retinue.ids import new_agent_key, new_sub_session
from retinue.ledger.port import Ledger
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.rows import InvocationRow, ThreadKey, ThreadRow
from retinue.subagents.asking_parent import TASK_ANSWER, answered, question_of
from retinue.subagents.births import create_idle_child
from retinue.subagents.delegate import count_refusal, delegate, limit_refusal, reattach
from retinue.subagents.delegation import ASKS, ChildEnd, Delegation, Format
from retinue.subagents.equipment import Equipment, assemble, check_supported, child_equipment
from retinue.subagents.registry import Roster
from retinue.subagents.resolved import ResolvedDeclaration
from retinue.subagents.roster_arguments import (
    SEND_FIELDS,
    SPAWN_FIELDS,
    SendArguments,
    SpawnArguments,
    Wait,
    addressed,
    agent_of,
    error,
    free_label,
    wait_of,
)
from retinue.subagents.task_tools import TASK_TOOLS

__all__ = ["ROSTER_TOOLS", "roster_handlers"]

ROSTER_TOOLS: Final = ("agent_spawn", "agent_send", "agent_list", *TASK_TOOLS, TASK_ANSWER)
"""The names of the tools of the roster."""

FINISHED_LISTED: Final = 10

_TIMEOUT: Final = {
    "type": "number",
    "description": (
        "Seconds to wait for its reply (default 30, at most 600). If it is not done then it goes on in the background, and its "
        "result reaches you by itself. 0: do not wait at all."
    ),
}
_PROMOTED: Final = "It is not done yet and goes on in the background. Do not start it again: its result reaches you by itself."
_QUEUED: Final = "It is at work, and has your message at its next step. Its reply comes as the result of what it is doing."
_LATER: Final = (
    "It works in the background. Go on with something else, and do not ask for its result at once: that reaches you by itself."
)


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

    def receipt(self, row: InvocationRow, *, promoted: bool, asks: Sequence[str] = ()) -> str:
        """See `Format` (A-26, A-32)."""
        if asks:
            return "\n".join([*self._head, "status: waiting", f"task_id: {row.task_id}", "question:", *asks, ASKS])
        status, told = ("timeout_promoted", _PROMOTED) if promoted else ("accepted", _LATER)
        return "\n".join([*self._head, f"status: {status}", f"task_id: {row.task_id}", told])


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

    async def gated(self, run: Run, arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`. Roster tools allow by default (D-26). Rules see the id that the agent is found under, however
        it was addressed."""
        named = await self._meant(run, arguments)
        resolved: ResolvedDeclaration | None = None
        if named is not None:
            try:
                resolved = self.children.roster.find(named)
            except UnknownId:
                pass  # the call itself will say so
        target = named if resolved is None else resolved.agent_id
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=target,
            need=Verdict.ASK if resolved is not None and resolved.requires_permission else Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=target or run.definition.agent_id,
        )

    async def _meant(self, run: Run, arguments: Mapping[str, Any]) -> str | None:
        """The agent that a call is for, if it is for one."""
        return None

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        return None

    async def reattach(
        self, run: Run, ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        resolved = self.children.roster.find(started.child_agent_id)
        definition = self.children.definition(run, resolved, started.child_session_id)
        key = ThreadKey(run.row.key.user, started.child_session_id, started.child_thread_id)
        row = await run.tree.services.ledger.thread(key)
        return await reattach(
            run, started, definition, _Lines(self._head(row) if row is not None else []), promote=resolved.on_timeout == "promote"
        )

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

    async def _meant(self, run: Run, arguments: Mapping[str, Any]) -> str | None:
        """The agent that the child is to be of."""
        return str(arguments.get("agent_id") or "") or None

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        checked = self._checked(run, call)
        return checked if isinstance(checked, CallOutcome) else None

    def _checked(self, run: Run, call: ToolCall) -> tuple[SpawnArguments, ResolvedDeclaration, Wait] | CallOutcome:
        """The arguments, who is meant, and the time limit; or why it cannot be."""
        form = '{"agent_id": "…", "task": "…", "label": "…", "timeout_seconds": 120}'
        arguments = read(call, SpawnArguments, SPAWN_FIELDS, form)
        if isinstance(arguments, CallOutcome):
            return arguments
        found = self._find(arguments.agent_id)
        if isinstance(found, CallOutcome):
            return found
        wait = wait_of(call, arguments.timeout_seconds, found)
        if isinstance(wait, CallOutcome):
            return wait
        return limit_refusal(run, self.children.parent.ceiling) or (arguments, found, wait)

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        checked = self._checked(run, call)  # again: others of the same batch may have used the limit up
        if isinstance(checked, CallOutcome):
            return checked
        arguments, resolved, wait = checked
        label = await free_label(run, arguments.label)
        if isinstance(label, CallOutcome):
            return label
        key = ThreadKey(run.row.key.user, new_sub_session(), "main")
        try:
            check_supported(resolved)
            definition = self.children.definition(run, resolved, key.session)
        except ConfigurationError as fault_of_it:
            return error(fault_of_it.message, fault_of_it.remedy or "use another subagent")
        wanted = Delegation(
            definition=definition,
            name=resolved.name,
            source=resolved.declaration.source,
            surface="roster",
            text=(arguments.task or "").strip(),
            context_policy=resolved.context_policy,
            timeout_seconds=wait.seconds,
            promote=resolved.on_timeout == "promote",
            background=wait.background,
            notify=resolved.notify,
            strategy=resolved.strategy,
            budget=resolved.declaration.budget,
            agent_key=new_agent_key(resolved.agent_id),
            label=label,
            metadata=resolved.declaration.metadata,
            inherits_output=resolved.inherits_output,
        )
        head = [f"agent_key: {wanted.agent_key}", f"agent_id: {resolved.agent_id}", f"session_id: {key.session}"]
        if not wanted.text:
            refused = count_refusal(run)  # again, as for one with a task
            if refused is not None:
                return refused
            run.tree.children += 1
            create_idle_child(run, call, wanted, key)
            return CallOutcome(content="\n".join([*head, "status: accepted"]), batch=Batch())
        return await delegate(run, ref, call, wanted, _Lines(head), key=key)

    def _find(self, agent_id: str) -> ResolvedDeclaration | CallOutcome:
        try:
            return self.children.roster.find(agent_id)
        except UnknownId as unknown:
            return error(unknown.message, unknown.remedy or "")

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

    async def _meant(self, run: Run, arguments: Mapping[str, Any]) -> str | None:
        """The agent whose child is addressed, by key or label alike; without a child, the one that the key names."""
        key, label = (value if isinstance(value, str) else None for value in map(arguments.get, ("agent_key", "label")))
        row = await addressed(run, key, label)
        return row.default_agent_id if isinstance(row, ThreadRow) else agent_of(key)

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`. So whoever is addressed is there when the gate looks who that is."""
        checked = await self._checked(run, call)
        return checked if isinstance(checked, CallOutcome) else None

    async def _checked(self, run: Run, call: ToolCall) -> tuple[SendArguments, ThreadRow] | CallOutcome:
        """The arguments and the child's thread; or why it cannot be."""
        form = '{"agent_key": "agent:…", "message": "…"} or {"label": "…", "message": "…"}'
        arguments = read(call, SendArguments, SEND_FIELDS, form)
        if isinstance(arguments, CallOutcome):
            return arguments
        if not arguments.message.strip():
            return fault(call.name, "`message` is blank", "Write what the subagent is to do")
        row = await addressed(run, arguments.agent_key, arguments.label)
        if isinstance(row, CallOutcome):
            return row
        return limit_refusal(run, self.children.parent.ceiling) or (arguments, row)

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        checked = await self._checked(run, call)  # again: others of the same batch may have used the limit up
        if isinstance(checked, CallOutcome):
            return checked
        arguments, row = checked
        last = await run.tree.services.ledger.last_run(row.key)
        if row.key in run.tree.busy or (last is not None and not last.state.terminal):
            asked = None if last is None else await question_of(run, last.root, last.run_id)
            if asked is not None:
                return self._answered(run, row, asked, arguments.message.strip())
            return self._queued(run, row, arguments.message.strip())
        return await self._go_on(run, ref, call, row, arguments)

    def _queued(self, run: Run, row: ThreadRow, text: str) -> CallOutcome:
        """Send it to a child that is at work: it has it at its next step, or with its next message."""
        journal, tree = run.journal, run.tree
        journal.stage_op(message_to(row.key, text, by=run.definition.agent_id, at=journal.clock.now_ms()))
        journal.then(lambda: tree.mail_for(row.key))
        return CallOutcome(content="\n".join([*self._head(row), "status: queued", _QUEUED]))

    def _answered(self, run: Run, row: ThreadRow, request_id: str, text: str) -> Prepared:
        """A child that waits for an answer takes what it is sent for that."""

        async def execute() -> CallOutcome:
            said = await answered(run, request_id, text, "It")
            return CallOutcome(content="\n".join([*self._head(row), "status: answered", said]))

        return Prepared(execute=execute)

    async def _go_on(
        self, run: Run, ref: CallRef, call: ToolCall, row: ThreadRow, arguments: SendArguments
    ) -> Prepared | CallOutcome:
        try:
            resolved = self.children.roster.find(row.default_agent_id)
            wait = wait_of(call, arguments.timeout_seconds, resolved)
            if isinstance(wait, CallOutcome):
                return wait
            definition = self.children.definition(run, resolved, row.key.session)
        except (UnknownId, ConfigurationError) as fault_of_it:
            return error(fault_of_it.message, fault_of_it.remedy or "spawn another subagent")
        wanted = Delegation(
            definition=definition,
            name=resolved.name,
            source=resolved.declaration.source,
            surface="roster",
            text=arguments.message.strip(),
            context_policy=SubAgentContextPolicy(str(row.metadata.get("contextPolicy", "isolated"))),
            timeout_seconds=wait.seconds,
            promote=resolved.on_timeout == "promote",
            background=wait.background,
            notify=resolved.notify,
            strategy=resolved.strategy,
            budget=resolved.declaration.budget,
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
    """The roster tools of an agent (A-02)."""
    children = Children(parent, roster)
    return [SpawnTool(children), SendTool(children), ListTool(children)]
