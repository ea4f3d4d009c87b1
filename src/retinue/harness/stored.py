"""What a run was started with, as its journal has it: it goes on with these rules, and with an agent that has these tools."""

from retinue.agent.definition import AgentDefinition, envelope_from_blob
from retinue.agent.results import READ_RESULT
from retinue.config import PermissionRules, RuntimeContext
from retinue.errors import ConfigurationError, UnknownId
from retinue.events import RunStartedEvent, decode
from retinue.ledger.port import Ledger
from retinue.rows import RunRow
from retinue.subagents.lookup import child_definition

__all__ = ["check_below", "check_tools", "plain_rules", "started_with", "stored_rules"]


def plain_rules(rules: PermissionRules | None) -> dict[str, tuple[str, ...]]:
    """A set of rules as RUN_STARTED stores it: only what is not empty."""
    if rules is None:
        return {}
    lists = {"allow": tuple(rules.allow), "ask": tuple(rules.ask), "deny": tuple(rules.deny)}
    return {name: texts for name, texts in lists.items() if texts}


async def started_with(ledger: Ledger, run: RunRow) -> RunStartedEvent | None:
    """The newest RUN_STARTED of a run, None if its journal has none."""
    journal = await ledger.journal(run.key)
    if journal is None:
        return None
    wanted = (one for one in reversed(journal.own) if one.run == run.run_id and one.type == RunStartedEvent.TYPE)
    event = next((decode(record) for record in wanted), None)
    return event if isinstance(event, RunStartedEvent) else None


def stored_rules(started: RunStartedEvent | None) -> PermissionRules:
    """The root's set that the run was started under; a silent one if it had none."""
    rules = {} if started is None else started.rules
    return PermissionRules(allow=rules.get("allow", ()), ask=rules.get("ask", ()), deny=rules.get("deny", ()))


async def check_below(ledger: Ledger, root: RunRow, definition: AgentDefinition, context: RuntimeContext) -> None:
    """Refuse to go on with a tree in which an unfinished child is an agent, or has tools, that `definition` and those below it
    do not have: as for the root (`check_tools`), before anything is taken over. Children of a cancelled run only end.

    Raises:
        ConfigurationError: `no_executor`, naming the child, or its tools.
    """
    for row in await ledger.tree(root.run_id):
        if row.state.terminal or row.run_id == root.run_id or await ledger.cancel_intent(row.lineage) is not None:
            continue
        try:
            child = child_definition(definition, row.agent_id, depth=row.depth, context=context)
        except UnknownId as error:
            raise ConfigurationError(
                f"run `{root.run_id}` waits for subagent `{row.agent_id}`, which cannot be run here: {error.message}",
                code="no_executor",
                remedy=f"declare `{row.agent_id}` again and resume, or stop the run: `retinue cancel {root.run_id}`",
            ) from error
        await check_tools(ledger, row, await started_with(ledger, row), child)


async def check_tools(ledger: Ledger, run: RunRow, started: RunStartedEvent | None, definition: AgentDefinition) -> None:
    """Refuse to go on with a run whose tools this agent does not have (M5), before anything is taken over. A run that is
    being cancelled calls no tool any more, and can be ended by anyone.

    Raises:
        ConfigurationError: `no_executor`, naming the tools.
    """
    blob = None if started is None else await ledger.blob(started.envelope_hash)
    if started is None or blob is None:
        return
    offered = [spec.name for spec in envelope_from_blob(blob, started.envelope_hash).tools]
    missing = [name for name in offered if name not in definition.tools and name != READ_RESULT]
    if missing and await ledger.cancel_intent(run.lineage) is None:
        names = ", ".join(f"`{name}`" for name in missing)
        raise ConfigurationError(
            f"run `{run.run_id}` was started with tools that this agent `{definition.agent_id}` does not have: {names}",
            code="no_executor",
            remedy=f"resume it from the code that defines them, or stop it: `retinue cancel {run.root}`",
        )
