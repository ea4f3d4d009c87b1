"""The checks behind the provider rules: functions from messages and body to what is wrong with them. Pure.

What each of them means, and who says so, stands beside its rule.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import msgspec

from retinue.testing.provider_schema import malformed

__all__ = [
    "Body",
    "Messages",
    "check_arguments",
    "check_blank_assistant",
    "check_blank_user",
    "check_call_form",
    "check_choice",
    "check_content",
    "check_extras",
    "check_id_form",
    "check_ids_in_message",
    "check_ids_in_transcript",
    "check_last",
    "check_messages",
    "check_model",
    "check_part_data",
    "check_part_form",
    "check_part_place",
    "check_ranges",
    "check_roles",
    "check_short_ids",
    "check_someone_asks",
    "check_stream_options",
    "check_surrogates",
    "check_system",
    "check_tool_count",
    "check_tool_names",
    "check_tool_schema",
    "check_tool_unique",
    "check_tools_empty",
    "check_tools_missing",
    "check_user_after_tool",
    "paired",
    "state_of",
]

Body: TypeAlias = dict[str, Any]
Messages: TypeAlias = list[dict[str, Any]]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


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
        return not content or any(not str(part.get("text", "x")).strip() for part in _objects(cast("object", content)))
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
        start: int = place if message.get("role") == "tool" else place + 1
        place = start
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


def paired(kind: str) -> Callable[[Messages, Body], str | None]:
    def check(messages: Messages, body: Body) -> str | None:
        return next((words for found, words in _pairing(messages) if found == kind), None)

    return check


def check_messages(messages: Messages, body: Body) -> str | None:
    return None if messages else "`messages` must be a list of at least one object"


def check_model(messages: Messages, body: Body) -> str | None:
    return None if isinstance(body.get("model"), str) and body["model"] else "you must provide a model"


def check_roles(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            return f"messages[{place}].role: `{message.get('role')}` is not one of {', '.join(_ROLES)}"
    return None


def check_system(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") in ("system", "developer") and place:
            return f"messages[{place}]: the system message must be at the beginning"
    return None


def check_ids_in_message(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        ids = [call.get("id") for call in _calls(message)]
        if len(set(map(str, ids))) != len(ids):
            return f"messages[{place}].tool_calls: `tool_use` ids must be unique"
    return None


def check_ids_in_transcript(messages: Messages, body: Body) -> str | None:
    seen: dict[Any, int] = {}
    for place, call in _every_call(messages):
        if seen.setdefault(str(call.get("id")), place) != place:
            return f"messages[{place}]: id `{call.get('id')}` was used by an earlier message"
    return None


def check_id_form(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id) or len(call_id) > 40:
            return f"messages[{place}].tool_calls[].id: expected 1 to 40 of `[a-zA-Z0-9_-]`, got `{call_id}`"
    return None


def check_call_form(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        calls: Any = message.get("tool_calls")
        if "tool_calls" in message and (not isinstance(calls, list) or not calls):
            return f"messages[{place}].tool_calls: expected at least one"
    for place, call in _every_call(messages):
        if call.get("type") != "function" or not _NAME.fullmatch(str(_function(call).get("name", ""))):
            return f"messages[{place}].tool_calls[]: expected type `function` and a name of `^[a-zA-Z0-9_-]{{1,64}}$`"
    return None


def check_arguments(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        arguments: Any = _function(call).get("arguments")
        try:
            good = isinstance(arguments, str) and isinstance(msgspec.json.decode(arguments), dict)
        except (msgspec.DecodeError, UnicodeEncodeError):
            good = False
        if not good:
            return f"messages[{place}].tool_calls[].function.arguments: not an object in JSON"
    return None


def check_blank_user(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") in ("user", "system", "developer") and _blank(message.get("content")):
            return f"messages[{place}]: text content must be non-empty"
    return None


def check_blank_assistant(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        content = message.get("content")
        if content is None and not _calls(message):
            return f"messages[{place}].content: expected a string, got null (no tool_calls)"
        if content is not None and _blank(content):
            return f"messages[{place}].content: text content must be non-empty (null beside tool_calls)"
    return None


def check_content(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        content: Any = message.get("content")
        allowed = isinstance(content, (str, list)) or (content is None and message.get("role") != "tool")
        if not allowed:
            return f"messages[{place}].content: expected a string or an array of parts"
    return None


_PARTS: Final = {"text": str, "image_url": dict, "file": dict, "refusal": str, "input_audio": dict}
"""The types of content parts, with what each holds under its own name."""
_PART_PLACES: Final = {"user": ("text", "image_url", "file", "input_audio"), "assistant": ("text", "refusal")}
"""Who may say which; all others text only."""
_DATA_URL: Final = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+);base64,(.*)", re.DOTALL)
_IMAGES: Final = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}


def _every_part(messages: Messages) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each part of each content: its place, the role, the part."""
    for place, message in enumerate(messages):
        content: Any = message.get("content")
        for number, part in enumerate(cast("list[Any]", content) if isinstance(content, list) else []):
            fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
            yield f"messages[{place}].content[{number}]", message.get("role"), fields


