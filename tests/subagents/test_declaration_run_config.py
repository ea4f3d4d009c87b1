"""What a child takes from its parent's run (H-08, H-09)."""

from typing import Any

import pytest

from retinue.config import AgentRunConfig, ChatClientConfig, ClientsConfig
from retinue.errors import ConfigurationError
from retinue.subagents.run_config import DEFAULT_TOOL_FIELDS, SubAgentRunConfig, SubAgentRunConfigFields

PARENT = AgentRunConfig().with_chat(temperature=0.7, top_p=0.9, model="parent", extra={"seed": 1}, stop=("END",))


def own(**chat: Any) -> AgentRunConfig:
    return AgentRunConfig(clients=ClientsConfig(chat=ChatClientConfig(**chat)))


@pytest.mark.contract("H-09")
def test_later_calls_of_a_chain_win() -> None:
    chain = SubAgentRunConfig.inherit().include("instructions").exclude("compaction", "instructions").include("compaction")
    assert chain.fields(DEFAULT_TOOL_FIELDS) == DEFAULT_TOOL_FIELDS
    only = SubAgentRunConfig.inherit_only("permissions", SubAgentRunConfigFields.CONTEXT)
    assert only.fields(DEFAULT_TOOL_FIELDS) == {"permissions", "context"}
    assert SubAgentRunConfig.isolated().fields(DEFAULT_TOOL_FIELDS) == frozenset()
    assert SubAgentRunConfig.isolated().include("context").fields(DEFAULT_TOOL_FIELDS) == {"context"}


@pytest.mark.contract("H-09")
def test_a_chain_changes_nothing_that_was_there() -> None:
    first = SubAgentRunConfig.inherit()
    first.include("tools").exclude("context").override(lambda config: config)
    assert first == SubAgentRunConfig()


@pytest.mark.contract("H-08")
def test_the_child_inherits_settings_and_its_own_win() -> None:
    chat = SubAgentRunConfig.inherit().apply(PARENT, own(temperature=0.1)).clients.chat
    assert (chat.temperature, chat.top_p, chat.model, chat.stop) == (0.1, 0.9, "parent", ("END",))
    assert chat.extra == {"seed": 1}
    assert chat.extra is not PARENT.clients.chat.extra


def test_settings_of_one_provider_do_not_follow_to_another_model() -> None:
    chat = SubAgentRunConfig.inherit().apply(PARENT, own(model="mine", extra={"mine": 2})).clients.chat
    assert (chat.model, chat.extra) == ("mine", {"mine": 2})


@pytest.mark.contract("H-09")
def test_isolated_cuts_the_client_and_fallback_takes_one_or_the_other() -> None:
    assert SubAgentRunConfig.isolated().apply(PARENT, own(top_p=0.5)) == own(top_p=0.5)
    fallback = SubAgentRunConfig.inherit().with_clients(chat="fallback_to_parent")
    assert fallback.apply(PARENT, own()).clients.chat == PARENT.clients.chat
    assert fallback.apply(PARENT, own(top_p=0.5)).clients.chat == ChatClientConfig(top_p=0.5)
    with pytest.raises(ConfigurationError, match="`use_own`"):
        SubAgentRunConfig.inherit().with_clients(chat="own")  # type: ignore[arg-type]


@pytest.mark.contract("H-09")
def test_overrides_run_last_in_order() -> None:
    recipe = (
        SubAgentRunConfig.inherit()
        .override(lambda config: config.with_chat(temperature=0.2, top_p=0.3))
        .override(lambda config: config.with_chat(temperature=0.4))
    )
    chat = recipe.apply(PARENT, own(temperature=1.0)).clients.chat
    assert (chat.temperature, chat.top_p) == (0.4, 0.3)
    with pytest.raises(ConfigurationError, match="NoneType"):
        SubAgentRunConfig.inherit().override(lambda config: None).apply(PARENT, own())  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("method", ["include", "exclude", "inherit_only"])
def test_an_unknown_field_lists_the_known_ones(method: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`memory`.*`instructions`.*`output`"):
        getattr(SubAgentRunConfig.inherit(), method)("context", "memory")
