"""How a question to a person reads, and what counts as an answer."""

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import pytest

from retinue.cli.permission import Answer, Asker, describe_request, parse_answer
from retinue.cli.viewers import QuietViewer
from retinue.events import PermissionRequest
from retinue.messages import CallRef


def request_of(arguments: str = "{}", *, tool: str = "write_file", agent: str = "writer", number: int = 1) -> PermissionRequest:
    return PermissionRequest(
        path=("lead", agent),
        request_id=f"req_{number}",
        call=CallRef("msg_1", number),
        tool=tool,
        agent_id=agent,
        arguments=arguments,
    )


def test_the_question_says_who_what_and_with_which_arguments() -> None:
    text = describe_request(request_of('{"path": "a.txt", "content": "one\\ntwo", "mode": 3}'))
    assert text.splitlines() == [
        "Permission: lead > writer",
        "  wants to call write_file a.txt",
        "  | path: a.txt",
        "  | content: ",
        "  |   one",
        "  |   two",
        "  | mode: 3",
    ]


@pytest.mark.parametrize(
    "arguments", ["not json", "[1]", "[" * 5_000, '{"content": "' + "x\\n" * 5_000 + '"}', '{"a": "\x1b[2J\\u009b1m"}']
)
def test_it_is_bounded_and_harmless(arguments: str) -> None:
    text = describe_request(request_of(arguments, tool="\x1b]0;x\x07"))
    assert len(text) < 2_000
    assert len(text.splitlines()) < 20
    assert not set(text) & set("\x1b\x07\x9b")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y", Answer(allow=True)),
        (" YES ", Answer(allow=True)),
        ("a", Answer(allow=True, remember="session")),
        ("n", Answer(allow=False)),
        ("", Answer(allow=False)),
        ("yep", None),
    ],
)
def test_answers(typed: str, answer: Answer | None) -> None:
    assert parse_answer(typed) == answer


def asker(*typed: str | None) -> tuple[Asker, list[str]]:
    prompts: list[str] = []
    replies: Iterator[str | None] = iter(typed)

    async def read(prompt: str) -> str | None:
        prompts.append(prompt)
        return next(replies)

    return Asker(QuietViewer(io.StringIO()), read), prompts


async def answers(one: Asker, *requests: PermissionRequest) -> list[Answer | None]:
    return [await one.ask(request) for request in requests]


def test_for_this_session_is_not_asked_again_for_the_same_tool_and_agent() -> None:
    one, prompts = asker("a", "n", "y")
    made = asyncio.run(answers(one, request_of(), request_of(number=2), request_of(agent="other"), request_of(tool="execute")))
    allowed = Answer(allow=True, remember="session")
    assert made == [allowed, allowed, Answer(allow=False), Answer(allow=True)]
    assert len(prompts) == 3


def test_after_the_end_of_input_nothing_is_asked() -> None:
    one, prompts = asker("what?", None)
    made: list[Any] = asyncio.run(answers(one, request_of(), request_of(tool="execute")))
    assert made == [None, None]
    assert len(prompts) == 2