def check_part_form(messages: Messages, body: Body) -> str | None:
    for place, _role, part in _every_part(messages):
        kind = part.get("type")
        if kind not in _PARTS:
            return f"{place}.type: `{kind}` is not one of {', '.join(_PARTS)}"
        if not isinstance(part.get(kind), _PARTS[kind]):
            return f"{place}: missing required parameter: '{kind}'"
    return None


def check_part_place(messages: Messages, body: Body) -> str | None:
    for place, role, part in _every_part(messages):
        kind = part.get("type")
        if kind in _PARTS and kind not in _PART_PLACES.get(str(role), ("text",)):
            return f"{place}: a part of type `{kind}` is not allowed in a message of role '{role}'"
    return None


def check_part_data(messages: Messages, body: Body) -> str | None:
    for place, _role, part in _every_part(messages):
        kind = str(part.get("type"))
        inner: dict[str, Any] = part[kind] if isinstance(part.get(kind), dict) else {}
        wrong = None
        if kind == "image_url" and inner:
            wrong = _wrong_image(inner.get("url"))
        elif kind == "file" and inner and "file_id" not in inner:
            wrong = _wrong_file(inner)
        elif kind in ("image_url", "file") and not inner and isinstance(part.get(kind), dict):
            wrong = "is empty"
        if wrong is not None:
            return f"{place}.{kind}: {wrong}"
    return None


def _wrong_image(url: Any) -> str | None:
    if isinstance(url, str) and url.startswith(("https://", "http://")):
        return None
    kind, data = _decoded(url)
    if kind not in _IMAGES:
        return f"expected a URL or a data URL of {', '.join(_IMAGES)}, got `{str(url)[:40]}`"
    return None if data.startswith(_IMAGES[kind]) else "the image data you provided does not represent a valid image"


def _wrong_file(part: dict[str, Any]) -> str | None:
    if not isinstance(part.get("filename"), str) or not part["filename"]:
        return "missing required parameter: 'filename'"
    kind, data = _decoded(part.get("file_data"))
    if kind != "application/pdf":
        return f"expected a data URL of application/pdf, got `{str(part.get('file_data'))[:40]}`"
    return None if b"%PDF-" in data[:1024] else "the file data you provided is not a PDF"


def _decoded(url: Any) -> tuple[str, bytes]:
    """Media type and bytes of a data URL; nothing for what is none."""
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        return "", b""
    try:
        return found[1], b64decode(found[2], validate=True)
    except ValueError:
        return found[1], b""


def check_surrogates(messages: Messages, body: Body) -> str | None:
    try:
        msgspec.json.encode(body)
    except UnicodeEncodeError:
        return "the request body is not valid JSON: no low surrogate in string"
    return None


def check_last(messages: Messages, body: Body) -> str | None:
    if messages and messages[-1].get("role") == "assistant":
        return "the conversation must end with a user message: no assistant prefill"
    return None


