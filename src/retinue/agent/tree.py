"""What the runs of one tree share in this process: services, limits, slots, viewers, and who answers questions.

Nothing here is needed to go on with a tree: another process makes its own from the ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from retinue.agent.branch import Branch
from retinue.agent.kept import KeptProjections
from retinue.agent.next_step import ON_REQUEST_RAISED
from retinue.agent.slots import Slots
from retinue.agent.viewer import Viewer
from retinue.clock import Clock
from retinue.config import Limits
from retinue.damage import UNREADABLE, damaged
from retinue.errors import LedgerError
from retinue.events import Event, PermissionRequest, SubAgentInvocationStartedEvent
from retinue.ledger.port import Ledger
from retinue.rows import ThreadKey
from retinue.secrets import Redactor
from retinue.tools.errors import is_fault

if TYPE_CHECKING:
    from retinue.agent.ports import CallOutcome, Prepared
    from retinue.agent.run import Run

__all__ = ["Services", "Tree"]

BLOB_SECONDS = 3_600
"""How long this process relies on a blob that it has put (`Ledger.collect`)."""

MIDDLEWARE_STATE: Final = "middleware:"
"""What the names of middleware's state begin with in a session, where remembered answers are kept too."""


EndChild = Callable[["Run", SubAgentInvocationStartedEvent], "Awaitable[Prepared | CallOutcome]"]
"""Ends a child whose code is gone."""


class Services(msgspec.Struct, kw_only=True):
    """What a runtime gives to every run of its process."""

    ledger: Ledger
    clock: Clock
    owner_id: str
    threads: Any
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    stored_blobs: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    projections: KeptProjections = msgspec.field(default_factory=KeptProjections)
    ends: "set[asyncio.Future[None]]" = msgspec.field(default_factory=set["asyncio.Future[None]"])
    """Who waits for the next end of a task."""
    strays: "set[asyncio.Task[Any]]" = msgspec.field(default_factory=set["asyncio.Task[Any]"])
    strategies: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Who decides, by name, whether a parent's model is told of the end of a task (floor 5 asks)."""
    end_child: "EndChild | None" = None
    """How a child whose code is gone is ended from its journal (floor 5 knows)."""

    def blob_due(self, digest: str) -> bool:
        """Whether a blob must be put before it is referred to: a ledger may forget one that was not put for long."""
        put = self.stored_blobs.get(digest)
        return put is None or self.clock.monotonic() - put >= BLOB_SECONDS

    def blob_put(self, digest: str) -> None:
        """The ledger has it."""
        self.stored_blobs[digest] = self.clock.monotonic()

    def next_end(self) -> "asyncio.Future[None]":
        """Done when a task has ended, here or, as far as is known, in another process."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.add(future)
        future.add_done_callback(self.ends.discard)
        return future

    def task_ended(self) -> None:
        """Let whoever waits for ends of tasks look again."""
        for future in list(self.ends):
            if not future.done():
                future.set_result(None)

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """Own a task that does not heed its cancellation, until it ends; whatever it raises then is of no more use."""
        self.strays.add(task)
        task.add_done_callback(self._forget)

    def watch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something that waits for what is stuck, until the runtime is closed."""
        self.keep(asyncio.create_task(work, name=f"retinue watch of {name}"))

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self.strays.discard(task)
        if not task.cancelled():
            task.exception()

    async def end(self, tasks: "Iterable[asyncio.Task[Any]]", seconds: float) -> None:
        """Cancel tasks and wait for them, at most `seconds`; what has not ended then is kept."""
        left: set[asyncio.Task[Any]] = {task for task in tasks if not task.done() and task is not asyncio.current_task()}
        if not left:
            return
        for task in left:
            task.cancel()
        timer = asyncio.create_task(self.clock.sleep(seconds), name="retinue timer of an end")
        try:
            while left and not timer.done():
                await asyncio.wait({*left, timer}, return_when=asyncio.FIRST_COMPLETED)
                left = {task for task in left if not task.done()}
        finally:
            timer.cancel()
            for task in left:
                self.keep(task)
            await asyncio.gather(timer, return_exceptions=True)


def _nobody(_task: Any, _drive: "asyncio.Task[Any] | None") -> None:
    """Who has nobody to drive tasks leaves them in the ledger."""


async def _cannot(_run_id: str, _reason: str) -> None:
    """Who cannot stop other runs leaves them alone."""


async def _cannot_answer(_request_id: str, _text: str, _by: str) -> None:
    """Who cannot go on with other runs answers nothing."""


def _nobody_home(_key: ThreadKey) -> None:
    """Who wakes no thread leaves its mail to its next run."""


