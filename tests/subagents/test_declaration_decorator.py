"""`@subagent` on a tool harness (H-01, H-02)."""

import pytest

from retinue.errors import ConfigurationError
from retinue.subagents.declaration import SubAgent
from retinue.subagents.decorator import subagent
from retinue.tools.harness import ToolHarness, collect


class Specialists(ToolHarness):
    calls = 0

    @subagent
    def summary(self) -> SubAgent:
        self.calls += 1
        return SubAgent("summarizer", "Summarises", instructions="Summarise.")


class Bad(ToolHarness):
    @subagent
    def nothing(self) -> SubAgent:
        return None  # type: ignore[return-value]


class Raising(ToolHarness):
    @subagent
    def broken(self) -> SubAgent:
        raise LookupError("no such text")


class Blank(ToolHarness):
    @subagent
    def blank(self) -> SubAgent:
        return SubAgent("x", " ")


class OnRoster(ToolHarness):
    @subagent
    def other(self) -> SubAgent:
        return SubAgent("x", "D", surface="roster")


class Slashed(ToolHarness):
    @subagent
    def slashed(self) -> SubAgent:
        return SubAgent("team/x", "D")


@pytest.mark.contract("H-01", "H-02")
def test_registering_the_harness_registers_the_subagent_once() -> None:
    harness = Specialists()
    first, second = collect([harness]), harness.capabilities()
    assert [(entry.name, entry.description) for entry in first] == [("summarizer", "Summarises")]
    assert first[0] is second[0]
    assert harness.calls == 1
    assert Specialists().summary() == first[0]


@pytest.mark.contract("H-01")
def test_added_at_run_time_it_is_the_same_definition() -> None:
    harness = ToolHarness()
    harness.add_subagent(SubAgent("summarizer", "Summarises", instructions="Summarise."))
    (added,), (declared,) = harness.capabilities(), Specialists().capabilities()
    assert isinstance(added, SubAgent)
    assert isinstance(declared, SubAgent)
    assert added.fingerprint() == declared.fingerprint()


@pytest.mark.parametrize(
    ("harness", "words"),
    [
        (Bad, ["`Bad.nothing`", "NoneType"]),
        (Raising, ["`Raising.broken`", "LookupError", "no such text"]),
        (Blank, ["`Blank.blank`", "description"]),
        (OnRoster, ["`OnRoster.other`", "surface"]),
        (Slashed, ["`Slashed.slashed`", "team/x"]),
    ],
)
def test_a_bad_method_is_named_with_its_harness(harness: type[ToolHarness], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        collect([harness])
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)


def test_coroutines_and_arguments_are_refused_where_they_are_written() -> None:
    async def later(self: object) -> SubAgent:
        return SubAgent("x", "D")

    def asking(self: object, what: str) -> SubAgent:
        return SubAgent(what, "D")

    for method in (later, asking):
        with pytest.raises(ConfigurationError, match="@subagent"):
            subagent(method)  # type: ignore[arg-type]
