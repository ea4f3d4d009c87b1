"""The snippets of the API's document run as they are written, with scripted models in place of the providers'."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import retinue
from retinue import (
    Agent,
    ConfigurationError,
    HarnessAgent,
    PermissionRules,
    RunResult,
    SubAgent,
    SubAgentRunConfigFields,
)
from retinue.models.port import ModelRequest
from retinue.subagents.resolved import with_defaults
from retinue.testing import RecordingModel, calls, messages_of, results_of

DOCUMENT = Path(__file__).parents[3] / "shared" / "API.md"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shared,
    pytest.mark.skipif(not DOCUMENT.is_file(), reason="the document lies outside of the repository"),
]


def snippet(number: str) -> str:
    """The Python of a section."""
    found = re.search(
        rf"^### {re.escape(number)} .*?^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found, number
    return found[1]


def without(source: str, *names: str) -> str:
    """The source without the definitions of these names, and without statements that assign to them."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
            return None if node.name in names else self.generic_visit(node)

        def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
            cut = any(isinstance(one, ast.Name) and one.id in names for one in node.targets)
            return None if cut else self.generic_visit(node)

        def visit_Call(self, node: ast.Call) -> ast.AST:
            for place in node.keywords:
                if isinstance(place.value, ast.List):
                    place.value.elts = [item for item in place.value.elts if not self._named(item)]
            return self.generic_visit(node)

        @staticmethod
        def _named(item: ast.expr) -> bool:
            return isinstance(item, ast.Call) and bool(item.args) and getattr(item.args[0], "value", None) in names

    return ast.unparse(Cut().visit(ast.parse(source)))


def quiet(*_words: object) -> None:
    """A `print` that says nothing."""


async def execute(source: str, **given: Any) -> SimpleNamespace:
    """Run a snippet as in a notebook; its names afterwards."""
    body = textwrap.indent(source, "    ")
    space: dict[str, Any] = {"print": quiet, **given}
    exec(f"async def _main():\n{body}\n    return locals()", space)
    return SimpleNamespace(**{**given, **(await space["_main"]())})


@pytest.fixture
def model() -> RecordingModel:
    """Answers for every agent of the snippets."""

    def answer(request: ModelRequest) -> Any:
        tools = {spec.name for spec in request.envelope.tools}
        if request.step > 1:
            return " ".join(results_of(request))
        last = messages_of(request)[-1]
        text = getattr(last, "text", "")
        for name in ("summarizer", "researcher"):
            if name in tools:
                return calls((name, {"input": text}))
        if "search" in tools:
            return calls(("search", {"query": text}))
        for agent_id in ("reviewer", "translator"):
            if "agent_spawn" in tools and f"`{agent_id}`" in request.envelope.instructions:
                return calls(("agent_spawn", {"agent_id": agent_id, "task": text}))
        return f"{request.agent_id} heard: {text}"

    return RecordingModel(answer)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: RecordingModel) -> Iterator[Path]:
    """A working folder, in which the models that the snippets name are the scripted one."""
    (tmp_path / "defs" / "reviewer").mkdir(parents=True)
    (tmp_path / "defs" / "reviewer" / "AGENTS.md").write_text("You review code.")
    monkeypatch.chdir(tmp_path)
    models = {"openai:gpt-5": model, "openai:gpt-5-mini": model, "qwen3-max": model}
    made: list[Agent] = []
    for kind in (Agent, HarnessAgent):

        class Scripted(kind):  # type: ignore[valid-type, misc]
            def __init__(self, name: str, **options: Any) -> None:
                super().__init__(name, models=models, **options)  # pyright: ignore[reportUnknownMemberType]
                made.append(self)

        monkeypatch.setattr(retinue, kind.__name__, Scripted)
    yield tmp_path
    for agent in made:
        agent.close_sync() if agent._sync else None


@pytest.mark.contract("A-05", "D-01")
async def test_5_2_declared_in_code(workspace: Path, model: RecordingModel) -> None:
    with pytest.raises(ConfigurationError) as raised:  # remote subagents are a later version's, and that is said at once
        await execute(snippet("5.2"))
    assert raised.value.code == "not_supported"
    assert "`remote-researcher`" in str(raised.value)
    assert "`url`" in str(raised.value)
    done = await execute(without(snippet("5.2"), "remote-researcher"))
    assert done.result.status == "completed"
    assert "reviewer heard: Review the last commit" in done.result.text
    request = model.asked("reviewer")[0]
    assert request.envelope.instructions.startswith("You review code.")
    assert {"read_file", "grep_files"} <= {spec.name for spec in request.envelope.tools}
    await done.agent.close()


