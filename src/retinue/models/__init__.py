"""Models: the port, the adapter for OpenAI-compatible servers, the scripted model, and how a text names one of them.

The port comes with the folder; adapters are imported when they are first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from retinue.models.port import ChatModel, ModelAnswer, ModelRequest, ReasoningDelta, TextDelta, ToolSpec

if TYPE_CHECKING:
    from retinue.models.openai import OpenAIChatModel
    from retinue.models.resolve import reference_of, resolve_model
    from retinue.models.scripted import ScriptedModel

_HOMES: Final = {
    "OpenAIChatModel": "openai",
    "ScriptedModel": "scripted",
    "reference_of": "resolve",
    "resolve_model": "resolve",
}

__all__ = [
    "ChatModel",
    "ModelAnswer",
    "ModelRequest",
    "OpenAIChatModel",
    "ReasoningDelta",
    "ScriptedModel",
    "TextDelta",
    "ToolSpec",
    "reference_of",
    "resolve_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `retinue.models` has no attribute `{name}`")
    return getattr(import_module(f"retinue.models.{_HOMES[name]}"), name)
