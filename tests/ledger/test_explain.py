"""`explain`: a sentence for every state and reason, who holds it, and the command that moves it on."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.errors import UnknownId
from retinue.ledger import Ledger, MemoryLedger, sentences
from retinue.ledger.explain import explain
from retinue.ledger.sentences import (
    FAILURES,
    Explanation,
    Facts,
    explain_invocation,
    explain_owner,
    explain_request,
    explain_run,
    explain_thread,
)
from retinue.models import faults
from retinue.ops import PutInvocation, PutOwner, PutRequest, PutRun, RequestCancel
from retinue.rows import OwnerRow
from retinue.states import InvocationState, RequestState, RunState
from retinue.testing.conformance.sample import (
    create,
    invocation_row,
    key_of,
    owner_row,
    request_row,
    run_row,
    thread_row,
)

pytestmark = pytest.mark.anyio

OWNER = OwnerRow(owner_id="own_1", pid=4242, host="box", started_at=1, command="app.py")
KEY, CHILD = key_of(), key_of("child")
ROW = run_row("run_1", KEY, owner="own_1")
REQUEST = request_row("req_1", KEY)

ALIVE, DEAD = Facts(owner=OWNER, alive=True), Facts(owner=OWNER)
ALL_FACTS = {
    "alive": ALIVE,
    "dead": DEAD,
    "nobody": Facts(),
    "stopping": Facts(owner=OWNER, alive=True, intent="no longer needed"),
    "stopped by a dead one": Facts(owner=OWNER, intent="no longer needed"),
    "asking": Facts(requests=(REQUEST,)),
    "standing still": Facts(owner=OWNER, alive=True, stopped=True),
    "children": Facts(owner=OWNER, alive=True, unfinished=(run_row("run_2", CHILD, lineage=["run_1"]),)),
}
REASONS = (None, *FAILURES, "of a later version", "the runtime was closed")


def sound(said: Explanation) -> None:
    """One sentence about something, without gaps."""
    assert said.id
    assert said.kind
    assert said.state
    assert said.text[0].isupper()
    assert len(said.text) > 20
    assert not re.search(r"None|  |\(\)|``|\{|run: run", said.text + said.waits_for + said.held_by), said


@pytest.mark.parametrize("facts", ALL_FACTS.values(), ids=ALL_FACTS)
@pytest.mark.parametrize("state", RunState)
def test_every_state_and_reason_of_a_run_has_a_sentence(state: RunState, facts: Facts) -> None:
    for reason in REASONS:
        said = explain_run(msgspec.structs.replace(ROW, state=state, reason=reason), facts)
        sound(said)
        assert (said.id, said.state, said.reason) == ("run_1", state.value, reason)
        assert bool(said.waits_for) <= (not state.terminal)
        at_work = state is RunState.RUNNING and facts.alive and not facts.stopped
        assert bool(said.command) != at_work, said
        assert said.stuck == (("resume", "run_1", "--take-over") if at_work else ())
        if not state.terminal:
            asks = state is RunState.WAITING and facts.requests and facts.intent is None
            assert at_work or said.command[:2] == (("answer", facts.requests[0].request_id) if asks else ("resume", "run_1"))
            assert said.waits_for or said.held_by
        assert said.stop == (() if state.terminal or facts.intent is not None else ("cancel", "run_1"))


@pytest.mark.parametrize("state", InvocationState)
@pytest.mark.parametrize("child", RunState)
def test_every_state_and_reason_of_a_delegation_has_a_sentence(state: InvocationState, child: RunState) -> None:
    for reason in REASONS:
        for facts in ALL_FACTS.values():
            for run in (None, run_row("run_2", CHILD, state=child, lineage=["run_1"], owner="own_1")):
                said = explain_invocation(invocation_row("inv_1", KEY, CHILD, state=state, reason=reason), run, facts)
                sound(said)
                assert said.state == state.value
                assert state.terminal or said.waits_for


@pytest.mark.parametrize("state", RequestState)
def test_every_state_of_a_request_has_a_sentence(state: RequestState) -> None:
    for facts in ALL_FACTS.values():
        for answer, by in ((None, None), ("allow", "ann"), ("deny", "")):
            said = explain_request(msgspec.structs.replace(REQUEST, state=state, answer=answer, by=by), facts)
            sound(said)
            assert (said.state, bool(said.waits_for) <= (state in (RequestState.OPEN, RequestState.ANSWERED))) == (
                state.value,
                True,
            )


def test_states_without_a_sentence_are_found() -> None:
    for table, states in (
        (sentences._RUN, RunState),
        (sentences._INVOCATION, InvocationState),
        (sentences._REQUEST, RequestState),
    ):
        assert set(table) == set(states)


def test_every_reason_that_the_code_gives_has_words() -> None:
    """Codes of failed model calls, limits, and what `Finish("failed", …)` is called with anywhere."""
    used = set(faults._WHAT)
    for file in Path(retinue.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        used |= set(re.findall(r'"(limit:[a-z_]+)"', text))
        used |= set(re.findall(r'Finish\(\s*"failed",\s*"([a-z_:]+)"', text))
        if file.parent.name == "agent":
            used |= set(re.findall(r'"(?:length|content_filter)": \("([a-z_:]+)"', text))
            used |= set(re.findall(r'"([a-z]+_raised)"', text))
    assert used >= {"limit:max_iters", "limit:max_tokens", "empty_result", "invalid_output", "model_raised", "content_filter"}
    assert used <= set(FAILURES)


def test_the_words_name_who_holds_it() -> None:
    alive, dead = explain_run(ROW, ALIVE), explain_run(ROW, DEAD)
    assert alive.held_by == "process 4242 on `box` (app.py), which is alive"
    assert (alive.command, alive.stop, alive.stuck) == ((), ("cancel", "run_1"), ("resume", "run_1", "--take-over"))
    still = explain_run(ROW, ALL_FACTS["standing still"])
    assert still.held_by == "process 4242 on `box` (app.py), which is stopped"
    assert (still.command, still.stuck) == (("resume", "run_1", "--take-over"), ())
    assert dead.held_by == "process 4242 on `box` (app.py), which is dead"
    assert dead.command == ("resume", "run_1")
    assert "interrupted" in dead.text
    assert explain_run(ROW, Facts()).held_by == "owner `own_1`, which is gone"


def test_the_words_name_what_is_waited_for() -> None:
    waiting = explain_run(msgspec.structs.replace(ROW, state=RunState.WAITING), ALL_FACTS["asking"])
    assert waiting.waits_for == "an answer to: `execute` (req_1)"
    assert waiting.python == "await agent.answer('req_1', allow=True)"
    assert explain_run(ROW, ALL_FACTS["children"]).waits_for == "1 child: `helper` (run_2)"
    failed = explain_run(msgspec.structs.replace(ROW, state=RunState.FAILED, reason="limit:max_iters"), Facts())
    assert failed.text.endswith("(limit:max_iters); to do: raise `max_iters` or split the task")


@pytest.mark.parametrize("alive", [True, False])
def test_owners_are_explained_by_what_they_hold(alive: bool) -> None:
    for runs in ((), (ROW,), (ROW, run_row("run_9", CHILD))):
        said = explain_owner(OWNER, alive, runs)
        sound(said)
        assert len(said.related) == len(runs)
        assert bool(said.command) == (bool(runs) and not alive)
        assert bool(said.stuck) == (bool(runs) and alive)


def test_threads_are_explained_by_their_last_run() -> None:
    for last in (None, ROW):
        sound(explain_thread(thread_row(KEY, updated_at=5), last, DEAD))


async def test_ids_of_every_kind_are_found(make_ledger: Callable[[], Ledger]) -> None:
    ledger = make_ledger()
    await ledger.open()
    agent_key = "agent:helper:0123456789ab"
    await ledger.commit([PutOwner(owner_row("own_1")), create(KEY), create(CHILD, parent=KEY, agent_key=agent_key)])
    await ledger.commit([PutRun(ROW), PutRun(run_row("run_2", CHILD, lineage=["run_1"], owner="own_1"))])
    invocation = invocation_row("inv_1", KEY, CHILD)
    await ledger.commit([PutInvocation(invocation), PutRequest(request_row("req_1", KEY, key=CHILD, run_id="run_2"))])
    expected = {
        "run_1": ("run", "running", "1 child: `helper` (run_2)"),
        "inv_1": ("delegation", "running", "its child to end"),
        "req_1": ("request", "open", "an answer, from any process"),
        "own_1": ("owner", "alive", ""),
        "ses": ("thread", "running", ""),
        "ses/main": ("thread", "running", "1 child: `helper` (run_2)"),
        "child": ("thread", "running", ""),
        agent_key: ("thread", "running", ""),
    }
    for wanted, (kind, state, waits_for) in expected.items():
        said = await explain(ledger, wanted)
        sound(said)
        assert (said.kind, said.state) == (kind, state)
        assert said.waits_for == waits_for or wanted == "ses"
    assert (await explain(ledger, agent_key)).id == "ses/child"
    await ledger.commit([RequestCancel("run_1", "no longer needed", "ann", 5)])
    assert "is being stopped (no longer needed)" in (await explain(ledger, "run_2")).text
    with pytest.raises(UnknownId, match="it looks like a run id"):
        await explain(ledger, f"run_{'0' * 32}")
    await ledger.close()


async def test_main_alone_is_no_thread() -> None:
    ledger = MemoryLedger()
    await ledger.open()
    await ledger.commit([create(KEY)])
    with pytest.raises(UnknownId):
        await explain(ledger, "main")
