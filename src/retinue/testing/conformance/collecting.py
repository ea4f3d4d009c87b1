"""Checks of removal: what a purge takes along, and what a collection takes and leaves (M12)."""

import hashlib

import msgspec

from retinue.errors import LedgerConflict
from retinue.ledger.port import Collected, Ledger
from retinue.ops import (
    Append,
    Draft,
    DropOwner,
    HideThread,
    NewEvent,
    OpenGeneration,
    PutBlob,
    PutDraft,
    PutInvocation,
    PutMail,
    PutOwner,
    PutRequest,
    PutRun,
    PutState,
    RequestCancel,
    TakeMail,
)
from retinue.rows import ForkPoint, ThreadKey
from retinue.states import RunState
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
    seen,
)

__all__ = ["CHECKS"]

DAY = 24 * 3600 * 1000
NOW = 1_000 * DAY


@check
async def a_purge_takes_the_rows_along(ledger: Ledger) -> None:
    key, child, other = key_of(), key_of("child"), key_of("other")
    await ledger.commit([create(key), create(child), create(other), append(key, 0, "a")])
    rows = [PutRun(run_row("run_1", key)), PutRun(run_row("run_2", child, lineage=["run_1"])), PutRun(run_row("run_9", other))]
    await ledger.commit(rows)
    await ledger.commit([PutInvocation(invocation_row("inv_1", key, child)), PutRequest(request_row("req_1", key))])
    asked_below = request_row("req_2", key, key=child, run_id="run_2")
    await ledger.commit([PutRequest(asked_below), RequestCancel("run_1", "stop", "ann", 5)])
    for run, thread in (("run_1", key), ("run_2", child)):
        await _purge_refused(ledger, key)
        await _purge_refused(ledger, child)  # also where its own run is over: the tree needs it
        lineage = [] if run == "run_1" else ["run_1"]
        ended = run_row(run, thread, lineage=lineage, state=RunState.CANCELLED)
        await ledger.commit([PutRun(ended, (RunState.RUNNING, 1))])
    same(await ledger.purge(key), 1)
    found: tuple[object, ...] = (
        await ledger.run("run_1"),
        await ledger.last_run(key),
        await ledger.cancel_intent(("run_1",)),
        await ledger.invocation("inv_1"),
        await ledger.invocations(root_run="run_1"),
        await ledger.request("req_1"),
        await ledger.requests(root=key),
        [row.run_id for row in await ledger.tree("run_1")],
    )
    expected: tuple[object, ...] = (None, None, None, None, [], None, [asked_below], ["run_2"])
    same(found, expected)
    same([row.run_id for row in await ledger.runs()], ["run_9", "run_2"])
    same(await ledger.purge(child), 0)
    same((await ledger.run("run_2"), await ledger.request("req_2")), (None, None))


@check
async def the_state_of_a_session_goes_with_its_last_thread(ledger: Ledger) -> None:
    first, second, far = key_of("first"), key_of("second"), key_of(session="far")
    await ledger.commit([create(key) for key in (first, second, far)])
    await ledger.commit([PutState("", session, "a", msgspec.Raw(b"1")) for session in ("ses", "far")])
    await ledger.purge(first)
    same(await ledger.state("", "ses"), {"a": b"1"})
    await ledger.commit([HideThread(second)])
    await _collect(ledger)
    same(len(await ledger.state("", "ses")), 0)
    same(await ledger.state("", "far"), {"a": b"1"})


@check
async def a_collection_takes_deleted_threads_that_no_fork_needs(ledger: Ledger) -> None:
    root, fork, deeper, lone = key_of(), key_of("fork"), key_of("deeper"), key_of("lone")
    await ledger.commit([create(root), append(root, 0, "a", "b")])
    await ledger.commit([create(fork, base=ForkPoint(root, 1, 1)), append(fork, 0, "c")])
    await ledger.commit([create(deeper, base=ForkPoint(fork, 1, 1)), append(deeper, 0, "d"), create(lone)])
    same(await _collect(ledger), Collected())
    await ledger.commit([HideThread(root), HideThread(fork), HideThread(lone)])
    same(await _collect(ledger), Collected(threads=1))
    same(seen(await ledger.journal(deeper)), ["a", "c", "d"])
    await ledger.commit([create(lone)])  # its name is free again
    await ledger.commit([HideThread(deeper)])
    same(await ledger.collect(now=NOW, grace_ms=0, dry_run=True), Collected(threads=3, records=4))
    same(await _collect(ledger), Collected(threads=3, records=4))
    same(await _collect(ledger), Collected())
    same([row.key for row in await ledger.threads(hidden=True)], [lone])
    await ledger.commit([create(root), append(root, 0, "new")])
    same(seen(await ledger.journal(root)), ["new"])


