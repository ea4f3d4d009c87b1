"""A collection: what nothing refers to is looked for in a snapshot of its own, then removed by many small jobs of the writer."""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from retinue.ledger import rules
from retinue.ledger.port import Collected, Outcome
from retinue.ledger.sqlite import removal
from retinue.ledger.sqlite.worker import Job
from retinue.ledger.sqlite.writer import Writer

__all__ = ["Collection", "Look", "Looker"]

_T = TypeVar("_T")
_BODIES: Final = (
    "SELECT body FROM event",
    "SELECT body FROM run",
    "SELECT body FROM invocation",
    "SELECT body FROM request",
    "SELECT body FROM mail WHERE body IS NOT NULL",
    "SELECT value FROM state",
)


class Look:
    """What a snapshot says: deleted threads that nothing needs, and blobs by whether anything refers to them."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.records = 0
        self.unused: dict[str, int] = {}
        self.used: list[str] = []


class Looker:
    """The role of the thread that looks (see `worker.Role`): one long read, which keeps nobody from writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def start(self) -> None:
        """Open a connection that only reads."""
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._db.execute("PRAGMA query_only = ON")

    def handle(self, jobs: list[Job[Look]]) -> None:
        """Look."""
        for job in jobs:
            try:
                job.result = job.work()
            except Exception as error:  # noqa: BLE001 (it belongs to who asked)
                job.error = error

    def stop(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()

    def threads(self) -> Look:
        """Which deleted threads nothing needs."""
        assert self._db is not None
        execute, look = self._db.execute, Look()
        execute("BEGIN")
        threads = execute("SELECT id, deleted = 0 FROM thread").fetchall()
        if not all(wanted for _, wanted in threads):
            bases = execute("SELECT thread_id, base_id FROM fork").fetchall()
            look.threads = sorted(rules.collectable(threads, bases))
        for thread_id in look.threads:
            look.records += execute("SELECT count(*) FROM event WHERE thread_id = ?", (thread_id,)).fetchone()[0]
        execute("COMMIT")
        return look

    def digests(self) -> Look:
        """All blobs there are."""
        assert self._db is not None
        look = Look()
        look.unused = dict(self._db.execute("SELECT digest, 0 FROM blob").fetchall())
        return look

    def blobs(self, leaving: frozenset[int] = frozenset()) -> Look:
        """Which blobs are referred to. What only threads refer to that are `leaving` counts as unused."""
        assert self._db is not None
        execute, look = self._db.execute, Look()
        execute("BEGIN")
        blobs: dict[str, int] = dict(execute("SELECT digest, length(data) FROM blob").fetchall())
        used: set[str] = set()
        if blobs:
            for sql in _BODIES:
                for (body,) in execute(f"{sql}{_but(leaving) if sql is _BODIES[0] else ''}"):
                    if len(body) >= 64:
                        used.update(digest for digest in rules.references(body) if digest in blobs)
        look.used = [
            digest for (digest,) in execute("SELECT digest FROM condemned").fetchall() if digest in used or digest not in blobs
        ]
        look.unused = {digest: size for digest, size in blobs.items() if digest not in used}
        execute("COMMIT")
        return look


def _but(threads: frozenset[int]) -> str:
    return f" WHERE thread_id NOT IN ({', '.join(map(str, threads))})" if threads else ""


class Collection:
    """One collection, with the sums so far. `look` and `write` carry a job out in the looker's and the writer's thread."""

    def __init__(
        self,
        writer: Writer,
        looker: Looker,
        *,
        look: Callable[[Callable[[], Look]], Outcome[Look]],
        write: Callable[[Callable[[], object]], Outcome[object]],
        now: int,
        grace_ms: int,
        progress: Callable[[Collected], None] | None,
    ) -> None:
        self._writer = writer
        self._looker = looker
        self._look = look
        self._submit = write
        self._now = now
        self._grace_ms = grace_ms
        self._progress = progress
        self._sum = Collected()

    async def count(self) -> Collected:
        """What would be removed if nobody else were at work."""
        threads = await self._look(self._looker.threads)
        blobs = await self._look(partial(self._looker.blobs, frozenset(threads.threads)))
        return Collected(
            threads=len(threads.threads),
            records=threads.records,
            blobs=len(blobs.unused),
            blob_bytes=sum(blobs.unused.values()),
        )

    async def collect(self) -> Collected:
        """Remove it."""
        await self._threads()
        await self._blobs()
        until = self._now - self._grace_ms
        while drafts := await self._write(removal.drop_drafts, until):
            self._add(Collected(drafts=drafts))
        after: int | None = 0
        while after is not None:
            mail, after = await self._write(removal.drop_mail, until, after)
            self._add(Collected(mail=mail))
        self._add(Collected(owners=await self._write(removal.drop_owners, self._writer.locks)))
        return self._sum

    async def _threads(self) -> None:
        look = await self._look(self._looker.threads)
        for thread_id in await self._write(removal.mark, look.threads):
            gone = False
            while not gone:
                gone, records = await self._write(removal.remove_some, thread_id)
                self._add(Collected(records=records, threads=int(gone)))

    async def _blobs(self) -> None:
        """All blobs are condemned before the look: putting one from then on spares it, what came before is seen."""
        for some in _chunks(list((await self._look(self._looker.digests)).unused)):
            await self._write(removal.condemn, self._writer.locks, some, self._now, self._grace_ms)
        look = await self._look(self._looker.blobs)
        for some in _chunks(look.used):
            await self._write(removal.spare, some)
        for some in _chunks(list(look.unused)):
            count, size, stay = await self._write(removal.sweep, some, self._now - self._grace_ms)
            self._add(Collected(blobs=count, blob_bytes=size, condemned=stay))

    async def _write(self, work: Callable[..., _T], *values: object) -> _T:
        done: object = await self._submit(partial(self._writer.remove, work, *values))
        return done  # type: ignore[return-value]

    def _add(self, more: Collected) -> None:
        self._sum = self._sum + more
        if self._progress is not None and more != Collected():
            self._progress(self._sum)


def _chunks(items: list[str]) -> list[list[str]]:
    return [items[start : start + removal.SOME] for start in range(0, len(items), removal.SOME)]
