"""Where the Core is, and whether a proxy stands before it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit, urlunsplit

__all__ = ["is_loopback", "is_secure", "normalize_base_url", "proxy_for", "shown_proxy"]


def normalize_base_url(url: str) -> str:
    """The URL that every route is appended to: no slash at its end, `/v1` where it names no path.

    Raises ValueError, with what to do, for anything but an http(s) URL of host, port and path.
    """
    try:
        parts = urlsplit(url.strip())
    except ValueError as error:
        raise ValueError(f"base URL {_safe(url)!r}: {error}; expected http(s)://host[:port]/v1") from None
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"base URL {_safe(url)!r}: the port is no number between 0 and 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base URL {_safe(url)!r}: expected http(s)://host[:port]/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"base URL {_safe(url)!r}: leave the credentials out; the key belongs into OPENAI_API_KEY")
    if parts.query or parts.fragment:
        raise ValueError(f"base URL {_safe(url)!r}: leave out everything from the '?' or '#' on")
    if re.search(r"[\x00-\x20\x7f]", parts.netloc + parts.path):
        raise ValueError(f"base URL {_safe(url)!r}: it holds a space or a control character")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    path = re.sub("/+", "/", parts.path).rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, netloc, path, "", ""))


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, without brackets) is this very machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_secure(base_url: str) -> bool:
    """Whether a key may go there: by https, or to this very machine."""
    parts = urlsplit(base_url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def proxy_for(base_url: str) -> str | None:
    """URL of the proxy that the environment asks for (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), if any.

    There is none for this machine itself: a proxy could not reach a Core on our loopback.
    """
    import urllib.request  # it imports an HTTP client

    parts = urlsplit(base_url)
    if is_loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def shown_proxy(proxy: str) -> str:
    """`proxy` without its credentials, for messages."""
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _safe(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url.strip())[:200]
