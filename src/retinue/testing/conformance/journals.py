"""Checks of journals: appends and their fence, atomicity, order, forks, generations and purge (M3, M12)."""

import msgspec

from retinue.events import UnknownEvent, decode
from retinue.ledger.port import Ledger
from retinue.ops import Append, Draft, HideThread, NewEvent, Op, OpenGeneration, PutDraft, PutMail, PutRun, Receipt
from retinue.rows import ForkPoint
from retinue.states import RunState
from retinue.testing.conformance.sample import (
    append,
    check,
    create,
    event,
    key_of,
    mail,
    refused,
    run_row,
    running,
    same,
    seen,
    thread_row,
    told,
)

__all__ = ["CHECKS"]


@check
async def appends_are_numbered_and_read_back(ledger: Ledger) -> None:
    key = key_of()
    receipt = await ledger.commit([create(key), append(key, 0, "a", "b", at=40)])
    same(receipt, Receipt({key: (1, 2)}))
    same(await ledger.commit([append(key, 2, "c", at=50)]), Receipt({key: (1, 3)}))
    journal = await ledger.journal(key)
    same(seen(journal), ["a", "b", "c"])
    records = await ledger.records(key, generation=1)
    same(journal and journal.own, tuple(records))
    same([(record.key, record.generation, record.seq, record.at) for record in records][1:], [(key, 1, 2, 40), (key, 1, 3, 50)])
    same(records[0].body, b'{"text":"a"}')
    same(await ledger.thread(key), thread_row(key, head=3, updated_at=50))


@check
async def records_are_read_from_a_cursor(ledger: Ledger) -> None:
    key = key_of()
    texts = [str(number) for number in range(1, 41)]
    await ledger.commit([create(key), append(key, 0, *texts)])
    same([record.seq for record in await ledger.records(key, generation=1, after=38)], [39, 40])
    same([record.seq for record in await ledger.records(key, generation=1, after=2, limit=3)], [3, 4, 5])
    same(await ledger.records(key, generation=1, after=40), [])
    same(await ledger.records(key, generation=2), [])
    same(await ledger.records(key_of("other"), generation=1), [])
    same(seen(await ledger.journal(key)), texts)


@check
async def an_append_elsewhere_than_at_the_head_is_refused(ledger: Ledger) -> None:
    key = key_of()
    await refused(ledger, "missing", append(key, 0, "a"))
    await ledger.commit([create(key), append(key, 0, "a")])
    await refused(ledger, "head_moved", append(key, 0, "b"))
    await refused(ledger, "head_moved", append(key, 2, "b"))
    await refused(ledger, "head_moved", append(key, 1, "b", generation=2))
    await refused(ledger, "head_moved", Append(key, 1, 0, ()))
    same(await ledger.commit([Append(key, 1, 1, ())]), Receipt({key: (1, 1)}))
    same(seen(await ledger.journal(key)), ["a"])


@check
async def an_earlier_attempt_appends_nothing(ledger: Ledger) -> None:
    """Also where the head happens to be where it expects it: its first commit was refused, the second was on its way."""
    key = key_of()
    await ledger.commit([create(key), append(key, 0, "a"), running("run_1", key)])
    taken = PutRun(run_row("run_1", key, attempt=2), (RunState.RUNNING, 1))
    await ledger.commit([Append(key, 1, 1, (event("taken", attempt=2),)), taken])
    await refused(ledger, "head_moved", append(key, 1, "b"))
    await refused(ledger, "head_moved", append(key, 2, "c"))
    await ledger.commit([Append(key, 1, 2, (event("d", attempt=2),))])
    same(seen(await ledger.journal(key)), ["a", "taken", "d"])


@check
async def a_commit_is_all_or_nothing(ledger: Ledger) -> None:
    key, other = key_of(), key_of("other")
    await ledger.commit([create(key), append(key, 0, "a", at=20), PutMail(key, mail("m1")), PutDraft(key, Draft("msg", "x", 1))])
    await refused(
        ledger,
        "head_moved",
        append(key, 1, "b", at=30),
        create(other),
        append(other, 0, "c"),
        OpenGeneration(key, 2, 2),
        append(key, 0, "d", generation=2),
        running("run_1", key),
        PutMail(key, mail("m2")),
        PutDraft(key, Draft("msg", "y", 2)),
        append(other, 0, "e"),
    )
    same(await ledger.thread(key), thread_row(key, head=1, updated_at=20))
    same(seen(await ledger.journal(key)), ["a"])
    same(await ledger.thread(other), None)
    same(await ledger.run("run_1"), None)
    same(await ledger.last_run(key), None)
    same(await ledger.tree("run_1"), [])
    same([found.mail_id for found in await ledger.mail(key)], ["m1"])
    same(await ledger.draft(key), Draft("msg", "x", 1))
    same(await ledger.commit([append(key, 1, "b")]), Receipt({key: (1, 2)}))


