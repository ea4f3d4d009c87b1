"""What providers refuse, as data: each rule with its source, its check and a transcript that it alone refuses.

Not a rule, because no provider checks it: that a tool which the history has called is still offered.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import msgspec

__all__ = ["ECHO_RULES", "GOOD", "MISTRAL_RULES", "RULES", "Rule", "refusal", "state_of"]

Body: TypeAlias = dict[str, Any]
Messages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`check` returns what is wrong, or None. `refused` is the body of a request that breaks this rule and no other."""

    id: str
    text: str
    source: str
    check: Callable[[Messages, Body], str | None]
    refused: Body


OPENAI_CREATE: Final = "OpenAI API reference, Create chat completion (platform.openai.com/docs/api-reference/chat/create)"
OPENAI_TOOLS: Final = "OpenAI guide, Function calling (platform.openai.com/docs/guides/function-calling)"
ANTHROPIC_TOOLS: Final = "Anthropic docs, Handle tool calls (platform.claude.com/docs/en/agents-and-tools/tool-use)"
ANTHROPIC_ERRORS: Final = "Anthropic docs, Errors, common validation errors (platform.claude.com/docs/en/api/errors)"
ANTHROPIC_MESSAGES: Final = "Anthropic API reference, Messages (platform.claude.com/docs/en/api/messages)"

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


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


def _body(*messages: dict[str, Any], **more: Any) -> Body:
    return {"model": "m", "tools": [_TOOL], "messages": list(messages)} | more


GOOD: Final[Body] = _body(
    {"role": "system", "content": "You are helpful."},
    _user("Add."),
    _calling(_call("a1"), _call("a2", arguments='{"a": 1}'), content="I add."),
    _result("a1"),
    _result("a2", ""),
    {"role": "assistant", "content": "Done."},
    _user([{"type": "text", "text": "Again."}]),
    _calling(_call("b1", name="gone")),
    _result("b1"),
    stream=True,
    stream_options={"include_usage": True},
    temperature=0.5,
    tool_choice="none",
)
"""A request that every rule lets pass."""


# Helpers that read.


def _objects(value: Any) -> list[dict[str, Any]]:
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(message.get("tool_calls"))


def _every_call(messages: Messages) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, message in enumerate(messages):
        if message.get("role") == "assistant":
            for call in _calls(message):
                yield place, call


def _function(call: dict[str, Any]) -> dict[str, Any]:
    function: Any = call.get("function")
    return cast("dict[str, Any]", function) if isinstance(function, dict) else {}


def _tools(body: Body) -> list[dict[str, Any]]:
    return [_function(tool) for tool in _objects(body.get("tools"))]


def _blank(content: Any) -> bool:
    if content is None:
        return True
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return not parts or any(
            isinstance(part, dict) and not str(cast("dict[str, Any]", part).get("text", "x")).strip() for part in parts
        )
    return isinstance(content, str) and not content.strip()


def _pairing(messages: Messages) -> Iterator[tuple[str, str]]:
    """Everything wrong with calls and results: (kind, words)."""
    place = 0
    answered: set[str] = set()
    known: set[str] = set()
    while place < len(messages):
        message = messages[place]
        ids = [str(call.get("id")) for call in _calls(message)] if message.get("role") == "assistant" else []
        known |= set(ids)
        start = place = place + (message.get("role") != "tool")
        while place < len(messages) and messages[place].get("role") == "tool":
            place += 1
        block = [str(result.get("tool_call_id")) for result in messages[start:place]]
        for one in dict.fromkeys(block):
            at = f"messages[{start + block.index(one)}]"
            if one in ids:
                if block.count(one) > ids.count(one):
                    yield "twice", f"{at}: a second result for call `{one}`"
            elif one not in known:
                yield "orphan", f"{at}: role 'tool' must be a response to a preceding message with 'tool_calls'; no call `{one}`"
            elif one in answered:
                yield "twice", f"{at}: a second result for call `{one}`"
        later = {str(result.get("tool_call_id")) for result in messages[place:] if result.get("role") == "tool"}
        for one in dict.fromkeys(ids):
            if block.count(one) < ids.count(one):
                kind = "apart" if one in later else "unanswered"
                yield kind, f"messages[{start - 1}]: 'tool_calls' must be followed by a message for each id; missing: `{one}`"
        answered |= set(block)


