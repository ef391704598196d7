"""Where a Session's model is served: `x_agents_core.model_provider`, complete or absent."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .checked import Checked, unknown_value
from .errors import invalid

PROTOCOLS = ("responses", "anthropic", "chat_completions")


@dataclass(frozen=True)
class ModelProvider:
    """A model's endpoint. The key never leaves this process in an answer, a log or a sandbox."""

    protocol: str
    base_url: str
    api_key: str = field(repr=False)
    context_window: int | None = None
    max_output_tokens: int | None = None


def read_model_provider(extension: Checked, protocols: Sequence[str]) -> ModelProvider | None:
    """`model_provider` of the request's `x_agents_core`; `protocols` are those the harness speaks (none: any)."""
    if extension.get("model_provider") is None:
        return None
    known = ("protocol", "base_url", "api_key", "context_window", "max_output_tokens")
    provider = extension.object("model_provider", known)
    protocol = provider.required_text("protocol")
    choices = tuple(protocols) or PROTOCOLS
    if protocol not in choices:
        raise unknown_value(provider.at("protocol"), protocol, choices)
    api_key = provider.required_text("api_key")
    if not api_key.strip() or not api_key.isascii() or not api_key.isprintable() or len(api_key) > 16384:
        raise invalid(
            "The model's key is empty, too long or holds characters that no header can.", provider.at("api_key")
        )
    return ModelProvider(
        protocol=protocol,
        base_url=_read_base_url(provider),
        api_key=api_key,
        context_window=provider.positive("context_window"),
        max_output_tokens=provider.positive("max_output_tokens"),
    )


def _read_base_url(provider: Checked) -> str:
    value = provider.required_text("base_url")
    param = provider.at("base_url")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise invalid(f"'{param}' must be a URL in plain ASCII: escape what is not.", param)
    try:
        url = urlsplit(value)
        host = url.hostname
        url.port  # noqa: B018  (reading it checks it)
    except ValueError as error:
        raise invalid(f"'{param}' is no URL: {error}.", param) from None
    if not host or url.scheme not in ("http", "https"):
        raise invalid(f"'{param}' must be an https URL.", param)
    if url.scheme == "http" and not _is_loopback(host):
        raise invalid(f"'{param}' must be https: http is accepted towards this machine's loopback alone.", param)
    if url.username is not None or url.password is not None or "?" in value or "#" in value:
        raise invalid(f"'{param}' must not carry credentials, a query or a fragment.", param)
    return value


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
