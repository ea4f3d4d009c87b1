"""What a child gets of its parent: tools, model, settings, context and rights."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue import (
    Agent,
    AgentConfig,
    AgentRunConfig,
    ChatClientConfig,
    ConfigurationError,
    HarnessAgent,
    PermissionRules,
    RuntimeContext,
    SubAgent,
    SubAgentAvailability,
    SubAgentRunConfig,
    ToolContext,
    ToolHarness,
    tool,
)
from retinue.messages import UserMessage
from retinue.models.port import ModelRequest
from retinue.testing import RecordingModel, StrictProvider, calls, messages_of, results_of

pytestmark = pytest.mark.anyio

Model = Callable[..., RecordingModel]
RunIn = Callable[..., Awaitable[None]]
ToolsOf = Callable[[ModelRequest], list[str]]

ALLOW = PermissionRules(allow=["*"])


# Tools


class Own(ToolHarness):
    """Two tools of the parent's own."""

    @tool(read_only=True)
    async def allowed(self) -> str:
        """May be inherited."""
        return "allowed"

    @tool(read_only=True)
    async def forbidden(self) -> str:
        """Is not on the list."""
        return "forbidden"


_FILTERS: list[tuple[dict[str, Any], set[str], set[str]]] = [
    ({}, {"allowed", "forbidden"}, {"read_file", "write_file", "edit_file", "list_files", "grep_files"}),
    ({"tools": ["allowed"]}, {"allowed"}, {"read_file", "write_file", "edit_file", "list_files", "grep_files"}),
    ({"tools": []}, set(), {"read_file", "write_file", "edit_file", "list_files", "grep_files"}),
    ({"tools": ["allowed", "read_file"], "builtin_tools": "named"}, {"allowed"}, {"read_file"}),
    ({"tools": ["allowed"], "builtin_tools": []}, {"allowed"}, set()),
    ({"disallowed_tools": ["forbidden", "write_*"]}, {"allowed"}, {"read_file", "edit_file", "list_files", "grep_files"}),
]


@pytest.mark.contract("A-14", "D-11")
@pytest.mark.case("AS-33")
@pytest.mark.parametrize(
    ("fields", "own", "builtin"),
    _FILTERS,
)
async def test_tools_filters_what_is_inherited_and_nothing_else(
    folder: Path, fields: dict[str, Any], own: set[str], builtin: set[str], reads: Model, run_in: RunIn, tools_of: ToolsOf
) -> None:
    model = reads("scout")
    await run_in(folder, model, SubAgent("scout", "Scouts.", instructions="…", **fields), tool_harnesses=[Own])
    assert set(tools_of(model.asked("scout")[0])) == own | builtin


@pytest.mark.contract("A-14", "D-11")
async def test_a_tool_that_is_named_is_the_parents_and_reads_where_the_parent_reads(
    folder: Path, reads: Model, run_in: RunIn
) -> None:
    model = reads("scout")
    await run_in(folder, model, SubAgent("scout", "Scouts.", instructions="…", tools=["read_file"]))
    assert "of the main workspace" in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("D-11", "D-29")
async def test_a_disallowed_tool_that_is_called_all_the_same_is_refused(folder: Path, run_in: RunIn) -> None:
    model = RecordingModel(
        {
            "parent": [calls(("agent_spawn", {"agent_id": "scout", "task": "x"})), "ok"],
            "scout": [calls(("write_file", {"path": "a", "content": "b"})), "{result}"],
        }
    )
    child = SubAgent("scout", "Scouts.", instructions="…", disallowed_tools=["write_file"])
    await run_in(folder, model, child, permissions=ALLOW)
    assert "There is no tool `write_file`" in results_of(model.asked("parent")[1])[0]
    assert "b" not in [path.read_text() for path in folder.rglob("*") if path.is_file()]  # noqa: ASYNC240


@pytest.mark.contract("D-11", "D-28")
async def test_a_childs_own_writing_tools_ask_by_default(folder: Path) -> None:
    model = RecordingModel(
        {
            "parent": [calls(("agent_spawn", {"agent_id": "scout", "task": "x"})), "ok"],
            "scout": [calls(("write_file", {"path": "a", "content": "b"})), "{result}"],
        }
    )
    child = SubAgent("scout", "Scouts.", instructions="…")
    agent = HarnessAgent("parent", model=model, workspace=folder, subagents=[child], ledger="memory")
    async with agent:
        result = await agent.run("Go.")
    assert result.status == "waiting"
    assert [(request.tool, request.path) for request in result.requests] == [("write_file", ("parent", "scout"))]


