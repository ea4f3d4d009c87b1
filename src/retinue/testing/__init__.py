"""The public test kit: a scripted model, a strict fake provider, a virtual clock. Nothing is imported before it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinue.models.script import Turn
    from retinue.models.scripted import ScriptedModel
    from retinue.testing.clock import VirtualClock
    from retinue.testing.provider import StrictProvider
    from retinue.testing.provider_record import Gate, Recorded
    from retinue.testing.provider_rules import RULES, Rule
    from retinue.testing.provider_wire import ProviderFault
    from retinue.testing.recording import RecordingLedger, RecordingModel, calls, messages_of, results_of

__all__ = [
    "RULES",
    "Gate",
    "ProviderFault",
    "Recorded",
    "RecordingLedger",
    "RecordingModel",
    "Rule",
    "ScriptedModel",
    "StrictProvider",
    "Turn",
    "VirtualClock",
    "calls",
    "messages_of",
    "results_of",
]

_HOMES = {
    "RULES": "retinue.testing.provider_rules",
    "Gate": "retinue.testing.provider_record",
    "ProviderFault": "retinue.testing.provider_wire",
    "Recorded": "retinue.testing.provider_record",
    "RecordingLedger": "retinue.testing.recording",
    "RecordingModel": "retinue.testing.recording",
    "Rule": "retinue.testing.provider_rules",
    "ScriptedModel": "retinue.models.scripted",
    "StrictProvider": "retinue.testing.provider",
    "Turn": "retinue.models.script",
    "VirtualClock": "retinue.testing.clock",
    "calls": "retinue.testing.recording",
    "messages_of": "retinue.testing.recording",
    "results_of": "retinue.testing.recording",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `retinue.testing` has no `{name}`")
    return getattr(import_module(home), name)
