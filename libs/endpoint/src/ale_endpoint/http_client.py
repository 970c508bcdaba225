"""The HTTP client that asks upstreams, with as many connections as there are calls at once.

It is aiohttp's, whose pool finds an idle connection without looking at the others: with many agents at once, a pool
that asks each of its connections whether it is still open costs more than the calls themselves."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi

from ale.errors import ConfigError

CONNECT_S = 15.0
"""How long a new connection may take."""
IDLE_S = 30.0
"""How long an idle connection is kept."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def open_client() -> aiohttp.ClientSession:
    """Open a client without a time-out but that of the connection, without cookies, and without any user's password.

    It trusts the certificates of this machine and those of `certifi`, since small images have none."""
    trusted = ssl.create_default_context()
    trusted.load_verify_locations(certifi.where())
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=trusted, keepalive_timeout=IDLE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "ale"},
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
    )


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL; never one for what runs on this machine. Raises `ConfigError`
    for a proxy of another kind than HTTP."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOOPBACK or proxy_bypass(host):
        return None
    proxies = getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if named is None:
        return None
    proxy = named if "://" in named else f"http://{named}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigError(
            f"The proxy that the environment names for {host} is no HTTP proxy (it begins with "
            f"{urlsplit(proxy).scheme}://); set {parts.scheme.upper()}_PROXY to one, or NO_PROXY to {host}."
        )
    return proxy
