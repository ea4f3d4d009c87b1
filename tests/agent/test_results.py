"""Results: what is too long is cut and can be read on, by whoever's history holds it; and no text breaks anything."""

import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import (
    Agent,
    ConfigurationError,
    Limits,
    Middleware,
    ModelAnswer,
    PermissionRules,
    RunResult,
    Runtime,
    RuntimeContext,
    SubAgent,
    ToolCallResultEvent,
    tool,
)
from retinue.agent.middleware import Fork
from retinue.agent.projection import project
from retinue.agent.results import cut, plain_metadata
from retinue.messages import BlobRef, ToolCall, ToolResult, UserMessage
from retinue.models.port import ModelRequest
from retinue.ops import Append, Op, PutBlob
from retinue.testing import RecordingLedger, RecordingModel, StrictProvider, calls, messages_of, results_of
from retinue.tools.port import ToolOutput

pytestmark = pytest.mark.anyio

ALLOW = PermissionRules(allow=["*"])
LIMITS = Limits(max_result_characters=2_000)
LONG = "".join(f"line {number}\n" for number in range(1_000))
HERE = RuntimeContext(session_id="s")


@tool(read_only=True)
async def big(size: int = 0) -> str:
    """A long text."""
    return "x" * size if size else LONG


def reading(call_id: str, offset: int = 0, limit: int | None = None) -> dict[str, Any]:
    """A turn that reads on."""
    return calls(("read_result", {"id": call_id, "offset": offset, **({} if limit is None else {"limit": limit})}))


async def blobs_of(result: RunResult) -> list[BlobRef]:
    """The references in a run's journal."""
    assert result.thread is not None
    events = await result.thread.events()
    return [ref for event in events if isinstance(event, ToolCallResultEvent) for ref in event.blobs]


REF = cut(LONG, 2_000)[1]


# Cutting


@pytest.mark.parametrize("limit", [1_000, 1_001, 2_000, 9_999])
def test_a_cut_text_is_within_its_limit_and_says_what_is_missing_and_how_to_read_it(limit: int) -> None:
    text, ref, put = cut(LONG * 3, limit)
    assert len(text) <= limit
    assert (ref.digest, ref.characters) == (put.digest, len(LONG) * 3)
    assert put.data.decode() == LONG * 3
    assert f'"id": "{ref.id}"' in text
    head = text.index("\n\n[")
    assert f'"offset": {head}' in text
    assert (LONG * 3).startswith(text[:head])
    tail = text.rpartition("]\n\n")[2]
    assert (LONG * 3).endswith(tail)
    assert f"[{len(LONG) * 3 - head - len(tail):,} of {len(LONG) * 3:,} characters" in text


@pytest.mark.case("B175")
def test_half_characters_are_mended_in_what_is_stored() -> None:
    assert cut("\ud83d" * 3_000, 1_000)[2].data.decode() == "\ufffd" * 3_000


async def test_a_result_within_the_limit_stays_as_it_is_and_a_longer_one_is_stored_with_it() -> None:
    ledger = RecordingLedger()
    model = RecordingModel([calls(("big", {"size": 2_000}), ("big", {"size": 2_001})), "done"])
    agent = Agent("a", model=model, tools=[big], runtime=Runtime(ledger=ledger, limits=LIMITS))
    result = await agent.run("Go.")
    told = results_of(model.requests[1])
    assert told[0] == "x" * 2_000
    assert len(told[1]) <= 2_000
    refs = await blobs_of(result)
    assert [ref.characters for ref in refs] == [2_001]
    with_blob = [ops for ops in ledger.commits if any(isinstance(op, PutBlob) and op.digest == refs[0].digest for op in ops)]
    assert len(with_blob) == 1
    assert any(_holds(op, "TOOL_CALL_RESULT") for op in with_blob[0])  # never one without the other
    assert await ledger.blob(refs[0].digest) == b"x" * 2_001


def _holds(op: Op, kind: str) -> bool:
    return isinstance(op, Append) and any(event.type == kind for event in op.events)


def test_a_limit_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_result_characters"):
        Limits(max_result_characters=999)


# Reading on


