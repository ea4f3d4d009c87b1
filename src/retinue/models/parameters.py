"""What a model behind an URL is made of, checked where it is given: its URL, headers, media types, way of calling tools."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec.structs import replace

from retinue.errors import ConfigurationError
from retinue.models.profiles import KNOWN, Profile, known_at, where
from retinue.secrets import SecretRef

__all__ = ["ToolMode", "checked_headers", "checked_media", "checked_mode", "checked_url", "profile_of"]

ToolMode: TypeAlias = Literal["native", "schema"]
"""How a model calls tools: as its server does it, or as JSON by a schema in `response_format`."""


def checked_mode(mode: Any) -> ToolMode:
    """The way of calling tools. Raises ConfigurationError: `invalid_tool_mode`."""
    if mode not in get_args(ToolMode):
        raise ConfigurationError(
            f"`tool_mode` `{mode}` is not known",
            code="invalid_tool_mode",
            remedy="it is `native` or `schema`",
        )
    return mode


def checked_media(media: Any) -> tuple[str, ...]:
    """The media types that a model takes. Raises ConfigurationError: `invalid_argument`."""
    if isinstance(media, str) or not all(isinstance(one, str) and "/" in one for one in media):
        raise ConfigurationError(
            f"`media` is {media!r:.60}, which is no list of media types",
            code="invalid_argument",
            remedy='write it like `["image/*", "application/pdf"]`',
        )
    return tuple(dict.fromkeys(one.lower() for one in media))


def checked_url(base_url: str) -> str:
    """The URL up to and without `/chat/completions`. Raises ConfigurationError: `invalid_base_url`."""
    url = base_url.strip().rstrip("/").removesuffix("/chat/completions")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(
            f"base URL `{where(url) or url.partition('?')[0]}` is not one"  # keys are put into queries
            if "@" in url or "?" in url
            else f"base URL `{url}` is not one",
            code="invalid_base_url",
            remedy="write it like `http://127.0.0.1:8080/v1`, without query or fragment",
        )
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"the base URL of `{where(url)}` contains credentials",
            code="invalid_base_url",
            remedy='give the key as `api_key="env:NAME"`',
        )
    return url


def checked_headers(headers: Mapping[str, str | SecretRef]) -> dict[str, str | SecretRef]:
    """The further headers of each request. Raises ConfigurationError: `invalid_header`."""
    for name, value in headers.items():
        if not f"{name}{value}".isprintable():
            raise ConfigurationError(
                f"header `{name!r}` holds a line break or another control character",
                code="invalid_header",
                remedy="strip the value",
            )
    return dict(headers)


def profile_of(base_url: str, provider: str | None, key_env: str | None) -> Profile:
    """What is known of the provider at this URL; where nothing is, what was said of it."""
    known = known_at(base_url)
    if known is not None and provider in (None, known.provider):
        return replace(known, base_url=base_url)
    ways = KNOWN.get(provider) if provider else None
    if ways is not None:  # its ways, but not its key and prices: this is another host
        return replace(ways, base_url=base_url, key_env=key_env, needs_key=False, prices=None)
    return Profile(provider or where(base_url), base_url, key_env)
