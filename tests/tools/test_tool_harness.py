"""Tool harnesses: collecting, overriding, adding, and naming members."""

from collections.abc import Callable
from typing import Any

import pytest

from retinue.errors import ConfigurationError
from retinue.tools import (
    CAPABILITY,
    FunctionTool,
    ToolContext,
    ToolHarness,
    class_reference,
    collect,
    collect_members,
    function_tool,
    tool,
)

pytestmark = pytest.mark.anyio


class Basics(ToolHarness):
    @tool
    def second(self) -> str:
        """Second by name, first by order."""
        return "basic"

    @tool
    async def first(self, n: int) -> int:
        return n

    def helper(self) -> None: ...


class More(Basics):
    @tool(description="new")
    def second(self) -> str:
        return "more"

    @tool
    def third(self) -> None: ...


class Card:
    """Some other kind of capability."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = "a card"


def card(function: Callable[[Any], Card]) -> Callable[[Any], Card]:
    """A decorator as another floor might have."""

    def factory(owner: object, attribute: str) -> Card:
        return getattr(owner, attribute)()

    setattr(function, CAPABILITY, factory)
    return function


class Cards(ToolHarness):
    def __init__(self, name: str = "card") -> None:
        self.name = name
        self.made = 0

    @card
    def one(self) -> Card:
        self.made += 1
        return Card(self.name)


async def test_collected_in_order_of_definition_with_overrides_in_place(context: Callable[..., ToolContext]) -> None:
    made = collect([More])
    assert [capability.name for capability in made] == ["second", "first", "third"]
    assert made[0].description == "new"
    second = made[0]
    assert isinstance(second, FunctionTool)
    assert (await second.run("", context())).content == "more"
    assert second.reference == f"{__name__}:More.second"
    assert second.spec.parameters["properties"] == {}  # no `self`


def test_an_instance_keeps_its_state_and_is_asked_once() -> None:
    harness = Cards("ace")
    assert [capability.name for capability in collect([harness, Basics()])] == ["ace", "second", "first"]
    assert harness.capabilities()[0] is harness.capabilities()[0]
    assert harness.made == 1


@pytest.mark.contract("H-15")
def test_members_know_their_owner() -> None:
    member = collect_members([Cards])[0]
    assert member.label == member.reference == f"{__name__}:Cards.one"

    class Local(Basics):
        pass

    assert collect_members([Local])[0].reference is None
    assert class_reference(Local) is None
    assert class_reference(Cards) == f"{__name__}:Cards"


def test_static_and_class_methods() -> None:
    class Kinds(ToolHarness):
        @staticmethod
        @tool
        def still(n: int) -> int:
            return n

        @classmethod
        @tool
        def shared(cls, n: int) -> int:
            return n

    made = collect([Kinds])
    assert [capability.name for capability in made] == ["still", "shared"]
    for capability in made:
        assert isinstance(capability, FunctionTool)
        assert list(capability.spec.parameters["properties"]) == ["n"]


def test_an_unmarked_override_is_refused_and_none_removes() -> None:
    class Forgot(Basics):
        def second(self) -> str:
            return "?"

    with pytest.raises(ConfigurationError) as caught:
        collect([Forgot])
    assert "Forgot.second` overrides" in str(caught.value)
    assert "Basics.second" in str(caught.value)

    class Without(Basics):
        second = None  # type: ignore[assignment] # pyright: ignore

    assert [capability.name for capability in collect([Without])] == ["first"]


@pytest.mark.contract("D-31")
def test_clashes_name_both_members() -> None:
    class Other(ToolHarness):
        @tool(name="first")
        def x(self) -> None: ...

    class Inner(Basics):
        @tool(name="first")
        def x(self) -> None: ...

    for harnesses in ([Basics, Other], [Inner]):
        with pytest.raises(ConfigurationError) as caught:
            collect(harnesses)
        assert caught.value.code == "duplicate_name"
        assert ".first`" in str(caught.value)
        assert ".x`" in str(caught.value)


@pytest.mark.contract("H-01")
def test_capabilities_can_be_added_at_run_time() -> None:
    def extra(n: int) -> int:
        return n

    harness = Basics()
    harness.add_tool(extra)
    harness.add_tool(tool(name="other")(extra))
    harness.add_subagent(Card("helper"))
    assert [capability.name for capability in harness.capabilities()] == ["second", "first", "extra", "other", "helper"]
    with pytest.raises(ConfigurationError, match="both named `helper`"):
        harness.add(Card("helper"))
    with pytest.raises(ConfigurationError, match="not valid"):
        harness.add(Card("no name"))
    assert [capability.name for capability in Basics().capabilities()] == ["second", "first"]
    assert len(harness.capabilities()) == 5


def test_a_ready_tool_keeps_its_reference() -> None:
    harness = Basics()
    harness.add_tool(function_tool(module_level))
    assert harness.members()[-1].reference == f"{__name__}:module_level"


def module_level() -> None: ...


def test_what_is_no_harness_is_refused() -> None:
    class Needs(ToolHarness):
        def __init__(self, url: str) -> None:
            self.url = url

    class Wrong(ToolHarness):
        @card
        def x(self) -> Any:
            return 3

    for given, words in ((module_level, "`module_level` is not"), (Card("x"), "`Card` is not"), (Needs, "pass an instance")):
        with pytest.raises(ConfigurationError, match=f"(?i){words}"):
            collect([given])  # type: ignore[list-item] # pyright: ignore
    with pytest.raises(ConfigurationError, match="`int`, which is no capability"):
        collect([Wrong])