@check
async def a_collection_takes_threads_that_need_only_each_other(ledger: Ledger) -> None:
    first, second, keeper = key_of("first"), key_of("second"), key_of("keeper")
    await ledger.commit([create(first), append(first, 0, "1a"), create(second, base=ForkPoint(first, 1, 1))])
    await ledger.commit([append(second, 0, "2a"), OpenGeneration(first, 2, 1, ForkPoint(second, 1, 1))])
    await ledger.commit([create(keeper, base=ForkPoint(second, 1, 0)), HideThread(first), HideThread(second)])
    same(await _collect(ledger), Collected())
    # an old generation that nobody shows any more still counts: forks may be made of it
    await ledger.commit([OpenGeneration(keeper, 2, 0)])
    same(await _collect(ledger), Collected())
    await ledger.commit([HideThread(keeper)])
    same(await _collect(ledger), Collected(threads=3, records=2))


@check
async def a_collection_leaves_threads_with_unfinished_runs(ledger: Ledger) -> None:
    key, child = key_of(), key_of("child")
    await ledger.commit([create(key), create(child), running("run_1", key), running("run_2", child, lineage=["run_1"])])
    await ledger.commit([PutRun(run_row("run_2", child, lineage=["run_1"], state=RunState.COMPLETED), (RunState.RUNNING, 1))])
    await ledger.commit([HideThread(key), HideThread(child)])
    same(await _collect(ledger), Collected())
    await ledger.commit([append(key, 0, "the run that is under way goes on")])
    await ledger.commit([PutRun(run_row("run_1", key, state=RunState.FAILED), (RunState.RUNNING, 1))])
    same(await _collect(ledger), Collected(threads=2, records=1))
    same((await ledger.run("run_1"), await ledger.run("run_2")), (None, None))


@check
async def a_collection_takes_blobs_that_nothing_names(ledger: Ledger) -> None:
    key, fork = key_of(), key_of("fork")
    names = ("event", "unknown event", "mail", "state", "row", "none")
    blobs = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    await ledger.commit([PutBlob(digest, name.encode()) for name, digest in blobs.items()])
    await ledger.commit([create(key), _refer(key, 0, "RUN_STARTED", {"envelopeHash": blobs["event"]})])
    nested = {"any": [{"text": f"\b{blobs['unknown event']}"}]}  # the escape before it ends with what could be a digit
    await ledger.commit([_refer(key, 1, "OF_A_LATER_VERSION", nested), PutMail(key, mail("m1", blobs["mail"]))])
    await ledger.commit([PutState("", "elsewhere", "a", msgspec.Raw(b'"' + blobs["state"].encode() + b'"'))])
    await ledger.commit([PutRun(run_row("run_1", key, state=RunState.FAILED, reason=f"see {blobs['row']}"))])
    await ledger.commit([create(fork, base=ForkPoint(key, 1, 2)), HideThread(key)])
    same(await ledger.collect(now=NOW, dry_run=True), Collected(blobs=1, blob_bytes=4))
    same(await _collect(ledger), Collected(blobs=1, blob_bytes=4))
    same([name for name in names if await ledger.blob(blobs[name]) is None], ["none"])
    await ledger.commit([TakeMail(key, "m1"), HideThread(fork)])
    same(await _collect(ledger), Collected(threads=2, records=2, blobs=4, blob_bytes=5 + 13 + 4 + 3))
    same([name for name in names if await ledger.blob(blobs[name]) is not None], ["state"])


