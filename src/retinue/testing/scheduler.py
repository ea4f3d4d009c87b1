"""Races found and reproduced by seed: an event loop that runs what is ready in a shuffled order, and `explore`.

Tasks that are ready at the same time may run in any order, and each of them may come later than the others; correct code
gives the same in every order. Callbacks that are no task's step keep their order, which asyncio promises.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

__all__ = ["SeededLoop", "explore"]

T = TypeVar("T")


class SeededLoop(asyncio.SelectorEventLoop):
    """An event loop whose tasks run in an order that the seed decides: the same seed, the same order.

    `delay` is how probable it is that a ready task has to wait one more round (0: only the order is shuffled). Threads and
    sockets come when they come: what they bring is not reproduced by the seed.

    >>> with asyncio.Runner(loop_factory=lambda: SeededLoop(7)) as runner:
    ...     runner.run(main())
    """

    def __init__(self, seed: int, *, delay: float = 0.3) -> None:
        super().__init__()
        self.seed = seed
        self._random = Random(seed)
        self._delay = delay

    def _run_once(self) -> None:
        """One round: what asyncio's own loop does, after what is ready was put into another order."""
        ready: deque[Any] = vars(self)["_ready"]
        # by place, not by iterating: other threads (a ledger's writer) append to it meanwhile
        places = [place for place in range(len(ready)) if _is_step(ready[place])]
        steps = [ready[place] for place in places]
        self._random.shuffle(steps)
        for place, step in zip(places, steps, strict=True):
            late = self._random.random() < self._delay
            ready[place] = events.Handle(ready.append, (step,), self) if late else step
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def _is_step(handle: Any) -> bool:
    """Whether a handle goes on with a task."""
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def explore(
    scenario: Callable[[], Coroutine[Any, Any, T]],
    *,
    seeds: int | Iterable[int] = 50,
    delay: float = 0.3,
    timeout: float = 30.0,
) -> list[T]:
    """Run a scenario once under each seed (a number: 0 up to it), and give what it returned, in order.

    Args:
        scenario: Makes a new coroutine for each run, with everything it works on. It runs on a loop of its own.
        timeout: Seconds of real time for one run: one that hangs fails.

    Raises:
        BaseException: What the scenario raised first, with a note that names the seed.
    """

    async def run() -> T:
        return await asyncio.wait_for(scenario(), timeout)

    made: list[T] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        try:
            with asyncio.Runner(loop_factory=lambda seed=seed: SeededLoop(seed, delay=delay)) as runner:
                made.append(runner.run(run()))
        except BaseException as error:
            error.add_note(f"found under seed {seed}: `explore(…, seeds=[{seed}])` shows it again")
            raise
    return made
