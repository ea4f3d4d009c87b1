"""A denied place stays denied by whatever name a model reaches it, for the agent and for its children."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue import HarnessAgent, PermissionRules, SubAgent
from retinue.messages import ToolCall
from retinue.models.port import ModelAnswer, ModelRequest
from retinue.testing import ScriptedModel

pytestmark = pytest.mark.anyio

RULES = PermissionRules(allow=["write_file"], deny=["write_file(src/*)"])
PATHS = ["src/x", "{root}/src/x", "{root}/./src/../src/x", "notes/l/x", "{root}/notes/l/new/x", "notes/f"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace where `notes/l` leads to `src` and `notes/f` to `src/f`."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f").write_text("kept")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "l").symlink_to("../src")
    (tmp_path / "notes" / "f").symlink_to("../src/f")
    return tmp_path


def writing(paths: list[str], by: str) -> ScriptedModel:
    """A model where the agent of this id writes to each path, and any other spawns it."""

    def answer(request: ModelRequest) -> Any:
        if request.step > 1:
            return "done"
        if request.agent_id != by:
            return ModelAnswer(calls=(_call("agent_spawn", {"agent_id": by, "task": "t"}, 0),))
        made = [_call("write_file", {"path": path, "content": "evil"}, index) for index, path in enumerate(paths)]
        return ModelAnswer(calls=tuple(made))

    return ScriptedModel(answer)


def _call(name: str, arguments: dict[str, str], index: int) -> ToolCall:
    return ToolCall(id=f"c{index}", name=name, arguments=msgspec.json.encode(arguments).decode())


def contents(root: Path) -> dict[str, str]:
    """The files below `src` and `notes`, links not followed."""
    found = [path for name in ("src", "notes") for path in (root / name).rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(root)): path.read_text() for path in found}


@pytest.mark.contract("D-29")
@pytest.mark.parametrize("by", ["lead", "worker"])
async def test_neither_a_spelling_nor_a_link_nor_a_child_gets_around_a_deny(place: Path, by: str) -> None:
    paths = [path.format(root=place) for path in [*PATHS, "notes/fine"]]
    worker = SubAgent("worker", "D.", instructions="…", tools=["write_file"], workspace_mode="shared", requires_permission=False)
    agent = HarnessAgent("lead", model=writing(paths, by), workspace=place, subagents=[worker], permissions=RULES)
    async with agent:
        result = await agent.run("go")
        assert result.status == "completed"
    assert contents(place) == {"src/f": "kept", "notes/fine": "evil"}
