"""Stored data that cannot be read: what is raised for it, wherever a reader decodes."""

from typing import Final

import msgspec

from retinue.errors import LedgerUnavailable

__all__ = ["UNREADABLE", "damaged"]

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError)
"""What a decoder raises for bytes that its type does not fit, or for something that is no bytes at all."""


def damaged(what: str, error: BaseException | str) -> LedgerUnavailable:
    """The error for stored data that cannot be read. `what` names it and where it is: the table and the key of its row."""
    return LedgerUnavailable(
        f"the ledger is damaged: {what} cannot be read ({error})",
        code="damaged",
        remedy="`retinue doctor` says what else is damaged; restore the ledger from a copy (docs/reliability.md)",
    )
