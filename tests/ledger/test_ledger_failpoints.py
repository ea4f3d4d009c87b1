"""Failpoints are read from text, so that a subprocess can be told."""

import sqlite3

import pytest

from retinue.errors import ConfigurationError
from retinue.testing.failpoints import VARIABLE, FullDiskAt, KillAt, from_env, parse


def test_failpoints_are_read_from_the_environment() -> None:
    assert from_env({}) is None
    assert from_env({VARIABLE: ""}) is None
    found = from_env({VARIABLE: "kill:after:3"})
    assert isinstance(found, KillAt)
    assert (found.n, found.when) == (3, "after")
    full = parse("full:2")
    assert isinstance(full, FullDiskAt)
    assert full.n == 2


@pytest.mark.parametrize("text", ["kill", "kill:3", "kill:during:3", "kill:before:x", "full", "full:-1"])
def test_other_failpoints_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(text)


def test_the_disk_is_full_once() -> None:
    full = FullDiskAt(2)
    full.before_commit(1)
    with pytest.raises(sqlite3.OperationalError):
        full.before_commit(2)
    full.before_commit(2)
