"""Checks of what is current: runs, invocations and requests with their state tables, cancel intents, mail, drafts, owners."""

import hashlib
from collections.abc import Iterable
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

import msgspec

from retinue.ledger.port import Ledger
from retinue.ops import (
    Draft,
    DropDraft,
    DropOwner,
    Op,
    PutBlob,
    PutDraft,
    PutInvocation,
    PutMail,
    PutOwner,
    PutRequest,
    PutRun,
    PutSpend,
    PutState,
    RequestCancel,
    TakeMail,
)
from retinue.rows import SpendRow
from retinue.states import (
    INVOCATION_TRANSITIONS,
    REQUEST_TRANSITIONS,
    RUN_TRANSITIONS,
    InvocationState,
    RequestState,
    RunState,
)
from retinue.testing.conformance.sample import (
    append,
    check,
    create,
    invocation_row,
    key_of,
    mail,
    owner_row,
    refused,
    request_row,
    run_row,
    running,
    same,
)

__all__ = ["CHECKS"]

_S = TypeVar("_S", bound=StrEnum)


@check
async def a_run_is_inserted_once_and_replaced_where_it_is_as_expected(ledger: Ledger) -> None:
    key = key_of()
    second = run_row("run_1", key, attempt=2, owner="own_2")
    await refused(ledger, "missing", PutRun(second, (RunState.RUNNING, 1)))
    await ledger.commit([running("run_1", key)])
    await refused(ledger, "exists", running("run_1", key))
    await ledger.commit([PutRun(second, (RunState.RUNNING, 1))])
    same(await ledger.run("run_1"), second)
    await refused(ledger, "state", PutRun(second, (RunState.RUNNING, 1)))
    await refused(ledger, "state", PutRun(second, (RunState.WAITING, 2)))
    same(await ledger.run("run_2"), None)


@check
async def runs_follow_their_table(ledger: Ledger) -> None:
    key = key_of()
    for number, (old, new) in enumerate(_pairs(RunState)):
        run_id = f"run_{number}"
        await ledger.commit([PutRun(run_row(run_id, key, state=old))])
        step = PutRun(run_row(run_id, key, state=new, reason="changed"), (old, 1))
        await _step(ledger, step, new in RUN_TRANSITIONS[old])
        found = await ledger.run(run_id)
        same(found and found.reason, "changed" if new in RUN_TRANSITIONS[old] else None)


@check
async def invocations_follow_their_table(ledger: Ledger) -> None:
    parent, child = key_of(), key_of("child")
    await refused(ledger, "missing", PutInvocation(invocation_row("inv", parent, child), (InvocationState.RUNNING, 1)))
    for number, (old, new) in enumerate(_pairs(InvocationState)):
        name = f"inv_{number}"
        await ledger.commit([PutInvocation(invocation_row(name, parent, child, state=old, attempt=2))])
        await refused(ledger, "exists", PutInvocation(invocation_row(name, parent, child)))
        replaced = invocation_row(name, parent, child, state=new, attempt=2, reason="changed")
        await refused(ledger, "state", PutInvocation(replaced, (old, 1)))
        await _step(ledger, PutInvocation(replaced, (old, 2)), new in INVOCATION_TRANSITIONS[old])
        found = await ledger.invocation(name)
        same(found and found.reason, "changed" if new in INVOCATION_TRANSITIONS[old] else None)


@check
async def requests_follow_their_table(ledger: Ledger) -> None:
    root = key_of()
    await refused(ledger, "missing", PutRequest(request_row("req", root, state=RequestState.ANSWERED), RequestState.OPEN))
    for number, (old, new) in enumerate(_pairs(RequestState)):
        name = f"req_{number}"
        await ledger.commit([PutRequest(request_row(name, root, state=old))])
        await refused(ledger, "exists", PutRequest(request_row(name, root)))
        await _step(ledger, PutRequest(request_row(name, root, state=new, by="ann"), old), new in REQUEST_TRANSITIONS[old])
        found = await ledger.request(name)
        same(found and found.by, "ann" if new in REQUEST_TRANSITIONS[old] else None)


@check
async def the_first_answer_wins(ledger: Ledger) -> None:
    root = key_of()
    await ledger.commit([PutRequest(request_row("req_1", root))])
    answers = [request_row("req_1", root, state=RequestState.ANSWERED, answer=answer, by=answer) for answer in ("allow", "deny")]
    first, second = (ledger.submit([PutRequest(answer, RequestState.OPEN)]) for answer in answers)
    await first
    try:
        await second
    except Exception as error:  # noqa: BLE001 (any: its code is what counts)
        same(getattr(error, "code", error), "state")
    else:
        raise AssertionError("two answers won")
    same(await ledger.request("req_1"), answers[0])


