"""What every ledger must do, as checks that you can run against your own.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_ledger(check, tmp_path):
        await check(lambda: MyLedger(tmp_path / "ledger"))

The factory is called once per check and gives a ledger that is empty and not open; the check opens and closes it.
"""

from typing import Final

from retinue.testing.conformance import collecting, journals, reading, rows
from retinue.testing.conformance.sample import Check, LedgerFactory

__all__ = ["CHECKS", "Check", "LedgerFactory"]

CHECKS: Final[tuple[Check, ...]] = (*journals.CHECKS, *rows.CHECKS, *reading.CHECKS, *collecting.CHECKS)
"""All checks: journals, forks and generations; runs, requests and mail; lists and scope; removal."""