async def test_reading_on_gives_the_whole_text_page_by_page() -> None:
    pages: list[str] = []

    def reader(request: ModelRequest) -> Any:
        last = messages_of(request)[-1]
        if not isinstance(last, ToolResult):
            return calls(("big", {}))
        if last.name == "big":
            return reading(REF.id)
        head, _, page = last.content.partition("\n")
        pages.append(page)
        if "this is the end" in head:
            return "done"
        return reading(REF.id, int(head.rpartition(" ")[2].rstrip("]")))

    model = RecordingModel(reader)
    await Agent("a", model=model, tools=[big], limits=LIMITS).run("Go.")
    assert "".join(pages) == LONG
    assert all(len(text) <= 2_000 for text in results_of(model.requests[-1]))  # a page is never cut itself


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"id": REF.id, "offset": 10, "limit": 3},
            f"[{REF.id}: characters 10 to 13 of {REF.characters:,}; go on with offset 13]",
        ),
        ({"id": REF.id, "offset": REF.characters - 2}, "this is the end"),
        ({"id": f" {REF.id} ", "offset": "10"}, "characters 10 to"),
        ({"id": REF.id, "offset": REF.characters}, "there is nothing at offset"),
        ({"id": REF.id, "offset": -1}, "`offset` was -1"),
        ({"id": REF.id, "limit": 0}, "`limit` was 0"),
        ({"id": "res_0"}, "no stored result `res_0` in this conversation"),
        ({"id": REF.digest}, "no stored result"),
        ({"id": 7}, "Expected"),
        ({}, "missing"),
        ("{", "Send one JSON object"),
        ({"path": "x"}, "there is no argument `path`"),
    ],
)
async def test_what_a_model_asks_for_is_checked(arguments: Any, words: str) -> None:
    model = RecordingModel([calls(("big", {})), calls(("read_result", arguments)), "done"])
    await Agent("a", model=model, tools=[big], limits=LIMITS).run("Go.")
    assert words in results_of(model.requests[-1])[-1]


async def test_an_agent_with_tools_always_has_it_and_one_without_only_where_there_is_something_to_read() -> None:
    """The envelope does not change when the first result is cut (M11)."""
    model = RecordingModel([calls(("big", {})), "done"])
    await Agent("a", model=model, tools=[big], limits=LIMITS).run("Go.")
    assert [[spec.name for spec in request.envelope.tools] for request in model.requests] == [["big", "read_result"]] * 2
    bare = RecordingModel(["done"])
    await Agent("a", model=bare).run("Go.")
    assert bare.requests[0].envelope.tools == ()


def test_its_name_is_taken() -> None:
    @tool
    async def read_result(id: str) -> str:
        """Mine."""
        return id

    with pytest.raises(ConfigurationError) as caught:
        Agent("a", model=RecordingModel(["x"]), tools=[read_result])._defined(None)
    assert caught.value.code == "duplicate_name"


async def test_a_rule_can_deny_it() -> None:
    model = RecordingModel([calls(("big", {})), reading(REF.id), "done"])
    rules = PermissionRules(deny=["read_result"])
    await Agent("a", model=model, tools=[big], limits=LIMITS, permissions=rules).run("Go.")
    assert "Not allowed" in results_of(model.requests[-1])[-1]


# Who may read


def child(**fields: Any) -> SubAgent:
    """A subagent on the tool surface."""
    return SubAgent("child", "D.", instructions="I", surface="tool", **fields)


def family(script: dict[str, Any], *children: SubAgent, ledger: Any = "memory", tools: Sequence[Any] = (big,)) -> Any:
    """A parent with children on a ledger, and its model."""
    model = RecordingModel(script)
    runtime = Runtime(ledger=ledger, limits=LIMITS)
    return Agent("parent", model=model, subagents=children, permissions=ALLOW, tools=tools, runtime=runtime), model


async def test_a_childs_long_answer_is_cut_for_its_parent_which_reads_on() -> None:
    agent, model = family(
        {"parent": [calls(("child", {"input": "x"})), reading(REF.id, 5_000, 10), "ok"], "child": [LONG]}, child(), tools=()
    )
    result = await agent.run("Go.", context=HERE)
    assert len(results_of(model.asked("parent")[1])[0]) <= 2_000
    assert results_of(model.asked("parent")[2])[-1].endswith("\n" + LONG[5_000:5_010])
    assert [ref.id for ref in await blobs_of(result)] == [REF.id]
    theirs = await (await agent.threads.graph("s")).runtime_children[0].messages()
    assert getattr(theirs[-1], "text", "") == LONG  # its own conversation has it whole


@pytest.mark.contract("H-03")
@pytest.mark.parametrize("own", [[], [big]])
async def test_a_fork_reads_what_its_parents_history_holds_and_a_fresh_child_does_not(own: list[Any]) -> None:
    for policy, expected in (("fork", LONG[5_000:5_010]), ("fresh", "no stored result")):
        config = child(context_policy=policy)
        agent, model = family(
            {
                "parent": [calls(("big", {})), calls(("child", {"input": "x"})), "ok"],
                "child": [reading(REF.id, 5_000, 10), "done"],
            },
            config,
        )
        await agent.run("Go.", context=HERE)
        answer = model.asked("child")[-1]
        if policy == "fork":
            assert results_of(answer)[-1].endswith(expected)
        else:  # it has no tools at all, and knowing the id does not help
            assert "There is no tool `read_result`" in results_of(answer)[-1]


