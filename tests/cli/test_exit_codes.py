"""Exit codes are part of the interface: each end and each error has the documented one."""

import pytest

from retinue.cli.exits import Exit, exit_of_error, exit_of_run, report
from retinue.errors import ConfigurationError, LedgerUnavailable, ModelError, UnknownId, UntrustedWorkspace


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("completed", None, 0),
        ("failed", "error", 1),
        ("failed", None, 1),
        ("failed", "missing_key", 2),
        ("waiting", None, 3),
        ("failed", "limit:max_iters", 4),
        ("failed", "unreachable", 5),
        ("cancelled", "interrupted", 130),
    ],
)
def test_of_an_end(status: str, reason: str | None, code: int) -> None:
    assert exit_of_run(status, reason) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 2),
        (UntrustedWorkspace("x"), 2),
        (UnknownId("x"), 2),
        (LedgerUnavailable("x"), 1),
        (ModelError("x", provider="p", model="m", code="unreachable"), 5),
        (ModelError("x", provider="p", model="m", code="missing_key"), 2),
        (ModelError("x", provider="p", model="m", code="bad_response"), 1),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
    ],
)
def test_of_an_error(error: BaseException, code: int) -> None:
    assert exit_of_error(error) == code


def test_an_error_is_one_line_and_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_DEBUG", raising=False)
    assert report(ConfigurationError("`x`\x1b[2J is wrong", remedy="write `y`")) is Exit.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "retinue: `x`\N{REPLACEMENT CHARACTER}[2J is wrong\n  to do: write `y`\n"


def test_a_traceback_only_on_demand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_DEBUG", raising=False)
    report(ValueError("surprise"))
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("RETINUE_DEBUG", "1")
    report(ValueError("surprise"))
    assert "ValueError: surprise" in capsys.readouterr().err
