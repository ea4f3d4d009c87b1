"""Pictures and files in runs: given by a person or by a tool, stored once, shown to whoever's history holds them."""

import asyncio
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from retinue import (
    Agent,
    ConfigurationError,
    File,
    Image,
    LedgerUnavailable,
    Limits,
    Middleware,
    PermissionRules,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolCallResultEvent,
    tool,
)
from retinue.agent.middleware import Fork, ToolInvocation
from retinue.agent.ports import CallOutcome
from retinue.harness.care import delete_threads, purge_threads
from retinue.ledger.memory import MemoryLedger
from retinue.ledger.port import Ledger
from retinue.ledger.sqlite import SqliteLedger
from retinue.ledger.sqlite.inspect import inspect
from retinue.messages import Message, ToolResult, UserMessage
from retinue.ops import Append, PutBlob
from retinue.rows import ThreadKey
from retinue.testing import (
    Recorded,
    RecordingLedger,
    RecordingModel,
    RecordModel,
    ReplayModel,
    SharedStore,
    StrictProvider,
    assert_valid_transcript,
    calls,
    messages_of,
    results_of,
)
from retinue.testing.audit import audit

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
PDF = b"%PDF-1.4\n"
PHOTO = Image(PNG, name="a.png")
REPORT = File(PDF, name="b.pdf")
SHOT = Image(PNG + b"shot", name="shot.png")
ALL = ("image/*", "application/pdf")
ALLOW = PermissionRules(allow=["*"])
HERE = RuntimeContext(session_id="s")
QUESTION = ["What is this?", PHOTO, REPORT]
TEXT = f"What is this?\n{PHOTO.ref().line}\n{REPORT.ref().line}"


@tool(read_only=True)
async def screenshot() -> list[Any]:
    """Takes a picture of the screen."""
    return ["The screen:", SHOT, {"width": 2}]


@tool(read_only=True)
def picture() -> Image:
    """Paints one."""
    return SHOT


def seen(recorded: Recorded) -> list[bytes]:
    """The bytes of the pictures of a request in order, then those of the files."""
    contents: list[Any] = [message["content"] for message in recorded.messages]
    parts: list[dict[str, Any]] = [
        part for content in contents if isinstance(content, list) for part in cast("list[Any]", content)
    ]
    urls: list[str] = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    urls += [part["file"]["file_data"] for part in parts if part["type"] == "file"]
    return [b64decode(url.partition(",")[2]) for url in urls]


def void(_: object) -> None:
    """For a callback that is to return nothing."""


def roles(recorded: Recorded) -> list[str]:
    return [message["role"] for message in recorded.messages if message["role"] != "system"]


def conversation(recorded: Recorded) -> bytes:
    """The bytes of the messages, without what follows them."""
    return bytes(msgspec.json.decode(recorded.raw, type=dict[str, msgspec.Raw])["messages"])[:-1]


def grows(provider: StrictProvider, agent: str) -> bool:
    """Whether each request of an agent begins with the bytes of the one before, and the provider took all."""
    raw = [conversation(one) for one in provider.asked(agent)]
    return provider.refused == [] and all(after.startswith(before) for before, after in pairwise(raw))


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return "memory" if request.param == "memory" else tmp_path / "ledger.db"


# What a person gives


async def test_a_person_gives_text_and_media_and_goes_on(ledger: Any) -> None:
    async with StrictProvider(["A cat.", "A dog.", "Both."]) as provider, Runtime(ledger=ledger) as runtime:
        agent = Agent("a", model=provider.model(media=ALL), runtime=runtime)
        result = await agent.run(QUESTION, context=HERE)
        assert result.thread is not None
        await result.thread.run([PHOTO, "And this?"])
        async for _ in agent.stream("Both?", context=HERE):
            pass
        assert [seen(one) for one in provider.requests] == [[PNG, PDF], [PNG, PNG, PDF], [PNG, PNG, PDF]]
        assert grows(provider, "a")
        first = (await result.thread.messages())[0]
        assert isinstance(first, UserMessage)
        assert (first.text, first.parts) == (TEXT, (PHOTO.ref(), REPORT.ref()))
        assert await runtime.ledger.blob(PHOTO.digest) == PNG
        journal = await runtime.ledger.journal(result.thread.key)
        assert journal is not None
        assert journal.row.title == TEXT[:80]
        stored = b"".join(record.body for record in journal.own)
        assert b64encode(PNG) not in stored
        assert stored.count(PHOTO.digest.encode()) == 2
        assert_valid_transcript(await result.thread.messages())


