"""At which depths a subagent may be called (H-06)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ConfigurationError
from retinue.subagents.availability import SubAgentAvailability


@pytest.mark.contract("H-06")
def test_root_only_admits_the_root_alone() -> None:
    assert [SubAgentAvailability.ROOT_ONLY.admits(depth, 3) for depth in range(4)] == [True, False, False, False]


@pytest.mark.contract("H-06")
def test_through_depth_two_is_callable_at_depths_zero_and_one() -> None:
    assert [SubAgentAvailability.through_depth(2).admits(depth, 3) for depth in range(4)] == [True, True, False, False]


@pytest.mark.contract("H-06", "D-03")
def test_any_allowed_depth_ends_at_the_ceiling() -> None:
    assert [SubAgentAvailability.ANY_ALLOWED_DEPTH.admits(depth, 3) for depth in range(4)] == [True, True, True, False]
    assert not SubAgentAvailability.ANY_ALLOWED_DEPTH.admits(0, 0)


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_below_one_is_out_of_range(depth: int) -> None:
    with pytest.raises(ConfigurationError, match="out of range"):
        SubAgentAvailability.through_depth(depth)


@given(st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 9), st.integers(0, 9))
def test_a_policy_is_never_looser_than_the_ceiling(limit: int | None, depth: int, ceiling: int) -> None:
    if SubAgentAvailability(limit).admits(depth, ceiling):
        assert SubAgentAvailability.ANY_ALLOWED_DEPTH.admits(depth, ceiling)
        assert SubAgentAvailability(limit).admits(max(depth - 1, 0), ceiling)
