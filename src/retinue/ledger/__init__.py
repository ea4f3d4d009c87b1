"""The store of threads, events, runs, invocations, requests, mail and owners: the port, and the ledgers that keep it.

`retinue.ledger.sqlite` is imported only when it is used.
"""

from retinue.ledger.memory import MemoryLedger
from retinue.ledger.open import open_ledger
from retinue.ledger.port import Collected, Journal, Ledger

__all__ = ["Collected", "Journal", "Ledger", "MemoryLedger", "open_ledger"]
