"""Error texts: each names provider, model, whether it was tried again, and what to do, and never the key."""

from typing import Any

import msgspec
import pytest

from retinue.models.faults import Fault, Target, from_error_body, from_status, redacted, retry_after

REMOTE = Target("openai", "gpt-5", "https://api.openai.com/v1", "OPENAI_API_KEY")
LOCAL = Target("127.0.0.1:8080", "qwen", "http://127.0.0.1:8080/v1", None, local=True)
KEY = "sk-secret-0123456789"

GOLDEN = [
    (
        Fault("unreachable", "connection refused"),
        LOCAL,
        1,
        "cannot reach `127.0.0.1:8080` for model `qwen`: connection refused; tried once, a retry may help. "
        "Is the server running at http://127.0.0.1:8080/v1? Start it, or choose another model.",
    ),
    (
        Fault("unreachable", "the host name is not known"),
        REMOTE,
        3,
        "cannot reach `openai` for model `gpt-5`: the host name is not known; tried 3 times. "
        "Check the network and the base URL `https://api.openai.com/v1`.",
    ),
    (
        Fault("timeout", "not a byte in 300 s"),
        REMOTE,
        3,
        "`openai` did not answer in time for model `gpt-5`: not a byte in 300 s; tried 3 times. "
        "Try again, or raise `idle_timeout`.",
    ),
    (
        Fault("stream_broken", "the connection was lost in the middle of the answer"),
        REMOTE,
        1,
        "the answer of model `gpt-5` from `openai` broke off: the connection was lost in the middle of the answer; "
        "tried once, a retry may help. Run again: of the broken answer only whole text is kept, no calls.",
    ),
    (
        Fault("answer_too_long", "the arguments of its calls have more than 16,000,000 characters"),
        REMOTE,
        1,
        "model `gpt-5` of `openai` comes to no end in its answer: the arguments of its calls have more than 16,000,000 "
        "characters; not retried. Set `max_tokens`, or use a model that stops; the text so far is kept.",
    ),
    (
        Fault("authentication", "Incorrect API key provided", status=401),
        REMOTE,
        1,
        "`openai` refused the key for model `gpt-5` (HTTP 401): Incorrect API key provided; not retried. "
        "Check the key in `OPENAI_API_KEY`, and that it may use this model.",
    ),
    (
        Fault("rate_limited", "Slow down.", status=429, retry_after=20.0),
        REMOTE,
        3,
        "`openai` limits the calls of model `gpt-5` (HTTP 429): Slow down; tried 3 times. "
        "Try again in 20 s, or run fewer children at once (`Limits(max_children=…)`).",
    ),
    (
        Fault("rate_limited", "You exceeded your current quota", status=429, final=True),
        REMOTE,
        1,
        "`openai` limits the calls of model `gpt-5` (HTTP 429): You exceeded your current quota; not retried. "
        "Add credit or raise the limit at the provider, or choose another model.",
    ),
    (
        Fault("overloaded", "Overloaded", status=529),
        REMOTE,
        3,
        "`openai` failed or is overloaded, model `gpt-5` (HTTP 529): Overloaded; tried 3 times. "
        "Try again later, or choose another model.",
    ),
    (
        Fault("context_overflow", "maximum context length is 8192 tokens", status=400),
        REMOTE,
        1,
        "the conversation is too long for model `gpt-5` of `openai` (HTTP 400): maximum context length is 8192 tokens; "
        "not retried. Compact the conversation, or choose a model with a longer context.",
    ),
    (
        Fault("model_not_found", "The model does not exist", status=404),
        REMOTE,
        1,
        "`openai` has no model `gpt-5` (HTTP 404): The model does not exist; not retried. "
        "Check the model's name, and that the base URL `https://api.openai.com/v1` is right.",
    ),
    (
        Fault("bad_request", "temperature: expected 0 to 2", status=400),
        REMOTE,
        1,
        "`openai` refused the request for model `gpt-5` (HTTP 400): temperature: expected 0 to 2; not retried. "
        "Check the settings of the model; the provider's own words stand above.",
    ),
    (
        Fault("bad_response", "an HTML page instead of JSON"),
        LOCAL,
        1,
        "`127.0.0.1:8080` gave no usable answer for model `qwen`: an HTML page instead of JSON; not retried. "
        "Check that `http://127.0.0.1:8080/v1` is the base URL of an OpenAI-compatible server.",
    ),
    (
        Fault("missing_key"),
        REMOTE,
        1,
        "no key for `openai`, model `gpt-5`; not retried. Set `OPENAI_API_KEY` in the environment.",
    ),
]


@pytest.mark.case("B202", "B204", "B209")
@pytest.mark.parametrize(("fault", "target", "attempts", "text"), GOLDEN, ids=[row[0].code for row in GOLDEN])
def test_the_text_of_each_error(fault: Fault, target: Target, attempts: int, text: str) -> None:
    error = fault.error(target, attempts)
    assert str(error) == text
    assert target.provider in error.message
    assert target.model in error.message
    assert error.remedy
    assert (error.provider, error.model, error.code) == (target.provider, target.model, fault.code)


def test_every_code_of_the_errors_docstring_has_its_text() -> None:
    from retinue.errors import ModelError

    named = (ModelError.__doc__ or "").partition("Codes:")[2]
    assert {row[0].code for row in GOLDEN} == {part for part in named.split("`") if part.replace("_", "").isalpha()}


