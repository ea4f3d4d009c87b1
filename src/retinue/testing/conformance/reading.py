"""Checks of lists: their order, their filters, their limits, and that tenants are apart (invariant 8)."""

import msgspec

from retinue.ledger.port import Ledger
from retinue.ops import HideThread, PutInvocation, PutMail, PutRequest, PutRun, PutState, RequestCancel, TakeMail
from retinue.rows import ThreadKey
from retinue.states import InvocationState, RequestState, RunState
from retinue.testing.conformance.sample import (
    append,
    check,
    create,
    invocation_row,
    key_of,
    mail,
    refused,
    request_row,
    run_row,
    running,
    same,
    seen,
    told,
)

__all__ = ["CHECKS"]


@check
async def threads_are_listed_newest_first(ledger: Ledger) -> None:
    keys = [key_of(name) for name in ("a", "b", "c", "d", "e")]
    await ledger.commit([create(key, created_at=at) for at, key in enumerate(keys, start=1)])
    await ledger.commit([append(keys[1], 0, "x", at=50), HideThread(keys[3])])
    await ledger.commit([create(key_of("child"), created_at=60, hidden=True)])
    same([row.key.thread for row in await ledger.threads()], ["b", "e", "c", "a"])
    same([row.key.thread for row in await ledger.threads(limit=2)], ["b", "e"])
    same([row.key.thread for row in await ledger.threads(hidden=True)], ["child", "b", "e", "c", "a"])


@check
async def children_are_found_by_parent_key_and_label(ledger: Ledger) -> None:
    parent, sibling, stranger = key_of(), key_of("sibling"), key_of(session="other")
    first = create(key_of(session="sub-1"), parent=parent, agent_key="agent:helper:1", label="Straße", hidden=True, created_at=7)
    second = create(key_of(session="sub-2"), parent=parent, agent_key="agent:helper:2", label="two", created_at=3)
    await ledger.commit([create(parent), create(sibling), create(stranger), first, second])
    await ledger.commit([create(key_of(session="sub-3"), parent=stranger, agent_key="agent:helper:3", label="two")])
    same([row.key.session for row in await ledger.children(parent)], ["sub-1", "sub-2"])
    same(await ledger.children(sibling), [])
    for asking in (parent, sibling):
        by_key = await ledger.child_thread(asking, agent_key="agent:helper:2")
        by_label = await ledger.child_thread(asking, label="STRASSE")
        same([row and row.key.session for row in (by_key, by_label)], ["sub-2", "sub-1"])
        same(await ledger.child_thread(asking, agent_key="agent:helper:3"), None)
        same(await ledger.child_thread(asking, label="three"), None)
        same(await ledger.child_thread(asking), None)
    other_user = ThreadKey("eve", parent.session, parent.thread)
    same(await ledger.child_thread(other_user, agent_key="agent:helper:2"), None)
    same(await ledger.children(other_user), [])
    await ledger.commit([HideThread(second.row.key)])
    same(await ledger.child_thread(parent, label="two"), None)
    same([row.key.session for row in await ledger.children(parent)], ["sub-1"])


@check
async def a_label_belongs_to_one_child_of_a_session(ledger: Ledger) -> None:
    parent, sibling = key_of(), key_of("sibling")
    first = create(key_of(session="sub-1"), parent=parent, agent_key="agent:helper:1", label="Straße")
    again = create(key_of(session="sub-2"), parent=sibling, agent_key="agent:helper:2", label="STRASSE")
    await ledger.commit([create(parent), create(sibling), first, append(first.row.key, 0, "a")])
    for ops in ((again,), (again, append(again.row.key, 0, "b"))):
        await refused(ledger, "label", *ops, op=0)
    await refused(ledger, "label", append(first.row.key, 1, "void"), again)
    same(await ledger.thread(again.row.key), None)
    same(seen(await ledger.journal(first.row.key)), ["a"])
    await refused(ledger, "exists", create(first.row.key, parent=parent, label="Straße"))
    twins = [create(key_of(session=f"twin-{number}"), parent=parent, label="twin") for number in (1, 2)]
    await refused(ledger, "label", *twins)
    results = [await told(ledger.submit([twin])) for twin in twins]
    same(results, [None, "label"])
    others = [key_of(session="other"), key_of(user="eve")]
    made = [create(key_of(session=f"sub-{n}"), parent=other, label="straße") for n, other in enumerate(others, start=3)]
    blank = [create(key_of(session=f"blank-{n}"), parent=parent, label=label) for n, label in enumerate(["", "", None])]
    roots = [create(key_of(session=f"root-{n}"), label="straße") for n in (1, 2)]
    await ledger.commit([*made, *blank, *roots])
    await ledger.commit([HideThread(first.row.key), again])
    found = await ledger.child_thread(parent, label="strasse")
    same(found and found.key, again.row.key)


