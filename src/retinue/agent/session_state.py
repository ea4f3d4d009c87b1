"""The state that middleware keeps in a session: shared by all its runs, of this process and of others."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.agent.middleware import StateHandle
from retinue.agent.redacting import clean_op
from retinue.agent.tree import MIDDLEWARE_STATE
from retinue.damage import UNREADABLE, damaged
from retinue.errors import LedgerConflict
from retinue.ops import PutState

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["SessionState", "plain"]


class SessionState:
    """A session's state as one run sees it.

    Args:
        known: the values as they were read when the run began, with what was set since; one object for all runs of a tree.
    """

    __slots__ = ("_known", "_run")

    def __init__(self, run: "Run", known: dict[str, Any]) -> None:
        self._run = run
        self._known = known

    @property
    def handle(self) -> StateHandle:
        """What middleware is given."""
        return StateHandle(self._get, self._set, self._update)

    def _get(self, name: str) -> Any:
        return plain(self._known.get(name))

    def _set(self, name: str, value: Any) -> None:
        self._known[name] = plain(value)
        self._run.journal.stage_op(self._put(name, value))

    async def _update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Committed by itself, where the value is still the one that `change` was given; else once more with the new one."""
        services = self._run.tree.services
        while True:
            stored = await self._stored(name)
            value = change(None if stored is None else self._read(name, stored))
            op = self._put(name, value, stored)
            try:
                await services.ledger.commit([clean_op(services.redactor, op) if services.redactor.active else op])
            except LedgerConflict as conflict:
                if conflict.code != "state":
                    raise
                continue
            self._known[name] = plain(value)
            return plain(value)

    def _put(self, name: str, value: Any, *expect: bytes | None) -> PutState:
        key = self._run.row.key
        raw = msgspec.Raw(msgspec.json.encode(value))
        return PutState(key.user, key.session, f"{MIDDLEWARE_STATE}{name}", raw, *expect)

    async def _stored(self, name: str) -> bytes | None:
        key = self._run.row.key
        return (await self._run.tree.services.ledger.state(key.user, key.session)).get(f"{MIDDLEWARE_STATE}{name}")

    def _read(self, name: str, stored: bytes) -> Any:
        try:
            return msgspec.json.decode(stored)
        except UNREADABLE as error:
            what = f"the row `{MIDDLEWARE_STATE}{name}` of session `{self._run.row.key.session}` in table `state`"
            raise damaged(what, error) from error


def plain(value: Any) -> Any:
    """A copy, as the journal holds it: what another process would find."""
    return None if value is None else msgspec.json.decode(msgspec.json.encode(value))
