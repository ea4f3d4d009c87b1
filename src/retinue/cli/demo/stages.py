"""What the processes of `retinue demo --kill` do: run or resume, and tell the supervisor all of it as JSON lines."""

import json
import sys
from pathlib import Path
from typing import Final

from retinue.cli.demo.play import PAUSE, TASK, scripted_model
from retinue.cli.demo.run import demo_agent
from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines
from retinue.cli.running import Session, drive, run_async
from retinue.cli.viewers import JsonViewer, write_line
from retinue.models.port import ChatModel, Emit, ModelAnswer, ModelRequest
from retinue.states import RunState

__all__ = ["MODEL_ASKED", "run_stage"]

MODEL_ASKED: Final = "MODEL_ASKED"
"""The type of the line that says: this process asks the model now."""
FAST: Final = 0.15
"""The pause of `--fast` here: there must be time to kill the process."""


class _TellingModel:
    """A model that says on stdout when it is asked, before it is."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.provider = model.provider
        self.name = model.name

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        """See `ChatModel`."""
        write_line(sys.stdout, json.dumps({"type": MODEL_ASKED, "agent": request.agent_id, "turn": request.step}))
        return await self._model.answer(request, emit)

    async def close(self) -> None:
        """See `ChatModel`."""
        await self._model.close()


def run_stage(stage: str, folder: Path, *, fast: bool) -> Exit:
    """Start the demonstration's run, or go on with the one that was interrupted."""

    async def work() -> Exit:
        viewer = JsonViewer(EventLines().describe)
        resumed: str | None = None
        async with demo_agent(folder, _TellingModel(scripted_model(pause=FAST if fast else PAUSE))) as agent:
            if stage == "start":
                events = agent.stream(TASK)
            else:
                (row,) = await agent.runtime.ledger.runs(states=[RunState.RUNNING], roots_only=True, limit=1)
                resumed = row.run_id
                events = agent.resume_stream(resumed)
            return await drive(agent, events, viewer, Session(workspace=folder), resumed=resumed)

    return run_async(work)