async def test_a_fresh_child_with_tools_cannot_read_what_it_only_knows_the_id_of() -> None:
    from retinue import ToolHarness

    class Own(ToolHarness):
        @tool(read_only=True)
        async def look(self) -> str:
            """Look."""
            return "nothing"

    agent, model = family(
        {"parent": [calls(("big", {})), calls(("child", {"input": REF.id})), "ok"], "child": [reading(REF.id), "done"]},
        child(context_policy="fresh", tool_harnesses=[Own]),
    )
    await agent.run("Go.", context=HERE)
    assert "no stored result" in results_of(model.asked("child")[-1])[-1]


async def test_a_fork_that_a_middleware_made_shorter_still_reads_what_it_holds() -> None:
    class Shorter(Middleware):
        async def before_fork_commit(self, fork: Fork) -> None:
            fork.history = [entry for entry in fork.history if not isinstance(entry.message, UserMessage)]

    model = RecordingModel(
        {"parent": [calls(("big", {})), calls(("child", {"input": "x"})), "ok"], "child": [reading(REF.id, 5_000, 10), "done"]}
    )
    agent = Agent(
        "parent", model=model, subagents=[child()], permissions=ALLOW, tools=[big], limits=LIMITS, middleware=[Shorter()]
    )
    await agent.run("Go.", context=HERE)
    assert results_of(model.asked("child")[-1])[-1].endswith("\n" + LONG[5_000:5_010])


async def test_the_projection_of_a_stored_fork_knows_that_there_is_something_to_read() -> None:
    ledger = RecordingLedger()
    agent, _ = family({"parent": [calls(("big", {})), "ok"]}, ledger=ledger)
    result = await agent.run("Go.", context=HERE)
    stored = await ledger.journal(result.thread.key)
    assert stored is not None
    fork = project((), stored.own)
    assert fork.cut
    assert [ref.id for entry in fork.history if isinstance(entry.message, ToolResult) for ref in entry.message.blobs] == [REF.id]


async def test_a_child_can_hand_on_what_it_has_read_by_naming_it() -> None:
    from retinue import ToolHarness

    class Own(ToolHarness):
        @tool(read_only=True)
        async def dump(self) -> str:
            """A long text."""
            return LONG

    for answer, expected in ((f"See {REF.id}.", LONG[5_000:5_010]), ("See above.", "no stored result")):
        agent, model = family(
            {
                "parent": [calls(("child", {"input": "x"})), reading(REF.id, 5_000, 10), "ok"],
                "child": [calls(("dump", {})), answer],
            },
            child(context_policy="isolated", tool_harnesses=[Own]),
            tools=(),
        )
        await agent.run("Go.", context=HERE)
        assert expected in results_of(model.asked("parent")[2])[-1]


@pytest.mark.parametrize("other", [RuntimeContext(session_id="t"), RuntimeContext(user_id="u", session_id="s")])
async def test_no_other_session_reads_it_though_it_knows_the_id(other: RuntimeContext) -> None:
    ledger = RecordingLedger()
    agent, _ = family({"parent": [calls(("big", {})), "ok"]}, ledger=ledger)
    await agent.run("Go.", context=HERE)
    for context, expected in ((other, "no stored result"), (HERE, LONG[5_000:5_010])):
        again, model = family({"parent": [reading(REF.id, 5_000, 10), "ok"]}, ledger=ledger)
        await again.run("Read.", context=context)
        assert expected in results_of(model.requests[-1])[-1]


async def test_another_process_reads_on_in_what_was_cut_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = Agent("a", model=RecordingModel([calls(("big", {})), "ok"]), tools=[big], ledger=path, limits=LIMITS)
    async with first:
        await first.run("Go.", context=HERE)
    model = RecordingModel([reading(REF.id, 5_000, 10), "ok"])
    async with Agent("a", model=model, tools=[big], ledger=path, limits=LIMITS) as second:
        await second.run("Read.", context=HERE)
    assert results_of(model.requests[-1])[-1].endswith("\n" + LONG[5_000:5_010])
    history = messages_of(model.requests[0])
    assert [ref.id for message in history if isinstance(message, ToolResult) for ref in message.blobs] == [REF.id]


