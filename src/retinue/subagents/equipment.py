"""What an agent is equipped with, how that becomes an agent that can run, and what a child gets of it.

`Equipment` is plain and immutable; `assemble` makes the `AgentDefinition`; `child_equipment` applies inheritance (A-14, A-22,
D-11, D-12), the workspace table (A-07 to A-12) and the chain of rights. Both surfaces and the root use the same three.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast, runtime_checkable

import msgspec
from msgspec.structs import replace

from retinue.agent.definition import AgentDefinition, Deliver
from retinue.agent.middleware import Middleware
from retinue.agent.output import OutputType
from retinue.agent.ports import CallHandler
from retinue.agent.results import READ_RESULT, with_reading
from retinue.agent.tool_handler import ToolHandler
from retinue.config import AgentRunConfig, ClientsConfig, PermissionRules, RuntimeContext, Unset
from retinue.errors import ConfigurationError
from retinue.models.port import ChatModel
from retinue.permissions.gate import PermissionGate
from retinue.subagents.declaration import SubAgent
from retinue.subagents.prompts import child_instructions, roster_section
from retinue.subagents.registry import Roster
from retinue.subagents.resolved import ResolvedDeclaration, with_defaults, workspace_plan
from retinue.subagents.run_config import ClientInheritance, SubAgentRunConfigFields
from retinue.tools.harness import collect
from retinue.tools.port import Capability, Tool
from retinue.workspace.layout import Workspace
from retinue.workspace.tools import FileTool, file_tools

__all__ = ["Equipment", "Equippable", "ResolveModel", "assemble", "child_equipment"]

ResolveModel = Callable[[str | ChatModel, ChatModel], ChatModel]
"""The model of a text, seen from the parent's model; raises `ConfigurationError` for one that cannot be resolved. A model
that is given as one is closed with the others."""

_LATER: Final = "not in this version; use `SubAgent.from_config(…)`"


class Equipment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent of a tree is made of.

    `instructions` are complete but for the roster's section. `inherited` are handlers of the parent's tools, `capabilities`
    what is registered on this agent itself, `builtin` the file tools of its own workspace. `rules` is the chain from the
    root to this agent, `labels` the agent ids the sets belong to. `ceiling` is the smallest on the chain (D-03).
    `deliver`: when it is told ends of its tasks. `asks_parent`: it has `ask_parent`. `file_tools`: whether it and its children
    register file tools at all.
    `shares_context`: its tools may look up what the root was given as `RuntimeContext.attributes`. `reserved` are the files of
    the ledgers of this tree, which no file tool may touch.
    """

    agent_id: str
    instructions: str
    model: ChatModel
    model_reference: str
    resolve_model: ResolveModel
    run_config: AgentRunConfig = msgspec.field(default_factory=AgentRunConfig)
    max_iters: int = 10
    rules: tuple[PermissionRules, ...] = ()
    labels: tuple[str, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    inherited: Mapping[str, CallHandler] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    builtin: tuple[Tool, ...] = ()
    roster: Roster = msgspec.field(default_factory=Roster)
    workspace: Workspace | None = None
    file_tools: bool = True
    reserved: tuple[Path, ...] = ()
    shares_context: bool = True
    output: OutputType | None = None
    asks_parent: bool = False
    deliver: Deliver = "step"
    depth: int = 0
    ceiling: int = 3
    leaf: bool = False


@runtime_checkable
class Equippable(Protocol):
    """What a factory may return: an agent that can be equipped as a child (`Agent` is one)."""

    def _equipment_as_child(self, parent: Equipment, agent_id: str) -> Equipment:
        """This agent as a child of `parent`."""
        ...


def assemble(equipment: Equipment) -> AgentDefinition:
    """The agent that can run. Tools in the order: inherited, built-in, own; a name declared on the agent itself wins.

    Raises:
        ConfigurationError: two own capabilities have one name, or a declaration cannot be in this version.
    """
    tools: dict[str, CallHandler] = dict(equipment.inherited)
    for tool in equipment.builtin:
        tools[tool.spec.name] = ToolHandler(tool)
    own: set[str] = set()
    hidden: dict[str, str] = {}
    for tool in (*equipment.builtin, *equipment.capabilities):
        if isinstance(tool, FileTool):  # by whichever way it came to have it: an agent's ledger is closed to it
            tool.files.reserve(equipment.reserved)
    for capability in equipment.capabilities:
        handler = _handler(equipment, capability)
        if capability.name in own:
            raise ConfigurationError(
                f"agent `{equipment.agent_id}` has two capabilities named `{capability.name}`",
                code="duplicate_name",
                remedy="rename one of them",
            )
        own.add(capability.name)
        if handler is not None:
            tools[capability.name] = handler
        elif isinstance(capability, SubAgent):
            hidden[capability.name] = _why_hidden(equipment, capability.name)
    instructions = equipment.instructions
    roster = available_roster(equipment)
    for handler in _delegating(equipment, roster, [one for one in tools.values() if one.delegates]):
        if handler.spec.name in own:
            raise ConfigurationError(
                f"agent `{equipment.agent_id}` has a capability named `{handler.spec.name}`, which is a tool for its subagents",
                code="duplicate_name",
                remedy="rename it, or do without subagents: `disable_subagents=True`",
            )
        tools[handler.spec.name] = handler
    if roster.spawnable:
        section = roster_section(roster, background=True)
        instructions = "\n\n".join(part for part in (instructions, section) if part)
    if READ_RESULT in own:
        raise ConfigurationError(
            f"agent `{equipment.agent_id}` has a capability named `{READ_RESULT}`, which is a tool of every agent",
            code="duplicate_name",
            remedy="rename it: that one reads on in results that were cut",
        )
    return AgentDefinition(
        agent_id=equipment.agent_id,
        model=equipment.model,
        model_reference=equipment.model_reference,
        instructions=instructions,
        tools=with_reading(MappingProxyType(tools), needed=False),
        gate=PermissionGate(equipment.rules, equipment.labels),
        max_iters=equipment.max_iters,
        settings=equipment.run_config.clients.chat,
        middleware=equipment.middleware,
        workspace=None if equipment.workspace is None else str(equipment.workspace.root),
        hidden=MappingProxyType(hidden),
        shares_context=equipment.shares_context,
        output=equipment.output,
        deliver=equipment.deliver,
    )


def _delegating(equipment: Equipment, roster: Roster, own: Sequence[CallHandler]) -> list[CallHandler]:
    """The tools that an agent has for its children: the roster's, those for tasks where a child may work in the background
    (D-02), and its own question to its parent."""
    handlers: list[CallHandler] = []
    on_surface = [resolved for one in own if (resolved := getattr(one, "resolved", None)) is not None]
    if roster.spawnable:
        from retinue.subagents.roster_tools import roster_handlers  # it needs `assemble` for its children

        handlers += roster_handlers(equipment, roster)
    if roster.spawnable or any(one.may_work_in_background for one in on_surface):
        from retinue.subagents.task_tools import task_handlers

        handlers += task_handlers()
    may_ask = any(one.declaration.ask_parent for one in (*roster.spawnable, *on_surface))
    if may_ask or equipment.asks_parent:
        from retinue.subagents.asking_parent import AnswerTool, AskParent

        handlers += [AnswerTool()] if may_ask else []
        handlers += [AskParent()] if equipment.asks_parent else []
    return handlers


def available_roster(equipment: Equipment) -> Roster:
    """The roster as this agent sees it: nothing for a leaf (A-23), else what availability admits at its depth."""
    if equipment.leaf:
        return Roster()
    return equipment.roster.available(equipment.depth, equipment.ceiling)


def _handler(equipment: Equipment, capability: Capability) -> CallHandler | None:
    """How a capability is called; None if it is a subagent that may not be called at this depth (H-06)."""
    if not isinstance(capability, SubAgent):
        return ToolHandler(cast("Tool", capability))
    from retinue.subagents.tool_surface import SubAgentTool  # it needs `assemble` for its child

    resolved = with_defaults(capability, "tool")
    check_supported(resolved)
    if equipment.leaf or not resolved.availability.admits(equipment.depth, equipment.ceiling):
        return None
    return SubAgentTool(equipment, resolved)


def _why_hidden(equipment: Equipment, name: str) -> str:
    """What a model is told that calls a subagent which it is not offered (H-06)."""
    child = equipment.depth + 1
    if child > equipment.ceiling:
        because = f"a child would be at depth {child}, and `max_subagent_depth` is {equipment.ceiling}"
    elif equipment.leaf:
        because = "this agent delegates to nobody"
    else:
        because = f"its availability ends above depth {child}"
    return f"Not run: `{name}` cannot be called here: {because}. Do this part yourself."


def check_supported(resolved: ResolvedDeclaration) -> None:
    """Refuse early and plainly what this version cannot do yet."""
    declaration = resolved.declaration
    problem: str | None = None
    if declaration.url is not None:
        problem = "`url`: remote subagents are"
    elif declaration.source == "agent_id":
        problem = "`from_agent_id`: the agent store is"
    elif declaration.fork_compaction is not None and type(declaration.fork_compaction).__name__ != "DisableThreadForkCompaction":
        problem = "`fork_compaction`: compaction is"
    if problem is not None:
        raise ConfigurationError(
            f"subagent `{declaration.name}`: {problem} {_LATER.split(';')[0]}",
            code="not_supported",
            remedy="leave it out, or wait for a later version",
        )


def child_equipment(
    parent: Equipment,
    parent_tools: Mapping[str, CallHandler],
    resolved: ResolvedDeclaration,
    context: RuntimeContext,
    *,
    trial: bool = False,
) -> Equipment:
    """The equipment of a declared child at its parent's place (D-12: of the parent's tools as they are now).

    `trial`: it is only looked whether it can be made, so its folder is not.

    Raises:
        ConfigurationError: its model cannot be resolved, its workspace cannot be used, or its factory gave no agent.
    """
    declaration = resolved.declaration
    if declaration.source == "factory":
        return _from_factory(parent, resolved, context)
    run_config = declaration.run_config.apply(parent.run_config, AgentRunConfig(clients=ClientsConfig(chat=resolved.own_chat)))
    model, reference = _model(parent, resolved, run_config)
    run_config = run_config.with_chat(model=None)  # it is resolved: its text is no name that a provider knows
    mirrors = declaration.source in ("builtin", "parent")
    config = declaration.origin.config
    ceiling = parent.ceiling if config is None else min(parent.ceiling, config.max_subagent_depth)
    deny = PermissionRules(deny=tuple(declaration.disallowed_tools))
    rules = _rights(parent, resolved)
    rules = (*rules, deny) if deny.deny else rules
    labels = (*parent.labels, resolved.agent_id) if deny.deny else parent.labels
    capabilities = tuple(collect(declaration.tool_harnesses)) if declaration.tool_harnesses else ()
    if declaration.source == "parent":
        capabilities = (*parent.capabilities, *capabilities)
    equipment = Equipment(
        agent_id=resolved.agent_id,
        instructions=parent.instructions if declaration.source == "parent" else (resolved.instructions or ""),
        model=model,
        model_reference=reference,
        resolve_model=parent.resolve_model,
        run_config=run_config,
        max_iters=parent.max_iters if resolved.max_iters is None else resolved.max_iters,
        rules=rules,
        labels=labels,
        middleware=parent.middleware,
        capabilities=capabilities,
        roster=parent.roster if resolved.surface == "roster" and not resolved.leaf else Roster(),
        workspace=parent.workspace,
        file_tools=parent.file_tools,
        reserved=parent.reserved,
        output=_output(declaration),
        shares_context=parent.shares_context and SubAgentRunConfigFields.CONTEXT in resolved.fields,
        depth=parent.depth + 1,
        ceiling=ceiling,
        leaf=resolved.leaf,
        asks_parent=declaration.ask_parent,
    )
    included = parent.instructions if SubAgentRunConfigFields.INSTRUCTIONS in resolved.fields and not mirrors else ""
    if _has_place(resolved):
        try:
            equipment = _in_workspace(parent, equipment, resolved, included, trial=trial)
        except ConfigurationError as error:
            raise _of(resolved, error) from error
    elif included:
        equipment = replace(equipment, instructions=_joined(included, equipment.instructions))
    if declaration.source == "parent" and not _has_place(resolved):
        equipment = replace(equipment, builtin=parent.builtin)
    inherited = {  # plain tools only: no delegation tool of either surface is ever inherited (D-03)
        name: handler
        for name, handler in parent_tools.items()
        if isinstance(handler, ToolHandler) and resolved.admits_inherited(name)
    }
    return replace(equipment, inherited=MappingProxyType(inherited), builtin=_own_builtin(equipment, resolved, inherited))


def _has_place(resolved: ResolvedDeclaration) -> bool:
    """Whether the child works in a folder of its own choice: each on the roster, on the tool surface one that says so."""
    declaration = resolved.declaration
    said = (declaration.workspace_mode, declaration.builtin_tools)
    return resolved.surface == "roster" or declaration.workspace is not None or any(not isinstance(one, Unset) for one in said)


def _output(declaration: SubAgent) -> OutputType | None:
    if declaration.output is None:
        return None
    return OutputType(declaration.output, where=f"`output` of subagent `{declaration.name}`")


def _rights(parent: Equipment, resolved: ResolvedDeclaration) -> tuple[PermissionRules, ...]:
    """The parent's rule sets. A child that does not take `permissions` gets none of its grants, and all that it forbids."""
    if SubAgentRunConfigFields.PERMISSIONS in resolved.fields:
        return parent.rules
    return tuple(PermissionRules(ask=rules.ask, deny=rules.deny) for rules in parent.rules)


def _own_builtin(equipment: Equipment, resolved: ResolvedDeclaration, inherited: Mapping[str, CallHandler]) -> tuple[Tool, ...]:
    """The built-in tools that the child registers itself. A tool that `tools` names is the parent's, and stays it: a
    reviewer that is given `read_file` reads what its parent reads (decision 0004)."""
    if not _has_place(resolved):
        return equipment.builtin
    named = resolved.declaration.tools is not None
    return tuple(
        tool
        for tool in equipment.builtin
        if resolved.admits_builtin(tool.spec.name) and not (named and tool.spec.name in inherited)
    )


def _in_workspace(
    parent: Equipment, equipment: Equipment, resolved: ResolvedDeclaration, included: str, *, trial: bool
) -> Equipment:
    """The decision table (A-07 to A-12), the child's file tools, and what a roster child is told beside its own text: the
    instructions of the folder that it works in, and that it is a subagent (A-13)."""
    main = parent.workspace
    if main is None:
        if resolved.declaration.workspace is not None:
            raise ConfigurationError(
                "its `workspace` needs a parent that has a workspace itself",
                code="no_workspace",
                remedy="use a `HarnessAgent`, or give the child `instructions`",
            )
        return replace(equipment, instructions=_told(resolved, _joined(included, equipment.instructions), ""))
    plan = workspace_plan(resolved, main.root, inside=resolved.declaration.source == "file")
    if plan.create and trial:
        workspace = main
    elif plan.create:
        workspace = Workspace.open(main.agent_workspace(resolved.agent_id))
    else:
        workspace = main if plan.root == main.root else Workspace.open(plan.root)
    base = equipment.instructions
    if plan.base_file is not None:
        folder = plan.base_file.parent
        base = Workspace.open(folder).read_instructions() if folder.is_dir() else ""
    injected = workspace.read_instructions() if plan.base_file is None or plan.base_file.parent != workspace.root else ""
    return replace(
        equipment,
        instructions=_told(resolved, _joined(included, base), injected),
        workspace=workspace,
        builtin=tuple(file_tools(workspace.files)) if parent.file_tools else (),
    )


def _told(resolved: ResolvedDeclaration, own: str, injected: str) -> str:
    """A roster child's text with all that is told beside it; on the tool surface exactly its own (D-26)."""
    if resolved.instructions_mode == "exact":
        return own
    return child_instructions(_joined(own, injected), leaf=resolved.leaf)


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _model(parent: Equipment, resolved: ResolvedDeclaration, run_config: AgentRunConfig) -> tuple[ChatModel, str]:
    wanted = run_config.clients.chat.model
    if wanted is None:
        if resolved.declaration.run_config.chat is ClientInheritance.USE_OWN:
            raise ConfigurationError(
                f"subagent `{resolved.name}` takes no client from its parent and names no model of its own",
                code="missing_model",
                remedy="give it `model=…`, or do not use `SubAgentRunConfig.isolated()`",
            )
        return parent.model, parent.model_reference
    try:
        model = parent.resolve_model(wanted, parent.model)
    except ConfigurationError as error:
        raise _of(resolved, error) from error
    return model, wanted


def _of(resolved: ResolvedDeclaration, error: ConfigurationError) -> ConfigurationError:
    """The error with the name of the declaration that it is about."""
    message = error.message if f"`{resolved.name}`" in error.message else f"subagent `{resolved.name}`: {error.message}"
    return ConfigurationError(message, code=error.code, remedy=error.remedy)


def _from_factory(parent: Equipment, resolved: ResolvedDeclaration, context: RuntimeContext) -> Equipment:
    factory = resolved.declaration.origin.factory
    assert factory is not None
    try:
        made: object = factory(context)
    except Exception as error:  # the author's code: what it raises is told to the model, and ends nothing
        raise ConfigurationError(
            f"the factory of subagent `{resolved.name}` raised {type(error).__name__}: {error}",
            code="factory_failed",
            remedy="use another subagent; the factory has to be mended by its author",
        ) from error
    if not isinstance(made, Equippable):
        raise ConfigurationError(
            f"the factory of subagent `{resolved.name}` returned {type(made).__name__}",
            code="invalid_factory",
            remedy="return an `Agent` or a `HarnessAgent`",
        )
    equipment = made._equipment_as_child(parent, resolved.agent_id)
    return replace(
        equipment,
        instructions=child_instructions(equipment.instructions, leaf=equipment.leaf),
        reserved=tuple(dict.fromkeys((*parent.reserved, *equipment.reserved))),
    )
