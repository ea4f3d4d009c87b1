"""Removing for good from the memory ledger's tables: a thread with all that belongs to it, and what nothing refers to."""

from collections.abc import Iterable, Set

import msgspec

from retinue.ids import made_at
from retinue.ledger import rules
from retinue.ledger.port import Collected
from retinue.ledger.tables import Tables
from retinue.rows import ThreadKey

__all__ = ["collect", "purge"]


def purge(tables: Tables, key: ThreadKey) -> int:
    """Remove a thread after copying what others refer to into them; how many records it had (M12)."""
    gone = tables.threads.get(key)
    if gone is None:
        return 0
    rules.check_purge(key, _unfinished(tables, key))
    for thread in tables.threads.values():
        while thread is not gone and (referring := [item for item in thread.bases.items() if item[1].key == key]):
            for generation, base in referring:
                thread.adopt(generation, base, gone)
    return _remove(tables, key)


def collect(tables: Tables, now: int, grace_ms: int, dry_run: bool) -> Collected:
    """See `Ledger.collect`. There is nobody to make way for."""
    leaving = _leaving(tables)
    records = sum(len(segment) for key in leaving for segment in tables.threads[key].segments.values())
    if dry_run:
        unused = tables.blobs.keys() - _referred(tables, leaving)
        size = sum(len(tables.blobs[digest]) for digest in unused)
        return Collected(threads=len(leaving), records=records, blobs=len(unused), blob_bytes=size)
    for key in leaving:
        _remove(tables, key)
    until = now - grace_ms
    blobs = _collect_blobs(tables, tables.blobs.keys() - _referred(tables, set()), now, until)
    return blobs + Collected(
        threads=len(leaving), records=records, drafts=_drop_drafts(tables, until), mail=_drop_mail(tables, until)
    )


def _unfinished(tables: Tables, key: ThreadKey) -> str | None:
    """The first unfinished run of any tree that the thread takes part in."""
    roots = {tables.runs[run_id].root for run_id in tables.runs_on.get(key, ())}
    if not roots:
        return None
    return next((row.run_id for row in tables.runs.values() if row.state in rules.UNFINISHED and row.root in roots), None)


def _remove(tables: Tables, key: ThreadKey) -> int:
    """The thread, and every row that is about it."""
    gone = tables.threads.pop(key)
    runs = [tables.runs.pop(run_id) for run_id in tables.runs_on.pop(key, [])]
    ids, roots = {row.run_id for row in runs}, {row.root for row in runs}
    for row in runs:
        tables.cancels.pop(row.run_id, None)
        tables.spends.get(row.root, {}).pop(row.run_id, None)
        tables.runs_under[row.root].remove(row.run_id)
    for row in [row for row in tables.invocations.values() if row.parent_run in ids or row.child == key]:
        del tables.invocations[row.invocation_id]
    for row in [row for row in tables.requests.values() if row.root_run in roots and row.key == key]:
        del tables.requests[row.request_id]
    if not any(other[:2] == key[:2] for other in tables.threads):
        tables.states.pop(key[:2], None)
    return sum(map(len, gone.segments.values()))


def _leaving(tables: Tables) -> set[ThreadKey]:
    threads = tables.threads.items()
    kept = [(key, not thread.deleted or _unfinished(tables, key) is not None) for key, thread in threads]
    bases = [(key, base.key) for key, thread in threads for base in thread.bases.values()]
    return rules.collectable(kept, bases)


def _referred(tables: Tables, leaving: set[ThreadKey]) -> set[str]:
    """Every hash that stands anywhere but in what is leaving."""
    used: set[str] = set()
    for key, thread in tables.threads.items():
        if key in leaving:
            continue
        for segment in thread.segments.values():
            for record in segment:
                used.update(rules.references(record.body))
        used.update(digest for mail in thread.mail.values() if mail is not None for digest in rules.references(bytes(mail.body)))
    rows: Iterable[object] = (*tables.runs.values(), *tables.invocations.values(), *tables.requests.values())
    for row in rows:
        used.update(rules.references(msgspec.json.encode(row)))
    for values in tables.states.values():
        for value in values.values():
            used.update(rules.references(value))
    return used


def _collect_blobs(tables: Tables, unused: Set[str], now: int, until: int) -> Collected:
    at = now if tables.owners else until
    tables.condemned = {digest: min(at, tables.condemned.get(digest, at)) for digest in tables.blobs if digest in unused}
    gone = [digest for digest, since in tables.condemned.items() if since <= until]
    size = 0
    for digest in gone:
        size += len(tables.blobs.pop(digest))
        del tables.condemned[digest]
    return Collected(blobs=len(gone), blob_bytes=size, condemned=len(tables.condemned))


def _drop_drafts(tables: Tables, until: int) -> int:
    count = 0
    for key, thread in tables.threads.items():
        old = [name for name, draft in thread.drafts.items() if draft.at <= until]
        if old and not _at_work(tables, key):
            thread.drafts = {name: draft for name, draft in thread.drafts.items() if name not in old}
            count += len(old)
    return count


def _drop_mail(tables: Tables, until: int) -> int:
    count = 0
    for key, thread in tables.threads.items():
        taken = [mail_id for mail_id, mail in thread.mail.items() if mail is None]
        old = [mail_id for mail_id in taken if (made := made_at(mail_id)) is not None and made <= until]
        if old and not _at_work(tables, key):
            for mail_id in old:
                del thread.mail[mail_id]
            count += len(old)
    return count


def _at_work(tables: Tables, key: ThreadKey) -> bool:
    return any(tables.runs[run_id].state in rules.UNFINISHED for run_id in tables.runs_on.get(key, ()))