def _paired(kind: str) -> Callable[[Messages, Body], str | None]:
    def check(messages: Messages, body: Body) -> str | None:
        return next((words for found, words in _pairing(messages) if found == kind), None)

    return check


# The checks.


def _check_messages(messages: Messages, body: Body) -> str | None:
    return None if messages else "`messages` must be a list of at least one object"


def _check_model(messages: Messages, body: Body) -> str | None:
    return None if isinstance(body.get("model"), str) and body["model"] else "you must provide a model"


def _check_roles(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            return f"messages[{place}].role: `{message.get('role')}` is not one of {', '.join(_ROLES)}"
    return None


def _check_system(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") in ("system", "developer") and place:
            return f"messages[{place}]: the system message must be at the beginning"
    return None


def _check_ids_in_message(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        ids = [call.get("id") for call in _calls(message)]
        if len(set(map(str, ids))) != len(ids):
            return f"messages[{place}].tool_calls: `tool_use` ids must be unique"
    return None


def _check_ids_in_transcript(messages: Messages, body: Body) -> str | None:
    seen: dict[Any, int] = {}
    for place, call in _every_call(messages):
        if seen.setdefault(str(call.get("id")), place) != place:
            return f"messages[{place}]: id `{call.get('id')}` was used by an earlier message"
    return None


def _check_id_form(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id) or len(call_id) > 40:
            return f"messages[{place}].tool_calls[].id: expected 1 to 40 of `[a-zA-Z0-9_-]`, got `{call_id}`"
    return None


def _check_call_form(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        calls: Any = message.get("tool_calls")
        if "tool_calls" in message and (not isinstance(calls, list) or not calls):
            return f"messages[{place}].tool_calls: expected at least one"
    for place, call in _every_call(messages):
        if call.get("type") != "function" or not _NAME.fullmatch(str(_function(call).get("name", ""))):
            return f"messages[{place}].tool_calls[]: expected type `function` and a name of `^[a-zA-Z0-9_-]{{1,64}}$`"
    return None


def _check_arguments(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        arguments: Any = _function(call).get("arguments")
        try:
            good = isinstance(arguments, str) and isinstance(msgspec.json.decode(arguments), dict)
        except (msgspec.DecodeError, UnicodeEncodeError):
            good = False
        if not good:
            return f"messages[{place}].tool_calls[].function.arguments: not an object in JSON"
    return None


def _check_blank_user(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") in ("user", "system", "developer") and _blank(message.get("content")):
            return f"messages[{place}]: text content must be non-empty"
    return None


def _check_blank_assistant(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        content = message.get("content")
        if content is None and not _calls(message):
            return f"messages[{place}].content: expected a string, got null (no tool_calls)"
        if content is not None and _blank(content):
            return f"messages[{place}].content: text content must be non-empty (null beside tool_calls)"
    return None


def _check_content(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        content: Any = message.get("content")
        allowed = isinstance(content, (str, list)) or (content is None and message.get("role") != "tool")
        if not allowed:
            return f"messages[{place}].content: expected a string or an array of parts"
    return None


def _check_surrogates(messages: Messages, body: Body) -> str | None:
    try:
        msgspec.json.encode(body)
    except UnicodeEncodeError:
        return "the request body is not valid JSON: no low surrogate in string"
    return None


def _check_last(messages: Messages, body: Body) -> str | None:
    if messages and messages[-1].get("role") == "assistant":
        return "the conversation must end with a user message: no assistant prefill"
    return None


def _check_someone_asks(messages: Messages, body: Body) -> str | None:
    if messages and not any(message.get("role") in ("user", "tool", "assistant") for message in messages):
        return "at least one message that is not of the system is required"
    return None


def _check_tools_missing(messages: Messages, body: Body) -> str | None:
    if not _tools(body) and any(True for _ in _every_call(messages)):
        return "requests which include tool calls must define tools"
    return None


def _check_tool_names(messages: Messages, body: Body) -> str | None:
    for place, tool in enumerate(_tools(body)):
        if not _NAME.fullmatch(str(tool.get("name", ""))):
            return f"tools[{place}].function.name: `{tool.get('name')}` does not match `^[a-zA-Z0-9_-]{{1,64}}$`"
    return None


def _check_tool_unique(messages: Messages, body: Body) -> str | None:
    names = [tool.get("name") for tool in _tools(body)]
    return None if len(set(map(str, names))) == len(names) else "tools: tool names must be unique"


def _check_tool_schema(messages: Messages, body: Body) -> str | None:
    for place, tool in enumerate(_tools(body)):
        schema: Any = tool.get("parameters")
        if schema is None:
            continue
        fields: dict[str, Any] = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
        required: Any = fields.get("required", [])
        properties: Any = fields.get("properties", {})
        if (
            fields.get("type") != "object"
            or not isinstance(properties, dict)
            or not isinstance(required, list)
            or any(name not in properties for name in cast("list[Any]", required))
        ):
            return f"tools[{place}].function.parameters: schema must be of type object, and what it requires a property"
    return None


def _check_tool_count(messages: Messages, body: Body) -> str | None:
    count = len(_tools(body))
    return None if count <= 128 else f"tools: array too long, at most 128, got {count}"


def _check_tools_empty(messages: Messages, body: Body) -> str | None:
    return "tools: expected at least one; leave the key out" if body.get("tools", [1]) in ([], None) else None


def _check_choice(messages: Messages, body: Body) -> str | None:
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice is only allowed when tools are specified"
    return None


def _check_stream_options(messages: Messages, body: Body) -> str | None:
    if body.get("stream_options") is not None and not body.get("stream"):
        return "stream_options is only allowed when stream is enabled"
    return None


def _check_ranges(messages: Messages, body: Body) -> str | None:
    for key, low, high in (
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("max_tokens", 1, 10_000_000),
        ("max_completion_tokens", 1, 10_000_000),
    ):
        value = body.get(key)
        if value is not None and (not isinstance(value, (int, float)) or not low <= value <= high):
            return f"{key}: expected {low} to {high}, got {value}"
    stop: Any = body.get("stop")
    if isinstance(stop, list) and len(cast("list[Any]", stop)) > 4:
        return "stop: at most 4"
    return None


def state_of(message: dict[str, Any]) -> str:
    """What `StrictProvider(echo_extras=True)` adds to an assistant message and wants back: it follows from the message."""
    names = [_function(call).get("name") for call in _calls(message)]
    return f"state-{len(str(message.get('content') or ''))}-{'-'.join(map(str, names))}"


def _check_extras(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") == "assistant" and _calls(message) and message.get("provider_state") != state_of(message):
            return f"messages[{place}]: `provider_state` must be passed back with the tool calls it came with"
    return None


def _check_user_after_tool(messages: Messages, body: Body) -> str | None:
    for place in range(1, len(messages)):
        if messages[place].get("role") == "user" and messages[place - 1].get("role") == "tool":
            return f"messages[{place}]: unexpected role 'user' after role 'tool'"
    return None


def _check_short_ids(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        if not re.fullmatch(r"[a-zA-Z0-9]{9}", str(call.get("id"))):
            return f"messages[{place}]: tool call id was {call.get('id')} but must be a-z, A-Z, 0-9, with a length of 9"
    return None


RULES: Final[Sequence[Rule]] = (
    Rule(
        id="messages_missing",
        text="`messages` is a list of at least one message",
        source=OPENAI_CREATE,
        check=_check_messages,
        refused=_body(),
    ),
    Rule(
        id="model_missing",
        text="`model` is a name",
        source=OPENAI_CREATE,
        check=_check_model,
        refused=_body(_user(), model=""),
    ),
    Rule(
        id="unknown_role",
        text="a role is system, developer, user, assistant or tool",
        source=OPENAI_CREATE,
        check=_check_roles,
        refused=_body(_user(), {"role": "function", "content": "x"}),
    ),
    Rule(
        id="only_system",
        text="somebody besides the system has spoken",
        source=ANTHROPIC_MESSAGES,
        check=_check_someone_asks,
        refused=_body({"role": "system", "content": "Be brief."}),
    ),
    Rule(
        id="system_not_first",
        text="a system message stands only at the beginning",
        source=f"Chat templates of Qwen and Gemma (vllm-project/vllm#46976); {ANTHROPIC_MESSAGES}: no role `system`",
        check=_check_system,
        refused=_body(_user(), {"role": "system", "content": "Be brief."}, _user()),
    ),
    Rule(
        id="unanswered_call",
        text="every call has a result",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=_paired("unanswered"),
        refused=_body(_user(), _calling(_call("a"), _call("b")), _result("a"), _user()),
    ),
    Rule(
        id="result_not_adjacent",
        text="results stand right after the message that called, before any other role",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=_paired("apart"),
        refused=_body(_user(), _calling(_call("a")), _user("Wait."), _result("a")),
    ),
    Rule(
        id="orphan_result",
        text="a result answers a call that was made before it",
        source=f"{OPENAI_CREATE}; {ANTHROPIC_TOOLS}",
        check=_paired("orphan"),
        refused=_body(_user(), _result("a")),
    ),
    Rule(
        id="second_result",
        text="a call has one result",
        source=ANTHROPIC_ERRORS,
        check=_paired("twice"),
        refused=_body(_user(), _calling(_call("a")), _result("a"), _result("a")),
    ),
    Rule(
        id="ids_repeat_in_message",
        text="the calls of a message have different ids",
        source=f"{ANTHROPIC_ERRORS} (anthropics/claude-code#20700)",
        check=_check_ids_in_message,
        refused=_body(_user(), _calling(_call("a"), _call("a")), _result("a"), _result("a")),
    ),
    Rule(
        id="ids_repeat_in_transcript",
        text="an id is used by one message",
        source=f"{ANTHROPIC_ERRORS}: `tool_use` ids must be unique (anomalyco/opencode#1279)",
        check=_check_ids_in_transcript,
        refused=_body(_user(), _calling(_call("a")), _result("a"), _calling(_call("a")), _result("a")),
    ),
    Rule(
        id="id_form",
        text="an id has 1 to 40 letters, digits, `_` and `-`",
        source="OpenAI: at most 40 characters (camel-ai/camel#2215); Anthropic: `^[a-zA-Z0-9_-]+$` (anomalyco/opencode#1279)",
        check=_check_id_form,
        refused=_body(_user(), _calling(_call("msg_1:0")), _result("msg_1:0")),
    ),
    Rule(
        id="call_form",
        text="a call is a function with a name; `tool_calls` is not empty",
        source=f"{OPENAI_CREATE}; vllm-project/vllm#13978",
        check=_check_call_form,
        refused=_body(_user(), _calling(_call("a", name="no name")), _result("a")),
    ),
    Rule(
        id="arguments_not_json",
        text="the arguments of a call are an object in JSON, in the history too",
        source="vLLM and llama.cpp parse them again (vllm-project/vllm#43995, OpenHands/software-agent-sdk#2887)",
        check=_check_arguments,
        refused=_body(_user(), _calling(_call("a", arguments='{"a": ')), _result("a")),
    ),
    Rule(
        id="blank_user",
        text="what a user or the system says is not blank",
        source=ANTHROPIC_ERRORS,
        check=_check_blank_user,
        refused=_body(_user(" \n")),
    ),
    Rule(
        id="blank_assistant",
        text="an assistant message without calls has text; beside calls, no text is null",
        source=f"{OPENAI_CREATE} (vercel/ai#13744, vercel/ai#12390); {ANTHROPIC_ERRORS}",
        check=_check_blank_assistant,
        refused=_body(_user(), {"role": "assistant", "content": None}, _user()),
    ),
    Rule(
        id="content_type",
        text="content is a text or a list of parts",
        source=OPENAI_CREATE,
        check=_check_content,
        refused=_body(_user(), _calling(_call("a")), _result("a", {"sum": 3})),
    ),
    Rule(
        id="lone_surrogate",
        text="the body is valid Unicode",
        source="RFC 8259 section 8.1; anthropics/claude-code#5934",
        check=_check_surrogates,
        refused=_body(_user("half a \ud83d")),
    ),
    Rule(
        id="last_assistant",
        text="the conversation does not end with an assistant message",
        source=f"{ANTHROPIC_ERRORS}: no prefill since Claude 4.6",
        check=_check_last,
        refused=_body(_user(), {"role": "assistant", "content": "Sure:"}),
    ),
    Rule(
        id="tools_missing",
        text="a history with calls comes with tools",
        source=ANTHROPIC_ERRORS,
        check=_check_tools_missing,
        refused={"model": "m", "messages": [_user(), _calling(_call("a")), _result("a")]},
    ),
    Rule(
        id="tool_name",
        text="a tool's name has 1 to 64 letters, digits, `_` and `-`",
        source=f"{OPENAI_CREATE}; {ANTHROPIC_TOOLS}",
        check=_check_tool_names,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": "read file"}}]),
    ),
    Rule(
        id="tool_names_repeat",
        text="tools have different names",
        source=ANTHROPIC_ERRORS,
        check=_check_tool_unique,
        refused=_body(_user(), tools=[_TOOL, _TOOL]),
    ),
    Rule(
        id="tool_schema",
        text="a tool's parameters are a schema of type object",
        source=f"{OPENAI_TOOLS}; {ANTHROPIC_TOOLS}",
        check=_check_tool_schema,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": "add", "parameters": {"type": "string"}}}]),
    ),
    Rule(
        id="too_many_tools",
        text="there are at most 128 tools",
        source=f"{OPENAI_CREATE} (zed-industries/zed#32946)",
        check=_check_tool_count,
        refused=_body(_user(), tools=[{"type": "function", "function": {"name": f"t{n}"}} for n in range(129)]),
    ),
    Rule(
        id="tools_empty",
        text="`tools` is left out rather than empty",
        source=OPENAI_CREATE,
        check=_check_tools_empty,
        refused=_body(_user(), tools=[]),
    ),
    Rule(
        id="choice_without_tools",
        text="`tool_choice` needs tools",
        source=f"{OPENAI_CREATE} (writer/writer-framework#1013)",
        check=_check_choice,
        refused={"model": "m", "messages": [_user()], "tool_choice": "none"},
    ),
    Rule(
        id="stream_options",
        text="`stream_options` needs `stream`",
        source=OPENAI_CREATE,
        check=_check_stream_options,
        refused=_body(_user(), stream_options={"include_usage": True}),
    ),
    Rule(
        id="parameter_range",
        text="parameters are in their ranges",
        source=OPENAI_CREATE,
        check=_check_ranges,
        refused=_body(_user(), temperature=2.5),
    ),
)
"""What `StrictProvider` refuses by default: the strictest of what the large providers and local servers refuse."""

ECHO_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="extras_missing",
        text="what the provider added to a message with calls comes back with it",
        source="DeepSeek API docs, Thinking mode, tool calls (api-docs.deepseek.com/guides/thinking_mode)",
        check=_check_extras,
        refused=_body(_user(), _calling(_call("a")), _result("a")),
    ),
)
"""What it refuses besides with `echo_extras=True`."""

MISTRAL_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="user_after_tool",
        text="a user message does not follow a result",
        source="Mistral API (BerriAI/litellm#6323)",
        check=_check_user_after_tool,
        refused=_body(_user(), _calling(_call("abcdefghi")), _result("abcdefghi"), _user()),
    ),
    Rule(
        id="nine_character_ids",
        text="an id has nine letters or digits",
        source="Mistral API (karthink/gptel#1203, jackmpcollins/magentic#276)",
        check=_check_short_ids,
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
