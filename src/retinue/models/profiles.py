"""Providers with an OpenAI-compatible endpoint, as data: where they are, which key they take, what they cannot bear.

A provider that is not in the table works too: its profile is `Profile(name, base_url)`.
"""

from fnmatch import fnmatchcase
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from retinue.media import IMAGE_TYPES, PDF

__all__ = ["KNOWN", "Profile", "is_loopback", "known_at", "where"]


class Profile(msgspec.Struct, frozen=True):
    """What an adapter must know of a provider.

    `key_env` names the environment variable with its key; `needs_key` says that it answers nobody without one.
    `tail` is how volatile text after the conversation is sent: as a `user` message of its own, or joined to the last
    message (`join`) where a user message may not follow a tool's. `short_ids`: call ids have exactly nine letters or
    digits. `echo_reasoning` False: it refuses its own reasoning in the history. `prices` is the provider's id in the
    price table, None where nothing is charged or the price is not known.

    `output` is how it is told of the form of an answer: `enforced` also beside tools; `alone` where no tool can be called,
    and always in words (its decoder would keep a model from calling tools, and does not show it the schema); `words` only.

    `media` are the media types that its models take, as globs; what is not among them is told in a line of text. Empty where
    it depends on the model.
    """

    provider: str
    base_url: str
    key_env: str | None = None
    needs_key: bool = False
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tail: Literal["user", "join"] = "user"
    short_ids: bool = False
    stream_usage: bool = True
    echo_reasoning: bool = True
    prices: str | None = None
    output: Literal["enforced", "alone", "words"] = "alone"
    media: tuple[str, ...] = ()

    def takes(self, media_type: str) -> bool:
        """Whether its models take such a part."""
        return any(fnmatchcase(media_type, one) for one in self.media)


def _hosted(
    provider: str,
    base_url: str,
    key_env: str,
    prices: str | None = None,
    output: Literal["enforced", "alone", "words"] = "words",
    media: tuple[str, ...] = (),
) -> Profile:
    """A hosted provider. By default nothing is enforced: whether a schema is taken depends on the model behind it."""
    return Profile(provider, base_url, key_env, needs_key=True, prices=prices or provider, output=output, media=media)


KNOWN: Final = MappingProxyType(
    {
        profile.provider: profile
        for profile in (
            Profile(
                "openai",
                "https://api.openai.com/v1",
                "OPENAI_API_KEY",
                needs_key=True,
                max_tokens_key="max_completion_tokens",
                prices="openai",
                output="enforced",
                media=(*IMAGE_TYPES, PDF),
            ),
            Profile(
                "mistral",
                "https://api.mistral.ai/v1",
                "MISTRAL_API_KEY",
                needs_key=True,
                tail="join",
                short_ids=True,
                stream_usage=False,  # it sends usage unasked and refuses keys that it does not know
                echo_reasoning=False,
                prices="mistral",
                media=IMAGE_TYPES,
            ),
            Profile(
                "groq",
                "https://api.groq.com/openai/v1",
                "GROQ_API_KEY",
                needs_key=True,
                max_tokens_key="max_completion_tokens",
                echo_reasoning=False,
                prices="groq",
                output="words",  # a schema is taken by some of its models only, and not in a stream
            ),
            _hosted("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", media=IMAGE_TYPES),
            _hosted("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", output="alone"),
            _hosted("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
            _hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", output="alone"),
            _hosted(
                "gemini",
                "https://generativelanguage.googleapis.com/v1beta/openai",
                "GEMINI_API_KEY",
                "google",
                "alone",
                IMAGE_TYPES,
            ),
            _hosted("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "moonshotai"),
            _hosted("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
            _hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
            _hosted("xai", "https://api.x.ai/v1", "XAI_API_KEY", "x-ai", "enforced"),
            Profile("llamacpp", "http://127.0.0.1:8080/v1"),
            Profile("lmstudio", "http://127.0.0.1:1234/v1"),
            Profile("ollama", "http://127.0.0.1:11434/v1"),
            Profile("vllm", "http://127.0.0.1:8000/v1"),
        )
    }
)


def is_loopback(base_url: str) -> bool:
    """Whether a base URL is on this machine."""
    host = (urlsplit(base_url).hostname or "").removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False  # 127.example.com is anybody's
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or address.is_unspecified


def where(base_url: str) -> str:
    """Host and port of a base URL: the name of a provider that is not in the table."""
    return urlsplit(base_url).netloc.rpartition("@")[2]


def known_at(base_url: str) -> Profile | None:
    """The known hosted provider at this base URL, None for any other.

    It is known by its host over https, so that its key goes nowhere else. A server on this machine is called by its host
    and port, whatever it is.
    """
    if base_url.startswith("https://"):
        for profile in KNOWN.values():
            if profile.needs_key and where(base_url) == where(profile.base_url):
                return profile
    return None