@pytest.mark.contract("A-22", "A-01")
@pytest.mark.case("AS-38", "AS-39")
async def test_children_of_an_agent_without_file_tools_have_none(
    folder: Path, reads: Model, run_in: RunIn, tools_of: ToolsOf
) -> None:
    model = reads("general-purpose", "scout")
    child = SubAgent("scout", "Scouts.", instructions="…")
    await run_in(folder, model, child, tool_harnesses=[Own], disable_file_tools=True)
    for name in ("parent", "general-purpose", "scout"):
        assert not [one for one in tools_of(model.asked(name)[0]) if one.endswith(("_file", "_files"))]
    assert set(tools_of(model.asked("general-purpose")[0])) == {"allowed", "forbidden"}


@pytest.mark.contract("D-26", "H-16")
async def test_a_child_on_the_tool_surface_inherits_no_tools_unless_its_author_says_so(
    folder: Path, run_in: RunIn, tools_of: ToolsOf
) -> None:
    plain = SubAgent("plain", "D.", instructions="…", surface="tool", tool_harnesses=[Own])
    given = SubAgent("given", "D.", instructions="…", surface="tool").with_run_config(
        SubAgentRunConfig.inherit().include("tools")
    )
    model = RecordingModel({"parent": [calls(("plain", {"input": "x"}), ("given", {"input": "x"})), "ok"], "*": ["Done."]})
    await run_in(folder, model, plain, given, permissions=ALLOW, tools=[echo], general_purpose=False)
    assert tools_of(model.asked("plain")[0]) == ["allowed", "forbidden"]
    assert set(tools_of(model.asked("given")[0])) == {
        "echo",
        "read_file",
        "write_file",
        "edit_file",
        "list_files",
        "grep_files",
    }
    assert "allowed" not in tools_of(model.asked("parent")[0])


async def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.contract("H-06")
@pytest.mark.case("HPD-27", "HPD-29", "HPD-31")
async def test_a_tool_is_shown_at_the_depths_that_its_availability_admits(folder: Path, tools_of: ToolsOf) -> None:
    shown: dict[str, list[tuple[int, bool]]] = {}
    for word, availability in (
        ("root", SubAgentAvailability.ROOT_ONLY),
        ("two", SubAgentAvailability.through_depth(2)),
        ("any", SubAgentAvailability.ANY_ALLOWED_DEPTH),
    ):
        harness = Nested(availability)

        def answer(request: ModelRequest) -> Any:
            if request.step == 1 and "deeper" in tools_of(request):
                return calls(("deeper", {"input": "x"}), ("extra", {}))
            return "ok"

        model = RecordingModel(answer)
        agent = Agent("parent", model=model, tool_harnesses=[harness], permissions=ALLOW, max_subagent_depth=3)
        await agent.run("Go.")
        firsts = [request for request in model.requests if request.step == 1]
        shown[word] = [(request.depth, "deeper" in tools_of(request)) for request in firsts]
        assert all("extra" in tools_of(request) for request in firsts)  # what is not a subagent stays
    assert shown["root"] == [(0, True), (1, False)]
    assert shown["two"] == [(0, True), (1, True), (2, False)]
    assert shown["any"] == [(0, True), (1, True), (2, True), (3, False)]


class Nested(ToolHarness):
    """A subagent that is registered on itself, and a tool beside it."""

    def __init__(self, availability: SubAgentAvailability) -> None:
        declared = SubAgent("deeper", "Goes deeper.", instructions="…", surface="tool", tool_harnesses=[self])
        self.add_subagent(declared.with_availability(availability))

    @tool
    async def extra(self) -> str:
        """Something else."""
        return "extra"


@pytest.mark.contract("D-03", "H-06")
@pytest.mark.case("HPD-30", "B063")
async def test_the_smallest_ceiling_on_the_chain_holds(tools_of: ToolsOf) -> None:
    harness = Nested(SubAgentAvailability.ANY_ALLOWED_DEPTH)
    config = AgentConfig(name="C", max_subagent_depth=1)
    capped = SubAgent.from_config("capped", "capped", "D.", config, tool_harnesses=[harness], surface="tool")

    def answer(request: ModelRequest) -> Any:
        if request.agent_id == "parent" and request.step == 1:
            return calls(("capped", {"input": "x"}))
        return calls(("deeper", {"input": "x"})) if request.step == 1 else "{}".format("/".join(results_of(request)) or "ok")

    model = RecordingModel(answer)
    await Agent("parent", model=model, subagents=[capped], permissions=ALLOW).run("Go.")
    assert tools_of(model.asked("capped")[0]) == ["extra"]
    assert "`max_subagent_depth` is 1" in results_of(model.asked("capped")[1])[0]  # the forged call
    assert model.asked("deeper") == []