@check
async def a_cancel_intent_binds_everything_below(ledger: Ledger) -> None:
    key = key_of()
    cancel = RequestCancel("run_1", "no longer needed", "ann", 9)
    await refused(ledger, "missing", cancel)
    await ledger.commit([running("run_1", key), running("run_2", key, lineage=["run_1"]), running("run_9", key)])
    same(await ledger.cancel_intent(("run_1", "run_2")), None)
    await ledger.commit([cancel])
    await ledger.commit([RequestCancel("run_1", "again", "bob", 10)])
    same(await ledger.cancel_intent(("run_1", "run_2")), "no longer needed")
    same(await ledger.cancel_intent(("run_9",)), None)
    same(await ledger.cancel_intent(()), None)
    await refused(ledger, "cancelled", running("run_3", key, lineage=["run_1", "run_2"]))
    for run_id, lineage in (("run_1", []), ("run_2", ["run_1"])):
        for state in (RunState.COMPLETED, RunState.FAILED):
            ended = run_row(run_id, key, lineage=lineage, state=state)
            await refused(ledger, "cancelled", PutRun(ended, (RunState.RUNNING, 1)))
        await ledger.commit([PutRun(run_row(run_id, key, lineage=lineage, attempt=2), (RunState.RUNNING, 1))])
        ended = run_row(run_id, key, lineage=lineage, attempt=2, state=RunState.CANCELLED)
        await ledger.commit([PutRun(ended, (RunState.RUNNING, 2))])
        same(await ledger.run(run_id), ended)
    await ledger.commit([running("run_4", key, lineage=["run_9"])])


@check
async def a_cancel_intent_counts_in_its_own_commit(ledger: Ledger) -> None:
    key = key_of()
    await refused(
        ledger,
        "cancelled",
        running("run_1", key),
        RequestCancel("run_1", "stop", "ann", 9),
        running("run_2", key, lineage=["run_1"]),
    )
    same(await ledger.run("run_1"), None)
    same(await ledger.cancel_intent(("run_1",)), None)


@check
async def the_first_commit_wins_over_a_later_intent(ledger: Ledger) -> None:
    key = key_of()
    await ledger.commit([running("run_1", key)])
    done = run_row("run_1", key, state=RunState.COMPLETED)
    await ledger.commit([PutRun(done, (RunState.RUNNING, 1))])
    await ledger.commit([RequestCancel("run_1", "too late", "ann", 9)])
    await refused(ledger, "state", PutRun(done, (RunState.RUNNING, 1)))
    await refused(ledger, "exists", running("run_1", key))
    same(await ledger.run("run_1"), done)


@check
async def mail_is_delivered_once(ledger: Ledger) -> None:
    key = key_of()
    await refused(ledger, "missing", PutMail(key, mail("m1")))
    await ledger.commit([create(key), PutMail(key, mail("m2", "first")), PutMail(key, mail("m1"))])
    await ledger.commit([PutMail(key, mail("m2", "again"))])
    same(await ledger.mail(key), [mail("m2", "first"), mail("m1")])
    await ledger.commit([TakeMail(key, "m2"), append(key, 0, "delivered")])
    await refused(ledger, "taken", append(key, 1, "twice"), TakeMail(key, "m2"))
    await ledger.commit([PutMail(key, mail("m2", "once more"))])
    same(await ledger.mail(key), [mail("m1")])
    await refused(ledger, "taken", TakeMail(key, "never"))
    await refused(ledger, "taken", TakeMail(key_of("nowhere"), "m1"))
    await refused(ledger, "taken", TakeMail(key, "m1"), TakeMail(key, "m2"))
    same(await ledger.mail(key), [mail("m1")])


@check
async def a_draft_is_overwritten_and_dropped(ledger: Ledger) -> None:
    key = key_of()
    await refused(ledger, "missing", PutDraft(key, Draft("msg_1", "a", 1)))
    await ledger.commit([create(key), PutDraft(key, Draft("msg_1", "a", 1)), PutDraft(key, Draft("msg_2", "b", 2))])
    same(await ledger.draft(key), Draft("msg_2", "b", 2))
    await ledger.commit([PutDraft(key, Draft("msg_1", "a and more", 3))])
    same(await ledger.draft(key), Draft("msg_1", "a and more", 3))
    await ledger.commit([DropDraft(key, "msg_1"), DropDraft(key, "msg_1"), DropDraft(key_of("nowhere"), "msg_1")])
    same(await ledger.draft(key), Draft("msg_2", "b", 2))
    same(await ledger.draft(key_of("nowhere")), None)
    thread = await ledger.thread(key)
    same(thread and thread.head, 0)


