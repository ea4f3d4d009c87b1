"""The open connections of a model: one pool for an event loop, made at the first call in it, with its watch over silence and its
gate for the provider's limit."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from retinue.clock import Clock
from retinue.models.idle import IdleWatches
from retinue.models.rate_gate import RateGate

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Connections", "Pool"]


class Pool(NamedTuple):
    """What belongs to one event loop."""

    session: "aiohttp.ClientSession"
    watches: IdleWatches
    gate: RateGate

    async def close(self) -> None:
        """Close the connections."""
        await self.watches.close()
        await self.session.close()


class Connections:
    """The pools of a model.

    Args:
        limit: Connections open at once, in each pool.
        connect_timeout: Seconds for making one.
        idle_timeout: Seconds in an exchange without a byte, by `clock`.
        keep_alive_timeout: Seconds in an exchange in which nothing of the answer comes.
        clock: For the idle time.
    """

    def __init__(
        self, *, limit: int, connect_timeout: float, idle_timeout: float, keep_alive_timeout: float, clock: Clock
    ) -> None:
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._keep_alive_timeout = keep_alive_timeout
        self._clock = clock
        self.pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    def here(self) -> Pool:
        """The pool of the running loop. What loops that are over have left open is let go."""
        loop = asyncio.get_running_loop()
        pool = self.pools.get(loop)
        if pool is None or pool.session.closed:
            self._let_go()
            watches = IdleWatches(self._clock, self._idle_timeout, self._keep_alive_timeout)
            pool = self.pools[loop] = Pool(self._session(), watches, RateGate(self._clock))
        return pool

    async def close(self) -> None:
        """Close the pool of the running loop, and let go what loops that are over have left open.

        That of another loop stays: a call there may be using it, and to wait for that loop may be to wait for ever. A call
        afterwards opens a new pool.
        """
        pool = self.pools.pop(asyncio.get_running_loop(), None)
        self._let_go()
        if pool is not None:
            await pool.close()

    def _let_go(self) -> None:
        for other in list(self.pools):
            if other.is_closed() and (pool := self.pools.pop(other, None)) is not None:
                pool.session.detach()  # nobody can close it any more; its sockets go with it

    def _session(self) -> "aiohttp.ClientSession":
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limit),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            # No `trust_env`: it would also send what ~/.netrc holds. The machine's proxies are looked up in `proxies`.
        )