def _json(**error: Any) -> bytes:
    return msgspec.json.encode({"error": error})


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable", "detail"),
    [
        (401, _json(message=f"Incorrect API key provided: {KEY}"), "authentication", False, "Incorrect API key provided: ***"),
        (403, b"forbidden", "authentication", False, "forbidden"),
        (402, _json(message="Insufficient Balance"), "rate_limited", False, "Insufficient Balance"),
        (404, _json(message="nope"), "model_not_found", False, "nope"),
        (408, b"", "timeout", True, ""),
        (413, b"", "context_overflow", False, ""),
        (429, _json(message="slow", code="rate_limit_exceeded"), "rate_limited", True, "slow"),
        (429, _json(message="no", code="insufficient_quota"), "rate_limited", False, "no"),
        (500, b"<html><body>oops", "overloaded", True, "an HTML page instead of JSON"),
        (503, b'"busy"', "overloaded", True, "busy"),
        (504, b"", "timeout", True, ""),
        (529, _json(message="Overloaded"), "overloaded", True, "Overloaded"),
        (400, _json(message="x", code="context_length_exceeded"), "context_overflow", False, "x"),
        (
            400,
            _json(message="prompt is too long: 9 tokens > 8 maximum"),
            "context_overflow",
            False,
            "prompt is too long: 9 tokens > 8 maximum",
        ),
        (400, _json(message="x", code="model_not_found"), "model_not_found", False, "x"),
        (400, _json(message="qwen9 is not a valid model ID"), "model_not_found", False, "qwen9 is not a valid model ID"),
        (400, b'{"error": "plain words"}', "bad_request", False, "plain words"),
        (422, b'{"detail": "field required"}', "bad_request", False, "field required"),
        (418, b"[1]", "bad_request", False, "[1]"),
    ],
)
def test_statuses(status: int, body: bytes, code: str, retryable: bool, detail: str) -> None:
    fault = from_status(status, body, (KEY,))
    assert (fault.code, fault.retryable, fault.detail, fault.status) == (code, retryable, detail, status)


TOO_LONG = {
    "openai": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    "openai (responses)": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "anthropic (with max_tokens)": "input length and `max_tokens` exceed context limit: 198155 + 21333 > 200000",
    "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "groq": "Please reduce the length of the messages or completion.",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "moonshot": "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
    "cerebras": "Current length is 10000 while limit is 8192",
    "fireworks": "The prompt is too long: 140000, model maximum context length: 131071",
    "together": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",
    "cohere": "too many tokens: size limit exceeded by 1000 tokens",
    "bedrock": "Input is too long for requested model.",
    "openrouter": "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
    "llama.cpp": "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "vllm": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "ollama": "input length exceeds maximum context length",
    "lm studio": "Trying to keep the first 5000 tokens, but the model is loaded with context length of only 4096 tokens",
}
OTHERWISE = {
    "a limit of the answer": "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
    "a parameter": "Unknown parameter: 'context_window'",
    "another parameter": "Extra inputs are not permitted, field required: context_length. Unrecognized request argument supplied",
    "a value": "temperature: Input should be less than or equal to 1",
}


@pytest.mark.parametrize("words", TOO_LONG.values(), ids=TOO_LONG)
def test_how_providers_say_that_a_conversation_is_too_long(words: str) -> None:
    assert from_status(400, _json(message=words), ()).code == "context_overflow"
    assert from_error_body({"message": words}, ()).code == "context_overflow"
    assert from_status(429, _json(message=words), ()).code == "rate_limited"


@pytest.mark.parametrize("words", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_no_word_of_a_full_context(words: str) -> None:
    assert from_status(400, _json(message=words), ()).code == "bad_request"


@pytest.mark.case("B202")
@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"message": "x", "code": 429}, "rate_limited", True),
        ({"message": "x", "code": 502}, "overloaded", True),
        ({"message": "x", "type": "server_error"}, "overloaded", True),
        ({"message": "x", "type": "overloaded_error"}, "overloaded", True),
        ({"message": "x", "type": "rate_limit_error"}, "rate_limited", True),
        ({"message": "too many tokens"}, "context_overflow", False),
        ({"message": f"x {KEY}"}, "bad_response", False),
        (f"text {KEY}", "bad_response", False),
    ],
)
def test_errors_inside_a_good_response(error: Any, code: str, retryable: bool) -> None:
    fault = from_error_body(error, (KEY,))
    assert (fault.code, fault.retryable) == (code, retryable)
    assert KEY not in fault.detail


def test_words_are_one_short_line_without_the_key() -> None:
    line = redacted(f"a\n\x1b[31m {KEY} \ud83d" + "x" * 1000, (KEY,))
    assert KEY not in line
    assert len(line) == 300
    assert line.startswith("a [31m *** ")


def test_a_key_at_the_cut_does_not_show_in_part() -> None:
    assert "sk-" not in redacted("x" * 295 + KEY, (KEY,))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "20"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu Jan  1 00:00:30 2026"}, 30.0),
        ({"retry-after": "Wed, 31 Dec 2025 23:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 99 Jan 2026 00:00:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 1_767_225_600_000) == seconds
