"""Costs from the installed table; what is not known is None."""

import socket
from decimal import Decimal
from typing import Any

import pytest

from retinue.messages import Usage
from retinue.models.prices import cost_of, per_million
from retinue.models.profiles import KNOWN

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000, calls=1)


def test_a_known_price() -> None:
    cost = cost_of("openai", "gpt-4o-mini", MILLION)
    assert cost == Decimal("0.75")


def test_cached_tokens_are_cheaper() -> None:
    plain = cost_of("openai", "gpt-4o-mini", Usage(input_tokens=1000))
    cached = cost_of("openai", "gpt-4o-mini", Usage(input_tokens=1000, cached_tokens=900))
    assert plain is not None
    assert cached is not None
    assert cached < plain


@pytest.mark.parametrize(("provider", "model"), [(None, "gpt-5"), ("openai", "no-such"), ("no-such", "gpt-5")])
def test_an_unknown_price_is_none(provider: str | None, model: str) -> None:
    assert cost_of(provider, model, MILLION) is None


def test_more_cached_than_sent_is_no_error() -> None:
    assert cost_of("openai", "gpt-4o-mini", Usage(input_tokens=1, cached_tokens=5)) is not None


def test_no_price_comes_from_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert cost_of("openai", "gpt-4o", MILLION) is not None


def test_every_provider_with_prices_is_in_the_table() -> None:
    from genai_prices.data_snapshot import get_snapshot

    known = {provider.id for provider in get_snapshot().providers}
    assert {profile.prices for profile in KNOWN.values() if profile.prices} <= known


def test_servers_on_this_machine_have_no_price() -> None:
    assert {profile.prices for profile in KNOWN.values() if not profile.needs_key} == {None}


def test_a_price_for_a_million() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=250_000, output_tokens=500_000)
    assert per_million(usage, input_price=Decimal(4), output_price=Decimal(10)) == 9
    assert per_million(usage, input_price=Decimal(4), output_price=Decimal(10), cached_price=Decimal(1)) == Decimal("8.25")
