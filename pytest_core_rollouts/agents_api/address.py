"""Where the Core is, and whether requests to it go through a proxy."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit, urlunsplit

__all__ = ["is_loopback", "normalize_base_url", "proxy_for", "require_secure_url", "without_credentials"]


def normalize_base_url(url: str) -> str:
    """Return the URL that every route is appended to: no slash at its end, `/v1` if it has no path.

    Raises ValueError, with what to do, unless it is an http(s) URL of host, port and path.
    """
    where = f"base URL {re.sub(r'//[^/@]*@', '//***@', url.strip())[:200]!r}"
    try:
        parts = urlsplit(url.strip())
    except ValueError as error:
        raise ValueError(f"{where}: {error}; expected http(s)://host[:port]/v1") from None
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{where}: the port must be a number from 0 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{where}: expected http(s)://host[:port]/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{where}: must not contain credentials; remove them and set the key in OPENAI_API_KEY")
    if parts.query or parts.fragment:
        raise ValueError(f"{where}: must not contain a query or fragment; remove everything from the '?' or '#' on")
    if re.search(r"[\x00-\x20\x7f]", parts.netloc + parts.path):
        raise ValueError(f"{where}: must not contain spaces or control characters")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    path = re.sub("/+", "/", parts.path).rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, netloc, path, "", ""))


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, without brackets) is this machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_secure_url(url: str) -> str:
    """Return the normalized URL. Raises ValueError if a key would be sent to another machine unencrypted."""
    base_url = normalize_base_url(url)
    parts = urlsplit(base_url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError(
            f"refusing to send the API key to {base_url} unencrypted; use https (http is allowed for localhost only)"
        )
    return base_url


def proxy_for(base_url: str) -> str | None:
    """Return the URL of the proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name for this URL, if any.

    Requests to this machine never use one: a proxy could not reach a Core on our loopback interface.
    """
    import urllib.request  # imports http.client, which most pytest runs don't need

    parts = urlsplit(base_url)
    if is_loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def without_credentials(proxy: str) -> str:
    """`proxy` as messages may show it."""
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