def test_from_code_that_is_not_async(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    model = RecordingModel(["{input}"])
    agent = Agent("a", model=model)
    try:
        assert agent.run_sync(Image(path)).text == "[image a.png, 14 bytes]"
    finally:
        agent.close_sync()


async def test_another_process_sends_the_same_bytes(tmp_path: Path) -> None:
    turns = [calls(("screenshot", {})), "I see.", "Still the same."]
    async with StrictProvider(turns) as provider:
        for question in (QUESTION, ["Again?"]):
            async with Agent("a", model=provider.model(media=ALL), tools=[screenshot], ledger=tmp_path / "l.db") as agent:
                await agent.run(question, context=HERE)
        assert seen(provider.requests[-1]) == [PNG, SHOT.data, SHOT.data, PDF]
        assert grows(provider, "a")


async def test_bytes_ride_with_the_commit_of_their_message_and_cost_none_of_their_own() -> None:
    ledger = RecordingLedger()
    async with StrictProvider() as provider, Runtime(ledger=ledger) as runtime:
        await Agent("a", model=provider.model(media=ALL), runtime=runtime).run(QUESTION)
        assert seen(provider.requests[0]) == [PNG, PDF]  # before anything was committed
    runs = [ops for ops in ledger.commits if any(isinstance(op, Append) for op in ops)]
    assert len(runs) == 1
    assert {op.digest for op in runs[0] if isinstance(op, PutBlob)} >= {PHOTO.digest, REPORT.digest}


async def test_a_model_that_takes_none_reads_a_line_and_no_bytes_are_read() -> None:
    class Closed(MemoryLedger):
        async def blob(self, digest: str) -> bytes | None:
            raise AssertionError("nobody needs it")

    async with StrictProvider([calls(("screenshot", {})), "ok"]) as provider, Runtime(ledger=Closed()) as runtime:
        await Agent("a", model=provider.model(), tools=[screenshot], runtime=runtime).run(QUESTION)
        assert provider.refused == []
        assert provider.requests[0].messages[-1]["content"].splitlines()[1:] == [
            "[image a.png, 14 bytes: this model takes no images]",
            "[file b.pdf, 9 bytes: this model takes no application/pdf]",
        ]
        told = provider.requests[1].messages[-1]
        assert told["role"] == "tool"
        assert told["content"] == 'The screen:\n[image shot.png, 18 bytes: this model takes no images]\n{"width": 2}'


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ([], "invalid_argument", "a list with nothing"),
        (["a", 7], "invalid_argument", "a list with 7"),
        ([b"bytes"], "invalid_argument", "a list with a `bytes`"),
        (b"bytes", "invalid_argument", "is a `bytes`"),
        (None, "invalid_argument", "is a `NoneType`"),
        ({"text": "x"}, "invalid_argument", "is {'text': 'x'}"),
        ([Path("a.png")], "invalid_argument", "a list with a `PosixPath`"),
        (
            [Image(PNG * 9, name="l.png")],
            "media_too_large",
            "[image l.png, 126 bytes] is larger than `Limits(max_media_bytes=100)`",
        ),
    ],
)
async def test_what_is_no_input_is_refused_before_anything_is_stored(given: Any, code: str, words: str) -> None:
    agent = Agent("a", model=RecordingModel(["ok"]), limits=Limits(max_media_bytes=100))
    for run in (agent.run(given), anext(agent.stream(given)), (await agent.run("x")).thread.run(given)):  # type: ignore[union-attr]
        with pytest.raises(ConfigurationError) as caught:
            await run
        assert caught.value.code == code
        assert words in str(caught.value)
    assert len(await agent.threads.list()) == 1
    await agent.close()


def test_the_limit_is_checked_where_it_is_set() -> None:
    with pytest.raises(ConfigurationError, match="max_media_bytes"):
        Limits(max_media_bytes=0)