@pytest.mark.contract("H-14")
@pytest.mark.case("HPD-10")
async def test_from_parent_is_what_its_parent_is_with_its_own_harnesses_beside(
    folder: Path, run_in: RunIn, tools_of: ToolsOf
) -> None:
    twin = SubAgent.from_parent("specialist.twin", "twin", "A second pair of eyes.", context_policy="fresh", tool_harnesses=[Own])
    harness = ToolHarness()
    harness.add_subagent(twin)
    model = RecordingModel({"parent": [calls(("twin", {"input": "x"})), "ok"], "specialist.twin": ["Done."]})
    options: dict[str, Any] = {"instructions": "Be kind.", "tools": [echo], "chat": ChatClientConfig(temperature=0.3)}
    await run_in(folder, model, tool_harnesses=[harness], permissions=ALLOW, **options)
    request = model.asked("specialist.twin")[0]
    assert request.envelope.instructions == "Be kind.\n\nMain instructions."
    assert set(tools_of(request)) >= {"echo", "read_file", "write_file", "allowed"}
    assert "twin" not in tools_of(request)  # root only
    assert "agent_spawn" not in tools_of(request)
    assert request.envelope.settings.temperature == 0.3


# Model, settings, context


def cooler(config: AgentRunConfig) -> AgentRunConfig:
    """The reference's own example of an override."""
    return config.with_chat(temperature=0.1)


async def settings_of(child: SubAgent, **options: Any) -> tuple[ChatClientConfig, ChatClientConfig, str]:
    """The settings of parent and child, and the child's instructions."""
    model = RecordingModel({"parent": [calls((child.name, {"input": "x"})), "ok"], child.id: ["Done."]})
    chat = ChatClientConfig(temperature=0.8, max_tokens=100)
    agent = Agent("parent", model=model, chat=chat, subagents=[child], permissions=ALLOW, instructions="PARENT", **options)
    await agent.run("Go.")
    request = model.asked(child.id)[0]
    return model.asked("parent")[1].envelope.settings, request.envelope.settings, request.envelope.instructions


@pytest.mark.contract("H-08", "H-09")
@pytest.mark.case("HPD-36", "HPD-37", "HPD-34", "HPD-3", "HPD-39", "AS-35")
async def test_a_child_takes_its_parents_settings_and_its_own_win() -> None:
    plain = SubAgent("child", "D.", instructions="CHILD", surface="tool")
    inherit = SubAgentRunConfig.inherit()
    parents, childs, text = await settings_of(plain)
    assert childs == parents == ChatClientConfig(temperature=0.8, max_tokens=100)
    assert text == "CHILD"
    parents, childs, _ = await settings_of(plain.with_run_config(inherit.override(cooler)))
    assert (parents.temperature, childs.temperature, childs.max_tokens) == (0.8, 0.1, 100)
    later = inherit.override(cooler).override(lambda config: config.with_chat(temperature=0.2))
    assert (await settings_of(plain.with_run_config(later)))[1].temperature == 0.2
    own = replace(plain, chat=ChatClientConfig(temperature=0.5))
    assert (await settings_of(own))[1] == ChatClientConfig(temperature=0.5, max_tokens=100)
    assert (await settings_of(plain.with_run_config(SubAgentRunConfig.inherit_only())))[1] == parents
    assert (await settings_of(plain.with_run_config(inherit.include("instructions"))))[2] == "PARENT\n\nCHILD"
    assert plain.run_config == inherit


@pytest.mark.contract("H-09", "D-27")
@pytest.mark.case("HPD-38")
async def test_an_isolated_run_config_takes_no_client_and_says_so_at_build() -> None:
    child = SubAgent("child", "D.", instructions="CHILD", surface="tool").with_run_config(SubAgentRunConfig.isolated())
    agent = Agent("parent", model=RecordingModel(["ok"]), subagents=[child])
    with pytest.raises(ConfigurationError, match=r"`child` takes no client.*model="):
        await agent.build()
    own = RecordingModel(["Done."])
    model = RecordingModel({"parent": [calls(("child", {"input": "x"})), "ok"]})
    agent = Agent("parent", model=model, subagents=[replace(child, model="mine")], models={"mine": own}, permissions=ALLOW)
    assert (await agent.run("Go.")).status == "completed"
    assert len(own.requests) == 1
    assert own.requests[0].envelope.settings == ChatClientConfig()


