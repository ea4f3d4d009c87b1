"""Rules of the command line that cannot do what they say are usage errors."""

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("rule", "told"),
    [("wrte_file", "`write_file`"), ("read_file(/etc/*)", "relative to the workspace"), ("agent_spwan(x)", "`agent_spawn`")],
)
@pytest.mark.parametrize("option", ["--allow", "--ask", "--deny"])
async def test_a_rule_that_matches_nothing_is_an_error(command_line: Any, option: str, rule: str, told: str) -> None:
    ended = await command_line("run", "go", "--model", "openai:x", option, rule)
    assert ended.code == 2, ended.err
    assert told in ended.err
