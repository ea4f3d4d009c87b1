"""`HarnessAgent`: an agent that is bound to a workspace."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from retinue.agent.definition import AgentDefinition, Deliver
from retinue.agent.middleware import Middleware
from retinue.config import UNSET, Budget, ChatClientConfig, Limits, PermissionRules, RuntimeContext, Unset
from retinue.errors import UntrustedWorkspace
from retinue.events import PermissionRequest
from retinue.harness.agent import Agent
from retinue.harness.runtime import Runtime
from retinue.ids import check_scope_id
from retinue.ledger.port import Ledger
from retinue.models.port import ChatModel
from retinue.permissions.mistakes import check_globs
from retinue.subagents.declaration import SubAgent
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.equipment import Equipment, assemble
from retinue.subagents.loading import LoadReport, load_subagents
from retinue.subagents.registry import Roster, general_purpose, merge_subagents
from retinue.tools.harness import ToolHarness
from retinue.tools.port import Capability
from retinue.workspace.layout import Workspace
from retinue.workspace.tools import FILE_TOOLS, file_tools

__all__ = ["HarnessAgent"]


class HarnessAgent(Agent):
    """An agent in a folder: file tools, `AGENTS.md`, `subagents/*.md`, and a ledger in `.retinue/`.

    Args (beyond those of `Agent`):
        workspace: the folder, which must exist. It is read for each run: `AGENTS.md` joins the instructions, the files in
            `subagents/` join the roster.
        ledger: SQLite in the workspace unless given (D-32).
        general_purpose: whether the built-in child that mirrors this agent is on the roster (D-13).
        disable_subagents: no roster and no delegation at all (A-01).
        disable_file_tools: without `read_file`, `write_file` and the others.
        trust: a workspace that code names is trusted. False: its agent files are only used if a person has confirmed them
            once (`Workspace.trust`), otherwise `UntrustedWorkspace` is raised (D-23).
    """

    _builtin_names = FILE_TOOLS

    def __init__(
        self,
        name: str,
        *,
        model: str | ChatModel | None = None,
        workspace: str | Path = ".",
        instructions: str = "",
        tools: Sequence[Callable[..., Any] | Capability] = (),
        tool_harnesses: Sequence[type[ToolHarness] | ToolHarness] = (),
        subagents: Sequence[SubAgent] = (),
        general_purpose: bool = True,
        disable_subagents: bool = False,
        disable_file_tools: bool = False,
        ledger: str | Path | Ledger | None = None,
        runtime: Runtime | None = None,
        permissions: PermissionRules | None = None,
        on_request: Callable[[PermissionRequest], Awaitable[bool | str] | bool | str] | None = None,
        middleware: Sequence[Middleware] = (),
        max_subagent_depth: int = 3,
        max_iters: int = 50,
        chat: ChatClientConfig | None = None,
        limits: Limits | None = None,
        models: Mapping[str, ChatModel | str] | None = None,
        trust: bool = True,
        leaf: bool | Unset = UNSET,
        output: Any = None,
        budget: Budget | None = None,
        wake: bool = True,
        deliver: Deliver = "step",
        recovery: Literal["resume", "fail", "leave"] = "resume",
        on_exit: Literal["wait", "detach", "cancel"] = "wait",
    ) -> None:
        self.workspace = Workspace.open(workspace)
        self._general_purpose = general_purpose
        self._disable_file_tools = disable_file_tools
        self._trusted = trust
        self._default_ledger = ledger is None and runtime is None
        if ledger is None:
            ledger = "memory" if runtime is not None else self.workspace.ledger_path
        super().__init__(
            name,
            model=model,
            instructions=instructions,
            tools=tools,
            tool_harnesses=tool_harnesses,
            subagents=subagents,
            ledger=ledger,
            runtime=runtime,
            permissions=permissions,
            on_request=on_request,
            middleware=middleware,
            max_subagent_depth=max_subagent_depth,
            max_iters=max_iters,
            chat=chat,
            limits=limits,
            models=models,
            disable_subagents=disable_subagents,
            leaf=leaf,
            output=output,
            budget=budget,
            wake=wake,
            deliver=deliver,
            recovery=recovery,
            on_exit=on_exit,
        )
        if permissions is not None and not disable_file_tools:
            check_globs(permissions, FILE_TOOLS, self.workspace.root)

    async def build(self) -> "HarnessAgent":
        """See `Agent.build`.

        Raises:
            UntrustedWorkspace: the folder has agent files that nobody has confirmed, and `trust=False`.
        """
        if not self._built:
            self._check_trust()
            if self._default_ledger:
                self.workspace.ensure_state()
        await super().build()
        return self

    def _check_trust(self) -> None:
        if self._trusted or self.workspace.is_trusted():
            return
        found = self._agent_files()
        if found:
            names = ", ".join(f"`{path.relative_to(self.workspace.root)}`" for path in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise UntrustedWorkspace(
                f"workspace `{self.workspace.root}` has agent files that were not confirmed yet: {names}{more}",
                remedy=f"look at them, then confirm: `{self.workspace.trust_command}`",
            )

    def _agent_files(self) -> list[Path]:
        """The files of the workspace that tell agents what to do: `AGENTS.md`, `subagents/*.md`, and those of users."""
        root = self.workspace.root
        declared = (*sorted(self.workspace.subagents_dir.glob("*.md")), *sorted(root.glob("*/subagents/*.md")))
        return [path for path in (self.workspace.instructions_path, *declared) if path.is_file()]

    def _defined(self, context: RuntimeContext | None) -> AgentDefinition:
        """The agent as it runs now: the workspace's files are read for each run, and so is whether it may use them."""
        self._check_trust()
        return assemble(self._equipment(context))

    def _definition_under(self, stored: PermissionRules, context: RuntimeContext | None) -> AgentDefinition:
        self._check_trust()
        return super()._definition_under(stored, context)

    def _equipment(self, context: RuntimeContext | None, *, model: ChatModel | None = None) -> Equipment:
        equipment = super()._equipment(context, model=model)
        texts = (self._instructions, self.workspace.read_instructions())
        return replace(
            equipment,
            instructions="\n\n".join(text.strip() for text in texts if text.strip()),
            workspace=self.workspace,
            file_tools=not self._disable_file_tools,
            builtin=() if self._disable_file_tools else tuple(file_tools(self.workspace.files)),
        )

    def _found(self, context: RuntimeContext | None) -> tuple[Roster, Sequence[Diagnostic]]:
        """The four sources (A-04), by the precedence of D-05, and what they have to say."""
        if self._disable_subagents or self._leaf is True:
            return Roster(), ()
        shared = _loaded(self.workspace.subagents_dir)
        user = LoadReport()
        if context is not None and context.user_id:
            user_id = check_scope_id(context.user_id, where="`user_id`")
            user = _loaded(self.workspace.root / user_id / "subagents")
        merged = merge_subagents(
            builtin=(general_purpose(),) if self._general_purpose else (),
            code=self._on_roster,
            user_files=user,
            shared_files=shared,
        )
        return merged.roster, (*shared.diagnostics, *user.diagnostics, *merged.diagnostics)


def _loaded(folder: Path) -> LoadReport:
    """The declarations of a folder; a folder that is not there has none."""
    return load_subagents(folder) if folder.is_dir() else LoadReport()
