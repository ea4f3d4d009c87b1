"""What the runs that one driver drives share in this process: a root run or a background task's, with its synchronous children.

A tree has one branch for each. They end, fail and are taken over by themselves; limits, slots and viewers are the tree's.
"""

import asyncio
from typing import TYPE_CHECKING

from retinue.agent.begun import landing
from retinue.errors import LedgerError

if TYPE_CHECKING:
    from retinue.agent.run import Run
    from retinue.agent.tree import Tree

__all__ = ["Branch"]


class Branch:
    """The shared state of the runs that one driver drives. `lead` is the id of the run at their top."""

    __slots__ = ("failure", "given_up", "interruptions", "lead", "over", "stuck", "task_to_come", "tree")

    def __init__(self, tree: "Tree", lead: str) -> None:
        self.tree = tree
        self.lead = lead
        self.interruptions = 0
        """How many cancellations came from outside."""
        self.given_up = False
        self.failure: LedgerError | None = None
        self.task_to_come = False
        """Whether the runs are still driven in their caller's task (`begun`): each gets its own when it has to wait."""
        self.over = asyncio.Event()
        """Set when it is driven no more: its runs have ended, or wait on disk."""
        self.stuck: list[str] = []
        """The calls that were left behind because they did not end within the grace."""

    @property
    def lead_run(self) -> "Run | None":
        """The run at the top, if it is there."""
        return self.tree.runs.get(self.lead)

    def is_below(self, run_id: str) -> bool:
        """Whether it was made by this run, or by one below it."""
        lead = self.lead_run
        return lead is not None and self.lead != run_id and run_id in lead.row.lineage

    def runs(self) -> "list[Run]":
        """The runs that are driven."""
        return [run for run in self.tree.runs.values() if run.branch is self]

    def fail(self, error: LedgerError) -> None:
        """The ledger failed, or the lease is lost: every run of the branch ends with this error, and can be resumed."""
        if self.failure is None:
            self.failure = error
            for run in self.runs():
                run.wake_up()

    async def land(self) -> None:
        """Be in the task that drives: to be asked before code that looks for it."""
        if self.task_to_come:
            await landing()

    def landed(self, task: "asyncio.Task[object]") -> None:
        """The runs that were begun in their caller's task are driven by this one."""
        self.task_to_come = False
        for run in self.runs():
            run.stopping.task = task