@check
async def a_blob_that_an_owner_may_remember_is_condemned_first(ledger: Ledger) -> None:
    first, second = (hashlib.sha256(name).hexdigest() for name in (b"first", b"second"))
    key = key_of()
    await ledger.commit([PutOwner(owner_row("own_1")), PutBlob(first, b"first"), PutBlob(second, b"second"), create(key)])
    same(await ledger.collect(now=NOW, grace_ms=DAY), Collected(condemned=2))
    await ledger.commit([PutBlob(first, b"first")])  # somebody is about to refer to it
    same(await ledger.collect(now=NOW + DAY, grace_ms=DAY), Collected(blobs=1, blob_bytes=6, condemned=1))
    same((await ledger.blob(first), await ledger.blob(second)), (b"first", None))
    await ledger.commit([_refer(key, 0, "MODEL_CALLED", {"envelopeHash": first})])
    same(await ledger.collect(now=NOW + 3 * DAY, grace_ms=DAY), Collected())
    await ledger.commit([HideThread(key)])
    same(await ledger.collect(now=NOW + 4 * DAY, grace_ms=DAY), Collected(threads=1, records=1, condemned=1))
    same(await ledger.collect(now=NOW + 5 * DAY - 1, grace_ms=DAY), Collected(condemned=1))
    await ledger.commit([DropOwner("own_1")])
    same(await ledger.collect(now=NOW + 5 * DAY - 1, grace_ms=DAY), Collected(blobs=1, blob_bytes=5))


@check
async def a_refused_put_spares_no_blob(ledger: Ledger) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    await ledger.commit([PutOwner(owner_row("own_1")), PutBlob(digest, b"x")])
    await ledger.collect(now=NOW, grace_ms=DAY)
    await refused(ledger, "missing", PutBlob(digest, b"x"), append(key_of("nowhere"), 0, "x"))
    same(await ledger.collect(now=NOW + DAY, grace_ms=DAY), Collected(blobs=1, blob_bytes=1))


@check
async def a_collection_takes_old_drafts_and_ids_of_taken_mail(ledger: Ledger) -> None:
    idle, busy = key_of(), key_of("busy")
    old, new = (f"mail_{at:012x}{'0' * 20}" for at in (NOW - 2 * DAY, NOW - DAY // 2))
    for key in (idle, busy):
        await ledger.commit(
            [create(key), PutDraft(key, Draft("msg_1", "a", NOW - 2 * DAY)), PutDraft(key, Draft("msg_2", "b", NOW))]
        )
        for mail_id in (old, new, "of another kind"):
            await ledger.commit([PutMail(key, mail(mail_id)), TakeMail(key, mail_id)])
        await ledger.commit([PutMail(key, mail(f"{old[:-1]}1"))])  # old, and still to be read
    await ledger.commit([running("run_1", busy)])
    same(await ledger.collect(now=NOW, grace_ms=DAY), Collected(drafts=1, mail=1))
    same(await ledger.collect(now=NOW, grace_ms=DAY), Collected())
    same([await ledger.draft(key) for key in (idle, busy)], [Draft("msg_2", "b", NOW)] * 2)
    same([len(await ledger.mail(key)) for key in (idle, busy)], [1, 1])
    await ledger.commit([PutMail(idle, mail(new)), PutMail(busy, mail(old))])
    same([len(await ledger.mail(key)) for key in (idle, busy)], [1, 1])  # told once, as before


@check
async def a_collection_tells_how_far_it_is(ledger: Ledger) -> None:
    key = key_of()
    await ledger.commit([create(key), append(key, 0, "a", "b"), PutBlob(hashlib.sha256(b"x").hexdigest(), b"x")])
    await ledger.commit([HideThread(key)])
    told: list[Collected] = []
    done = await ledger.collect(now=NOW, grace_ms=0, progress=told.append)
    same((done, told[-1]), (Collected(threads=1, records=2, blobs=1, blob_bytes=1),) * 2)


async def _collect(ledger: Ledger) -> Collected:
    return await ledger.collect(now=NOW, grace_ms=0)


async def _purge_refused(ledger: Ledger, key: ThreadKey) -> None:
    try:
        await ledger.purge(key)
    except LedgerConflict as conflict:
        same(conflict.code, "state")
        return
    raise AssertionError("a thread was purged while its tree is at work")


def _refer(key: ThreadKey, head: int, kind: str, body: object) -> Append:
    return Append(key, 1, head, (NewEvent(kind, msgspec.json.encode(body), "run_1", 1, 10),))


CHECKS = (
    a_purge_takes_the_rows_along,
    the_state_of_a_session_goes_with_its_last_thread,
    a_collection_takes_deleted_threads_that_no_fork_needs,
    a_collection_takes_threads_that_need_only_each_other,
    a_collection_leaves_threads_with_unfinished_runs,
    a_collection_takes_blobs_that_nothing_names,
    a_blob_that_an_owner_may_remember_is_condemned_first,
    a_refused_put_spares_no_blob,
    a_collection_takes_old_drafts_and_ids_of_taken_mail,
    a_collection_tells_how_far_it_is,
)