async def test_ten_megabytes(ledger: Any) -> None:
    large = Image(PNG + bytes(10_000_000), name="large.png")
    async with StrictProvider(["One.", "Two."]) as provider, Runtime(ledger=ledger) as runtime:
        agent = Agent("a", model=provider.model(media=ALL), runtime=runtime)
        await agent.run(["Look.", large], context=HERE)
        await agent.run("Again.", context=HERE)
        assert [len(seen(one)[0]) for one in provider.requests] == [10_000_014] * 2
        assert grows(provider, "a")


# What tools give


async def test_what_tools_give_stands_after_the_batch_in_every_turn(ledger: Any) -> None:
    turns = [calls(("screenshot", {}), ("picture", {})), calls(("picture", {})), "A screen."]
    async with StrictProvider(turns) as provider, Runtime(ledger=ledger) as runtime:
        agent = Agent("a", model=provider.model(media=ALL), tools=[screenshot, picture], permissions=ALLOW, runtime=runtime)
        shown = [event async for event in agent.stream(QUESTION, context=HERE)]
        assert [roles(one) for one in provider.requests][1:] == [
            ["user", "assistant", "tool", "tool", "user"],
            ["user", "assistant", "tool", "tool", "user", "assistant", "tool", "user"],
        ]
        assert seen(provider.requests[2]) == [PNG, SHOT.data, SHOT.data, SHOT.data, PDF]
        assert grows(provider, "a")
        events = [event for event in shown if isinstance(event, ToolCallResultEvent)]
        assert [event.content for event in events] == [
            'The screen:\n[image shot.png, 18 bytes]\n{"width": 2}',
            "[image shot.png, 18 bytes]",
            "[image shot.png, 18 bytes]",
        ]
        assert {event.parts for event in events} == {(SHOT.ref(),)}


@pytest.mark.parametrize("tool_mode", ["native", "schema"])
async def test_pictures_of_tools_are_no_input_of_a_user(tool_mode: Any) -> None:
    async with StrictProvider([calls(("screenshot", {})), "{input} | {result}"]) as provider:
        model = provider.model(media=ALL, tool_mode=tool_mode)
        async with Agent("a", model=model, tools=[screenshot]) as agent:
            result = await agent.run(["Look:", PHOTO])
        assert result.text == f'Look:\n{PHOTO.ref().line} | The screen:\n{SHOT.ref().line}\n{{"width": 2}}'
        assert seen(provider.requests[1]) == [PNG, SHOT.data]
        assert grows(provider, "a")


async def test_a_result_keeps_what_fits_and_says_what_does_not() -> None:
    @tool(read_only=True)
    async def both() -> list[Any]:
        """Two."""
        return ["Two:", Image(PNG * 9, name="large.png"), SHOT]

    async with StrictProvider([calls(("both", {})), "ok"]) as provider:
        agent = Agent("a", model=provider.model(media=ALL), tools=[both], limits=Limits(max_media_bytes=100))
        await agent.run("Go.")
        assert seen(provider.requests[1]) == [SHOT.data]
        told = provider.requests[1].messages[-2]["content"]
        assert "[image large.png, 126 bytes: left out, over the 100 bytes of `Limits(max_media_bytes=…)`]" in told
        await agent.close()


async def test_what_a_tool_cannot_make_is_its_error_and_what_lies_deeper_is_told() -> None:
    @tool(read_only=True)
    async def broken() -> Image:
        """Paints none."""
        return Image(b"<svg/>")

    @tool(read_only=True)
    async def deep() -> dict[str, Any]:
        """Hides one."""
        return {"shot": SHOT}

    model = RecordingModel([calls(("broken", {}), ("deep", {})), "ok"])
    await Agent("a", model=model, tools=[broken, deep]).run("Go.")
    told = results_of(model.requests[1])
    assert told[0].startswith("`broken` failed: ConfigurationError: `Image(…)` is no PNG, JPEG, GIF or WebP")
    assert told[1] == '{"shot": "[image shot.png, 18 bytes: shown only where a tool returns it alone or in a list]"}'


