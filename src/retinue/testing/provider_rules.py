"""What providers refuse, as data: each rule with its source, its check and a transcript that it alone refuses.

Not a rule, because no provider checks it: that a tool which the history has called is still offered.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from retinue.testing import provider_checks as checks
from retinue.testing.provider_checks import Body, Messages

__all__ = ["ECHO_RULES", "GOOD", "MISTRAL_RULES", "RULES", "Rule", "refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`check` returns what is wrong, or None. `refused` is the body of a request that breaks this rule and no other."""

    id: str
    text: str
    source: str
    check: Callable[[Messages, Body], str | None]
    refused: Body


OPENAI_CREATE: Final = "OpenAI API reference, Create chat completion (platform.openai.com/docs/api-reference/chat/create)"
OPENAI_IMAGES: Final = "OpenAI guide, Images and vision (platform.openai.com/docs/guides/images-vision)"
OPENAI_FILES: Final = "OpenAI guide, File inputs (platform.openai.com/docs/guides/pdf-files)"
OPENAI_TOOLS: Final = "OpenAI guide, Function calling (platform.openai.com/docs/guides/function-calling)"
ANTHROPIC_TOOLS: Final = "Anthropic docs, Handle tool calls (platform.claude.com/docs/en/agents-and-tools/tool-use)"
ANTHROPIC_ERRORS: Final = "Anthropic docs, Errors, common validation errors (platform.claude.com/docs/en/api/errors)"
ANTHROPIC_MESSAGES: Final = "Anthropic API reference, Messages (platform.claude.com/docs/en/api/messages)"


