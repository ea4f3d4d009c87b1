"""Fixtures for every test: asyncio as the one backend; and, where it is demanded, no skipping of `shared` tests."""

import os
from collections.abc import Generator

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that async tests run on."""
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With RETINUE_REQUIRE_SHARED (`.ci/run` sets it where the documents are), a skipped `shared` test is a failure."""
    report = yield
    if report.skipped and os.environ.get("RETINUE_REQUIRE_SHARED") and item.get_closest_marker("shared"):
        report.outcome = "failed"
        report.longrepr = f"a test marked `shared` was skipped although the shared documents are there: {report.longreprtext}"
    return report
