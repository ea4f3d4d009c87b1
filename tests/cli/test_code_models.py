"""`retinue resume` of a run whose model exists only in code says so."""

import pytest

from retinue.cli.run import check_recorded  # pyright: ignore[reportPrivateUsage]
from retinue.errors import ConfigurationError


@pytest.mark.parametrize("named", ["scripted:scripted", "mine:model", "registered"])
def test_a_model_of_code_is_named_as_such(named: str) -> None:
    with pytest.raises(ConfigurationError, match="exists only in code") as raised:
        check_recorded("run_1", named)
    assert "--model" in (raised.value.remedy or "")


@pytest.mark.parametrize("named", ["scripted:missing.json", "replay:file", "http://127.0.0.1:1/v1#name"])
def test_a_model_of_text_is_left_to_be_resolved(named: str) -> None:
    check_recorded("run_1", named)
