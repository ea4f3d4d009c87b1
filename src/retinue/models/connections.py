"""The open connections of a model: one pool for an event loop, made at the first call in it, with its watch over silence."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from retinue.clock import Clock
from retinue.models.idle import IdleWatches

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Connections", "Pool"]


class Pool(NamedTuple):
    """What belongs to one event loop."""

    session: "aiohttp.ClientSession"
    watches: IdleWatches

    async def close(self) -> None:
        """Close the connections."""
        await self.watches.close()
        await self.session.close()


class Connections:
    """The pools of a model.

    Args:
        limit: Connections open at once, in each pool.
        connect_timeout: Seconds for making one.
        idle_timeout: Seconds of silence in an exchange, by `clock`.
        clock: For the idle time.
    """

    def __init__(self, *, limit: int, connect_timeout: float, idle_timeout: float, clock: Clock) -> None:
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._clock = clock
        self.pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    def here(self) -> Pool:
        """The pool of the running loop. What loops that are over have left open is let go."""
        loop = asyncio.get_running_loop()
        pool = self.pools.get(loop)
        if pool is None or pool.session.closed:
            for other in [other for other in self.pools if other.is_closed()]:
                self.pools.pop(other).session.detach()
            pool = self.pools[loop] = Pool(self._session(), IdleWatches(self._clock, self._idle_timeout))
        return pool

    async def close(self) -> None:
        """Close all pools. A call afterwards opens a new one."""
        here = asyncio.get_running_loop()
        pools, self.pools = self.pools, {}
        for loop, pool in pools.items():
            if loop is here:
                await pool.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop))
            else:
                pool.session.detach()  # nobody can close it any more; its sockets go with it

    def _session(self) -> "aiohttp.ClientSession":
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limit),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            # No `trust_env`: it would also send what ~/.netrc holds. The machine's proxies are looked up in `proxies`.
        )
