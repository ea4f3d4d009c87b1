"""The state of a run as a person is told it: as its row says, or `interrupted` where the process that drove it is gone."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from retinue.ledger.port import Ledger
    from retinue.rows import RunRow

__all__ = ["INTERRUPTED", "shown_state"]

INTERRUPTED: Final = "interrupted"


async def shown_state(ledger: "Ledger", run: "RunRow") -> str:
    """`running`, `waiting`, `completed`, `failed`, `cancelled` or `interrupted`."""
    from retinue.states import RunState

    if run.state is RunState.RUNNING and (run.owner is None or not await ledger.owner_alive(run.owner)):
        return INTERRUPTED
    return run.state.value