@check
async def blobs_are_kept_by_hash(ledger: Ledger) -> None:
    stored, empty, missing = (hashlib.sha256(data).hexdigest() for data in (b"\x00\xff", b"", b"x"))
    await ledger.commit([PutBlob(stored, b"\x00\xff"), PutBlob(stored, b"\x00\xff"), PutBlob(empty, b"")])
    same([await ledger.blob(digest) for digest in (stored, empty, missing)], [b"\x00\xff", b"", None])


@check
async def session_state_is_set_by_name(ledger: Ledger) -> None:
    await ledger.commit([PutState("ann", "ses", "a", msgspec.Raw(b"[1]")), PutState("ann", "ses", "b", msgspec.Raw(b"2"))])
    await ledger.commit([PutState("ann", "ses", "a", msgspec.Raw(b"[3]"))])
    same(await ledger.state("ann", "ses"), {"a": b"[3]", "b": b"2"})


@check
async def session_state_is_set_in_the_place_of_a_value_that_is_still_there(ledger: Ledger) -> None:
    await refused(ledger, "state", PutState("ann", "ses", "a", msgspec.Raw(b"1"), b"0"))
    await ledger.commit([PutState("ann", "ses", "a", msgspec.Raw(b"1"), None)])
    await refused(ledger, "state", PutState("ann", "ses", "a", msgspec.Raw(b"2"), None))
    await refused(
        ledger, "state", PutState("ann", "ses", "b", msgspec.Raw(b"7")), PutState("ann", "ses", "a", msgspec.Raw(b"2"), b"0")
    )
    await ledger.commit([PutState("ann", "ses", "a", msgspec.Raw(b"2"), b"1")])
    same(await ledger.state("ann", "ses"), {"a": b"2"})


@check
async def what_a_tree_has_used_is_kept_by_run(ledger: Ledger) -> None:
    first = SpendRow(run_id="run_1", root="run_1", lineage=("run_1",), tokens=5, requests=1, cost=Decimal("0.0300"))
    below = SpendRow(run_id="run_2", root="run_1", lineage=("run_1", "run_2"), owner="own_1", held_tokens=7, held_requests=1)
    other = SpendRow(run_id="run_3", root="run_3", lineage=("run_3",), tokens=9)
    await ledger.commit([PutSpend(below), PutSpend(first), PutSpend(other)])
    same(await ledger.spends("run_1"), [first, below])
    settled = msgspec.structs.replace(below, owner=None, held_tokens=0, held_requests=0, tokens=4, requests=1)
    await ledger.commit([PutSpend(settled)])
    same(await ledger.spends("run_1"), [first, settled])
    same(await ledger.spends("run_2"), [])


@check
async def owners_live_while_their_ledger_is_open(ledger: Ledger) -> None:
    await ledger.commit([PutOwner(owner_row("own_1")), PutOwner(owner_row("own_2"))])
    same((await ledger.owner("own_1"), await ledger.owner_alive("own_1")), (owner_row("own_1"), True))
    same((await ledger.owner("own_3"), await ledger.owner_alive("own_3")), (None, False))
    await ledger.commit([DropOwner("own_1"), DropOwner("own_1")])
    same((await ledger.owner("own_1"), await ledger.owner_alive("own_1")), (None, False))
    same(await ledger.owner_alive("own_2"), True)
    await refused(ledger, "missing", PutOwner(owner_row("own_4")), append(key_of("nowhere"), 0, "x"))
    same((await ledger.owner("own_4"), await ledger.owner_alive("own_4")), (None, False))


async def _step(ledger: Ledger, op: Op, allowed: bool) -> None:
    if allowed:
        await ledger.commit([op])
    else:
        await refused(ledger, "state", op)


def _pairs(states: type[_S]) -> Iterable[tuple[_S, _S]]:
    return [(old, new) for old in states for new in states]


CHECKS = (
    a_run_is_inserted_once_and_replaced_where_it_is_as_expected,
    runs_follow_their_table,
    invocations_follow_their_table,
    requests_follow_their_table,
    the_first_answer_wins,
    a_cancel_intent_binds_everything_below,
    a_cancel_intent_counts_in_its_own_commit,
    the_first_commit_wins_over_a_later_intent,
    mail_is_delivered_once,
    a_draft_is_overwritten_and_dropped,
    blobs_are_kept_by_hash,
    session_state_is_set_by_name,
    owners_live_while_their_ledger_is_open,
)
