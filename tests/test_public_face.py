"""The public face: its names are data here, each resolves, and importing it costs nothing that is not used."""

import ast
import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast, get_type_hints

import pytest

import retinue

SKETCH = Path(__file__).parents[2] / "shared" / "api" / "retinue.pyi"

HEAVY: Final = ("pydantic", "pydantic_core", "aiohttp", "rich", "yaml", "sqlite3", "genai_prices")

NAMES: Final = frozenset(
    {
        "Agent",
        "AgentConfig",
        "AgentInvocationModePolicy",
        "AgentRunConfig",
        "AssistantMessage",
        "Budget",
        "CallOutcome",
        "CallRef",
        "ChatClientConfig",
        "ChatModel",
        "ClientInheritance",
        "ConfigurationError",
        "Entry",
        "Envelope",
        "Event",
        "EventsDroppedEvent",
        "File",
        "Fork",
        "HarnessAgent",
        "Image",
        "LeaseLost",
        "Ledger",
        "LedgerConflict",
        "LedgerError",
        "LedgerUnavailable",
        "Limits",
        "MAX_SPAWN_DEPTH",
        "MessageEvent",
        "Middleware",
        "ModelAnswer",
        "ModelCall",
        "ModelCalledEvent",
        "ModelError",
        "ModelRequest",
        "NotifyNever",
        "NotifyByStrategy",
        "NotifyOnFinalState",
        "TaskEnding",
        "OpenAIChatModel",
        "PermissionRequest",
        "PermissionRules",
        "Reasoning",
        "ReasoningDelta",
        "ReasoningDeltaEvent",
        "ResultStatus",
        "RetinueError",
        "RunCall",
        "RunCancelled",
        "RunEnd",
        "RunFailed",
        "RunFinishedEvent",
        "RunResult",
        "RunStartedEvent",
        "Runtime",
        "RuntimeContext",
        "ScriptedModel",
        "SecretRef",
        "StateHandle",
        "SubAgent",
        "SubAgentAvailability",
        "SubAgentContextPolicy",
        "SubAgentInvocationCancelledEvent",
        "SubAgentInvocationCompletedEvent",
        "SubAgentInvocationFailedEvent",
        "SubAgentInvocationStartedEvent",
        "SubAgentRunConfig",
        "SubAgentRunConfigFields",
        "Task",
        "TaskResult",
        "TextDelta",
        "TextDeltaEvent",
        "Thread",
        "ThreadBusy",
        "ThreadGraph",
        "Threads",
        "Tool",
        "ToolCall",
        "ToolCallArgsEvent",
        "ToolCallEndEvent",
        "ToolCallResultEvent",
        "ToolCallStartEvent",
        "ToolContext",
        "ToolError",
        "ToolHarness",
        "ToolInvocation",
        "ToolProgressEvent",
        "ToolResult",
        "ToolSpec",
        "UnknownId",
        "UntrustedWorkspace",
        "Usage",
        "UserMessage",
        "WorkspaceMode",
        "load_subagents",
        "merge_subagents",
        "open_ledger",
        "subagent",
        "tool",
    }
)

LATER_NAMES: Final = {
    "AgentStore": "the agent store",
    "ApplyThreadForkCompaction": "compaction",
    "CompactAtCurrentHead": "compaction",
    "CompactionSpecification": "compaction",
    "DisableThreadForkCompaction": "compaction",
    "InheritThreadForkCompaction": "compaction",
    "PreservePreviousTurns": "compaction",
    "SummarizingCompaction": "compaction",
}
"""Names of the sketch that come with a later step, and what they belong to."""

LATER_MEMBERS: Final = {"Agent.agents": "the agent store"}
"""Members of the sketch's classes that come with a later step."""

ALIASES: Final = frozenset({"WorkspaceMode", "ContextPolicy", "ModePolicy", "Field", "P", "R", "T"})
"""Names of the sketch that only shorten its own annotations."""


