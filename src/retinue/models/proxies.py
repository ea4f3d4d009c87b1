"""The machine's proxy for a server, as `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` say (in small letters too)."""

from urllib.parse import urlsplit

import msgspec

__all__ = ["NotAProxy", "Proxy", "proxy_for"]


class NotAProxy(ValueError):
    """A proxy is set that cannot be used. It is not passed over: it may be there for a reason."""


class Proxy(msgspec.Struct, frozen=True):
    """A proxy. `place` is where it is, without credentials; `password` is the one in its URL."""

    url: str
    place: str
    password: str | None = None


def proxy_for(url: str) -> Proxy | None:
    """The proxy for a URL. Looked up at each call, because people set it in running notebooks.

    Raises:
        NotAProxy: it is not an HTTP proxy.
    """
    from urllib.request import getproxies, proxy_bypass  # heavy, and a server on this machine needs none of it

    parts = urlsplit(url)
    found = getproxies().get(parts.scheme)
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    wanted = found if "://" in found else f"http://{found}"
    try:
        proxy = urlsplit(wanted)
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        raise NotAProxy("its proxy is not a URL") from None
    place = proxy.netloc.rpartition("@")[2]
    if not usable:
        raise NotAProxy(f"its proxy `{proxy.scheme}://{place}` is not an HTTP proxy")
    return Proxy(wanted, place, proxy.password)
