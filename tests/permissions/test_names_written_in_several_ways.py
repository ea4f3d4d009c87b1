"""One name can be written composed or decomposed (archives from a Mac): a denial holds for both, an allowance as written."""

from unicodedata import normalize

import pytest

from retinue import PermissionRules
from retinue.config import Verdict
from retinue.permissions.rules import opinion

COMPOSED, DECOMPOSED = normalize("NFC", "résumé.txt"), normalize("NFD", "résumé.txt")


@pytest.mark.parametrize("rule", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("name", [COMPOSED, DECOMPOSED])
def test_a_denial_holds_for_both(rule: str, name: str) -> None:
    assert opinion(PermissionRules(deny=[f"read_file({rule})"]), "read_file", name) is Verdict.DENY
    assert opinion(PermissionRules(ask=[f"read_file({rule})"]), "read_file", name) is Verdict.ASK
    allowed = opinion(PermissionRules(allow=[f"read_file({rule})"]), "read_file", name)
    assert allowed is (Verdict.ALLOW if rule == name else None)
