"""Each rule refuses its own example and nothing else refuses it; a good transcript passes them all."""

from typing import Any

import pytest

from retinue.testing.provider_checks import state_of
from retinue.testing.provider_rules import ECHO_RULES, GOOD, MISTRAL_RULES, RULES, Rule, refusal


@pytest.mark.case("B012", "B015", "B019", "B175")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_alone_refuses_its_example(rule: Rule) -> None:
    assert [other.id for other in RULES if refusal(rule.refused, [other])] == [rule.id]
    assert rule.text
    assert rule.source


@pytest.mark.case("B020")
@pytest.mark.parametrize("rule", [*ECHO_RULES, *MISTRAL_RULES], ids=lambda rule: rule.id)
def test_the_further_rules_refuse_what_the_others_let_pass(rule: Rule) -> None:
    assert refusal(rule.refused, RULES) is None
    found = refusal(rule.refused, (*RULES, rule))
    assert found is not None
    assert found[0] is rule


def test_ids_of_rules_differ() -> None:
    every = [rule.id for rule in (*RULES, *ECHO_RULES, *MISTRAL_RULES)]
    assert len(set(every)) == len(every)


def test_a_good_transcript_passes() -> None:
    assert refusal(GOOD, RULES) is None


def test_a_result_as_the_first_message_is_refused() -> None:
    found = refusal({"model": "m", "messages": [_tool("a"), USER]}, RULES)
    assert found is not None
    assert found[0].id == "orphan_result"


def test_a_state_that_came_back_passes() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    assert refusal({"messages": [message | {"provider_state": state_of(message)}]}, ECHO_RULES) is None


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        pytest.param([1], "messages_missing", id="not an object"),
        pytest.param({"model": "m", "messages": "hi"}, "messages_missing", id="messages is text"),
        pytest.param({"model": "m", "messages": ["hi"]}, "messages_missing", id="a message is text"),
    ],
)
def test_what_is_no_transcript_is_refused(body: Any, rule: str) -> None:
    found = refusal(body, RULES)
    assert found is not None
    assert found[0].id == rule


def _assistant(*ids: str) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "add", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "3"}


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        pytest.param([_assistant("a"), _tool("a"), USER, _tool("a")], "second_result", id="a second result later"),
        pytest.param([_assistant("a"), _tool("a"), _tool("b")], "orphan_result", id="a result too many"),
        pytest.param([_tool("a"), _assistant("a"), _tool("a")], "orphan_result", id="a result before its call"),
        pytest.param([_assistant("a"), USER], "unanswered_call", id="no result at all"),
        pytest.param([_assistant("a"), _assistant("b"), _tool("b")], "unanswered_call", id="another answer in between"),
    ],
)
@pytest.mark.case("B012", "B015", "B019", "B021")
def test_calls_and_results_out_of_step_are_refused(messages: list[dict[str, Any]], rule: str) -> None:
    found = refusal({"messages": [USER, *messages]}, [one for one in RULES if "result" in one.id or "unanswered" in one.id])
    assert found is not None
    assert found[0].id == rule


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"top_p": 1.5}, "parameter_range"),
        ({"max_tokens": 0}, "parameter_range"),
        ({"stop": list("abcde")}, "parameter_range"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "required": ["x"]}}}]},
            "tool_schema",
        ),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], rule: str) -> None:
    found = refusal(GOOD | changes, RULES)
    assert found is not None
    assert found[0].id == rule
