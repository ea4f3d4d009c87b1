"""What a call cost, from a price table that is installed with us. Never from the network."""

from decimal import Decimal
from typing import Final

from retinue.messages import Usage

__all__ = ["cost_of", "per_million"]

_MILLION: Final = Decimal(1_000_000)


def cost_of(provider: str | None, model: str, usage: Usage) -> Decimal | None:
    """The cost of a call in US dollars, or None where the price is not known.

    `provider` is the provider's id in the table (`Profile.prices`); None, as for a server on this machine, costs nothing
    to look up and is not known. The table is imported at the first price that is wanted: it takes a quarter of a second.
    """
    if provider is None:
        return None
    import genai_prices

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
    )
    try:
        return genai_prices.calc_price(counted, model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None


def per_million(usage: Usage, *, input_price: Decimal, output_price: Decimal, cached_price: Decimal | None = None) -> Decimal:
    """The cost at these prices, in US dollars for a million tokens. Cached tokens cost as others unless priced."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    cheap = input_price if cached_price is None else cached_price
    total = (usage.input_tokens - cached) * input_price + cached * cheap + usage.output_tokens * output_price
    return total / _MILLION
