"""The public test kit: scripted and recorded models, a strict fake provider, a virtual clock, races and crashes by seed,
assertions about transcripts. Nothing is imported before it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinue.models.script import Turn
    from retinue.models.scripted import ScriptedModel
    from retinue.testing.clock import VirtualClock
    from retinue.testing.mortal import MortalProcess, SharedStore
    from retinue.testing.provider import StrictProvider
    from retinue.testing.provider_record import Gate, Recorded
    from retinue.testing.provider_rules import RULES, Rule
    from retinue.testing.provider_wire import ProviderFault
    from retinue.testing.recording import RecordingLedger, RecordingModel, calls, messages_of, results_of
    from retinue.testing.replay import RecordModel, ReplayModel
    from retinue.testing.scheduler import SeededLoop, explore
    from retinue.testing.scripts import ScriptedAgent
    from retinue.testing.transcripts import assert_same_journal, assert_valid_transcript, faults_of, normalise

__all__ = [
    "RULES",
    "Gate",
    "MortalProcess",
    "ProviderFault",
    "RecordModel",
    "Recorded",
    "RecordingLedger",
    "RecordingModel",
    "ReplayModel",
    "Rule",
    "ScriptedAgent",
    "ScriptedModel",
    "SeededLoop",
    "SharedStore",
    "StrictProvider",
    "Turn",
    "VirtualClock",
    "assert_same_journal",
    "assert_valid_transcript",
    "calls",
    "explore",
    "faults_of",
    "messages_of",
    "normalise",
    "results_of",
]

_HOMES = {
    "RULES": "retinue.testing.provider_rules",
    "Gate": "retinue.testing.provider_record",
    "MortalProcess": "retinue.testing.mortal",
    "ProviderFault": "retinue.testing.provider_wire",
    "RecordModel": "retinue.testing.replay",
    "Recorded": "retinue.testing.provider_record",
    "RecordingLedger": "retinue.testing.recording",
    "RecordingModel": "retinue.testing.recording",
    "ReplayModel": "retinue.testing.replay",
    "Rule": "retinue.testing.provider_rules",
    "ScriptedAgent": "retinue.testing.scripts",
    "ScriptedModel": "retinue.models.scripted",
    "SeededLoop": "retinue.testing.scheduler",
    "SharedStore": "retinue.testing.mortal",
    "StrictProvider": "retinue.testing.provider",
    "Turn": "retinue.models.script",
    "VirtualClock": "retinue.testing.clock",
    "assert_same_journal": "retinue.testing.transcripts",
    "assert_valid_transcript": "retinue.testing.transcripts",
    "calls": "retinue.testing.recording",
    "explore": "retinue.testing.scheduler",
    "faults_of": "retinue.testing.transcripts",
    "messages_of": "retinue.testing.recording",
    "normalise": "retinue.testing.transcripts",
    "results_of": "retinue.testing.recording",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `retinue.testing` has no `{name}`")
    return getattr(import_module(home), name)
