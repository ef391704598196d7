"""Where a Session's model is served, as `x_agents_core.model_provider` of its creation says."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class ModelProvider:
    """A model's endpoint. The key never leaves this process in a response, a log or a sandbox."""

    protocol: str
    base_url: str
    api_key: str = field(repr=False)
    context_window: int | None = None
    max_output_tokens: int | None = None


def check_base_url(value: str) -> str | None:
    """Return what is wrong with a model's base URL, or None."""
    if not value.isascii() or not value.isprintable() or " " in value:
        return "expected a URL in printable ASCII; escape other characters"
    try:
        url = urlsplit(value)
        host = url.hostname
        url.port  # noqa: B018  (reading it checks it)
    except ValueError:
        return "invalid URL"
    if not host or url.scheme not in ("http", "https"):
        return "expected an https URL"
    if url.scheme == "http" and not _is_loopback(host):
        return "expected https; http is only accepted for this machine's loopback"
    if url.username is not None or url.password is not None or "?" in value or "#" in value:
        return "must not contain credentials, a query or a fragment"
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
