"""What a parent's model is told of the ends of its tasks, and what not (H-13, D-09)."""

import asyncio
from typing import Any

import pytest

from retinue import (
    Agent,
    Limits,
    NotifyNever,
    NotifyOnFinalState,
    Runtime,
    RuntimeContext,
    SecretRef,
    SubAgent,
    UserMessage,
)
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, VirtualClock, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

HERE = RuntimeContext(session_id="s")
SPAWN = ("agent_spawn", {"agent_id": "kid", "task": "x", "timeout_seconds": 0})
NEVER = "works until it is stopped"


def notices(request: ModelRequest) -> list[str]:
    """The notices of tasks in a request."""
    spoken = [message for message in messages_of(request) if isinstance(message, UserMessage)]
    return [message.text for message in spoken if message.notice == "background-task"]


class Stage:
    """A root that gives one task, and in its next run is told the end."""

    def __init__(self, runtime: Runtime, end: Any, **declared: Any) -> None:
        self.end = end
        self.model = RecordingModel(self._answer)
        kid = SubAgent("kid", "Helps.", instructions="Help.", **declared)
        self.agent = Agent("root", model=self.model, subagents=[kid], runtime=runtime)

    async def _answer(self, request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(SPAWN) if len(self.model.asked("root")) == 1 else "ok"
        if self.end is NEVER:
            await asyncio.Event().wait()
        return self.end

    async def told(self, stop: str | None = None) -> tuple[str, list[str]]:
        """How the task ended, and the notices of the next run."""
        (task,) = (await self.agent.run("go", context=HERE)).tasks
        if stop is not None:
            await task.cancel(stop)
        ended = await task.wait()
        await self.agent.run("and?", context=HERE)
        return ended.status, notices(self.model.asked("root")[-1])


@pytest.mark.contract("H-13", "H-12")
async def test_an_end_that_is_completed_gives_its_text(runtime: Runtime) -> None:
    stage = Stage(runtime, "It is blue.")
    status, (notice,) = await stage.told()
    (task,) = await stage.agent.tasks("s")
    assert status == "completed"
    assert (
        notice == f'<notice kind="background-task">\nBackground task {task.task_id} (`kid`) is completed:\nIt is blue.\n</notice>'
    )


@pytest.mark.contract("D-09", "H-13")
@pytest.mark.parametrize(
    ("end", "reason", "said"),
    [
        (" \n", "empty_result", ["answered with nothing", "ask again"]),
        ({"error": {"code": "overloaded", "message": "no capacity"}, "text": "So far"}, "overloaded", ["no capacity", "So far"]),
        (
            {"text": "The first part", "finish_reason": "length"},
            "limit:max_tokens",
            ["Partial text:\nThe first part", "max_tokens"],
        ),
    ],
)
async def test_an_end_that_failed_says_why_and_how_far_it_came(runtime: Runtime, end: Any, reason: str, said: list[str]) -> None:
    stage = Stage(runtime, end, max_iters=1)
    status, (notice,) = await stage.told()
    (task,) = await stage.agent.tasks("s")
    assert (status, (await task.result()).reason) == ("failed", reason)
    assert f"Background task {task.task_id} (`kid`) failed:\n" in notice
    assert all(text in notice for text in said)


@pytest.mark.contract("H-13")
@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (None, [True, True, False]),
        (NotifyOnFinalState(), [True, True, False]),
        (NotifyOnFinalState(cancelled=True), [True, True, True]),
        (NotifyOnFinalState(completed=False, faulted=False), [False, False, False]),
        (NotifyOnFinalState(completed=False), [False, True, False]),
        (NotifyNever(), [False, False, False]),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_an_author_says_which_ends_are_told(runtime: Runtime, wanted: Any, told: list[bool], place: int) -> None:
    ends = [("done", None, "completed"), (" ", None, "failed"), (NEVER, "enough", "cancelled")]
    end, stop, expected = ends[place]
    stage = Stage(runtime, end, background_notification=wanted)
    status, said = await stage.told(stop)
    assert (status, bool(said)) == (expected, told[place])
    if said and stop:
        assert "was cancelled:\nenough" in said[0]


@pytest.mark.contract("D-28", "D-20")
async def test_a_long_result_is_cut_and_can_be_read_on() -> None:
    text = "".join(f"line {number}\n" for number in range(2_000))

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "kid":
            return text
        asked = len(model.asked("root"))
        if asked == 1:
            return calls(SPAWN)
        if asked == 3:
            return calls(("read_result", {"id": reference(request), "offset": 18_500, "limit": 500}))
        return "ok"

    def reference(request: ModelRequest) -> str:
        (notice,) = notices(request)
        return notice.split('{"id": "')[1].split('"')[0]

    model = RecordingModel(answer)
    async with Runtime(limits=Limits(max_result_characters=1_000)) as small:
        agent = Agent("root", model=model, subagents=[SubAgent("kid", "Helps.", instructions="Help.")], runtime=small)
        (task,) = (await agent.run("go", context=HERE)).tasks
        assert (await task.wait()).text == text
        await agent.run("and?", context=HERE)
        (notice,) = notices(model.asked("root")[2])
        assert len(notice) < 1_500
        assert "read_result" in notice
        assert "line 1999" in results_of(model.asked("root")[3])[-1]


@pytest.mark.contract("D-20", "H-13")
async def test_a_secret_is_in_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BG_SECRET", "hunter2-and-more")
    async with Runtime() as runtime:
        stage = Stage(runtime, "The key is hunter2-and-more.")
        here = RuntimeContext(session_id="s", attributes={"key": SecretRef("env:BG_SECRET")})
        (task,) = (await stage.agent.run("go", context=here)).tasks
        await task.wait()
        await stage.agent.run("and?", context=here)
        (notice,) = notices(stage.model.asked("root")[-1])
        assert "The key is" in notice
        assert "hunter2" not in notice


@pytest.mark.contract("D-20")
async def test_what_lies_there_at_once_is_one_notice_in_the_order_of_the_ends(runtime: Runtime) -> None:
    go, all_at_work = [asyncio.Event() for _ in range(3)], asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if request.agent_id == "root":
            return calls(*[SPAWN] * 3) if len(model.asked("root")) == 1 else "ok"
        place = [one.run_id for one in model.asked("kid")].index(request.run_id)
        if place == 2:
            all_at_work.set()
        await go[place].wait()
        return f"end {place}"

    model = RecordingModel(answer)
    agent = Agent("root", model=model, subagents=[SubAgent("kid", "Helps.", instructions="Help.")], runtime=runtime)
    tasks = (await agent.run("go", context=HERE)).tasks
    await all_at_work.wait()
    rows = {row.child_run: row.task_id for row in await runtime.ledger.tasks()}
    ids = [rows[request.run_id] for request in model.asked("kid")]
    for place in (2, 0, 1):
        go[place].set()
        await next(task for task in tasks if task.task_id == ids[place]).wait()
    await agent.run("and?", context=HERE)
    (notice,) = notices(model.asked("root")[-1])
    assert notice.index("end 2") < notice.index("end 0") < notice.index("end 1")
    await agent.run("and then?", context=HERE)
    assert notices(model.asked("root")[-1]) == [notice]


@pytest.mark.contract("D-08", "H-13")
async def test_a_task_that_reaches_its_limit_says_so() -> None:
    clock = VirtualClock()
    async with Runtime(clock=clock) as runtime:
        kid = SubAgent(
            "kid", "Helps.", instructions="Help.", surface="tool", invocation_mode_policy="background_only", timeout_seconds=5
        )

        async def answer(request: ModelRequest) -> Any:
            if request.agent_id == "kid":
                await clock.sleep(60)
            return calls(("kid", {"input": "x"})) if len(model.asked("root")) == 1 else "ok"

        model = RecordingModel(answer)
        agent = Agent("root", model=model, subagents=[kid], runtime=runtime, on_request=lambda _: True)
        (task,) = (await agent.run("go", context=HERE)).tasks
        await clock.advance(6)
        ended = await task.result()
        assert (ended.status, ended.reason) == ("failed", "timeout")
        await agent.run("and?", context=HERE)
        (notice,) = notices(model.asked("root")[-1])
        assert "reached its time limit:\nthe time limit of 5 s was reached" in notice