@check
async def runs_are_listed_newest_first_and_trees_oldest_first(ledger: Ledger) -> None:
    key, other = key_of(), key_of("other", user="ann")
    await ledger.commit([running("run_1", key), running("run_2", other, lineage=["run_1"]), running("run_3", other)])
    await ledger.commit([running("run_4", key)])
    done = run_row("run_1", key, state=RunState.COMPLETED)
    await ledger.commit([PutRun(done, (RunState.RUNNING, 1))])
    same([row.run_id for row in await ledger.runs()], ["run_4", "run_3", "run_2", "run_1"])
    same([row.run_id for row in await ledger.runs(roots_only=True, limit=2)], ["run_4", "run_3"])
    same([row.run_id for row in await ledger.runs(states=[RunState.COMPLETED, RunState.FAILED])], ["run_1"])
    same([row.run_id for row in await ledger.runs(user="ann")], ["run_3", "run_2"])
    same([row.run_id for row in await ledger.runs(user="", states=[RunState.RUNNING])], ["run_4"])
    same([row.run_id for row in await ledger.tree("run_1")], ["run_1", "run_2"])
    same(await ledger.tree("run_2"), [])
    same([(row and row.run_id) for row in (await ledger.last_run(key), await ledger.last_run(other))], ["run_4", "run_3"])
    same(await ledger.last_run(key_of("nowhere")), None)


@check
async def invocations_are_listed_by_parent_tree_and_child(ledger: Ledger) -> None:
    parent, one, two = key_of(), key_of("one"), key_of("two", user="ann")
    rows = [
        invocation_row("inv_1", parent, one),
        invocation_row("inv_2", parent, two),
        invocation_row("inv_3", one, two, parent_run="run_2"),
        invocation_row("inv_4", parent, one, parent_run="run_8", root_run="run_8"),
    ]
    await ledger.commit([PutInvocation(row) for row in rows])
    same(await ledger.invocations(parent_run="run_1"), rows[:2])
    same(await ledger.invocations(root_run="run_1"), rows[:3])
    same(await ledger.invocations(child=two), rows[1:3])
    same(await ledger.invocations(child=key_of("two")), [])
    same(await ledger.invocations(child=one, root_run="run_8"), rows[3:])
    stopping = msgspec.structs.replace(rows[1], state=InvocationState.STOPPING, owner="own_1")
    await ledger.commit([PutInvocation(stopping, (rows[1].state, rows[1].attempt))])
    same(await ledger.invocations(state=InvocationState.STOPPING), [stopping])
    same(await ledger.invocations(root_run="run_1", state=InvocationState.RUNNING), [rows[0], rows[2]])
    same(await ledger.invocation("inv_5"), None)


@check
async def tasks_are_listed_by_scope_and_tree_and_found_by_id(ledger: Ledger) -> None:
    parent, other, child = key_of("parent"), ThreadKey("ann", "ses2", "main"), key_of("child")
    await ledger.commit([create(parent), create(other), create(child, hidden=True)])
    plain = invocation_row("inv_0", parent, child)
    first = invocation_row("inv_1", parent, child, mode="background", task_id="task_1", state=InvocationState.PENDING)
    second = invocation_row("inv_2", other, child, mode="background", task_id="task_2", root_run="run_9")
    await ledger.commit([PutInvocation(row) for row in (plain, first, second)])
    same(await ledger.task("task_1"), first)
    same(await ledger.task("task_3"), None)
    same([row.task_id for row in await ledger.tasks()], ["task_2", "task_1"])
    same([row.task_id for row in await ledger.tasks(user="ann")], ["task_2"])
    same([row.task_id for row in await ledger.tasks(user="", session="ses")], ["task_1"])
    same([row.task_id for row in await ledger.tasks(root_run="run_9")], ["task_2"])
    same([row.task_id for row in await ledger.tasks(limit=1)], ["task_2"])
    ended = msgspec.structs.replace(second, state=InvocationState.COMPLETED)
    await ledger.commit([PutInvocation(ended, (InvocationState.RUNNING, 1))])
    same([row.task_id for row in await ledger.tasks(unfinished=True)], ["task_1"])
    promoted = msgspec.structs.replace(plain, mode="background", task_id="task_4")
    await ledger.commit([PutInvocation(promoted, (InvocationState.RUNNING, 1))])
    same([row.task_id for row in await ledger.tasks(unfinished=True)], ["task_1", "task_4"])
    same(await ledger.task("task_4"), promoted)