async def test_a_long_result_that_is_cut_keeps_its_picture_which_read_result_does_not_open() -> None:
    @tool(read_only=True)
    async def long() -> list[Any]:
        """A lot."""
        return ["x" * 4_000, SHOT, "y" * 4_000]

    reading = calls(("read_result", {"id": f"res_{SHOT.digest[:24]}"}))
    async with StrictProvider([calls(("long", {})), reading, "ok"]) as provider:
        agent = Agent("a", model=provider.model(media=ALL), tools=[long], limits=Limits(max_result_characters=1_000))
        await agent.run("Go.")
        assert seen(provider.requests[1]) == [SHOT.data]
        assert "There is no stored result" in provider.requests[2].messages[-1]["content"]
        assert grows(provider, "a")
        await agent.close()


async def test_a_middleware_may_take_a_picture_away_or_add_one() -> None:
    class Swaps(Middleware):
        async def around_tool_call(
            self, call: ToolInvocation, next: Callable[[ToolInvocation], Awaitable[CallOutcome]]
        ) -> CallOutcome:
            outcome = await next(call)
            assert outcome.media == (SHOT,)
            return CallOutcome(content="Another.", media=(PHOTO,))

    async with StrictProvider([calls(("picture", {})), "ok"]) as provider:
        agent = Agent("a", model=provider.model(media=ALL), tools=[picture], middleware=[Swaps()])
        await agent.run("Go.")
        assert seen(provider.requests[1]) == [PNG]
        await agent.close()


# Children


def family(provider: StrictProvider, runtime: Runtime, policy: str, **options: Any) -> Agent:
    model = provider.model(media=ALL)
    child = SubAgent("child", "Helps.", instructions="Help.", surface="tool", context_policy=policy)  # type: ignore[arg-type]
    return Agent("parent", model=model, tools=[screenshot], subagents=[child], permissions=ALLOW, runtime=runtime, **options)


@pytest.mark.contract("H-03")
@pytest.mark.parametrize(("policy", "sees"), [("fork", [PNG, SHOT.data, PDF]), ("fresh", []), ("isolated", [])])
async def test_a_fork_sees_what_its_parent_saw_and_a_delegation_passes_text(ledger: Any, policy: str, sees: list[bytes]) -> None:
    script = {
        "parent": [calls(("screenshot", {})), calls(("child", {"input": f"Look at {PHOTO.ref().line}."})), "Done.", "More."],
        "child": ["{input}"],
    }
    async with StrictProvider(script) as provider, Runtime(ledger=ledger) as runtime:
        agent = family(provider, runtime, policy)
        await agent.run(QUESTION, context=HERE)
        (asked,) = provider.asked("child")
        assert seen(asked) == sees
        if policy == "fork":
            assert (
                conversation(asked)
                .partition(b'{"role":"user"')[2]
                .startswith(conversation(provider.asked("parent")[1]).partition(b'{"role":"user"')[2])
            )
        answered = provider.asked("parent")[2].messages[-1]
        assert answered["role"] == "tool"
        assert PHOTO.ref().line in answered["content"]
        await agent.run("And?", context=HERE)
        assert grows(provider, "parent")


@pytest.mark.parametrize("eyes", ["parent", "child"])
async def test_a_fork_sees_with_its_own_eyes(ledger: Any, eyes: str) -> None:
    script = {"parent": [calls(("screenshot", {})), calls(("child", {"input": "x"})), "Done."], "child": ["ok"]}
    async with StrictProvider(script) as provider:
        models = {name: provider.model(media=ALL if name == eyes else ()) for name in ("parent", "child")}
        async with Runtime(ledger=ledger, models=models) as runtime:
            child = SubAgent("child", "Helps.", instructions="Help.", surface="tool", context_policy="fork", model="child")
            agent = Agent("parent", model="parent", tools=[screenshot], subagents=[child], permissions=ALLOW, runtime=runtime)
            await agent.run(QUESTION, context=HERE)
            assert len(provider.requests) == 4
            for request in provider.requests[1:]:
                assert len(seen(request)) == (3 if request.agent == eyes else 0)
            assert grows(provider, "parent")


async def test_a_fork_that_a_middleware_made_shorter_sees_what_it_holds(ledger: Any) -> None:
    class Shorter(Middleware):
        async def before_fork_commit(self, fork: Fork) -> None:
            fork.history = [entry for entry in fork.history if not isinstance(entry.message, UserMessage)]

    script = {"parent": [calls(("screenshot", {})), calls(("child", {"input": "x"})), "Done."], "child": ["ok"]}
    async with StrictProvider(script) as provider, Runtime(ledger=ledger) as runtime:
        await family(provider, runtime, "fork", middleware=[Shorter()]).run(QUESTION, context=HERE)
        assert seen(provider.asked("child")[0]) == [SHOT.data]
        assert provider.refused == []


