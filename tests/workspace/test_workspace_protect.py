"""Protected paths, by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import Verdict
from retinue.workspace import protection

STATE = [
    ".retinue",
    ".retinue/ledger.sqlite3",
    "defs/reviewer/.retinue/trust.json",
    ".RETINUE/x",
    ".Retinue",
    ".ret\u200binue/x",
    ".retinue./x",
    ".retinue /x",
    ".retinue::$INDEX_ALLOCATION/x",
    ".ｒetinue/x",
    "agents/a/tasks",
    "agents/a%2Fb/tasks/s.json",
    "Agents/a/TASKS/s.json",
]
ASKED = [
    "AGENTS.md",
    "agents.MD",
    "a/b/AGENTS.md",
    "agents/x/workspace/AGENTS.md",
    "tools.json",
    "x/Tools.JSON",
    "subagents",
    "subagents/a.md",
    "alice/subagents/a.md",
    "SubAgents/a.md",
]
FREE = [".", "a.txt", "agents/a/workspace/x", "agents/a", "src/agents/a/tasks/x.py", "retinue/x", "tools.json.bak", "x.retinue"]


@pytest.mark.contract("A-39")
@pytest.mark.parametrize("path", STATE)
def test_state_is_refused(path: str) -> None:
    assert protection(path, writing=False) is Verdict.DENY
    assert protection(path, writing=True) is Verdict.DENY


@pytest.mark.parametrize("path", ASKED)
def test_what_changes_agents_asks_on_write(path: str) -> None:
    assert protection(path, writing=False) is Verdict.ALLOW
    assert protection(path, writing=True) is Verdict.ASK


@pytest.mark.parametrize("path", FREE)
def test_the_rest_is_free(path: str) -> None:
    assert protection(path, writing=False) is Verdict.ALLOW
    assert protection(path, writing=True) is Verdict.ALLOW


@given(st.sampled_from(STATE), st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
def test_everything_below_state_is_state(path: str, name: str) -> None:
    assert protection(f"{path}/{name}", writing=False) is Verdict.DENY


@given(st.sampled_from([".retinue", "AGENTS.md"]), st.data())
def test_case_does_not_matter(name: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from([c.upper(), c.lower()])) for c in name)
    assert protection(spelled, writing=True) is protection(name, writing=True)