def test_the_names_are_these() -> None:
    assert frozenset(retinue.__all__) == NAMES
    assert len(retinue.__all__) == len(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_name_resolves_to_something_of_its_name(name: str) -> None:
    value = getattr(retinue, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(retinue)
    assert inspect.getdoc(value)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_name_can_be_looked_at(name: str) -> None:
    """`help()`, notebooks and editors look at names at run time: what stands in an annotation has to be there then."""
    value = getattr(retinue, name)
    assert pydoc.plain(pydoc.render_doc(value))
    if isinstance(value, type) or inspect.isfunction(value):
        get_type_hints(value)
        inspect.signature(value)


def test_the_package_can_be_looked_at() -> None:
    assert "class RunResult" in pydoc.plain(pydoc.render_doc(retinue))


MEMBERS: Final = {
    "Agent": "answer build cancel close close_sync diagnostics name permissions requests resume resume_stream run run_sync"
    " runtime send stream task tasks threads",
    "HarnessAgent": "answer build cancel close close_sync diagnostics name permissions requests resume resume_stream run run_sync"
    " runtime send stream task tasks threads workspace",
    "Runtime": "agents clock close close_sync ledger limits open",
}
"""What the objects that run agents show. The rest is for the harness itself, and may change."""


def test_agents_and_runtimes_show_what_is_for_users_and_nothing_else(tmp_path: Path) -> None:
    agent = retinue.Agent("a")
    harness = retinue.HarnessAgent("h", workspace=tmp_path)
    for one in (agent, harness, agent.runtime):
        shown = sorted(name for name in dir(one) if not name.startswith("_"))
        assert shown == MEMBERS[type(one).__name__].split()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="`Agnet`"):
        _ = retinue.Agnet  # type: ignore[attr-defined]


def imported_by(code: str, *arguments: str) -> set[str]:
    """The heavy packages that a fresh process has imported after `code`."""
    report = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('|', *[n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", report, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.rpartition("|")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import retinue",
        "from retinue import HarnessAgent, SubAgent",
        "from retinue import Agent, ToolHarness, subagent, tool",
        "from retinue import OpenAIChatModel, ScriptedModel, Runtime, load_subagents, open_ledger",
        "from retinue import *",
        "import retinue.testing",
    ],
)
def test_importing_costs_nothing_that_is_not_used(code: str) -> None:
    assert imported_by(code) == set()


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",)])
def test_the_command_line_says_its_help_without_them(arguments: tuple[str, ...]) -> None:
    assert imported_by("from retinue.cli import main; main()", *arguments) == set()


# The sketch


def sketch() -> list[ast.ClassDef | ast.FunctionDef]:
    """The classes and functions of the sketch."""
    module = ast.parse(SKETCH.read_text("utf-8"))
    return [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]


shared = pytest.mark.skipif(not SKETCH.is_file(), reason="the sketch lies outside of the repository")


@pytest.mark.shared
@shared
def test_the_names_of_the_sketch_exist() -> None:
    names = {node.name for node in sketch()} - ALIASES
    assert names - NAMES == set(LATER_NAMES)
    assert not NAMES & set(LATER_NAMES)


@pytest.mark.shared
@shared
def test_the_members_of_the_sketch_exist_with_its_parameters() -> None:
    problems: list[str] = []
    missing: set[str] = set()
    for node in sketch():
        if node.name in LATER_NAMES:
            continue
        ours = getattr(retinue, node.name)
        if isinstance(node, ast.FunctionDef):
            problems += differences(node.name, node, ours)
            continue
        for member in node.body:
            match member:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    code = ours if member.name == "__init__" else getattr(ours, member.name)
                    problems += differences(f"{node.name}.{member.name}", member, code)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    if not has(ours, name):
                        missing.add(f"{node.name}.{name}")
                case _:
                    pass
    assert problems == []
    assert missing == set(LATER_MEMBERS)


def has(kind: Any, name: str) -> bool:
    """Whether instances of a class have this attribute."""
    return hasattr(kind, name) or f"self.{name} = " in inspect.getsource(kind)


def differences(where: str, wanted: ast.FunctionDef | ast.AsyncFunctionDef, ours: Callable[..., Any]) -> list[str]:
    """What a signature of the sketch has and ours has not."""
    parameters = inspect.signature(ours).parameters
    found: list[str] = []
    if isinstance(wanted, ast.AsyncFunctionDef) and not inspect.iscoroutinefunction(ours):
        found.append(f"{where} is not a coroutine function")
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    known = [name for name, one in parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    places = [argument.arg for argument in (*wanted.args.posonlyargs, *wanted.args.args)]
    if not is_class_method(wanted) and places[:1] == ["self"] and known[:1] != ["self"]:
        places = places[1:]  # ours is a class: its signature has no `self`
    elif places[:1] == ["cls"]:
        places = places[1:]
    if wanted.args.vararg is None and where not in ("tool", "subagent") and known[: len(places)] != places:
        found.append(f"{where} takes {known[: len(places)]}, not {places}")
    for argument in wanted.args.kwonlyargs:
        name = argument.arg
        if name in parameters:
            if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                found.append(f"{where}: `{name}` cannot be given by name")
        elif not anything:
            found.append(f"{where} has no `{name}`")
    return found


def is_class_method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function of the sketch is marked as one."""
    return any(cast("str", getattr(one, "id", "")) == "classmethod" for one in node.decorator_list)