# What is stored


async def test_a_killed_run_is_resumed_with_the_same_bytes(ledger: Any) -> None:
    script = [calls(("picture", {})), calls(("screenshot", {})), "Done."]
    async with StrictProvider(script) as provider:
        resumed = 0
        for commit in range(1, 5):
            store = SharedStore(MemoryLedger() if ledger == "memory" else SqliteLedger(f"{ledger}-{commit}"))
            await store.ledger.open()
            first, before = store.process(), len(provider.requests)
            first.kill_at(commit, "after")

            def agent(ledger: Ledger) -> Agent:
                tools = [picture, screenshot]
                return Agent("a", model=provider.model(media=ALL), tools=tools, runtime=Runtime(ledger=ledger))

            dying = agent(first.ledger)
            task = asyncio.create_task(dying.run(QUESTION, context=HERE))
            first.on_death = lambda task=task: void(task.cancel())
            await asyncio.wait([task])
            if not (left := await store.ledger.runs(roots_only=True)) or left[0].state.terminal:
                await store.ledger.close()
                continue
            second = agent(store.process().ledger)
            result = await second.resume(left[0].run_id)
            assert (result.status, result.text) == ("completed", "Done.")
            assert await audit(store.ledger, left[0].run_id) == []
            raw = [conversation(one) for one in provider.requests[before:]]
            last = max(raw, key=len)
            assert all(last.startswith(one) for one in raw)
            assert seen(provider.requests[-1]) == [PNG, SHOT.data, SHOT.data, PDF]
            assert provider.refused == []
            await second.runtime.close()
            await store.ledger.close()
            resumed += 1
        assert resumed >= 2


async def test_bytes_live_as_long_as_something_refers_to_them(ledger: Any) -> None:
    script = {"parent": [calls(("screenshot", {})), calls(("child", {"input": "x"})), "Done."], "child": ["ok", "Still."]}
    async with StrictProvider(script) as provider, Runtime(ledger=ledger) as runtime:
        agent = family(provider, runtime, "fork")
        result = await agent.run(QUESTION, context=HERE)
        assert result.thread is not None
        kept, blob = runtime.ledger, runtime.ledger.blob
        (child,) = await kept.children(result.thread.key)
        row = await kept.thread(result.thread.key)
        assert row is not None
        await purge_threads(kept, [row])  # what the fork begins with is copied into it
        for _ in range(2):
            await kept.collect(now=runtime.clock.now_ms() + 1, grace_ms=0)
            assert [await blob(one.digest) for one in (PHOTO, REPORT, SHOT)] == [PNG, PDF, SHOT.data]
        other = await agent.threads.get(session_id="s", thread_id=child.key.thread)
        await other.run("Still there?", agent_id="child")
        assert seen(provider.requests[-1])[:2] == [PNG, SHOT.data]
        forgotten = await kept.thread(child.key)
        assert forgotten is not None
        await delete_threads(kept, [forgotten])
        for _ in range(2):  # condemned first, because an owner lives
            await kept.collect(now=runtime.clock.now_ms() + 3_600_000, grace_ms=0)
        assert [await blob(one.digest) for one in (PHOTO, REPORT, SHOT)] == [None, None, None]


async def test_a_picture_that_was_condemned_is_kept_when_it_is_given_again(ledger: Any) -> None:
    async with StrictProvider() as provider, Runtime(ledger=ledger) as runtime:
        agent = Agent("a", model=provider.model(media=ALL), runtime=runtime)
        await agent.run(QUESTION, context=HERE)
        kept = runtime.ledger
        await delete_threads(kept, await kept.threads())
        assert (await kept.collect(now=runtime.clock.now_ms())).condemned >= 2
        result = await agent.run(QUESTION, context=RuntimeContext(session_id="t"))
        await kept.collect(now=runtime.clock.now_ms() + 7_200_000, grace_ms=0)
        assert await kept.blob(PHOTO.digest) == PNG
        assert result.thread is not None
        await result.thread.run("And?")
        assert seen(provider.requests[-1]) == [PNG, PDF]


