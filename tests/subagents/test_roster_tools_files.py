"""Children that are declared in files, seen from the outside: what they are asked with, who may spawn them, and when."""

from pathlib import Path
from typing import Any

import pytest

from retinue import HarnessAgent, PermissionRules, RuntimeContext, SubAgent
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, calls, results_of

pytestmark = pytest.mark.anyio


def declare(folder: Path, name: str, header: str, body: str = "You help.") -> None:
    """Write a declaration file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\n{header}\n---\n{body}\n")


def spawning(*agent_ids: str) -> RecordingModel:
    """A parent that spawns these; a child never ends by itself."""

    def answer(request: ModelRequest) -> Any:
        if request.agent_id != "parent":
            return calls(("list_files", {})) if request.tools_allowed else "Out of turns."
        if request.step > 1:
            return "ok"
        return calls(*(("agent_spawn", {"agent_id": agent_id, "task": "x"}) for agent_id in agent_ids))

    return RecordingModel(answer)


async def run(folder: Path, model: RecordingModel, context: RuntimeContext | None = None, **options: Any) -> list[str]:
    """Run a parent in a folder; the results of its spawns."""
    async with HarnessAgent("parent", model=model, workspace=folder, ledger="memory", **options) as agent:
        assert (await agent.run("Go.", context=context)).status == "completed"
    return results_of(model.asked("parent")[-1])


@pytest.mark.contract("A-18", "A-17", "D-25", "D-26")
@pytest.mark.case("AS-2", "AS-3", "AS-4", "AS-5", "AS-6", "AS-7", "AS-8", "B030", "B031")
@pytest.mark.parametrize(
    ("header", "turns", "temperature", "top_p"),
    [
        ("", 10, None, None),
        ("maxIters: 7", 7, None, None),
        ("max_iters: 3", 3, None, None),
        ("steps: 4\nmaxIters: 2", 4, None, None),
        ("temperature: 0.4\ntop_p: 0.85\nsteps: 2", 2, 0.4, 0.85),
        ("topP: 0.5\nsteps: 1", 1, None, 0.5),
        ("temperature: nope\nsteps: 1", 1, None, None),
    ],
)
async def test_what_a_file_says_of_turns_and_settings_holds_at_run_time(
    tmp_path: Path, header: str, turns: int, temperature: float | None, top_p: float | None
) -> None:
    declare(tmp_path / "subagents", "helper", f"description: Helps.\n{header}")
    model = spawning("helper")
    (told,) = await run(tmp_path, model)
    asked = model.asked("helper")
    assert len(asked) == turns + 1
    assert (asked[0].envelope.settings.temperature, asked[0].envelope.settings.top_p) == (temperature, top_p)
    assert asked[0].envelope.instructions.startswith("You help.")
    assert f"its {turns} turns" in told


@pytest.mark.contract("A-18", "A-04")
@pytest.mark.case("AS-9", "AS-10", "AS-11", "AS-12", "AS-20", "AS-21", "AS-23", "AS-24", "AS-55")
async def test_hidden_ones_are_not_listed_and_those_for_people_cannot_be_spawned(tmp_path: Path) -> None:
    for name, header in (
        ("plain", ""),
        ("worker", "mode: subagent"),
        ("odd", "mode: superduper"),
        ("secret", "hidden: true"),
        ("boss", "mode: primary"),
        ("both", "mode: primary\nhidden: true"),
    ):
        declare(tmp_path / "subagents", name, f"description: Of {name}.\nsteps: 1\n{header}")
    model = spawning("plain", "worker", "odd", "secret", "boss", "both")
    code = SubAgent("coded", "Of coded.", instructions="…")
    told = await run(tmp_path, model, subagents=[code])
    listed = model.requests[0].envelope.instructions
    assert [name in listed for name in ("`plain`", "`worker`", "`odd`", "`coded`")] == [True] * 4
    assert [name in listed for name in ("`secret`", "`boss`", "`both`")] == [False] * 3
    assert ["agent_key: " in text for text in told] == [True, True, True, True, False, False]
    assert all("primary" in text for text in told[4:])
    assert model.asked("boss") == []


@pytest.mark.contract("A-18", "A-04")
async def test_where_all_are_for_people_there_is_no_roster(tmp_path: Path) -> None:
    declare(tmp_path / "subagents", "boss", "description: Of boss.\nmode: primary")
    model = RecordingModel({"parent": ["ok"]})
    async with HarnessAgent("parent", model=model, workspace=tmp_path, ledger="memory", general_purpose=False) as agent:
        await agent.run("Go.")
    assert "agent_spawn" not in [spec.name for spec in model.requests[0].envelope.tools]
    assert "## Subagents" not in model.requests[0].envelope.instructions


@pytest.mark.contract("A-17", "D-05", "A-04")
@pytest.mark.case("AS-18", "AS-19", "AS-57")
async def test_a_users_file_is_spawned_and_continued_by_that_user_only(tmp_path: Path) -> None:
    declare(tmp_path / "alice" / "subagents", "helper", "description: Alice's.\nsteps: 1", "You help Alice.")

    def answer(request: ModelRequest) -> Any:
        results = results_of(request)
        if request.agent_id == "helper":
            return f"turn {len(request.history)}"
        if request.step == 1:
            return calls(("agent_spawn", {"agent_id": "helper", "task": "x", "label": "mine"}))
        if request.step == 2 and "reply:" in results[-1]:
            return calls(("agent_send", {"label": "mine", "message": "y"}))
        return results[-1]

    model = RecordingModel(answer)
    async with HarnessAgent("parent", model=model, workspace=tmp_path, ledger="memory") as agent:
        mine = await agent.run("Go.", context=RuntimeContext(user_id="alice"))
        others = await agent.run("Go.", context=RuntimeContext(user_id="bob"))
    assert mine.text.endswith("status: ok\nreply:\nturn 3")
    assert "there is no subagent `helper`" in others.text
    assert [request.envelope.instructions.startswith("You help Alice.") for request in model.asked("helper")] == [True, True]


@pytest.mark.contract("D-05", "A-04")
async def test_code_wins_over_a_file_and_a_file_over_the_built_in_one(tmp_path: Path) -> None:
    declare(tmp_path / "subagents", "helper", "description: Of the file.\nsteps: 1", "FILE")
    declare(tmp_path / "subagents", "general-purpose", "description: Mine.\nsteps: 1", "OWN")
    model = spawning("helper", "general-purpose")
    async with HarnessAgent(
        "parent",
        model=model,
        workspace=tmp_path,
        ledger="memory",
        subagents=[SubAgent("helper", "Of the code.", instructions="CODE")],
    ) as agent:
        await agent.run("Go.")
        codes = {diagnostic.code for diagnostic in agent.diagnostics}
    assert model.asked("helper")[0].envelope.instructions.startswith("CODE")
    assert model.asked("general-purpose")[0].envelope.instructions.startswith("OWN")
    listed = model.requests[0].envelope.instructions
    assert (listed.count("`helper`:"), listed.count("`general-purpose`:")) == (1, 1)
    assert "Of the code." in listed
    assert codes >= {"shadowed", "replaced_builtin"}


@pytest.mark.contract("A-16", "D-23")
async def test_a_file_cannot_point_out_of_the_workspace_and_code_can(tmp_path: Path) -> None:
    inside, outside = tmp_path / "w", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (outside / "AGENTS.md").write_text("OUTSIDE")
    declare(inside / "subagents", "sneaky", f"description: D.\nsteps: 1\nworkspace:\n  path: {outside}", "")
    model = spawning("sneaky", "trusted")
    told = await run(inside, model, subagents=[SubAgent("trusted", "D.", workspace=outside, max_iters=1)])
    assert "leads out of the workspace" in told[0]
    assert model.asked("sneaky") == []
    assert model.asked("trusted")[0].envelope.instructions.startswith("OUTSIDE")


@pytest.mark.contract("A-18", "D-11", "A-14")
async def test_the_tools_of_a_file_filter_what_is_inherited(tmp_path: Path) -> None:
    async def allowed() -> str:
        """May be inherited."""
        return ""

    async def forbidden() -> str:
        """Is not on the list."""
        return ""

    declare(tmp_path / "subagents", "helper", "description: D.\nsteps: 1\ntools: [allowed, read_file]\nbuiltinTools: named")
    model = spawning("helper")
    await run(tmp_path, model, tools=[allowed, forbidden], permissions=PermissionRules())
    assert {spec.name for spec in model.asked("helper")[0].envelope.tools} - {"read_result"} == {"allowed", "read_file"}