def check_someone_asks(messages: Messages, body: Body) -> str | None:
    if messages and not any(message.get("role") in ("user", "tool", "assistant") for message in messages):
        return "at least one message that is not of the system is required"
    return None


def check_tools_missing(messages: Messages, body: Body) -> str | None:
    if not _tools(body) and any(True for _ in _every_call(messages)):
        return "requests which include tool calls must define tools"
    return None


def check_tool_names(messages: Messages, body: Body) -> str | None:
    for place, tool in enumerate(_tools(body)):
        if not _NAME.fullmatch(str(tool.get("name", ""))):
            return f"tools[{place}].function.name: `{tool.get('name')}` does not match `^[a-zA-Z0-9_-]{{1,64}}$`"
    return None


def check_tool_unique(messages: Messages, body: Body) -> str | None:
    names = [tool.get("name") for tool in _tools(body)]
    return None if len(set(map(str, names))) == len(names) else "tools: tool names must be unique"


def check_tool_schema(messages: Messages, body: Body) -> str | None:
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


def check_tool_count(messages: Messages, body: Body) -> str | None:
    count = len(_tools(body))
    return None if count <= 128 else f"tools: array too long, at most 128, got {count}"


def check_tools_empty(messages: Messages, body: Body) -> str | None:
    return "tools: expected at least one; leave the key out" if body.get("tools", [1]) in ([], None) else None


def check_choice(messages: Messages, body: Body) -> str | None:
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice is only allowed when tools are specified"
    return None


def check_response_format(messages: Messages, body: Body) -> str | None:
    form: Any = body.get("response_format")
    if form is None:
        return None
    fields: dict[str, Any] = cast("dict[str, Any]", form) if isinstance(form, dict) else {}
    if fields.get("type") in ("text", "json_object"):
        return None
    inner: Any = fields.get("json_schema")
    named: dict[str, Any] = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    if fields.get("type") != "json_schema" or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(named.get("name", ""))):
        return "response_format is a json_schema with a name of 1 to 64 letters, digits, `_` and `-`"
    schema: Any = named.get("schema")
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        return f"Invalid schema for response_format '{named['name']}': schema must be a JSON Schema of 'type: \"object\"'"
    if (wrong := malformed(schema)) is not None:
        return f"Invalid schema for response_format '{named['name']}': {wrong}"
    if named.get("strict") and not _is_closed(cast("dict[str, Any]", schema)):
        return f"Invalid schema for response_format '{named['name']}': 'additionalProperties' is required to be false"
    return None


def _is_closed(schema: Any) -> bool:
    """Whether every object of a strict schema is closed and all its fields are required."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "object" and (
        node.get("additionalProperties") is not False or sorted(node.get("required", [])) != sorted(node.get("properties", {}))
    ):
        return False
    return all(_is_closed(value) for value in node.values())


def check_stream_options(messages: Messages, body: Body) -> str | None:
    if body.get("stream_options") is not None and not body.get("stream"):
        return "stream_options is only allowed when stream is enabled"
    return None


def check_ranges(messages: Messages, body: Body) -> str | None:
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


def check_extras(messages: Messages, body: Body) -> str | None:
    for place, message in enumerate(messages):
        if message.get("role") == "assistant" and _calls(message) and message.get("provider_state") != state_of(message):
            return f"messages[{place}]: `provider_state` must be passed back with the tool calls it came with"
    return None


def check_user_after_tool(messages: Messages, body: Body) -> str | None:
    for place in range(1, len(messages)):
        if messages[place].get("role") == "user" and messages[place - 1].get("role") == "tool":
            return f"messages[{place}]: unexpected role 'user' after role 'tool'"
    return None


def check_short_ids(messages: Messages, body: Body) -> str | None:
    for place, call in _every_call(messages):
        if not re.fullmatch(r"[a-zA-Z0-9]{9}", str(call.get("id"))):
            return f"messages[{place}]: tool call id was {call.get('id')} but must be a-z, A-Z, 0-9, with a length of 9"
    return None
