"""A rule with a glob, and a tool that takes a list: a denial of one place is one of the call, an allowance must hold for all."""

from typing import Any

import pytest

from retinue import Agent, PermissionRules, ScriptedModel, tool

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("paths", "rules", "ran"),
    [
        (["secret/x"], {"deny": ["rm(secret*)"]}, False),
        (["a", "secret/x"], {"deny": ["rm(secret*)"]}, False),
        (["a", "b"], {"deny": ["rm(secret*)"]}, True),
        (["tmp/a", "tmp/b"], {"ask": ["rm"], "allow": ["rm(tmp/*)"]}, False),
        (["tmp/a", "tmp/b"], {"allow": ["rm(tmp/*)"]}, True),
        (["tmp/a", "src/b"], {"allow": ["rm(tmp/*)"]}, False),
        ([], {"allow": ["rm(tmp/*)"]}, False),
    ],
)
@pytest.mark.contract("D-29")
async def test_each_of_a_list_counts(paths: list[str], rules: dict[str, Any], ran: bool) -> None:
    removed: list[list[str]] = []

    @tool(requires_permission=not rules.get("deny"))
    async def rm(paths: list[str]) -> str:
        """Remove."""
        removed.append(paths)
        return "removed"

    script: list[Any] = [{"calls": [{"name": "rm", "arguments": {"paths": paths}}]}, "done"]
    async with Agent("a", model=ScriptedModel(script), tools=[rm], permissions=PermissionRules(**rules)) as agent:
        await agent.run("go", check=False)
    assert removed == ([paths] if ran else [])
