"""`ask_parent`: a child's question to whoever gave it its task, and `task_answer`, by which a parent answers a task (D-10).

The call opens a request of kind `question`, as a call that needs a permission does, and ends with its answer: so a question
waits on disk, survives its process, and can be answered by a person as well. A child that its parent waits for is let go
on in the background when it asks: the parent is given the question with the receipt.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from retinue.agent.call_arguments import fault, read
from retinue.agent.ports import CallOutcome, Prepared
from retinue.agent.questions import answer_to
from retinue.agent.run import Run
from retinue.config import Verdict
from retinue.errors import RetinueError
from retinue.events import SubAgentInvocationStartedEvent
from retinue.messages import CallRef, ToolCall
from retinue.models.port import ToolSpec
from retinue.permissions.gate import GatedCall
from retinue.states import RequestState, ResultStatus
from retinue.subagents.child import ASK_PARENT
from retinue.subagents.task_tools import TaskTool, find_task

__all__ = ["TASK_ANSWER", "AnswerTool", "AskParent"]

TASK_ANSWER: Final = "task_answer"


class _Question(msgspec.Struct, frozen=True):
    question: str


class _Answer(msgspec.Struct, frozen=True):
    task_id: str
    answer: str


class AskParent:
    """`ask_parent`, as a child that may ask has it."""

    repeatable = True
    delegates = False
    spec = ToolSpec(
        name=ASK_PARENT,
        description=(
            "Ask whoever gave you this task, and wait for the answer, which may take long. Only for what you cannot find out or "
            "decide yourself and without which the task cannot be done; ask everything at once."
        ),
        parameters={
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "The question, with what one has to know to answer it."},
            },
            "required": ["question"],
            "additionalProperties": False,
        },
    )

    async def gated(self, run: Run, arguments: Mapping[str, Any]) -> GatedCall:
        """See `CallHandler`."""
        question = arguments.get("question")
        return GatedCall(
            tool=self.spec.name,
            arguments=arguments,
            main_argument=question if isinstance(question, str) else None,
            need=Verdict.ALLOW,
            always=Verdict.ALLOW,
            subject=run.definition.agent_id,
            kind="question",
        )

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        given = read(call, _Question, ("question",), '{"question": "…"}')
        if isinstance(given, CallOutcome):
            return given
        return None if given.question.strip() else fault(call.name, "`question` is blank", "Write what you want to know")

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`. It is answered."""
        answer = answer_to(run, ref) or ""

        async def execute() -> CallOutcome:
            return CallOutcome(content=answer)

        return Prepared(execute=execute, barrier=False, inline=True)

    async def reattach(
        self, run: Run, ref: CallRef, call: ToolCall, started: SubAgentInvocationStartedEvent
    ) -> Prepared | CallOutcome:
        """See `CallHandler`: never called, there is no child."""
        raise NotImplementedError


class AnswerTool(TaskTool):
    """`task_answer`: answer what a task asks."""

    spec = ToolSpec(
        name=TASK_ANSWER,
        description="Answer the question of a task in the background that waits for it. The task then goes on.",
        parameters={
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "description": "The `task_id` of the task that asks."},
                "answer": {"type": "string", "description": "The answer."},
            },
            "required": ["task_id", "answer"],
            "additionalProperties": False,
        },
    )

    async def refusal(self, run: Run, call: ToolCall) -> CallOutcome | None:
        """See `CallHandler`."""
        given = self._read(call)
        return given if isinstance(given, CallOutcome) else None

    def _read(self, call: ToolCall) -> _Answer | CallOutcome:
        given = read(call, _Answer, ("task_id", "answer"), '{"task_id": "task_…", "answer": "…"}')
        if isinstance(given, CallOutcome) or given.answer.strip():
            return given
        return fault(call.name, "`answer` is blank", "Write what the task is to know")

    async def prepare(self, run: Run, ref: CallRef, call: ToolCall) -> Prepared | CallOutcome:
        """See `CallHandler`."""
        given = self._read(call)
        if isinstance(given, CallOutcome):
            return given
        row = await find_task(run, given.task_id)
        if isinstance(row, CallOutcome):
            return row
        request_id = await question_of(run, row.root_run, row.child_run)
        if request_id is None:
            state = "has ended" if row.state.terminal else f"is {row.state.value}"
            text = f"Task {row.task_id} {state}, and asks nothing. `agent_send` tells a child something that it did not ask for."
            return CallOutcome(content=text, status=ResultStatus.ERROR)

        async def execute() -> CallOutcome:
            return CallOutcome(content=await answered(run, request_id, given.answer.strip(), f"Task {row.task_id}"))

        return Prepared(execute=execute, barrier=True)


async def question_of(run: Run, root_run: str, child_run: str) -> str | None:
    """The request of the oldest question that a child waits for."""
    rows = await run.tree.services.ledger.requests(root_run=root_run, state=RequestState.OPEN)
    return next((row.request_id for row in rows if row.run_id == child_run and row.kind == "question"), None)


async def answered(run: Run, request_id: str, text: str, who: str) -> str:
    """Answer a question; what the model is told of that."""
    try:
        await run.tree.answer(request_id, text, run.definition.agent_id)
    except RetinueError as error:
        if error.code != "already_answered":
            raise
        return f"{who} had its answer already from somebody else, and goes on."
    return f"{who} has the answer and goes on. Its result reaches you by itself."