class Tree:
    """The shared state of a tree of runs in this process."""

    def __init__(
        self,
        services: Services,
        limits: Limits,
        *,
        root_run: str,
        root_key: ThreadKey,
        attributes: Mapping[str, object] | None = None,
        on_request: Callable[[PermissionRequest], Awaitable[Any]] | None = None,
        children: int = 0,
    ) -> None:
        self.services = services
        self.limits = limits
        self.root_run = root_run
        self.root_key = root_key
        self.attributes: Mapping[str, object] = attributes or {}
        self.on_request = on_request
        self.children = children
        self.slots = Slots(limits.max_children)
        self.viewers: list[Viewer] = []
        self.runs: dict[str, Run] = {}
        self.busy: set[ThreadKey] = set()
        self.answered: set[str] = set()
        self.branches: set[Branch] = set()
        self.cancel: Callable[[str, str], Awaitable[None]] = _cannot
        """Stops a run by its id, for a reason, whoever drives it."""
        self.answer: Callable[[str, str, str], Awaitable[None]] = _cannot_answer
        """Answers a request by its id, with a text, as somebody; its run is then gone on with in the background."""
        self.mail_sent: Callable[[ThreadKey], None] = _nobody_home
        """Something that wakes was put into a thread's mailbox."""
        self.launch: Callable[[Any, asyncio.Task[Any] | None], None] = _nobody
        """Drives a task beside the run that gave it, once its row is committed (floor 8 knows how); or takes over the task that
        drives it already."""
        self.spending = asyncio.Lock()
        """Held by who sets something of a budget aside: one run after the other."""
        self._spends: set[asyncio.Future[None]] = set()
        self.stops: dict[str, str] = {}
        self.revisit: set[str] = set()
        self._states: dict[tuple[str, str], dict[str, Any]] = {}
        self._order = 0
        self._helpers: set[asyncio.Task[Any]] = set()

    def next_spend(self) -> "asyncio.Future[None]":
        """Done when a run of this tree has used, or given back, what was set aside for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spends.add(future)
        future.add_done_callback(self._spends.discard)
        return future

    def spent(self) -> None:
        """Let whoever waits for room in a budget look again."""
        for future in list(self._spends):
            if not future.done():
                future.set_result(None)

    @property
    def attended(self) -> bool:
        """Whether someone is there to answer a request (D-28)."""
        return self.on_request is not None or any(viewer.attending and not viewer.closed for viewer in self.viewers)

    def wake_all(self) -> None:
        """Let every driver look again."""
        for run in list(self.runs.values()):
            run.wake_up()

    async def remembered(self, name: str) -> bool:
        """Whether a person's yes under this name was remembered for the root's session."""
        state = await self.services.ledger.state(self.root_key.user, self.root_key.session)
        return state.get(name) == b'"allow"'

    async def session_state(self, user: str, session: str) -> dict[str, Any]:
        """The state that middleware keeps in a session, as the ledger has it now; one object for all runs of the tree.

        Raises:
            LedgerUnavailable: `damaged`, or as `Ledger.state`.
        """
        kept = self._states.setdefault((user, session), {})
        for name, raw in (await self.services.ledger.state(user, session)).items():
            if name.startswith(MIDDLEWARE_STATE):
                try:
                    kept[name.removeprefix(MIDDLEWARE_STATE)] = msgspec.json.decode(raw)
                except UNREADABLE as error:
                    raise damaged(f"the row `{name}` of session `{session}` in table `state`", error) from error
        return kept

    def stop_of(self, lineage: Sequence[str]) -> str | None:
        """Why a run of this lineage is to stop, if it is: it may have been asked after the run was read or made, and before
        it is driven."""
        if not self.stops:
            return None
        return next((self.stops[run_id] for run_id in lineage if run_id in self.stops), None)

    def answer_came(self, request_id: str, run_id: str, invocations: Sequence[str]) -> None:
        """A request was answered in this process: tell the run that asked, or those above that wait for it."""
        self.answered.add(request_id)
        run = self.runs.get(run_id)
        if run is not None:
            run.mail_came()
        self.look_again(invocations)

    def mail_for(self, key: ThreadKey) -> None:
        """Something lies in a mailbox: tell the run that is driven on that thread."""
        for run in self.runs.values():
            if run.row.key == key:
                run.mail_came()

    def look_again(self, invocations: Sequence[str]) -> None:
        """Something came for a run below these delegations: whoever waits for one of them goes on with it."""
        self.revisit.update(invocations)
        self.wake_all()

    def next_order(self) -> int:
        """The place of the next run in the order in which the tree's runs began."""
        self._order += 1
        return self._order

    def publish(self, event: Event) -> None:
        """Show an event to every viewer, and a request to whoever answers."""
        for viewer in self.viewers:
            viewer.put(event)

    def asked(self, request: PermissionRequest) -> None:
        """A request is in the ledger: hand it to `on_request`, if there is one."""
        if self.on_request is not None:
            self.help(self._ask(self.on_request, request), f"request {request.request_id}")

    async def _ask(self, handler: Callable[[PermissionRequest], Awaitable[Any]], request: PermissionRequest) -> None:
        try:
            await handler(request)
        except LedgerError as error:
            self._fail(request, error)  # no fault of the author's: the answer is not recorded, and is asked for again
        except BaseException as error:  # the author's code: its fault must not hang the run
            if not is_fault(error):
                raise
            if getattr(error, "code", None) == "already_answered":
                return  # somebody else was faster, or the run that asked was stopped
            run = self.runs.get(request.run_id)
            lead = None if run is None else run.branch.lead_run
            if lead is not None:
                said = f"`on_request` raised {type(error).__name__}: {error}"
                lead.stopping.ask(said, fault=ON_REQUEST_RAISED)

    def _fail(self, request: PermissionRequest, error: LedgerError) -> None:
        run = self.runs.get(request.run_id)
        for branch in self.branches if run is None else (run.branch,):
            branch.fail(error)

    def help(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Run something beside the tree's runs; it ends with the tree at the latest."""
        task = asyncio.create_task(work, name=f"retinue {name}")
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    def abandon(self, task: "asyncio.Task[Any]") -> None:
        """A call that did not end within the grace: it is fenced from writing, cancelled, and kept until it ends."""
        task.cancel()
        self.services.keep(task)

    async def close(self) -> None:
        """End the helpers."""
        await self.services.end(self._helpers, self.limits.stop_grace)
