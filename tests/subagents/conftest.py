"""Models and looks at requests that several tests of subagents need, and a workspace with folders of definitions."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from retinue import HarnessAgent, SubAgent
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, messages_of, results_of

KEY = re.compile(r"^agent_key: (agent:helper:[0-9a-f]{12})$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with two definition folders: one that says something, one that says nothing."""
    for place in ("defs/reviewer", "defs/silent"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("Main instructions.")
    (tmp_path / "note.txt").write_text("of the main workspace")
    (tmp_path / "defs/reviewer/AGENTS.md").write_text("You review.")
    (tmp_path / "defs/reviewer/note.txt").write_text("of the reviewer's folder")
    return tmp_path


@pytest.fixture
def reads() -> Callable[..., RecordingModel]:
    """Make the model of a parent and children that read."""

    def made(*children: str) -> RecordingModel:
        """A parent that spawns these children; each reads `note.txt` and answers what it read."""

        def answer(request: ModelRequest) -> Any:
            results = results_of(request)
            if request.agent_id == "parent":
                return "ok" if results else calls(*(("agent_spawn", {"agent_id": name, "task": "x"}) for name in children))
            return results[-1] if results else calls(("read_file", {"path": "note.txt"}))

        return RecordingModel(answer)

    return made


@pytest.fixture
def run_in() -> Callable[..., Awaitable[None]]:
    """Run an agent in a folder to its end."""

    async def made(folder: Path, model: RecordingModel, *children: SubAgent, **options: Any) -> None:
        """Run a harness agent with these children in `folder`."""
        async with HarnessAgent("parent", model=model, workspace=folder, subagents=children, ledger="memory", **options) as agent:
            result = await agent.run("Go.")
        assert result.status == "completed", result

    return made


@pytest.fixture
def sends() -> Callable[..., RecordingModel]:
    """Make the model of a parent that spawns and then sends."""

    def made(first: dict[str, Any], *then: Callable[[str], dict[str, Any]]) -> RecordingModel:
        """A parent that spawns, then sends with what `then` makes of the key, then says so; children answer `n: input`."""

        def answer(request: ModelRequest) -> Any:
            messages = messages_of(request)
            if request.agent_id != "parent":
                spoken = [message.text for message in messages if isinstance(message, UserMessage)]
                return f"{len(spoken)}: {spoken[-1]}"
            if request.step == 1:
                return calls(("agent_spawn", {"agent_id": "helper", **first}))
            if request.step - 2 < len(then):
                key = KEY.search(results_of(request)[0])
                assert key
                return calls(("agent_send", then[request.step - 2](key[1])))
            return "ok"

        return RecordingModel(answer)

    return made


@pytest.fixture
def last() -> Callable[[RecordingModel, int], str]:
    """Look at what the parent was told last."""

    def made(model: RecordingModel, step: int) -> str:
        """The last tool result that the parent was shown in its request of this step."""
        return results_of(model.asked("parent")[step - 1])[-1]

    return made


@pytest.fixture
def tools_of() -> Callable[[ModelRequest], list[str]]:
    """Look at the tools of a request."""

    def made(request: ModelRequest) -> list[str]:
        """The tools that a model was offered."""
        return [spec.name for spec in request.envelope.tools if spec.name != "read_result"]  # every agent with tools has that

    return made
