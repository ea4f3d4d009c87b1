"""The embedded ledger: one SQLite file, one writer thread with group commit, one reader thread."""

from retinue.ledger.sqlite.ledger import SqliteLedger
from retinue.ledger.sqlite.writer import CommitHooks, Durability

__all__ = ["CommitHooks", "Durability", "SqliteLedger"]