@pytest.mark.contract("A-04", "D-13", "A-25")
async def test_5_3_factories_and_switches(workspace: Path, model: RecordingModel) -> None:
    done = await execute(snippet("5.3"))
    request = model.asked("translator")[0]
    assert request.envelope.instructions.startswith("Translate.")
    assert "`translator`: Translates text" in model.asked("orchestrator")[0].envelope.instructions
    assert "general-purpose" not in model.asked("orchestrator")[0].envelope.instructions
    assert (await done.agent.threads.list(user_id="alice"))[0].key.user == "alice"
    await done.agent.close()


@pytest.mark.contract("H-01", "H-02", "H-04")
async def test_5_4_smallest_setup(workspace: Path, model: RecordingModel) -> None:
    done = await execute(snippet("5.4"))
    assert done.result.text == "specialist.summarizer heard: Summarize, then answer: …"
    assert list(model.requests[0].envelope.tools[0].parameters["properties"]) == ["input"]
    assert (workspace / "assistant.db").is_file()
    await done.agent.close()


@pytest.mark.contract("H-06")
async def test_5_5_nested_availability(workspace: Path) -> None:
    done = await execute(snippet("5.5"))
    assert [done.coordinator.availability.admits(depth, 3) for depth in range(3)] == [True, True, False]


@pytest.mark.contract("H-08", "H-09", "D-29")
async def test_5_6_what_the_child_inherits(workspace: Path, model: RecordingModel) -> None:
    done = await execute(snippet("5.6"))
    fields = SubAgentRunConfigFields

    def taken(declaration: SubAgent) -> set[str]:
        return set(with_defaults(declaration, "tool").fields)

    default = {fields.PERMISSIONS, fields.EXECUTION, fields.COMPACTION, fields.CONTEXT}
    assert taken(done.reviewer) == default
    assert taken(done.tuned) == (default | {fields.INSTRUCTIONS}) - {fields.COMPACTION}
    assert taken(done.exact) == {fields.PERMISSIONS, fields.CONTEXT}
    assert taken(done.alone) == set()
    harness = retinue.ToolHarness()
    harness.add_subagent(done.tuned)
    asks = RecordingModel({"parent": [calls(("reviewer", {"input": "x"})), "ok"], "research/reviewer": ["Done."]})
    await Agent("parent", model=asks, tool_harnesses=[harness], permissions=PermissionRules(allow=["*"])).run("Go.")
    assert asks.asked("research/reviewer")[0].envelope.settings.temperature == 0.1


@pytest.mark.contract("H-16", "H-14")
async def test_5_8_child_tools(workspace: Path, model: RecordingModel) -> None:
    done = await execute(without(snippet("5.8"), "lawyer"))
    agent = Agent("parent", model=model, tool_harnesses=[done.Research], permissions=PermissionRules(allow=["*"]))
    result = await agent.run("Ask.")
    assert result.status == "completed"
    assert "search" not in [spec.name for spec in model.asked("parent")[0].envelope.tools]
    assert "search" in [spec.name for spec in model.asked("specialist.researcher")[0].envelope.tools]


@pytest.mark.contract("H-14")
async def test_5_8_the_agent_store_is_a_later_versions(workspace: Path, model: RecordingModel) -> None:
    done = await execute(snippet("5.8"))
    with pytest.raises(ConfigurationError) as raised:
        Agent("parent", model=model, tool_harnesses=[done.Research])
    assert raised.value.code == "not_supported"
    assert "`lawyer`" in str(raised.value)
    assert "from_agent_id" in str(raised.value)


@pytest.mark.contract("H-18", "H-21", "H-22", "H-23", "D-28")
async def test_5_10_watch_answer_continue(workspace: Path, model: RecordingModel) -> None:
    research = (await execute(without(snippet("5.8"), "lawyer", "twin"))).Research
    words: list[tuple[Any, ...]] = []

    def tell(*said: Any) -> None:
        words.append(said)

    done = await execute(without(snippet("5.10"), "other"), Research=research, print=tell)
    assert [said[0] for said in words] == ["started", "done"]
    started, ended = words
    assert started[1:3] == (("assistant",), "specialist.researcher")
    assert started[3] == ended[1]
    assert done.scope == ("specialist.researcher", "s1", done.child.thread_id)
    assert isinstance(done.answer, RunResult)
    assert done.answer.status == "completed"
    assert model.requests[-1].agent_id == "specialist.researcher"
    assert "And what changed since?" in str(model.requests[-1].history)
    await done.agent.close()
