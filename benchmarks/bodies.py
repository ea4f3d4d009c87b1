"""Building the request body of 2,000 messages from cached bytes, against encoding it anew (M11)."""

import time
from collections.abc import Callable
from statistics import median

from benchmarks.table import print_table, ratio_row
from retinue.agent.definition import make_envelope
from retinue.config import ChatClientConfig
from retinue.messages import AssistantMessage, Entry, UserMessage
from retinue.models.port import ModelRequest
from retinue.models.profiles import KNOWN
from retinue.models.wire import ChatWire, body_of

__all__ = ["body_table"]

MESSAGES = 2_000
TEXT = "lorem ipsum dolor sit amet " * 20


def _histories() -> list[Entry]:
    made: list[Entry] = []
    for number in range(MESSAGES // 2):
        made.append(Entry(UserMessage(id=f"u{number}", text=f"{number} {TEXT}")))
        made.append(Entry(AssistantMessage(id=f"a{number}", text=f"{number} {TEXT}")))
    return made


def _cpu_ms(work: Callable[[], object], repeats: int) -> float:
    taken: list[float] = []
    for _ in range(repeats):
        start = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - start) / 1e6)
    return median(taken)


def body_table(repeats: int) -> None:
    """CPU ms of one body."""
    wire = ChatWire(KNOWN["openai"])
    envelope, _ = make_envelope("You help.", {}, ChatClientConfig())

    def request(history: list[Entry]) -> ModelRequest:
        return ModelRequest(envelope=envelope, history=history, agent_id="a", run_id="r", step=1)

    kept = _histories()
    body_of(wire, request(kept), "name")
    cached = _cpu_ms(lambda: body_of(wire, request(kept), "name"), repeats)
    fresh = [_histories() for _ in range(repeats)]
    anew = _cpu_ms(lambda: body_of(wire, request(fresh.pop()), "name"), repeats)
    rows = [ratio_row(f"{MESSAGES:,} messages, cached / anew", cached, anew, 0.4, unit="ms")]
    print_table("The body of a request (CPU)", ["", "own", "anew", "ratio", "goal", "reached"], rows)
