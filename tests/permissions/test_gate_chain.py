"""Nothing widens (M10, D-29): along real chains of children, whatever each of them says, a right only gets stricter."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue import Agent, AgentConfig, PermissionRules, RuntimeContext, SubAgent, SubAgentAvailability, SubAgentRunConfig
from retinue.agent.definition import AgentDefinition
from retinue.agent.ports import CallHandler
from retinue.config import Verdict
from retinue.permissions.gate import GatedCall
from retinue.subagents.equipment import Equipment, assemble, child_equipment
from retinue.subagents.resolved import ResolvedDeclaration, with_defaults
from retinue.subagents.roster_tools import SpawnTool
from retinue.subagents.tool_surface import SubAgentTool
from retinue.testing import RecordingModel

RANK: Final = {Verdict.DENY: 0, Verdict.ASK: 1, Verdict.ALLOW: 2}
TOOLS: Final = ("read_file", "write_file", "act", "execute")
ARGUMENTS: Final = ("src/a.py", "src/../.env", ".env", "git log; rm x", "")


def rule(tool: str, glob: str) -> str:
    """A rule as text."""
    return tool + glob


def rule_set(allow: list[str], ask: list[str], deny: list[str]) -> PermissionRules:
    """A set of rules."""
    return PermissionRules(allow=allow, ask=ask, deny=deny)


globs = st.sampled_from(["", "(*)", "(src/*)", "(.env)", "(git *)"])
rule_texts: st.SearchStrategy[str] = st.builds(rule, st.sampled_from([*TOOLS, "*", "*_file"]), globs)
rule_lists: st.SearchStrategy[list[str]] = st.lists(rule_texts, max_size=2)
rule_sets: st.SearchStrategy[PermissionRules] = st.builds(rule_set, rule_lists, rule_lists, rule_lists)
run_configs = st.sampled_from(
    [
        SubAgentRunConfig.inherit(),
        SubAgentRunConfig.inherit().exclude("permissions"),
        SubAgentRunConfig.inherit_only("tools"),
        SubAgentRunConfig.inherit().exclude("permissions").include("permissions"),
        SubAgentRunConfig.isolated(),
    ]
)
MODEL: Final = RecordingModel(["ok"])


@st.composite
def links(draw: st.DrawFn) -> ResolvedDeclaration:
    """One child, of any kind and with any rules of its own."""
    kind = draw(st.sampled_from(["roster", "tool", "config", "parent", "factory"]))
    own = draw(rule_sets)
    disallowed = draw(st.lists(st.sampled_from([*TOOLS, "*"]), max_size=1))
    if kind == "factory":

        def make(_context: RuntimeContext) -> Agent:
            return Agent("made", permissions=own, leaf=False)

        return with_defaults(SubAgent.from_factory("made", make), "roster")
    if kind == "config":
        declared = SubAgent.from_config("child", "child", "D.", AgentConfig(name="C", model="mine"), surface="tool")
    elif kind == "parent":
        declared = SubAgent.from_parent("child", "child", "D.", surface="tool")
    else:
        surface = "roster" if kind == "roster" else "tool"
        declared = SubAgent("child", "D.", surface=surface, disallowed_tools=disallowed, model="mine", leaf=False)
    if kind != "parent":
        declared = declared.with_run_config(draw(run_configs))
    return with_defaults(declared, "roster" if kind == "roster" else "tool")


def root_equipment(rules: PermissionRules | None) -> Equipment:
    """A real root with these rules."""
    return Agent("root", model=MODEL, permissions=rules, models={"mine": MODEL})._equipment(None)


NO_TOOLS: Final[Mapping[str, CallHandler]] = MappingProxyType({})


async def verdicts(definition: AgentDefinition, *, remembered: bool) -> dict[Any, Verdict]:
    """What the gate of an agent says of every call."""

    async def yes(_name: str) -> bool:
        return remembered

    made: dict[Any, Verdict] = {}
    for tool in TOOLS:
        for argument in ARGUMENTS:
            for need in (Verdict.ALLOW, Verdict.ASK, Verdict.DENY):
                for always in (Verdict.ALLOW, Verdict.ASK, Verdict.DENY):
                    call = GatedCall(tool=tool, arguments={}, main_argument=argument, need=need, always=always, subject="x")
                    made[tool, argument, need, always] = (await definition.gate.decide(call, yes)).verdict
    return made


@pytest.mark.contract("D-29", "D-26")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.none(), rule_sets), st.lists(links(), min_size=1, max_size=3), st.booleans())
def test_no_child_of_any_kind_may_do_more_than_its_parent(
    rules: PermissionRules | None, chain: list[ResolvedDeclaration], remembered: bool
) -> None:
    async def check() -> None:
        equipment = root_equipment(rules)
        above = await verdicts(assemble(equipment), remembered=remembered)
        for link in chain:
            equipment = child_equipment(equipment, NO_TOOLS, link, RuntimeContext())
            below = await verdicts(assemble(equipment), remembered=remembered)
            for call, verdict in below.items():
                assert RANK[verdict] <= RANK[above[call]], (link.declaration, call, verdict, above[call])
            above = below

    asyncio.run(check())


@pytest.mark.contract("D-03", "A-23", "H-06")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(links(), min_size=1, max_size=5), st.booleans(), st.integers(0, 4))
def test_nobody_deeper_than_the_ceiling_and_no_leaf_has_a_tool_to_delegate(
    chain: list[ResolvedDeclaration], leaf: bool, ceiling: int
) -> None:
    anywhere = SubAgent("deeper", "D.", surface="both").with_availability(SubAgentAvailability.ANY_ALLOWED_DEPTH)
    agent = Agent("root", model=MODEL, subagents=[anywhere], max_subagent_depth=ceiling, models={"mine": MODEL})
    equipment = agent._equipment(None)
    tools: Mapping[str, CallHandler] = assemble(equipment).tools
    for link in chain:
        link = replace(link, leaf=leaf)
        equipment = child_equipment(equipment, tools, link, RuntimeContext())
        tools = assemble(equipment).tools
        delegating = [name for name, handler in tools.items() if isinstance(handler, SubAgentTool | SpawnTool)]
        roster = [name for name in tools if name.startswith("agent_")]
        assert equipment.ceiling <= ceiling
        if equipment.depth >= ceiling or (leaf and link.declaration.source != "factory"):
            assert delegating == []
            assert roster == []
