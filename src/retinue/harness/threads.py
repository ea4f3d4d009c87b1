"""Threads as a user sees them: find one, read it, go on with it, and the graph of what was delegated (H-18, H-23)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.agent.projection import project
from retinue.config import UNSET
from retinue.errors import UnknownId
from retinue.events import Event, decode
from retinue.media import Input
from retinue.messages import Message
from retinue.rows import ThreadKey, ThreadRow

if TYPE_CHECKING:
    from retinue.harness.agent import Agent
    from retinue.harness.results import RunResult

__all__ = ["Thread", "ThreadGraph", "Threads"]


class Thread:
    """One conversation. `(default_agent_id, session_id, thread_id)` is what to store to come back to it (H-18)."""

    def __init__(self, agent: "Agent", key: ThreadKey, default_agent_id: str, row: ThreadRow | None = None) -> None:
        self._agent = agent
        self._row = row
        self.key = key
        self.default_agent_id = default_agent_id

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.key.session

    @property
    def thread_id(self) -> str:
        """Its id in the session."""
        return self.key.thread

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The documented keys of a child's thread and the author's own (H-19); empty for a thread of one's own."""
        return {} if self._row is None else self._row.metadata

    async def messages(self) -> Sequence[Message]:
        """The conversation as a model would be sent it: valid, calls with their results."""
        return [entry.message for entry in (await self._projection()).history]

    async def events(self) -> Sequence[Event]:
        """The journal of the thread's current generation, oldest first, with each event's place in it."""
        await self._agent.build()
        journal = await self._agent.runtime.ledger.journal(self.key)
        return [] if journal is None else [decode(record) for record in journal.own]

    async def run(self, text: Input, *, agent_id: str | None = None, output: Any = UNSET) -> "RunResult":
        """Go on with the conversation: by its default agent, or by another one for this run. `text`, `output`: see `Agent.run`.

        Raises:
            UnknownId: this agent does not have an agent of that id.
            RunFailed, RunCancelled: as `Agent.run`.
        """
        return await self._agent._run_on(self.key, agent_id or self.default_agent_id, text, output=output)

    async def _projection(self) -> Any:
        await self._agent.build()
        journal = await self._agent.runtime.ledger.journal(self.key)
        if journal is None:
            raise UnknownId(f"there is no thread `{self.thread_id}` in session `{self.session_id}`")
        return project(journal.own, journal.inherited)

    def __repr__(self) -> str:
        return f"Thread({self.default_agent_id!r}, session_id={self.session_id!r}, thread_id={self.thread_id!r})"


class ThreadGraph(msgspec.Struct, frozen=True):
    """The threads of a session and the children that were made at run time, hidden ones included (H-23)."""

    threads: Sequence[Thread]
    runtime_children: Sequence[Thread]


class Threads:
    """The threads of an agent's ledger, in the scope of one user."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    async def get(self, *, session_id: str, thread_id: str = "main", user_id: str | None = None) -> Thread:
        """A thread by its ids.

        Raises:
            UnknownId: there is none in this scope.
        """
        await self._agent.build()
        key = ThreadKey(user_id or "", session_id, thread_id)
        row = await self._agent.runtime.ledger.thread(key)
        if row is None:
            raise UnknownId(
                f"there is no thread `{thread_id}` in session `{session_id}`",
                remedy="`await agent.threads.list()` shows what there is",
            )
        return self._handle(row)

    async def list(
        self, *, session_id: str | None = None, user_id: str | None = None, hidden: bool = False, limit: int = 100
    ) -> Sequence[Thread]:
        """Threads, the newest first; those of children only if `hidden`."""
        await self._agent.build()
        rows = await self._agent.runtime.ledger.threads(user=user_id or "", session=session_id, hidden=hidden, limit=limit)
        return [self._handle(row) for row in rows]

    async def graph(self, session_id: str, *, user_id: str | None = None) -> ThreadGraph:
        """The session's threads, and all children below them, the oldest first."""
        await self._agent.build()
        ledger = self._agent.runtime.ledger
        roots = await ledger.threads(user=user_id or "", session=session_id)
        found: list[ThreadRow] = []
        queue = [row.key for row in roots]
        while queue:
            for child in await ledger.children(queue.pop(0)):
                found.append(child)
                queue.append(child.key)
        return ThreadGraph([self._handle(row) for row in roots], [self._handle(row) for row in found])

    def _handle(self, row: ThreadRow) -> Thread:
        return Thread(self._agent, row.key, row.default_agent_id, row)
