"""A small run of `benchmarks/chaos`: tasks whose workers are killed at random moments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.contract("D-19", "D-20")
def test_sixty_tasks_and_four_kills_lose_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--tasks", "60", "--kills", "4", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    outcome = json.loads(done.stdout)
    found = {name: outcome.pop(name) for name in ("workers", "kills", "seconds", "attempts")}
    assert outcome == {
        "tasks": 60,
        "lost": 0,
        "not_told": 0,
        "told_twice": 0,
        "left_running": 0,
        "recorded_answers_asked_again": 0,
        "effects_twice": 0,
        "faults": [],
    }
    assert found["kills"] >= 1
    assert "Traceback" not in done.stderr
    assert "was not gone on with" not in done.stderr