def _user(text: Any = "Hello") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _call(call_id: str, name: str = "add", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _calling(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(call_id: str, content: Any = "3") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


def _image(data: str = "iVBORw0KGgo=", media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


def _form(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | more}


def _body(*messages: dict[str, Any], **more: Any) -> Body:
    return {"model": "m", "tools": [_TOOL], "messages": list(messages)} | more


GOOD: Final[Body] = _body(
    {"role": "system", "content": "You are helpful."},
    _user("Add."),
    _calling(_call("a1"), _call("a2", arguments='{"a": 1}'), content="I add."),
    _result("a1"),
    _result("a2", ""),
    {"role": "assistant", "content": "Done."},
    _user(
        [
            {"type": "text", "text": "Again, with what is shown here."},
            _image(),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}},
        ]
    ),
    _calling(_call("b1", name="gone")),
    _result("b1"),
    stream=True,
    stream_options={"include_usage": True},
    temperature=0.5,
    tool_choice="none",
    response_format=_form({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, strict=True),
)
"""A request that every rule lets pass."""


RULES: Final[Sequence[Rule]] = (
    Rule(
        id="messages_missing",
        text="`messages` is a list of at least one message",
        source=OPENAI_CREATE,
        check=checks.check_messages,
        refused=_body(),
    ),
    Rule(
        id="model_missing",
        text="`model` is a name",
        source=OPENAI_CREATE,
        check=checks.check_model,
        refused=_body(_user(), model=""),
    ),
    Rule(
        id="unknown_role",
        text="a role is system, developer, user, assistant or tool",
        source=OPENAI_CREATE,
        check=checks.check_roles,
        refused=_body(_user(), {"role": "function", "content": "x"}),
    ),
    Rule(
        id="only_system",
        text="somebody besides the system has spoken",
        source=ANTHROPIC_MESSAGES,
        check=checks.check_someone_asks,
        refused=_body({"role": "system", "content": "Be brief."}),
    ),
    Rule(
        id="system_not_first",
        text="a system message stands only at the beginning",
        source=f"Chat templates of Qwen and Gemma (vllm-project/vllm#46976); {ANTHROPIC_MESSAGES}: no role `system`",
        check=checks.check_system,
        refused=_body(_user(), {"role": "system", "content": "Be brief."}, _user()),
    ),
    Rule(
        id="unanswered_call",
        text="every call has a result",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=checks.paired("unanswered"),
        refused=_body(_user(), _calling(_call("a"), _call("b")), _result("a"), _user()),
    ),
    Rule(
        id="result_not_adjacent",
        text="results stand right after the message that called, before any other role",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=checks.paired("apart"),
        refused=_body(_user(), _calling(_call("a")), _user("Wait."), _result("a")),
    ),
    Rule(
        id="orphan_result",
        text="a result answers a call that was made before it",
        source=f"{OPENAI_CREATE}; {ANTHROPIC_TOOLS}",
        check=checks.paired("orphan"),
        refused=_body(_user(), _result("a")),
    ),
    Rule(
        id="second_result",
        text="a call has one result",
        source=ANTHROPIC_ERRORS,
        check=checks.paired("twice"),
        refused=_body(_user(), _calling(_call("a")), _result("a"), _result("a")),
    ),
    Rule(
        id="ids_repeat_in_message",
        text="the calls of a message have different ids",
        source=f"{ANTHROPIC_ERRORS} (anthropics/claude-code#20700)",
        check=checks.check_ids_in_message,
        refused=_body(_user(), _calling(_call("a"), _call("a")), _result("a"), _result("a")),
    ),
    Rule(
        id="ids_repeat_in_transcript",
        text="an id is used by one message",
        source=f"{ANTHROPIC_ERRORS}: `tool_use` ids must be unique (anomalyco/opencode#1279)",
        check=checks.check_ids_in_transcript,
        refused=_body(_user(), _calling(_call("a")), _result("a"), _calling(_call("a")), _result("a")),
    ),
    Rule(
        id="id_form",
        text="an id has 1 to 40 letters, digits, `_` and `-`",
        source="OpenAI: at most 40 characters (camel-ai/camel#2215); Anthropic: `^[a-zA-Z0-9_-]+$` (anomalyco/opencode#1279)",
        check=checks.check_id_form,
        refused=_body(_user(), _calling(_call("msg_1:0")), _result("msg_1:0")),
    ),
    Rule(
        id="call_form",
        text="a call is a function with a name; `tool_calls` is not empty",
        source=f"{OPENAI_CREATE}; vllm-project/vllm#13978",
        check=checks.check_call_form,
        refused=_body(_user(), _calling(_call("a", name="no name")), _result("a")),
    ),
    Rule(
        id="arguments_not_json",
        text="the arguments of a call are an object in JSON, in the history too",
        source="vLLM and llama.cpp parse them again (vllm-project/vllm#43995, OpenHands/software-agent-sdk#2887)",
        check=checks.check_arguments,
        refused=_body(_user(), _calling(_call("a", arguments='{"a": ')), _result("a")),
    ),
    Rule(
        id="blank_user",
        text="what a user or the system says is not blank",
        source=ANTHROPIC_ERRORS,
        check=checks.check_blank_user,
        refused=_body(_user(" \n")),
    ),
    Rule(
        id="blank_assistant",
        text="an assistant message without calls has text; beside calls, no text is null",
        source=f"{OPENAI_CREATE} (vercel/ai#13744, vercel/ai#12390); {ANTHROPIC_ERRORS}",
        check=checks.check_blank_assistant,
        refused=_body(_user(), {"role": "assistant", "content": None}, _user()),
    ),
    Rule(
        id="content_type",
        text="content is a text or a list of parts",
        source=OPENAI_CREATE,
        check=checks.check_content,
        refused=_body(_user(), _calling(_call("a")), _result("a", {"sum": 3})),
    ),
    Rule(
        id="part_form",
        text="a part of a content is of a known type, and holds what its type names",
        source=OPENAI_CREATE,
        check=checks.check_part_form,
        refused=_body(_user([{"type": "text", "text": "Look."}, {"type": "image", "image": "iVBORw0KGgo="}])),
    ),
    Rule(
        id="part_place",
        text="pictures and files stand in messages of a user only",
        source=f"{OPENAI_CREATE}: a tool message takes text parts",
        check=checks.check_part_place,
        refused=_body(_user(), _calling(_call("a")), _result("a", [_image()])),
    ),
    Rule(
        id="part_data",
        text="a picture is a PNG, JPEG, GIF or WebP as its data URL says, a file a PDF with a name; neither is empty",
        source=f"{OPENAI_IMAGES}; {OPENAI_FILES}",
        check=checks.check_part_data,
        refused=_body(_user([{"type": "text", "text": "Look."}, _image("")])),
    ),
    Rule(
        id="lone_surrogate",
        text="the body is valid Unicode",
        source="RFC 8259 section 8.1; anthropics/claude-code#5934",
        check=checks.check_surrogates,
        refused=_body(_user("half a \ud83d")),
    ),
    Rule(
        id="last_assistant",
        text="the conversation does not end with an assistant message",
        source=f"{ANTHROPIC_ERRORS}: no prefill since Claude 4.6",
        check=checks.check_last,
        refused=_body(_user(), {"role": "assistant", "content": "Sure:"}),
    ),
    Rule(
        id="tools_missing",
        text="a history with calls comes with tools",
        source=ANTHROPIC_ERRORS,
        check=checks.check_tools_missing,
        refused={"model": "m", "messages": [_user(), _calling(_call("a")), _result("a")]},
    ),
    Rule(
        id="tool_name",
        text="a tool's name has 1 to 64 letters, digits, `_` and `-`",
        source=f"{OPENAI_CREATE}; {ANTHROPIC_TOOLS}",
        check=checks.check_tool_names,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": "read file"}}]),
    ),
    Rule(
        id="tool_names_repeat",
        text="tools have different names",
        source=ANTHROPIC_ERRORS,
        check=checks.check_tool_unique,
        refused=_body(_user(), tools=[_TOOL, _TOOL]),
    ),
    Rule(
        id="tool_schema",
        text="a tool's parameters are a schema of type object",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=checks.check_tool_schema,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": "add", "parameters": {"type": "string"}}}]),
    ),
    Rule(
        id="too_many_tools",
        text="there are at most 128 tools",
        source=f"{OPENAI_CREATE} (zed-industries/zed#32946)",
        check=checks.check_tool_count,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": f"t{n}"}} for n in range(129)]),
    ),
    Rule(
        id="tools_empty",
        text="`tools` is left out rather than empty",
        source=OPENAI_CREATE,
        check=checks.check_tools_empty,
        refused=_body(_user(), tools=[]),
    ),
    Rule(
        id="choice_without_tools",
        text="`tool_choice` needs tools",
        source=f"{OPENAI_CREATE} (writer/writer-framework#1013)",
        check=checks.check_choice,
        refused={"model": "m", "messages": [_user()], "tool_choice": "none"},
    ),
    Rule(
        id="response_format",
        text="`response_format` names a schema of type object; a strict one is closed, all its fields are required",
        source="OpenAI guide, Structured model outputs (platform.openai.com/docs/guides/structured-outputs)",
        check=checks.check_response_format,
        refused=_body(_user(), response_format=_form({"type": "array", "items": {"type": "string"}})),
    ),
    Rule(
        id="stream_options",
        text="`stream_options` needs `stream`",
        source=OPENAI_CREATE,
        check=checks.check_stream_options,
        refused=_body(_user(), stream_options={"include_usage": True}),
    ),
    Rule(
        id="parameter_range",
        text="parameters are in their ranges",
        source=OPENAI_CREATE,
        check=checks.check_ranges,
        refused=_body(_user(), temperature=2.5),
    ),
)
"""What `StrictProvider` refuses by default: the strictest of what the large providers and local servers refuse."""

ECHO_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="extras_missing",
        text="what the provider added to a message with calls comes back with it",
        source="DeepSeek API docs, Thinking mode, tool calls (api-docs.deepseek.com/guides/thinking_mode)",
        check=checks.check_extras,
        refused=_body(_user(), _calling(_call("a")), _result("a")),
    ),
)
"""What it refuses besides with `echo_extras=True`."""

MISTRAL_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="user_after_tool",
        text="a user message does not follow a result",
        source="Mistral API (BerriAI/litellm#6323)",
        check=checks.check_user_after_tool,
        refused=_body(_user(), _calling(_call("abcdefghi")), _result("abcdefghi"), _user()),
    ),
    Rule(
        id="nine_character_ids",
        text="an id has nine letters or digits",
        source="Mistral API (karthink/gptel#1203, jackmpcollins/magentic#276)",
        check=checks.check_short_ids,
        refused=_body(_user(), _calling(_call("a")), _result("a")),
    ),
)
"""What Mistral refuses besides; add them with `StrictProvider(rules=(*RULES, *MISTRAL_RULES))`."""


def refusal(body: Any, rules: Iterable[Rule]) -> tuple[Rule, str] | None:
    """The first rule that refuses a body, and why; None for a good one."""
    fields: Body = cast("Body", body) if isinstance(body, dict) else {}
    raw: Any = fields.get("messages")
    messages: Messages = cast("Messages", raw) if isinstance(raw, list) else []
    if not all(isinstance(message, dict) for message in cast("list[Any]", messages)):
        messages = []
    for rule in rules:
        words = rule.check(messages, fields)
        if words is not None:
            return rule, words
    return None
