"""Our own ledgers keep what the conformance suite asks of any."""

import pytest

from retinue.testing.conformance import CHECKS, Check, LedgerFactory

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_ledger_conforms(check: Check, make_ledger: LedgerFactory) -> None:
    await check(make_ledger)