# Ten megabytes


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_ten_megabytes_come_back_by_paging_in_bounded_memory_and_time(where: str, tmp_path: Path) -> None:
    size = 10_000_000
    model = RecordingModel(
        [calls(("big", {"size": size})), calls(("read_result", {"id": _id_of(size), "offset": size - 5})), "ok"]
    )
    ledger = "memory" if where == "memory" else tmp_path / "ledger.db"
    tracemalloc.start()
    began = time.process_time()
    try:
        async with Agent("a", model=model, tools=[big], ledger=ledger) as agent:
            result = await agent.run("Go.")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert results_of(model.requests[-1])[-1].endswith("this is the end]\nxxxxx")
    assert max(len(text) for text in results_of(model.requests[-1])) <= 50_000
    assert peak < 8 * size
    assert time.process_time() - began < 20
    assert result.status == "completed"


def _id_of(size: int) -> str:
    return cut("x" * size, 1_000)[1].id


# Odd text


ODD = ["half \ud83d", "\udc80 raw", "nul \x00 in", "esc \x1b[2J\x07\x08", "\ufeffbom", "\u202eright", "a\r\nb\x85c\u2028d", "🤖"]


@pytest.mark.case("B175")
@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_odd_text_anywhere_neither_breaks_the_journal_nor_the_wire(text: str, where: str, tmp_path: Path) -> None:
    """In a result, its metadata, an error, the arguments, the model's text and reasoning, and in what a person says."""

    @tool
    async def odd(fail: bool = False) -> ToolOutput:
        """Say something odd."""
        if fail:
            raise ValueError(text)
        return ToolOutput(content=text, metadata={"note": text, text: 1})

    wrong = '{"fail": true, "why": "' + text + '"}'
    turns = [
        ModelAnswer(
            text=text,
            reasoning=text,
            calls=(
                ToolCall(id="c1", name="odd"),
                ToolCall(id="c2", name="odd", arguments='{"fail": true}'),
                ToolCall(id=text, name="odd", arguments=wrong),
                ToolCall(id="c4", name=text),
                ToolCall(id="c5", name="odd", arguments='{"\\ud83d": "\\udc80"}'),
            ),
        ),
        ModelAnswer(text=f"done {text}"),
    ]
    ledger = "memory" if where == "memory" else tmp_path / "ledger.db"
    model = RecordingModel(lambda request: turns[request.step - 1])
    async with Agent("a", model=model, tools=[odd], ledger=ledger, permissions=ALLOW) as agent:
        result = await agent.run(f"Go {text}", context=HERE)
        assert result.thread is not None
        stored = await agent.runtime.ledger.journal(result.thread.key)
        assert stored is not None
        for record in stored.own:
            msgspec.json.decode(record.body.decode())
        again = list(await result.thread.messages())
    result.text.encode()
    told = results_of(model.requests[1])
    assert len(told) == 5
    assert told[0] == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert again[:-1] == messages_of(model.requests[1])  # what is stored is what was sent


@pytest.mark.case("B175")
@pytest.mark.parametrize("text", ODD)
async def test_odd_text_reaches_a_strict_server_as_valid_json(text: str) -> None:
    @tool(read_only=True)
    async def odd() -> str:
        """Say something odd."""
        return text

    async with (
        StrictProvider([calls(("odd", {})), f"done {text}"]) as provider,
        Agent("a", model=f"{provider.url}#m", tools=[odd]) as agent,
    ):
        result = await agent.run(f"Go {text}")
    assert result.status == "completed"
    assert [request.refused for request in provider.requests] == [None, None]


def test_metadata_is_made_json_whatever_it_holds() -> None:
    class Thing:
        def __str__(self) -> str:
            return "a thing \ud83d"

    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert plain_metadata({"a": 1}) == {"a": 1}
    assert plain_metadata({"a": Thing()}) == {"a": "a thing \ufffd"}
    assert plain_metadata({"a": {1: {2}}}) == {"a": {"1": [2]}}
    assert "unreadable" in plain_metadata(loop)


async def test_metadata_that_is_no_json_does_not_break_a_run() -> None:
    @tool(read_only=True)
    async def odd() -> ToolOutput:
        """Odd."""
        return ToolOutput(content="fine", metadata={"path": Path("x"), "set": {1}, "thing": object})

    model = RecordingModel([calls(("odd", {})), "done"])
    result = await Agent("a", model=model, tools=[odd]).run("Go.")
    assert result.thread is not None
    ended = [event for event in await result.thread.events() if isinstance(event, ToolCallResultEvent)]
    assert (ended[0].content, ended[0].metadata["path"], ended[0].metadata["set"]) == ("fine", "x", [1])


# Nothing


@pytest.mark.case("B215")
async def test_an_empty_result_is_told() -> None:
    @tool(read_only=True)
    async def nothing() -> str:
        """Nothing."""
        return ""

    agent, model = family({"parent": [calls(("nothing", {})), "ok"]}, tools=(nothing,))
    await agent.run("Go.", context=HERE)
    assert results_of(model.asked("parent")[-1]) == ["(no output)"]
