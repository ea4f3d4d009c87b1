"""`Agent`: an agent that can run, with its tools and subagents, on a ledger."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self
from weakref import WeakSet

from msgspec.structs import replace

from retinue.agent.definition import AgentDefinition, Deliver
from retinue.agent.middleware import Middleware
from retinue.agent.output import OutputType
from retinue.agent.tree import Tree
from retinue.agent.viewer import Viewer
from retinue.config import (
    UNSET,
    AgentRunConfig,
    Budget,
    ChatClientConfig,
    ClientsConfig,
    Limits,
    PermissionRules,
    RuntimeContext,
    Unset,
)
from retinue.errors import ConfigurationError, UnknownId
from retinue.events import Event, PermissionRequest, RunStartedEvent
from retinue.harness.checks import (
    check_agent_arguments,
    check_answer,
    check_choice,
    check_context,
    check_input,
    check_kinds,
    check_middleware,
    check_reason,
    ledger_files,
)
from retinue.harness.driving import Driver
from retinue.harness.following import Follower, followed
from retinue.harness.mistaken import mistaken_names
from retinue.harness.requests import request_view
from retinue.harness.results import RunResult
from retinue.harness.running import Started, begin, checked, go_on
from retinue.harness.runtime import Runtime
from retinue.harness.steering import answer, cancel, send
from retinue.harness.stored import check_below, check_tools, started_with, stored_rules
from retinue.harness.takeover import find_lead
from retinue.harness.tasks import Task, Wakes, deliver, end_tasks, resume_tasks
from retinue.harness.threads import Thread, Threads
from retinue.ids import check_agent_id, new_id
from retinue.ledger.port import Ledger
from retinue.media import Input
from retinue.models.port import ChatModel
from retinue.rows import RunRow, ThreadKey
from retinue.states import RequestState
from retinue.subagents.declaration import SubAgent
from retinue.subagents.diagnostics import Diagnostic
from retinue.subagents.equipment import Equipment, assemble, check_supported
from retinue.subagents.lookup import check_children, child_definition
from retinue.subagents.mistaken_models import mistaken_models
from retinue.subagents.registry import Roster, merge_subagents
from retinue.subagents.resolved import with_defaults
from retinue.tools.decorator import function_tool
from retinue.tools.harness import ToolHarness, collect
from retinue.tools.port import Capability

__all__ = ["Agent"]

_log: Final = logging.getLogger("retinue")


class Agent:
    """An agent: a model, instructions, tools and subagents.

    Args:
        name: its agent id (D-31).
        model: `provider:name`, a URL with the model's name after `#`, a registered name, or a `ChatModel`.
        instructions: what it is told in the system text.
        tools: functions with type hints, or ready tools. (On a `SubAgent`, `tools` are names of inherited tools.)
        tool_harnesses: classes or instances whose methods are tools and subagents.
        subagents: declarations for the roster (`agent_spawn`), or for the tool surface where they say so.
        ledger: `memory` (default), `sqlite:///path`, a path, or a `Ledger` (D-32).
        runtime: share one runtime between agents; then neither `ledger` nor `limits` nor `clock` is given here.
        permissions: rules that answer in advance; without any, what asks by default is asked (D-28).
        on_request: answers requests of the whole tree in this process: `async (request) -> bool`; the answer to a question
            (`request.kind == "question"`) is a text.
        max_iters: turns until the run has to come to an end.
        limits: of every tree that this agent is the root of (D-30).
        output: the type of the answers of its runs, unless a call names another one (`run(output=…)`).
        budget: what each of its runs may use, with everything below it (`run(budget=…)` overrides it).
        wake: whether the end of a task in the background wakes its idle thread while the agent is kept open by `async with`;
            otherwise it is told in the thread's next run (D-20).
        deliver: `step`: ends of tasks are told at the next step of a run that is at work; `after_turn`: when that has ended, in a
            run of their own (if it is woken) or in the thread's next one (D-20).
        recovery: what becomes of tasks whose process is gone when the agent is opened by `async with`: they are gone on with,
            end failed with reason `executor_lost` (D-19), or are left as they are (`leave`).
        on_exit: what becomes of tasks that have not ended when the agent is closed: they are waited for, left in the ledger to
            be gone on with, or stopped.

    Raises:
        ConfigurationError: names that clash or are not valid, declarations that cannot work (D-27).
    """

    _builtin_names: Sequence[str] = ()
    """The file tools that its tree may have."""

    def __init__(
        self,
        name: str,
        *,
        model: str | ChatModel | None = None,
        instructions: str = "",
        tools: Sequence[Callable[..., Any] | Capability] = (),
        tool_harnesses: Sequence[type[ToolHarness] | ToolHarness] = (),
        subagents: Sequence[SubAgent] = (),
        ledger: str | Path | Ledger = "memory",
        runtime: Runtime | None = None,
        permissions: PermissionRules | None = None,
        on_request: Callable[[PermissionRequest], Awaitable[bool | str] | bool | str] | None = None,
        middleware: Sequence[Middleware] = (),
        max_subagent_depth: int = 3,
        max_iters: int = 50,
        chat: ChatClientConfig | None = None,
        limits: Limits | None = None,
        models: Mapping[str, ChatModel | str] | None = None,
        disable_subagents: bool = False,
        leaf: bool | Unset = UNSET,
        output: Any = None,
        budget: Budget | None = None,
        wake: bool = True,
        deliver: Deliver = "step",
        recovery: Literal["resume", "fail", "leave"] = "resume",
        on_exit: Literal["wait", "detach", "cancel"] = "wait",
    ) -> None:
        self.name = check_agent_id(name, where="agent name")
        check_agent_arguments(name, model=model, subagents=subagents, permissions=permissions)
        check_kinds(
            name,
            optional={
                "on_request": on_request,
                "chat": chat,
                "limits": limits,
                "models": models,
                "runtime": runtime,
                "budget": budget,
            },
            required={
                "ledger": ledger,
                "instructions": instructions,
                "tools": tools,
                "tool_harnesses": tool_harnesses,
                "middleware": middleware,
                "max_iters": max_iters,
                "max_subagent_depth": max_subagent_depth,
            },
        )
        check_middleware(name, middleware)
        if max_iters < 1:
            raise ConfigurationError("`max_iters` must be at least 1", remedy="leave it out for 50")
        if runtime is not None and (ledger != "memory" or limits is not None or models):
            raise ConfigurationError(
                "`runtime=` is given together with `ledger`, `limits` or `models`",
                remedy="give those to the `Runtime`",
            )
        self._model = model
        self._instructions = instructions
        self._middleware = tuple(middleware)
        self._max_subagent_depth = max_subagent_depth
        self._max_iters = max_iters
        self._chat = chat or ChatClientConfig()
        self._permissions = permissions
        self._disable_subagents = disable_subagents
        self._leaf = leaf
        self._budget = budget
        self._own_runtime = runtime is None
        self._entered = False
        self._wake = wake
        self._deliver: Deliver = check_choice(name, "deliver", deliver, ("step", "after_turn"))
        self._recovery = check_choice(name, "recovery", recovery, ("resume", "fail", "leave"))
        self._on_exit: Literal["wait", "detach", "cancel"] = check_choice(name, "on_exit", on_exit, ("wait", "detach", "cancel"))
        self._built = False
        self.diagnostics: tuple[Diagnostic, ...] = ()
        """What is wrong with its declarations and rules, though it can run: found when it is built, and for each run."""
        self._reported: set[str] = set()
        self._definition: AgentDefinition | None = None
        self._on_request = on_request
        self.runtime = runtime or Runtime(ledger=ledger, limits=limits, models=models)
        self._output = self.runtime._output(output)
        self.runtime.agents.add(self)
        self._own_trees: WeakSet[Tree] = WeakSet()
        """The trees of this agent's runs: a runtime may have those of others as well."""
        self._followers: list[Follower] = []
        self._has_tasks = False
        self._wakes_at_all = True
        self._waking: set[ThreadKey] = set()
        """Threads that are about to be woken."""
        self._wakes_of: dict[ThreadKey, Wakes] = {}
        self._sync = self.runtime._loop_thread
        self._limits = replace(self.runtime.limits, max_depth=min(self.runtime.limits.max_depth, max_subagent_depth))
        self.threads = Threads(self)
        on_roster = tuple(one for one in subagents if one.surface in (UNSET, "roster", "both"))
        as_tools = tuple(one for one in subagents if one.surface in ("tool", "both"))
        self._on_roster = on_roster
        self._capabilities: tuple[Capability, ...] = (
            *(_as_tool(one) for one in tools),
            *collect(tool_harnesses),
            *as_tools,
        )
        self._check_declarations()

    # Being built

    def _check_declarations(self) -> None:
        """Names and clashes, before anything is touched (D-27)."""
        names = [capability.name for capability in self._capabilities]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"agent `{self.name}` has two capabilities named `{name}`",
                    code="duplicate_name",
                    remedy="rename one of them",
                )
        merge_subagents(code=self._on_roster)
        for declaration in (*self._on_roster, *(one for one in self._capabilities if isinstance(one, SubAgent))):
            check_supported(with_defaults(declaration, "roster" if declaration in self._on_roster else "tool"))

    async def build(self) -> Self:
        """Open the ledger and check what needs a model or a store. Implied by first use; idempotent.

        Raises:
            ConfigurationError: no model, a model that cannot be resolved, a workspace that cannot be used.
            LedgerUnavailable: the store cannot be opened.
        """
        if not self._built:
            definition = self._defined(None)
            check_children(definition)
            self._built = True
        await self.runtime.open()
        return self

    def _defined(self, context: RuntimeContext | None) -> AgentDefinition:
        """The agent as it runs for this context."""
        if self._definition is None:
            self._definition = assemble(self._equipment(context))
        return self._definition

    @property
    def permissions(self) -> PermissionRules | None:
        """The rules that it was made with."""
        return self._permissions

    def _definition_under(self, stored: PermissionRules, context: RuntimeContext | None) -> AgentDefinition:
        """The agent as it goes on with a run that was started under `stored`: its own rules can only tighten those."""
        equipment = self._equipment(context)
        return assemble(replace(equipment, rules=(stored, *equipment.rules), labels=(self.name, *equipment.labels)))

    def _equipment(self, context: RuntimeContext | None, *, model: ChatModel | None = None) -> Equipment:
        own, model = model is None, model or self._resolved_model()
        roster = self._roster(context, model if own else None)
        return Equipment(
            agent_id=self.name,
            instructions=self._instructions,
            model=model,
            model_reference=self._model if isinstance(self._model, str) else _reference(model),
            resolve_model=self.runtime._model,
            run_config=AgentRunConfig(clients=ClientsConfig(chat=self._chat)),
            max_iters=self._max_iters,
            rules=(self._permissions or PermissionRules(),),  # the root's set, silent or not, is the first of the chain
            labels=(self.name,),
            middleware=self._middleware,
            capabilities=self._capabilities,
            roster=roster,
            ceiling=self._limits.max_depth,
            reserved=ledger_files(self.runtime.ledger),
            leaf=self._leaf is True or self._disable_subagents,
            output=self._output,
            deliver=self._deliver,
        )

    def _form(self, output: Any) -> OutputType | Unset | None:
        return UNSET if output is UNSET else self.runtime._output(output)

    def _roster(self, context: RuntimeContext | None, model: ChatModel | None) -> Roster:
        """What it can delegate to. What is wrong with that, and with names of tools and models, is in `diagnostics`, and
        logged once.

        `model` is its own as the root of its tree. As somebody's child (None) it has tools that are not known here.
        """
        roster, found = self._found(context)
        if model is not None:
            rules = self._permissions or PermissionRules()
            names = mistaken_names(self._capabilities, roster, rules, builtin=self._builtin_names)
            files = (one.declaration for one in roster if one.declaration.origin.path is not None)  # of code: an error at build
            found = (*found, *names, *mistaken_models(files, partial(self.runtime._model, parent=model)))
        self.diagnostics = tuple(found)
        for diagnostic in self.diagnostics:
            if str(diagnostic) not in self._reported:
                self._reported.add(str(diagnostic))
                _log.warning("%s", diagnostic)
        return roster

    def _found(self, context: RuntimeContext | None) -> tuple[Roster, Sequence[Diagnostic]]:
        """The roster, and what its sources have to say."""
        return merge_subagents(code=self._on_roster).roster, ()

    def _resolved_model(self) -> ChatModel:
        if self._model is None:
            raise ConfigurationError(
                f"agent `{self.name}` has no model",
                code="missing_model",
                remedy='give it one, for example `model="openai:gpt-5"` or `model="http://127.0.0.1:8080/v1#name"`',
            )
        return self.runtime._model(self._model)

    def _equipment_as_child(self, parent: Equipment, agent_id: str) -> Equipment:
        """This agent as a child of `parent`: what a factory of a `SubAgent` returns is used through this (A-04, A-24).

        Its rules are added to the chain, its model is its own or the parent's, and it is a leaf unless `leaf=False`.
        """
        own = self._model
        if own is None:
            model, reference = parent.model, parent.model_reference
        else:
            wanted = self.runtime._registered_models.get(own, own) if isinstance(own, str) else own
            model = parent.resolve_model(wanted, parent.model)
            reference = own if isinstance(own, str) else _reference(model)
        equipment = self._equipment(None, model=model)
        rules = () if self._permissions is None else (self._permissions,)
        return replace(
            equipment,
            agent_id=agent_id,
            model_reference=reference,
            rules=(*parent.rules, *rules),
            labels=(*parent.labels, *(agent_id for _ in rules)),
            middleware=(*parent.middleware, *self._middleware),
            resolve_model=parent.resolve_model,
            depth=parent.depth + 1,
            ceiling=min(parent.ceiling, equipment.ceiling),
            leaf=self._disable_subagents or self._leaf is not False,
        )

    # Running

    async def run(
        self,
        text: Input,
        *,
        context: RuntimeContext | None = None,
        output: Any = UNSET,
        check: bool = True,
        budget: Budget | Unset | None = UNSET,
    ) -> RunResult:
        """Run the agent on a message and wait for the end.

        Without a context: a new session, thread `main`. With `session_id`: its `main`, continued.

        Args:
            text: a text, or texts and media in their order: `["What is this?", Image("photo.png")]`.
            output: the type of the answer: a dataclass, a pydantic model, a `TypedDict`, a msgspec `Struct`, a builtin, a
                `Literal`, a union or a container of those. `result.output` is the value. An answer that does not fit is
                given back to the model, at most `Limits(max_output_repairs)` times; then the run fails with reason
                `invalid_output`. Left out: the agent's own `output`. None: a text, whatever the agent's is.
            budget: what it and everything below it may use; None: no limit, whatever the agent's is.

        Returns:
            A result that is completed, or waiting for an answer (`result.requests`).

        Raises:
            RunFailed, RunCancelled: with `.result`; `check=False` returns these too.
            ConfigurationError: `media_too_large`, `invalid_argument`.
            ThreadBusy: the thread has a run that is not finished.
        """
        given = check_input(text, self._limits)
        check_context(context)
        await self.build()
        form = self._form(output)
        start = partial(begin, self, given, context, viewer=None, acknowledged=False, output=form, budget=budget)
        driver = Driver(self, start, user=_user(context))
        return checked(await driver.result(), check)

    def run_sync(
        self,
        text: Input,
        *,
        context: RuntimeContext | None = None,
        output: Any = UNSET,
        check: bool = True,
        budget: Budget | Unset | None = UNSET,
    ) -> RunResult:
        """`run` for code that is not async, from any thread; calls run side by side. Ctrl-C stops the whole tree.

        Raises:
            ConfigurationError: called from async code; `other_loop`: the agent is in use in an event loop.
        """
        return self._sync.run(self.run(text, context=context, output=output, check=check, budget=budget))

    async def stream(
        self,
        text: Input,
        *,
        context: RuntimeContext | None = None,
        output: Any = UNSET,
        patient: bool = False,
        background: bool = False,
        budget: Budget | Unset | None = UNSET,
    ) -> AsyncGenerator[Event, None]:
        """Run and give the events of the whole tree as they come, each with its path; the last one carries the result.

        A `PermissionRequest` is waited for until the loop comes back for the next event without having answered it; then
        the run ends `waiting`. With `patient=True` it is waited for without end (answer from another task). Leaving the
        loop early stops the run.

        Args:
            background: go on with the events of its tasks in the background, and of the runs that their ends wake, until
                nothing of the session is at work here any more. Each of these runs ends with an event that carries its result.
        """
        given = check_input(text, self._limits)
        check_context(context)
        await self.build()
        if background:
            context = context or RuntimeContext()
            session = context.session_id or new_id("ses")
            context = replace(context, session_id=session)
            start = partial(begin, self, given, context, viewer=None, acknowledged=True, output=self._form(output), budget=budget)
            events = followed(self, start, user=_user(context), session=session, patient=patient)
            async with aclosing(events):
                async for event in events:
                    yield event
            return
        viewer = Viewer(patient=patient)
        form = self._form(output)
        start = partial(begin, self, given, context, viewer=viewer, acknowledged=True, output=form, budget=budget)
        driver = Driver(self, start, viewer, user=_user(context))
        async with aclosing(driver.events()) as events:
            async for event in events:
                yield event

    async def _run_on(self, key: ThreadKey, agent_id: str, text: Input, *, output: Any = UNSET, check: bool = True) -> RunResult:
        """Run a given agent of this tree on a thread that exists; see `Thread.run`."""
        given = check_input(text, self._limits)
        await self.build()
        context = RuntimeContext(user_id=key.user or None, session_id=key.session, thread_id=key.thread)
        row = await self.runtime.ledger.thread(key)
        if row is None:
            raise UnknownId(f"there is no thread `{key.thread}` in session `{key.session}`")
        definition = child_definition(self._defined(context), agent_id, depth=row.depth, context=context)
        form = self._form(output)
        start = partial(begin, self, given, context, viewer=None, acknowledged=False, definition=definition, key=key, output=form)
        return checked(await Driver(self, start, user=key.user).result(), check)

    # Going on, answering, stopping

    async def resume(
        self,
        run_id: str,
        *,
        take_over: bool = False,
        context: RuntimeContext | None = None,
        output: Any = None,
        check: bool = True,
    ) -> RunResult:
        """Go on with a run that was interrupted or waits, from its journal. A run that has ended is not touched.

        Args:
            run_id: of the run, or of any run below it.
            take_over: take it from a process that is alive but stuck; that one can write nothing any more.
            context: `attributes` for the tools; they are not stored. With a `user_id`, runs of others are unknown.
            output: the type that the run was started with. Without it `result.output` is plain JSON, checked against the
                schema in the journal.

        Raises:
            UnknownId: there is no such run. ThreadBusy: its process is alive. ConfigurationError: another agent's run.
        """
        await self.build()
        self.runtime._output(output)
        start = partial(self._resuming, run_id, viewer=None, force=take_over, context=context)
        driver = Driver(self, start, user=_user(context))
        return checked(await driver.result(), check)

    async def resume_stream(
        self,
        run_id: str,
        *,
        take_over: bool = False,
        context: RuntimeContext | None = None,
        patient: bool = False,
        background: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """`resume`, as a stream of events. The arguments are those of `resume` and `stream`."""
        await self.build()
        if background:
            root = await self._resumable(run_id, user=None if context is None else context.user_id)
            top = await self.runtime.ledger.run(root.root) or root
            start = partial(self._resuming, run_id, viewer=None, force=take_over, context=context)
            events = followed(self, start, user=top.key.user, session=top.key.session, patient=patient)
            async with aclosing(events):
                async for event in events:
                    yield event
            return
        viewer = Viewer(patient=patient)
        start = partial(self._resuming, run_id, viewer=viewer, force=take_over, context=context)
        driver = Driver(self, start, viewer, user=_user(context))
        async with aclosing(driver.events()) as events:
            async for event in events:
                yield event

    async def _resuming(self, run_id: str, *, viewer: Viewer | None, force: bool, context: RuntimeContext | None) -> Started:
        root = await self._resumable(run_id, user=None if context is None else context.user_id)
        return await go_on(self, root, viewer=viewer, force=force, context=context, definition=await self._definition_of(root))

    async def _resumable(self, run_id: str, *, user: str | None) -> RunRow:
        root = await find_lead(self.runtime, run_id, user=user)
        if root.state.terminal:
            raise UnknownId(
                f"run `{root.run_id}` has ended ({root.state.value}) and cannot be resumed",
                code="run_ended",
                remedy="send a new message to its thread instead",
            )
        return root

    async def _definition_of(self, root: RunRow) -> AgentDefinition:
        """The agent that a stored run is of: this one, or one of its children.

        Raises:
            ConfigurationError: `no_executor`, it is another agent's, or has tools that this one lacks.
        """
        context = RuntimeContext(user_id=root.key.user or None, session_id=root.key.session, thread_id=root.key.thread)
        started = await started_with(self.runtime.ledger, root)
        top = started if root.branch is None else await self._started_at_top(root)
        own = self._definition_under(stored_rules(top), context)
        try:
            definition = child_definition(own, root.agent_id, depth=root.depth, context=context)
        except UnknownId as error:
            raise ConfigurationError(
                f"run `{root.run_id}` belongs to agent `{root.agent_id}`, and this is `{self.name}`",
                code="no_executor",
                remedy=f"resume it with an agent named `{root.agent_id}`",
            ) from error
        await check_tools(self.runtime.ledger, root, started, definition)
        await check_below(self.runtime.ledger, root, definition, context)
        return definition

    async def _started_at_top(self, lead: RunRow) -> RunStartedEvent | None:
        """What the tree's root was started with, whose rules hold for a task as well."""
        root = await self.runtime.ledger.run(lead.root)
        return None if root is None else await started_with(self.runtime.ledger, root)

    async def tasks(self, session_id: str, *, user_id: str | None = None, unfinished: bool = False) -> Sequence[Task]:
        """The tasks in the background that were given in a session, the newest first (H-12)."""
        await self.build()
        rows = await self.runtime.ledger.tasks(user=user_id or "", session=session_id, unfinished=unfinished)
        return [Task(self, row) for row in rows]

    async def task(self, task_id: str, *, user_id: str | None = None) -> Task:
        """A task by its id.

        Raises:
            UnknownId: this user has none of that id.
        """
        await self.build()
        row = await self.runtime.ledger.task(task_id) if task_id.isascii() else None
        if row is None or row.parent.user != (user_id or ""):
            raise UnknownId(f"there is no task `{task_id}`", remedy="`await agent.tasks(session_id)` lists a session's")
        return Task(self, row)

    async def requests(self, session_id: str, *, user_id: str | None = None) -> Sequence[PermissionRequest]:
        """The open requests of all trees of a session, of descendants too, the oldest first (H-22)."""
        await self.build()
        rows = await self.runtime.ledger.requests(user=user_id or "", session=session_id, state=RequestState.OPEN)
        return [request_view(row) for row in rows]

    async def answer(
        self,
        request: PermissionRequest | str,
        *,
        allow: bool | None = None,
        text: str | None = None,
        remember: Literal["once", "session"] = "once",
        note: str = "",
        by: str = "user",
        user_id: str | None = None,
    ) -> RunResult | None:
        """Answer a request, from `stream`, `result.requests` or `requests()`, or by its id.

        If its run is being driven in this process it goes on there, and None is returned. Otherwise the run is resumed
        here, and its result returned (`check=False` semantics: look at `status`).

        Args:
            allow: whether what it asks for is allowed; False to a question: it gets no answer, and has to do without.
            text: the answer to a question (`request.kind == "question"`).
            remember: `session`: do not ask again for this tool and agent in this session (an `allow` only).
            note: told to the model with a denial.
            user_id: whose request it is, where only its id is given: that of another user is unknown (invariant 8).

        Raises:
            UnknownId: there is no such request. RetinueError: `already_answered`. ConfigurationError: `invalid_argument`, it is
                a question and not a permission that is asked, or the other way round; `no_executor`, the run
                would have to be gone on with here, and this agent cannot; nothing is recorded then.
        """
        check_answer(allow, text, remember, note, by)
        await self.build()
        return await answer(self, request, allow=allow, text=text, remember=remember, note=note, by=by, user_id=user_id)

    async def send(self, run_id: str, text: str, *, by: str = "user", user_id: str | None = None) -> None:
        """Tell a run something while it works: it has it at its next step, before its model is asked again. It is durable when
        this returns. A run that ends before leaves it to the next one on its thread.

        Raises:
            UnknownId: this user has no such run; `run_ended`: it has ended.
        """
        if not text.strip():
            raise ConfigurationError("`text` is blank", code="invalid_argument", remedy="say what the run is to be told")
        await self.build()
        await send(self, run_id, text, by=by, user_id=user_id)

    async def cancel(self, run_id: str | None = None, *, reason: str = "cancelled", user_id: str | None = None) -> None:
        """Stop a run and everything below it; without an id, every run of this agent that is being driven here.

        The intent is durable when this returns; the run's own `run` or `stream` then ends cancelled. A run that nobody
        drives (waiting, or its process has died) is ended here.

        Args:
            user_id: whose run it is, where an id is given: that of another user is unknown (invariant 8). Without an id it
                leaves the runs of other users alone.

        Raises:
            UnknownId: there is no such run.
        """
        check_reason(reason)
        await self.build()
        await cancel(self, run_id, reason=reason, user_id=user_id)

    def _thread_handle(self, key: ThreadKey, agent_id: str) -> Thread:
        """The handle of a thread of this agent's ledger."""
        return Thread(self, key, agent_id)

    # Living and ending

    async def _rest(self) -> None:
        """Give back what this agent does not need while it does nothing, unless it is kept open by `async with`."""
        if not self._entered and self._own_runtime:
            await self.runtime._rest()

    @property
    def _wakes(self) -> bool:
        return self._wake and self._entered and self._wakes_at_all

    def _run_over(self, key: ThreadKey) -> None:
        """A run on this thread has ended. Of a task that ended while it did, nobody has told it."""
        if self._wakes and self._has_tasks:
            deliver(self, key)

    def _task_over(self, parent: ThreadKey) -> None:
        """A task that was given in this thread has ended, or waits: its mail is there."""
        deliver(self, parent)

    async def close(self) -> None:
        """Stop what runs and release everything that is this agent's own; of its tasks becomes what `on_exit` says. Idempotent;
        the agent can be used again."""
        await end_tasks(self, self._on_exit)
        if self._own_runtime:
            await self.runtime.close()

    def close_sync(self) -> None:
        """`close` for code that used `run_sync`; what still runs ends cancelled. Idempotent, from any thread."""
        if self._own_runtime:
            self.runtime.close_sync()

    async def _enter(self) -> None:
        """Be kept open: its idle threads are woken for the ends of their tasks."""
        self._entered = self._wakes_at_all = True
        await self.build()

    async def __aenter__(self) -> Self:
        await self._enter()
        if self._recovery != "leave":
            await resume_tasks(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is not None:  # the block has failed: nobody is left who would wait
            await end_tasks(self, "cancel" if self._on_exit == "cancel" else "detach")
        await self.close()
        self._entered = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _as_tool(given: Callable[..., Any] | Capability) -> Capability:
    """A function as a tool; a ready capability as it is."""
    if isinstance(given, SubAgent):
        raise ConfigurationError(f"`tools` contains the subagent `{given.name}`", remedy="put it into `subagents=[…]`")
    capability = getattr(given, "spec", None)
    return given if capability is not None and isinstance(given, Capability) else function_tool(given)  # type: ignore[arg-type]


def _reference(model: ChatModel) -> str:
    reference: object = getattr(model, "reference", None)
    return reference if isinstance(reference, str) else f"{model.provider}:{model.name}"


def _user(context: RuntimeContext | None) -> str:
    return "" if context is None else context.user_id or ""