async def test_bytes_that_are_lost_are_damage_which_is_named_and_leaves_the_run_to_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    async with StrictProvider() as provider:
        async with Agent("a", model=provider.model(media=ALL), ledger=path) as agent:
            await agent.run(QUESTION, context=HERE)
        database = sqlite3.connect(path)
        database.execute("DELETE FROM blob WHERE digest = ?", (PHOTO.digest,))
        database.commit()
        assert [finding.code for finding in inspect(path) if finding.severity == "error"] == ["missing_blob"]
        async with Agent("a", model=provider.model(media=ALL), ledger=path) as agent:
            with pytest.raises(LedgerUnavailable, match=f"{PHOTO.digest}.*is not there") as caught:
                await anext(one async for one in agent.stream("And?", context=HERE) if one.TYPE == "RUN_FINISHED")
            assert caught.value.code == "damaged"
            database.execute("INSERT INTO blob VALUES (?, ?)", (PHOTO.digest, PNG))
            database.commit()
            database.close()
            (run,) = [run for run in await agent.runtime.ledger.runs() if not run.state.terminal]
            assert (await agent.resume(run.run_id)).status == "completed"
            assert seen(provider.requests[-1]) == [PNG, PDF]


async def test_what_is_kept_of_a_thread_counts_its_bytes() -> None:
    async with StrictProvider() as provider, Runtime() as runtime:
        agent = Agent("a", model=provider.model(media=ALL), runtime=runtime)
        await agent.run(["Look.", Image(PNG + bytes(30_000))], context=HERE)
        row = await runtime.ledger.thread(ThreadKey("", "s", "main"))
        assert row is not None
        kept = runtime._services.projections.take(row)
        assert kept is not None
        assert kept.size > 40_000  # as they are sent


async def test_a_secret_in_a_name_is_redacted_and_bytes_are_not_looked_into(ledger: Any) -> None:
    secret = "hunter2-hunter2"
    data = PNG + secret.encode()
    async with StrictProvider() as provider, Runtime(ledger=ledger, secrets=[secret]) as runtime:
        agent = Agent("a", model=provider.model(media=ALL), runtime=runtime)
        result = await agent.run(["Look.", Image(data, name=f"{secret}.png")], context=HERE)
        assert seen(provider.requests[0]) == [data]
        assert secret.encode() not in provider.requests[0].raw
        assert result.thread is not None
        (message,) = [one for one in await result.thread.messages() if isinstance(one, UserMessage)]
        assert message.text == "Look.\n[image [redacted].png, 29 bytes]"
        assert message.parts[0].name == "[redacted].png"
        content = provider.requests[0].messages[-1]["content"]
        assert [part["type"] for part in content] == ["text", "image_url"]


async def test_a_conversation_with_pictures_is_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    async with StrictProvider([calls(("screenshot", {})), "A screen."]) as provider:
        recorder = RecordModel(provider.model(media=ALL), path)
        async with Agent("a", model=recorder, tools=[screenshot]) as agent:
            await agent.run(QUESTION)
        assert seen(provider.requests[1]) == [PNG, SHOT.data, PDF]
    assert b64encode(PNG) not in path.read_bytes()
    async with Agent("a", model=ReplayModel(path), tools=[screenshot]) as agent:
        assert (await agent.run(QUESTION)).text == "A screen."


async def test_a_model_of_ones_own_asks_for_the_bytes() -> None:
    found: list[bytes] = []

    class Own(RecordingModel):
        async def answer(self, request: Any, emit: Any) -> Any:
            for message in messages_of(request):
                for ref in _parts(message):
                    found.append(await request.media(ref))
            return await super().answer(request, emit)

    model = Own([calls(("picture", {})), "ok"])
    agent = Agent("a", model=model, tools=[picture])
    await agent.run(QUESTION, context=HERE)
    assert found == [PNG, PDF, PNG, PDF, SHOT.data]
    await agent.run("And?", context=RuntimeContext(session_id="t"))
    assert [request.media is None for request in model.requests] == [False, False, True, False]
    await agent.close()


def _parts(message: Message) -> Any:
    return message.parts if isinstance(message, UserMessage | ToolResult) else ()
