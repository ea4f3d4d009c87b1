"""Models: the port, the adapter for OpenAI-compatible servers, the scripted model, and how a text names one of them."""

from retinue.models.openai import OpenAIChatModel
from retinue.models.port import ChatModel, ModelAnswer, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from retinue.models.resolve import reference_of, resolve_model
from retinue.models.scripted import ScriptedModel

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
