"""From the text that names a model to the model. Never a silent fall-back: what cannot be resolved is an error (A-18)."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from retinue.clock import Clock
from retinue.errors import ConfigurationError
from retinue.models.openai import OpenAIChatModel
from retinue.models.port import ChatModel
from retinue.models.profiles import KNOWN, Profile, is_loopback
from retinue.models.scripted import ScriptedModel
from retinue.near import near_names

__all__ = ["URL_KEY_ENV", "Registered", "reference_of", "resolve_model"]

URL_KEY_ENV = "RETINUE_API_KEY"
"""Where the key of a server that is named by its URL is looked for; there need not be one."""

Registered: TypeAlias = Mapping[str, ChatModel | str | Callable[[], ChatModel]]
"""Names that an application gives to models: a model, a text that resolves to one, or a function that makes one."""

_FORMS = (
    "`provider:name` (like `openai:gpt-5`), a URL (`http://127.0.0.1:8080/v1#name`), `scripted:file.json`, or a registered name"
)
_OPTIONS: Final = re.compile(r"\?((?:tool_mode|media)=.*)", re.DOTALL)
"""What may follow the name, or the URL before `#`: `?tool_mode=schema&media=image/*,application/pdf`."""


def resolve_model(
    text: str,
    *,
    registered: Registered | None = None,
    parent_provider: str | None = None,
    url_keys: bool = True,
    clock: Clock | None = None,
) -> ChatModel:
    """The model that `text` names.

    Args:
        text: `provider:name`, a URL with the model's name after `#`, `scripted:<path>`, or a bare name. Name and URL may be
            followed by `?tool_mode=schema` and `?media=image/*` (both: `?tool_mode=schema&media=…`; see `OpenAIChatModel`).
        registered: Bare names that the application has given to models. Looked up first.
        parent_provider: Who serves the parent's model: a bare name that is not registered is a model of theirs. Either a
            provider's name, or the reference of the parent's model.
        url_keys: False where `text` comes from a file: no key of the environment is sent to a URL that a file names.
        clock: Handed to the model.

    Raises:
        ConfigurationError: with code `unknown_model`, the forms, and what is near.
    """
    name = text.strip()
    names = registered or {}
    if name in names:
        return _registered(name, names, clock)
    if name.startswith(("http://", "https://")):
        return _at_url(name, url_keys, clock)
    provider, colon, rest = name.partition(":")
    if colon and provider == "scripted" and rest:
        return ScriptedModel(rest, clock=clock)
    if colon and provider in KNOWN and rest:
        return _of(KNOWN[provider], rest, clock)
    if name and parent_provider and provider not in (*KNOWN, "scripted"):
        parent = _parent(parent_provider, name, url_keys, clock)
        if parent is not None:
            return parent
    raise _unknown(name, names)


def reference_of(model: ChatModel) -> str | None:
    """The text that resolves to this model again, None if there is none: it must be registered then."""
    reference: Any = getattr(model, "reference", None)
    return reference if isinstance(reference, str) else None


def _registered(name: str, names: Registered, clock: Clock | None) -> ChatModel:
    found = names[name]
    if isinstance(found, str):
        others = {key: value for key, value in names.items() if key != name}  # a name may not lead back to itself
        return resolve_model(found, registered=others, clock=clock)
    return found() if callable(found) else found


def _of(profile: Profile, text: str, clock: Clock | None) -> ChatModel:
    name, options = _split_options(text)
    return OpenAIChatModel(name, base_url=profile.base_url, provider=profile.provider, clock=clock, **options)


def _split_options(text: str) -> tuple[str, dict[str, Any]]:
    """A name or a URL, and the options that follow it; the model refuses values that it does not know."""
    found = _OPTIONS.search(text)
    if found is None:
        return text, {}
    options: dict[str, Any] = {}
    for option in found[1].split("&"):
        name, _, value = option.partition("=")
        if name not in ("tool_mode", "media"):
            raise ConfigurationError(
                f"model `{text.rpartition('@')[2]}` has the option `{name}`, which is not known",
                code="unknown_model",
                remedy="the options are `tool_mode=schema` and `media=image/*,application/pdf`",
            )
        options[name] = [one for one in value.split(",") if one] if name == "media" else value
    return text[: found.start()], options


def _at_url(text: str, url_keys: bool, clock: Clock | None) -> ChatModel:
    base_url, _, name = text.partition("#")
    if not name:
        raise ConfigurationError(
            f"model `{text.rpartition('@')[2]}` does not say which model of that server",
            code="unknown_model",
            remedy="add the name after `#`, like `http://127.0.0.1:8080/v1#name`",
        )
    base_url, options = _split_options(base_url)
    name, own = _split_options(name)
    key_env = URL_KEY_ENV if url_keys else None
    return OpenAIChatModel(name, base_url=base_url, key_env=key_env, clock=clock, **(options | own))  # its own beat the server's


def _parent(parent: str, name: str, url_keys: bool, clock: Clock | None) -> ChatModel | None:
    """A bare name as a model of the parent's provider. A name with a colon (`llama3.2:3b`) is one only on this machine, or
    where it is plainly a model's (`ft:…`): else `opnai:gpt-5` would be asked of whoever serves the parent."""
    if parent.startswith(("http://", "https://")):
        base_url = parent.partition("#")[0]
    else:
        profile = KNOWN.get(parent.partition(":")[0])
        if profile is None:
            return None
        base_url = profile.base_url
    if ":" in name and not (is_loopback(base_url) or name.startswith("ft:")):
        return None
    if parent.startswith(("http://", "https://")):
        return _at_url(f"{base_url}#{name}", url_keys, clock)
    options = _OPTIONS.search(parent)
    own = name if options is None or _OPTIONS.search(name) else f"{name}{options[0]}"
    return _of(KNOWN[parent.partition(":")[0]], own, clock)


def _unknown(name: str, names: Registered) -> ConfigurationError:
    provider, colon, rest = name.partition(":")
    near = near_names(name, [*names, *KNOWN], count=2)
    if colon:
        near += [f"{other}:{rest}" for other in near_names(provider, [*KNOWN, "scripted"], count=2)]
    hint = f"did you mean {' or '.join(f'`{one}`' for one in near)}? " if near else ""
    known = ", ".join(sorted(KNOWN))
    ours = f"; registered: {', '.join(sorted(names))}" if names else ""
    return ConfigurationError(
        f"model `{name}` is not known",
        code="unknown_model",
        remedy=f"{hint}a model is {_FORMS}. Known providers: {known}{ours}",
    )
