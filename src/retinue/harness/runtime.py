"""The runtime: ledger connection, clock, owner, tool threads, models, and the trees that run in this process.

One per `Agent` unless `runtime=` is given. It is opened by first use; after `close()` no task, thread or file is left open.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast
from weakref import WeakSet

from retinue.agent.branch import Branch
from retinue.agent.output import OutputType
from retinue.agent.stopping import settle_stopped
from retinue.agent.tree import Services, Tree
from retinue.clock import Clock, SystemClock
from retinue.config import Limits, RuntimeContext
from retinue.errors import ConfigurationError, LedgerUnavailable
from retinue.harness.sync import LoopThread
from retinue.harness.watching import Watcher
from retinue.ids import new_id
from retinue.ledger.open import open_ledger
from retinue.ledger.port import Ledger
from retinue.models.port import ChatModel
from retinue.ops import DropOwner, PutOwner, RequestCancel
from retinue.rows import OwnerRow, RunRow, ThreadKey
from retinue.secrets import Redactor, SecretRef
from retinue.subagents.delegate import end_child
from retinue.subagents.notifications import Strategies
from retinue.tools.errors import is_fault
from retinue.tools.pool import ToolThreads

if TYPE_CHECKING:
    from retinue.agent.run import Run
    from retinue.harness.agent import Agent
    from retinue.harness.driving import Driver

__all__ = ["Runtime"]

MAX_OUTPUTS = 256

_log: Final = logging.getLogger("retinue")


class Runtime:
    """Owns what runs need in this process.

    Args:
        ledger: `memory` (default), `sqlite:///path`, a path, or a `Ledger`.
        limits: of every tree that runs here.
        models: names that applications give to models, for `model="name"`.
        clock: the machine's own unless a test gives another.
        secrets: values, or references like `SecretRef("env:NAME")`, that are kept out of journals, events, prompts and logs,
            wherever they turn up. The keys of models and `SecretRef`s of a run's context are known by themselves.
        strategies: who decides, by name, whether a parent's model is told of the end of a task (`NotifyByStrategy`).

    Raises:
        ConfigurationError: a secret that is too short to be told apart from ordinary text.
    """

    def __init__(
        self,
        *,
        ledger: str | Path | Ledger = "memory",
        limits: Limits | None = None,
        models: Mapping[str, ChatModel | str] | None = None,
        clock: Clock | None = None,
        secrets: Iterable[str | SecretRef] = (),
        strategies: Strategies | None = None,
    ) -> None:
        self._strategies: Strategies = dict(strategies or {})
        self._redactor = Redactor()
        for secret in secrets:
            self._redactor.require(secret)
        self._log_filter = self._redactor.log_filter()
        self.ledger: Ledger = open_ledger(ledger) if isinstance(ledger, str | Path) else ledger
        self.limits = limits or Limits()
        self.clock = clock or SystemClock()
        self._registered_models: dict[str, ChatModel | str] = dict(models or {})
        self._owner_id = new_id("own")
        self.agents: WeakSet[Agent] = WeakSet()
        """The agents that were made on it."""
        self._trees: dict[str, Tree] = {}
        self._drivers: set[Driver] = set()
        self._watcher = Watcher(self)
        self._models: dict[tuple[str, str], ChatModel] = {}
        self._used: list[ChatModel] = []
        self._opened: Services | None = None
        self._outputs: dict[Any, OutputType] = {}
        self._loop_thread = LoopThread()
        self._claiming = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claims: set[object] = set()
        self._opening = asyncio.Lock()

    @property
    def _services(self) -> Services:
        """What every run gets. Only after `open`."""
        if self._opened is None:
            raise ConfigurationError("the runtime is not open", remedy="call `await runtime.open()` or use `async with`")
        return self._opened

    async def open(self) -> Self:
        """Open the ledger and register this process as an owner (M7). Idempotent.

        Raises:
            LedgerUnavailable: saying what is wrong with the store and what to do.
            ConfigurationError: `other_loop`: it is open in another event loop.
        """
        with self._claimed():
            if self._opened is None:
                async with self._opening:
                    if self._opened is None:
                        self._opened = await self._open()
        return self

    @contextmanager
    def _claimed(self) -> Generator[None, None, None]:
        """Belong to this event loop, for the block and while it is open; a loop that runs no more has lost its claim."""
        loop, claim = asyncio.get_running_loop(), object()
        with self._claiming:
            if self._loop is not loop:
                taken = self._opened is not None or self._claims
                if taken and self._loop is not None and self._loop.is_running():
                    raise ConfigurationError(
                        "this agent, or the `Runtime` that it shares, is in use in another event loop",
                        code="other_loop",
                        remedy="make one agent for each event loop, or use `run_sync` in every thread; "
                        "`close()` there (after `run_sync`: `close_sync()`) sets it free",
                    )
                self._loop, self._claims, self._opening = loop, set(), asyncio.Lock()
            claims = self._claims
            claims.add(claim)
        try:
            yield
        finally:
            with self._claiming:
                claims.discard(claim)

    async def _open(self) -> Services:
        await self.ledger.open()
        row = OwnerRow(
            owner_id=self._owner_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=self.clock.now_ms(),
            command=self._redactor.text(Path(sys.argv[0]).name) if sys.argv else "",
        )
        try:
            await self.ledger.commit([PutOwner(row)])
            await settle_stopped(self.ledger, self.clock)
        except BaseException:
            await self.ledger.close()  # nothing that was opened is left behind
            raise
        logging.getLogger("retinue").addFilter(self._log_filter)
        return Services(
            ledger=self.ledger,
            clock=self.clock,
            owner_id=self._owner_id,
            threads=ToolThreads(self.limits.tool_threads, clock=self.clock),
            redactor=self._redactor,
            strategies=self._strategies,
            end_child=end_child,
        )

    def _model(self, wanted: str | ChatModel, parent: ChatModel | None = None) -> ChatModel:
        """The model of a text; the same text gives the same object, so that its connections are shared.

        Raises:
            ConfigurationError: it cannot be resolved (A-18).
        """
        if not isinstance(wanted, str):
            self._use(wanted)
            return wanted
        from retinue.models.resolve import reference_of, resolve_model  # brings the adapter's modules

        near = "" if parent is None else (reference_of(parent) or parent.provider)
        known = self._models.get((wanted, near))
        if known is None:
            known = resolve_model(wanted, registered=self._registered_models, parent_provider=near or None, clock=self.clock)
            self._models[wanted, near] = known
            self._use(known)
        return known

    def _output(self, declared: Any) -> OutputType | None:
        """The form of answers of a Python type, made once; None for None.

        Raises:
            ConfigurationError: no JSON schema can be made of it.
        """
        if declared is None:
            return None
        try:
            known = self._outputs.get(declared)
        except TypeError:  # not hashable
            return OutputType(declared)
        if known is None:
            known = OutputType(declared)
            if len(self._outputs) >= MAX_OUTPUTS:
                del self._outputs[next(iter(self._outputs))]
            self._outputs[declared] = known
        return known

    def _known_output(self, digest: str) -> OutputType | None:
        """The type that a stored run's answers have, if a run of this process asked for it."""
        return next((known for known in self._outputs.values() if known.spec.digest == digest), None)

    def _use(self, model: ChatModel) -> None:
        """Close this model with the runtime."""
        if not any(model is known for known in self._used):
            self._used.append(model)
            secrets: Any = getattr(model, "secrets", None)
            if callable(secrets):
                self._redactor.watch(cast("Callable[[], Iterable[str | SecretRef]]", secrets))

    def _know_secrets(self, context: RuntimeContext | None) -> Redactor:
        """The redactor, knowing what is to be kept secret now: keys that have changed, and secrets of a run's context."""
        self._redactor.refresh()
        if context is not None and context.attributes:
            self._redactor.add(value for value in context.attributes.values() if isinstance(value, SecretRef))
        return self._redactor

    async def _rest(self) -> None:
        """Give back what an idle runtime does not need: the models' connections."""
        if not self._trees:
            await self._close_models(self._opened)

    async def _close_models(self, services: Services | None) -> None:
        """Close the models, no longer than the grace. What one's `close` does decides nothing about a run: it is logged."""
        for model in list(self._used):
            closing = asyncio.create_task(_close_model(model), name=f"retinue close of model {model.name}")
            timer = asyncio.create_task(self.clock.sleep(self.limits.stop_grace), name="retinue timer of a model's close")
            try:
                await asyncio.wait((closing, timer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                if not closing.done():
                    _log.warning("model `%s`: `close` did not end within the grace", model.name)
                    closing.cancel()
                    if services is not None:
                        services.keep(closing)
                await asyncio.gather(timer, return_exceptions=True)

    async def _cancel(self, root_run: str, reason: str, *, by: str, run_id: str | None = None) -> bool:
        """Stop a run of a tree and everything below it: the intent is durable first, then those that run are told (M8).

        Returns whether the tree is being driven in this process.
        """
        target, reason, by = run_id or root_run, self._redactor.text(reason), self._redactor.text(by)
        tree = self._trees.get(root_run)
        run = None if tree is None else tree.runs.get(target)
        if run is not None and not run.journal.known:
            run.journal.flush_soon()  # an intent needs a run that the ledger knows
        await self.ledger.commit([RequestCancel(target, reason, by, self.clock.now_ms())])
        tree = self._trees.get(root_run)  # it may have ended meanwhile
        if tree is None:
            return False
        tree.stops.setdefault(target, reason)  # also of a child that is about to be found again, and not driven yet
        self._asked_to_stop(target, reason)
        if target not in tree.runs and (row := await self.ledger.run(target)) is not None:
            tree.look_again(row.invocations)  # it may wait for a person, and those above for it
        return True

    def _asked_to_stop(self, target: str, reason: str) -> None:
        """There is an intent to stop this run: tell it and those below it, as far as they are driven here."""
        for tree in list(self._trees.values()):
            if target != tree.root_run and target not in tree.runs:
                continue
            tree.stops.setdefault(target, reason)
            for run in list(tree.runs.values()):
                if target in run.row.lineage:
                    run.stopping.ask(reason)

    def _branch(self, lead: RunRow) -> Branch | None:
        """The branch that this run leads, if it is driven here."""
        tree = self._trees.get(lead.root)
        return None if tree is None else next((one for one in tree.branches if one.lead == lead.run_id), None)

    def _driven_on(self, key: ThreadKey) -> "Run | None":
        """The run that is driven here on a thread."""
        return next((run for tree in self._trees.values() for run in tree.runs.values() if run.row.key == key), None)

    async def close(self) -> None:
        """Stop what runs, with its end in the ledger, and release everything. Idempotent.

        Raises:
            ConfigurationError: `other_loop`: it is open in another event loop.
        """
        with self._claimed():
            await self._close()

    async def _close(self) -> None:
        await self._stop_drivers()
        await self._watcher.stop()
        services, self._opened = self._opened, None
        try:
            await self._close_models(services)
            if services is None:
                return
            await services.end(list(services.strays), self.limits.stop_grace)
            stuck = [task.get_name() for task in services.strays]
            stuck += [call.name for call in await services.threads.close(self.limits.stop_grace, self.clock)]
            if stuck:
                _log.warning("still running after close: %s", ", ".join(stuck))
            await self._leave()
        finally:
            logging.getLogger("retinue").removeFilter(self._log_filter)
            if services is not None:
                await self.ledger.close()
                self._owner_id = new_id("own")

    def close_sync(self) -> None:
        """`close` for code that used `run_sync`; what still runs ends cancelled. Idempotent, from any thread."""
        self._loop_thread.close(self.close)

    async def _leave(self) -> None:
        try:
            await self.ledger.commit([DropOwner(self._owner_id)])
        except LedgerUnavailable as error:  # its lock goes with the ledger, and whoever opens that next removes the row
            _log.warning("the owner's row is left behind: %s", error)

    async def _stop_drivers(self) -> None:
        """Let every run end as cancelled. A driver that hangs in code which heeds no cancellation is left behind."""
        drivers = [driver for driver in self._drivers if not driver.over]
        tasks: set[asyncio.Task[Any]] = {driver.task for driver in drivers if driver.task is not None}
        tasks.discard(cast("asyncio.Task[Any]", asyncio.current_task()))
        if not tasks:
            return
        for driver in drivers:
            if not driver.waits:
                driver.stop("the runtime was closed", by="runtime")
        timer = asyncio.create_task(self.clock.sleep(2 * self.limits.stop_grace + 1), name="retinue timer of a close")
        try:
            while tasks and not timer.done():
                await asyncio.wait({*tasks, timer}, return_when=asyncio.FIRST_COMPLETED)
                tasks = {task for task in tasks if not task.done()}
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        if tasks and self._opened is not None:
            await self._opened.end(tasks, self.limits.stop_grace)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


async def _close_model(model: ChatModel) -> None:
    try:
        await model.close()
    except BaseException as error:  # the author's code
        if not is_fault(error):
            raise
        _log.warning("model `%s`: `close` raised %s: %s", model.name, type(error).__name__, error)
