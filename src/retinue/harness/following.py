"""A stream that goes on after its run: the events of the tasks in the background, and of the runs that their ends wake, until
nothing of the session is at work in this process any more."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from retinue.agent.begun import until_done
from retinue.agent.tree import Tree
from retinue.agent.viewer import Viewer
from retinue.events import Event, RunFinishedEvent
from retinue.harness.driving import Driver, final_event
from retinue.harness.running import Started
from retinue.rows import ThreadKey

if TYPE_CHECKING:
    from retinue.harness.agent import Agent

__all__ = ["Follower", "followed"]


class Follower(Viewer):
    """One subscriber of all trees of an agent in a session. It is closed when the last of them is driven no more.

    The end of a root run is shown when its driver knows the result, with that.
    """

    def __init__(self, agent: "Agent", user: str, session: str, *, patient: bool) -> None:
        super().__init__(patient=patient)
        self._agent = agent
        self._scope = (user, session)
        self._finished: dict[str, RunFinishedEvent] = {}
        self.first: Driver | None = None
        """Whose end is shown in any case, though it be that of a task."""

    def begin(self) -> None:
        """See what is there, and what comes."""
        self._agent._followers.append(self)
        for tree in self._agent.runtime._trees.values():
            if tree in self._agent._own_trees:
                self.offer(tree)

    def offer(self, tree: Tree) -> None:
        """Watch this tree, if it is one of the session."""
        if (tree.root_key.user, tree.root_key.session) == self._scope:
            self.watch(tree)

    def put(self, event: Event) -> None:
        """See `Viewer`."""
        if isinstance(event, RunFinishedEvent) and len(event.path) == 1:
            self._finished[event.run_id] = event
        else:
            super().put(event)

    def over(self, driver: Driver) -> None:
        """A driver of the agent has ended: show the end of its run, and close if it was the last."""
        started, result = driver.started, driver.outcome
        shown = started is not None and (started.task is None or driver is self.first) and self._is_of(driver)
        if shown and started is not None and result is not None:
            last = self._finished.pop(result.run_id, None)
            super().put(final_event(result, last, started.run.row, at=self._agent.runtime.clock.now_ms()))
        asyncio.get_running_loop().call_soon(self._look)  # whoever is woken by this end is driven then

    def _look(self) -> None:
        if not any(driver.belongs_to(self._agent) and self._is_of(driver) for driver in self._agent.runtime._drivers):
            self.close()

    def _is_of(self, driver: Driver) -> bool:
        """Whether it drives something of the session; of one that has not begun nobody knows."""
        if driver.started is None:
            return True
        key: ThreadKey = driver.started.branch.tree.root_key
        return (key.user, key.session) == self._scope

    def leave(self) -> None:
        """See no more."""
        self._agent._followers.remove(self)
        self.close()
        self.unwatch()


async def followed(
    agent: "Agent", start: Callable[[], Awaitable[Started]], *, user: str, session: str, patient: bool
) -> AsyncGenerator[Event, None]:
    """Start or resume a run, and give the events of the session until nothing of it is at work. Leaving early stops the run, if
    it has not ended; its tasks go on."""
    follower = Follower(agent, user, session, patient=patient)
    follower.begin()
    driver = follower.first = Driver(agent, start, user=user, at_once=False)
    try:
        while (event := await follower.get()) is not None:
            yield event
        await driver.result()
    finally:
        follower.leave()
        task = driver.task
        if task is not None and not task.done():
            driver.stop("the stream was left", by="stream")
            await until_done(task)