@check
async def news_are_stops_of_the_runs_that_are_named_and_letters_since_a_cursor(ledger: Ledger) -> None:
    one, two = key_of("one"), key_of("two")
    await ledger.commit([create(one), create(two), running("run_1", one), running("run_2", two)])
    news = await ledger.news(["run_1", "run_2"])
    same((len(news.stops), len(news.mail)), (0, 0))
    await ledger.commit([RequestCancel("run_2", "enough", "ann", 1), PutMail(one, mail("m1"))])
    later = await ledger.news(["run_1", "run_2"], since=news.cursor)
    same((later.stops, later.mail), ({"run_2": "enough"}, (one,)))
    same((await ledger.news(["run_1"])).stops, {})
    same((await ledger.news([])).stops, {})
    await ledger.commit([TakeMail(one, "m1"), PutMail(two, mail("m2"))])
    same((await ledger.news([], since=later.cursor)).mail, (two,))


@check
async def requests_are_listed_by_tree_root_and_scope(ledger: Ledger) -> None:
    main, other, foreign = key_of(), key_of("other"), key_of(user="ann")
    rows = [
        request_row("req_1", main, key=other),
        request_row("req_2", other, root_run="run_2"),
        request_row("req_3", foreign, root_run="run_3"),
        request_row("req_4", main, state=RequestState.EXPIRED),
    ]
    await ledger.commit([PutRequest(row) for row in rows])
    same(await ledger.requests(root_run="run_1"), [rows[0], rows[3]])
    same(await ledger.requests(root=main), [rows[0], rows[3]])
    same(await ledger.requests(root=main, state=RequestState.OPEN), rows[:1])
    same(await ledger.requests(user="", session="ses"), [rows[0], rows[1], rows[3]])
    same(await ledger.requests(user="ann"), rows[2:3])
    same(await ledger.requests(), rows)
    same(await ledger.request("req_5"), None)


@check
async def tenants_are_apart(ledger: Ledger) -> None:
    ann, bob, session = key_of(user="ann"), key_of(user="bob"), key_of(user="ann", session="ses2")
    await ledger.commit([create(ann), create(bob), create(session), append(ann, 0, "secret of ann")])
    await ledger.commit([PutMail(ann, mail("m1")), PutState("ann", "ses", "allowed", msgspec.Raw(b"true"))])
    await ledger.commit([PutMail(bob, mail("m1", "for bob"))])
    same([row.key for row in await ledger.threads(user="bob")], [bob])
    same({row.key for row in await ledger.threads(user="ann")}, {ann, session})
    same([row.key for row in await ledger.threads(user="ann", session="ses2")], [session])
    same({row.key for row in await ledger.threads(session="ses")}, {ann, bob})
    same(await ledger.threads(user=""), [])
    same(await ledger.records(bob, generation=1), [])
    same(await ledger.mail(bob), [mail("m1", "for bob")])
    same(list(await ledger.state("bob", "ses")) + list(await ledger.state("ann", "ses2")), [])
    same(await ledger.state("ann", "ses"), {"allowed": b"true"})


CHECKS = (
    threads_are_listed_newest_first,
    children_are_found_by_parent_key_and_label,
    a_label_belongs_to_one_child_of_a_session,
    runs_are_listed_newest_first_and_trees_oldest_first,
    invocations_are_listed_by_parent_tree_and_child,
    tasks_are_listed_by_scope_and_tree_and_found_by_id,
    news_are_stops_of_the_runs_that_are_named_and_letters_since_a_cursor,
    requests_are_listed_by_tree_root_and_scope,
    tenants_are_apart,
)
