"""Agents as a user makes them, and the default wiring: the one floor that knows everything."""

from retinue.harness.agent import Agent
from retinue.harness.harness_agent import HarnessAgent
from retinue.harness.results import RunResult
from retinue.harness.runtime import Runtime
from retinue.harness.threads import Thread, ThreadGraph, Threads

__all__ = ["Agent", "HarnessAgent", "RunResult", "Runtime", "Thread", "ThreadGraph", "Threads"]
