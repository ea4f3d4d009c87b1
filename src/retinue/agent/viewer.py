"""One subscriber of a tree: a bounded queue of what it has not taken yet, and whether it is there to answer (M15, D-28)."""

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from retinue.events import Event, EventsDroppedEvent, PermissionRequest, ReasoningDeltaEvent, TextDeltaEvent, ToolProgressEvent

if TYPE_CHECKING:
    from retinue.agent.tree import Tree

__all__ = ["VIEWER_DELTAS", "VIEWER_PROGRESS", "Viewer"]

VIEWER_DELTAS: Final = 1_000
"""Deltas of texts that wait for a viewer; what comes beyond that is dropped, the whole text stands in the MESSAGE."""
VIEWER_PROGRESS: Final = 1_000
"""Reports of tools that wait for a viewer; beyond that the oldest is dropped, for it says the least."""


class Viewer:
    """One subscriber of a tree. A run never waits for it: beyond a bound, what is in no journal is dropped, events of journals
    never (M15). How many were dropped is said by an `EventsDroppedEvent` in their place.

    It is there to answer a request until it comes back for the next event with the request still open; `patient`: always.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._asked: PermissionRequest | None = None
        self.attending = True
        self._queue: OrderedDict[int, Event] = OrderedDict()
        self._next = 0
        self._deltas = 0
        self._progress: deque[int] = deque()
        self._dropped = 0
        self._ready = asyncio.Event()
        self.closed = False
        self._trees: list[Tree] = []

    def watch(self, tree: "Tree") -> None:
        """Be shown the events of a tree."""
        if tree not in self._trees:
            self._trees.append(tree)
            tree.viewers.append(self)

    def unwatch(self) -> None:
        """Be shown no more."""
        for tree in self._trees:
            tree.viewers.remove(self)
        self._trees.clear()

    def put(self, event: Event) -> None:
        """Take an event in, unless nobody reads any more."""
        if self.closed:
            return
        if isinstance(event, TextDeltaEvent | ReasoningDeltaEvent):
            if self._deltas >= VIEWER_DELTAS:
                self._dropped += 1
                return
            self._deltas += 1
        elif isinstance(event, ToolProgressEvent):
            if len(self._progress) >= VIEWER_PROGRESS:
                del self._queue[self._progress.popleft()]
                self._dropped += 1
            self._progress.append(self._next)
        self._queue[self._next] = event
        self._next += 1
        self._ready.set()

    def close(self) -> None:
        """No more events will come."""
        self.closed = True
        self._ready.set()

    async def get(self) -> Event | None:
        """The next event, or None when the viewer is closed and empty."""
        if self._asked is not None and not self._patient and not self._answered(self._asked):
            self.attending = False  # it looked at the request and came back without an answer (D-28)
            for tree in self._trees:
                tree.wake_all()
        self._asked = None
        while not self._queue:
            if self.closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        if self._dropped:
            return self._loss()
        _, event = self._queue.popitem(last=False)
        if isinstance(event, TextDeltaEvent | ReasoningDeltaEvent):
            self._deltas -= 1
        elif isinstance(event, ToolProgressEvent):
            self._progress.popleft()
        elif isinstance(event, PermissionRequest):
            self._asked = event
        return event

    def _answered(self, request: PermissionRequest) -> bool:
        return any(request.request_id in tree.answered for tree in self._trees)

    def _loss(self) -> Event:
        """What was dropped since that was said last, dated as the event before which it is said, at the tree's root."""
        count, self._dropped = self._dropped, 0
        before = next(iter(self._queue.values()))
        key, run_id = (self._trees[-1].root_key, self._trees[-1].root_run) if self._trees else (None, "")
        return EventsDroppedEvent(count=count, path=before.path[:1], key=key, run_id=run_id, at=before.at)