@check
async def commits_handed_in_in_order_are_carried_out_in_order(ledger: Ledger) -> None:
    key = key_of()
    handed_in = [ledger.submit([create(key)])]
    handed_in += [ledger.submit([append(key, head, str(head))]) for head in range(20)]
    for future in reversed(handed_in):
        await future
    same(seen(await ledger.journal(key)), [str(head) for head in range(20)])
    late = ledger.submit([append(key, 3, "late")])
    try:
        await late
    except Exception as error:  # noqa: BLE001 (any: its code is what counts)
        same(getattr(error, "code", error), "head_moved")
    same(seen(await ledger.journal(key))[-1], "19")


@check
async def what_is_handed_in_is_fixed(ledger: Ledger) -> None:
    key = key_of()
    ops: list[Op] = [create(key), append(key, 0, "a")]
    receipt = ledger.submit(ops)
    ops.clear()
    same(await receipt, Receipt({key: (1, 1)}))
    same(seen(await ledger.journal(key)), ["a"])


@check
async def a_handed_in_commit_cannot_be_taken_back(ledger: Ledger) -> None:
    key = key_of()
    same(ledger.submit([create(key)]).cancel(), False)
    await ledger.submit([append(key, 0, "a")])
    same(seen(await ledger.journal(key)), ["a"])


@check
async def a_thread_is_created_once(ledger: Ledger) -> None:
    key = key_of()
    await ledger.commit([create(key, title="first", metadata={"colour": "red"}, depth=2, hidden=True)])
    await refused(ledger, "exists", create(key, title="second"))
    found = await ledger.thread(key)
    same(found, thread_row(key, title="first", metadata={"colour": "red"}, depth=2, hidden=True, updated_at=1))
    await ledger.commit([HideThread(key)])
    await refused(ledger, "exists", create(key))


@check
async def what_a_refused_commit_made_is_forgotten(ledger: Ledger) -> None:
    void, after = key_of("void"), key_of("after")
    nowhere = append(key_of("nowhere"), 0, "x")
    await refused(ledger, "missing", create(void), append(void, 0, "a"), nowhere)
    await ledger.commit([create(after)])
    await refused(ledger, "missing", append(void, 0, "b"))
    again, last = key_of("again"), key_of("last")
    outcomes = [
        ledger.submit([append(after, 0, "c")]),
        ledger.submit([create(again), append(again, 0, "d"), nowhere]),
        ledger.submit([create(last)]),
        ledger.submit([append(again, 0, "e")]),
    ]
    same([await told(outcome) for outcome in outcomes], [None, "missing", None, "missing"])
    same([seen(await ledger.journal(key)) for key in (after, last)], [["c"], []])
    same([row.key.thread for row in await ledger.threads()], ["after", "last"])


@check
async def unknown_event_types_survive(ledger: Ledger) -> None:
    key = key_of()
    body = b'{"fromTheFuture":[1,2,{"deep":true}]}'
    await ledger.commit([create(key), Append(key, 1, 0, (NewEvent("HOLOGRAM_PROJECTED", body, "run_1", 3, 7),))])
    (record,) = await ledger.records(key, generation=1)
    same((record.type, record.run, record.attempt, record.at, record.body), ("HOLOGRAM_PROJECTED", "run_1", 3, 7, body))
    decoded = decode(record)
    same(isinstance(decoded, UnknownEvent) and bytes(decoded.body), body)


@check
async def a_fork_inherits_up_to_its_point(ledger: Ledger) -> None:
    parent, fork, deeper = key_of(), key_of("fork"), key_of("deeper")
    await ledger.commit([create(parent), append(parent, 0, "a", "b", "c")])
    await ledger.commit([create(fork, base=ForkPoint(parent, 1, 2)), append(fork, 0, "x", "y")])
    await ledger.commit([create(deeper, base=ForkPoint(fork, 1, 1)), append(parent, 3, "d")])
    journal = await ledger.journal(fork)
    same(seen(journal), ["a", "b", "x", "y"])
    same(journal and [record.key for record in journal.inherited], [parent, parent])
    same(journal and journal.row.base, ForkPoint(parent, 1, 2))
    same(seen(await ledger.journal(deeper)), ["a", "b", "x"])
    same(seen(await ledger.journal(parent)), ["a", "b", "c", "d"])