@pytest.mark.contract("A-18", "H-14")
@pytest.mark.parametrize("wanted", ["{url}#small", "fast", "small"])
async def test_a_childs_own_model_is_asked_by_the_name_that_its_provider_knows(wanted: str) -> None:
    script = {"parent": [calls(("agent_spawn", {"agent_id": "child", "task": "x"})), "ok"], "child": ["Done."]}
    async with StrictProvider(script, models=["fake", "small"]) as provider:
        child = SubAgent("child", "D.", instructions="…", model=wanted.replace("{url}", provider.url))
        models = {"fast": f"{provider.url}#small"}
        async with Agent("parent", model=provider.model(), subagents=[child], models=models) as agent:
            result = await agent.run("Go.")
        assert result.status == "completed"
        assert [request.body["model"] for request in provider.requests] == ["fake", "small", "fake"]
        assert "reply:\nDone." in str(provider.requests[-1].messages[-1]["content"])


@pytest.mark.contract("A-18", "D-27")
async def test_a_model_of_a_child_that_is_not_known_is_said_at_build() -> None:
    agent = Agent("parent", model=RecordingModel(["ok"]), subagents=[SubAgent("child", "D.", instructions="…", model="opnai:x")])
    with pytest.raises(ConfigurationError, match=r"subagent `child`.*`opnai:x`.*openai:x"):
        await agent.build()


@pytest.mark.contract("A-25", "H-08", "H-09")
@pytest.mark.case("HPD-41", "B004")
@pytest.mark.parametrize(("config", "seen"), [(SubAgentRunConfig.inherit(), "42"), (SubAgentRunConfig.isolated(), "nothing")])
async def test_the_attributes_of_the_context_reach_a_child_unless_it_is_cut_off(config: SubAgentRunConfig, seen: str) -> None:
    class Look(ToolHarness):
        @tool
        async def look(self, context: ToolContext) -> str:
            """Look at the context."""
            try:
                return str(context.get("answer", int))
            except KeyError:
                return "nothing"

    model = RecordingModel({"parent": [calls(("child", {"input": "x"})), "{result}"], "*": [calls(("look", {})), "{result}"]})
    child = SubAgent("child", "D.", instructions="…", surface="tool", tool_harnesses=[Look], model="mine")
    agent = Agent("parent", model=model, subagents=[child.with_run_config(config)], permissions=ALLOW, models={"mine": model})
    result = await agent.run("Go.", context=RuntimeContext(attributes={"answer": 42}))
    assert result.text == seen


@pytest.mark.contract("D-29", "H-08")
@pytest.mark.case("HPD-33")
async def test_a_child_without_its_parents_permissions_gets_none_of_its_grants_and_all_that_it_forbids(folder: Path) -> None:
    def writer(path: str) -> RecordingModel:
        return RecordingModel(
            {
                "parent": [calls(("agent_spawn", {"agent_id": "scout", "task": "x"})), "ok"],
                "scout": [calls(("write_file", {"path": path, "content": "b"})), "{result}"],
            }
        )

    rules = PermissionRules(allow=["write_file"], deny=["write_file(secret*)"])
    plain = SubAgent("scout", "Scouts.", instructions="…")
    cut = plain.with_run_config(SubAgentRunConfig.inherit().exclude("permissions"))
    for child, path, status, text in (
        (plain, "a", "completed", "Created"),
        (plain, "secret", "completed", "denied"),
        (cut, "a", "waiting", ""),
        (cut, "secret", "completed", "denied"),
    ):
        model = writer(path)
        options: dict[str, Any] = {"permissions": rules, "ledger": "memory"}
        async with HarnessAgent("parent", model=model, workspace=folder, subagents=[child], **options) as agent:
            result = await agent.run("Go.")
        assert result.status == status, (child, path)
        if text:
            assert text in results_of(model.asked("parent")[1])[0]


@pytest.mark.contract("H-08")
async def test_a_childs_first_request_holds_its_task_and_nothing_of_its_parents(
    folder: Path, reads: Model, run_in: RunIn
) -> None:
    model = reads("scout")
    await run_in(folder, model, SubAgent("scout", "Scouts.", instructions="…"))
    messages = messages_of(model.asked("scout")[0])
    assert [type(message) for message in messages] == [UserMessage]
