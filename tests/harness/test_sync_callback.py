"""`on_request` may be a plain function."""

import pytest

from retinue import Agent, PermissionRules
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio


@pytest.mark.contract("D-28")
@pytest.mark.parametrize("says", [True, False])
async def test_a_plain_function_answers_requests(says: bool) -> None:
    ran: list[str] = []

    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    async with Agent(
        "ed",
        model=RecordingModel({"ed": [calls(("pay", {})), "done"]}),
        tools=[pay],
        permissions=PermissionRules(ask=["pay"]),
        on_request=lambda _: says,
    ) as agent:
        assert (await agent.run("Go.")).status == "completed"
    assert ran == (["pay"] if says else [])
