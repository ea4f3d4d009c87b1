"""What a model writes can do nothing to a terminal, and never takes more room than it may."""

import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cli.text import bounded, clean, describe_call, duration, main_argument, money, one_line, tail, tokens


@given(st.text(st.characters()))
def test_no_control_or_direction_character_survives(text: str) -> None:
    shown = clean(text)
    assert not [character for character in shown if unicodedata.category(character) in ("Cc", "Cs") and character != "\n"]
    assert not set(shown) & set("\x1b\x07\x08\r\x7f\x9b\u202e\u2066\u200f")
    shown.encode("utf-8")  # no lone surrogates either


@pytest.mark.parametrize(
    "attack",
    ["\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "a\rb", "\x1b]8;;http://x\x1b\\link", "\u202egnp.exe", "\ud800"],
)
def test_attacks_become_visible(attack: str) -> None:
    assert "\x1b" not in clean(attack)
    assert "\r" not in clean(attack)
    assert "\x9b" not in clean(attack)
    assert "\u202e" not in clean(attack)


def test_ordinary_text_is_untouched() -> None:
    text = "Grüße, 世界 👍🏽 [bold]no markup[/bold]\nsecond line"
    assert clean(text) == text
    assert clean("a\tb") == "a    b"


@given(st.text(st.characters()), st.integers(2, 80))
def test_one_line_is_one_line_of_bounded_length(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line


def test_what_was_left_out_is_said() -> None:
    assert one_line("a" * 100, 10) == "a" * 9 + "…"
    assert bounded("a" * 1_500, 10) == "a" * 10 + "… (1,490 characters more)"
    assert tail("abcdef", 3) == "…ef"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path": "src/a.py"}', "read_file src/a.py"),
        ('{"limit": 3, "pattern": "TODO"}', "read_file TODO"),
        ('{"agent_id": "log-analyst", "task": "Read the log"}', "read_file log-analyst: Read the log"),
        ('{"n": 3}', "read_file 3"),
        ("{}", "read_file"),
        ("[1]", "read_file"),
        ('{"path": "src/a', 'read_file {"path": "src/a'),
        ("[" * 5_000, "read_file " + "[" * 69 + "…"),
    ],
)
def test_a_call_is_named_by_its_main_argument(arguments: str, shown: str) -> None:
    assert describe_call("read_file", arguments) == shown


def test_main_argument_of_text_that_is_no_json() -> None:
    assert main_argument("not json") == "not json"


def test_figures() -> None:
    assert [duration(ms) for ms in (0, 450, 12_300, 187_000, 3_725_000)] == ["0.0 s", "0.5 s", "12 s", "3:07 min", "1:02 h"]
    assert [tokens(n) for n in (812, 12_400, 999_960, 3_100_000)] == ["812 tok", "12.4k tok", "1.0M tok", "3.1M tok"]
    prices = (None, Decimal(0), Decimal("0.01234"), Decimal("2.5"))
    assert [money(cost) for cost in prices] == ["price unknown", "$0.00", "$0.0123", "$2.50"]