@check
async def a_fork_of_an_empty_thread_is_empty(ledger: Ledger) -> None:
    parent, fork = key_of(), key_of("fork")
    await ledger.commit([create(parent), create(fork, base=ForkPoint(parent, 1, 0)), append(parent, 0, "later")])
    same(seen(await ledger.journal(fork)), [])
    await ledger.purge(parent)
    same(seen(await ledger.journal(fork)), [])


@check
async def a_fork_beyond_the_head_is_refused(ledger: Ledger) -> None:
    parent, fork = key_of(), key_of("fork")
    await refused(ledger, "missing", create(fork, base=ForkPoint(parent, 1, 0)))
    await ledger.commit([create(parent), append(parent, 0, "a")])
    for generation, seq in ((1, 2), (2, 0), (0, 0), (1, -1)):
        await refused(ledger, "missing", create(fork, base=ForkPoint(parent, generation, seq)))
    await ledger.commit([OpenGeneration(parent, 2, 1), append(parent, 0, "b", "c", generation=2)])
    await refused(ledger, "missing", create(fork, base=ForkPoint(parent, 1, 2)))
    await refused(ledger, "missing", OpenGeneration(parent, 3, 2, ForkPoint(parent, 3, 0)))
    await ledger.commit([create(fork, base=ForkPoint(parent, 1, 1))])
    same(seen(await ledger.journal(fork)), ["a"])


@check
async def a_generation_opens_at_the_head_only(ledger: Ledger) -> None:
    key = key_of()
    await refused(ledger, "missing", OpenGeneration(key, 2, 0))
    await ledger.commit([create(key), append(key, 0, "a", "b")])
    await refused(ledger, "state", OpenGeneration(key, 2, 1))
    await refused(ledger, "state", OpenGeneration(key, 3, 2))
    await refused(ledger, "state", OpenGeneration(key, 1, 2))
    await ledger.commit([OpenGeneration(key, 2, 2, ForkPoint(key, 1, 1)), append(key, 0, "c", generation=2)])
    journal = await ledger.journal(key)
    same(seen(journal), ["a", "c"])
    same(journal and (journal.row.generation, journal.row.head, journal.row.base), (2, 1, ForkPoint(key, 1, 1)))
    same([record.seq for record in await ledger.records(key, generation=1)], [1, 2])
    await refused(ledger, "head_moved", append(key, 2, "d"))
    await ledger.commit([OpenGeneration(key, 3, 1)])
    same(seen(await ledger.journal(key)), [])


@check
async def a_deleted_thread_serves_its_forks(ledger: Ledger) -> None:
    parent, fork = key_of(), key_of("fork")
    await refused(ledger, "missing", HideThread(parent))
    await ledger.commit([create(parent), append(parent, 0, "a"), create(fork, base=ForkPoint(parent, 1, 1))])
    await ledger.commit([HideThread(parent)])
    same(await ledger.thread(parent), None)
    same(await ledger.journal(parent), None)
    same(await ledger.records(parent, generation=1), [])
    same(await ledger.threads(hidden=True), [thread_row(fork, updated_at=1, base=ForkPoint(parent, 1, 1))])
    same(seen(await ledger.journal(fork)), ["a"])
    same(await ledger.commit([append(parent, 1, "a run that is under way ends")]), Receipt({parent: (1, 2)}))


@check
async def a_purge_keeps_what_forks_refer_to(ledger: Ledger) -> None:
    root, fork, other, deeper = key_of(), key_of("fork"), key_of("other"), key_of("deeper")
    await ledger.commit([create(root), append(root, 0, "a", "b", "c")])
    await ledger.commit([OpenGeneration(root, 2, 3, ForkPoint(root, 1, 2)), append(root, 0, "d", "e", generation=2)])
    await ledger.commit([create(fork, base=ForkPoint(root, 2, 1)), append(fork, 0, "x")])
    await ledger.commit([create(other, base=ForkPoint(root, 1, 3))])
    await ledger.commit([create(deeper, base=ForkPoint(fork, 1, 1)), append(deeper, 0, "z")])
    forks = (fork, other, deeper)
    before = [await ledger.journal(key) for key in forks]
    same(await ledger.purge(root), 5)
    same(await ledger.thread(root), None)
    after = [await ledger.journal(key) for key in forks]
    for old, new in zip(before, after, strict=True):
        same(_content(new), _content(old))
    same(await ledger.purge(root), 0)
    same(await ledger.purge(fork), 4)
    same(seen(await ledger.journal(deeper)), ["a", "b", "d", "x", "z"])
    same(await ledger.commit([append(deeper, 1, "on")]), Receipt({deeper: (1, 2)}))
    await ledger.commit([create(root), append(root, 0, "new")])
    same(seen(await ledger.journal(root)), ["new"])


@check
async def fork_of_a_new_generation_then_purge(ledger: Ledger) -> None:
    first, second, third = key_of("first"), key_of("second"), key_of("third")
    await ledger.commit([create(first), append(first, 0, "1a", "1b"), create(second, base=ForkPoint(first, 1, 1))])
    await ledger.commit([append(second, 0, "2a", "2b")])
    # the new generation of `first` begins with what a fork of its old one says; then it is forked, twice over
    await ledger.commit([OpenGeneration(first, 2, 2, ForkPoint(second, 1, 2)), append(first, 0, "1c", generation=2)])
    await ledger.commit([create(third, base=ForkPoint(first, 2, 1)), append(third, 0, "3a")])
    await ledger.commit([OpenGeneration(third, 2, 1, ForkPoint(first, 1, 2)), append(third, 0, "3b", generation=2)])
    await ledger.commit([OpenGeneration(third, 3, 1, ForkPoint(third, 1, 1)), append(third, 0, "3c", generation=3)])
    expected = ["1a", "2a", "2b", "1c", "3a", "3c"]
    before = await ledger.journal(third)
    same(seen(before), expected)
    await ledger.purge(first)
    same(seen(await ledger.journal(second)), ["1a", "2a", "2b"])
    same(_content(await ledger.journal(third)), _content(before))
    await ledger.purge(second)
    same(_content(await ledger.journal(third)), _content(before))


@check
async def a_purge_waits_for_the_runs_of_its_thread(ledger: Ledger) -> None:
    key = key_of()
    await ledger.commit([create(key), append(key, 0, "a"), running("run_1", key), PutMail(key, mail("m1"))])
    waiting = run_row("run_1", key, state=RunState.WAITING)
    for put in (PutRun(waiting, (RunState.RUNNING, 1)), PutRun(run_row("run_1", key), (RunState.WAITING, 1))):
        try:
            await ledger.purge(key)
        except Exception as error:  # noqa: BLE001 (any: its code is what counts)
            same(getattr(error, "code", error), "state")
        else:
            raise AssertionError("a thread with an unfinished run was purged")
        await ledger.commit([put])
    same(seen(await ledger.journal(key)), ["a"])
    await ledger.commit([PutRun(run_row("run_1", key, state=RunState.FAILED), (RunState.RUNNING, 1))])
    same(await ledger.purge(key), 1)
    same(await ledger.mail(key), [])
    await ledger.commit([create(key), PutMail(key, mail("m1"))])
    same(len(await ledger.mail(key)), 1)


@check
async def what_is_stored_survives_closing(ledger: Ledger) -> None:
    key = key_of()
    await ledger.commit([create(key, metadata={"a": [1]}), append(key, 0, "a"), running("run_1", key)])
    await ledger.close()
    await ledger.close()
    try:
        await ledger.commit([append(key, 1, "closed")])
    except Exception as error:  # noqa: BLE001 (any: its type is what counts)
        same(type(error).__name__, "LedgerUnavailable")
    else:
        raise AssertionError("a closed ledger took a commit")
    await ledger.open()
    await ledger.open()
    same(seen(await ledger.journal(key)), ["a"])
    same((await ledger.run("run_1")), run_row("run_1", key))


def _content(journal: object) -> object:
    found = msgspec.to_builtins(journal)
    return [(record["type"], record["run"], record["body"]) for record in (*found["inherited"], *found["own"])]


CHECKS = (
    appends_are_numbered_and_read_back,
    records_are_read_from_a_cursor,
    an_append_elsewhere_than_at_the_head_is_refused,
    an_earlier_attempt_appends_nothing,
    a_commit_is_all_or_nothing,
    commits_handed_in_in_order_are_carried_out_in_order,
    what_is_handed_in_is_fixed,
    a_handed_in_commit_cannot_be_taken_back,
    a_thread_is_created_once,
    what_a_refused_commit_made_is_forgotten,
    unknown_event_types_survive,
    a_fork_inherits_up_to_its_point,
    a_fork_of_an_empty_thread_is_empty,
    a_fork_beyond_the_head_is_refused,
    a_generation_opens_at_the_head_only,
    a_deleted_thread_serves_its_forks,
    a_purge_keeps_what_forks_refer_to,
    fork_of_a_new_generation_then_purge,
    a_purge_waits_for_the_runs_of_its_thread,
    what_is_stored_survives_closing,
)
