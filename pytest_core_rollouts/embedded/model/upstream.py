"""Where a model is served, and what a request from a sandbox becomes on its way there."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import unquote_to_bytes, urlsplit

from pytest_core_rollouts.embedded.model_provider import ModelProvider

CONNECT_S = 30.0

Header = tuple[bytes, bytes]

_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
# Ours to say: who is asked, how the body is framed, and that replies come readable.
_OURS = {b"host", b"expect", b"content-length", b"accept-encoding"}


class RefusedTarget(Exception):
    """A request that leads out of the model's base URL; str: why."""


@dataclass(frozen=True)
class Upstream:
    """A base URL in parts. `path` has no slash at its end."""

    host: str
    port: int
    secure: bool
    authority: bytes
    path: bytes
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, provider: ModelProvider) -> Upstream:
        url = urlsplit(provider.base_url)
        assert url.hostname is not None, "read_model_provider refuses a URL without a host"
        secure = url.scheme == "https"
        return cls(
            host=url.hostname,
            port=url.port or (443 if secure else 80),
            secure=secure,
            authority=url.netloc.encode("ascii"),
            path=url.path.rstrip("/").encode("ascii"),
            key=provider.api_key.encode(),
        )

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{'https' if self.secure else 'http'}://{self.authority.decode()}"

    def target(self, inside: bytes) -> bytes:
        """The target of a request, below the base URL. Raises RefusedTarget."""
        path = inside.partition(b"?")[0]
        if not path.startswith(b"/"):
            raise RefusedTarget("only paths of the model's API can be asked for")
        for _ in range(3):  # servers differ in how often they decode
            if any(part in (b".", b"..") for part in path.replace(b"\\", b"/").split(b"/")) or b"\0" in path:
                raise RefusedTarget("the path leads out of the model's API")
            path = unquote_to_bytes(path)
        if self.path.endswith(b"/v1") and inside.startswith(b"/v1/"):
            inside = inside[3:]  # a base URL of the Messages protocol is given with and without it
        return self.path + inside

    def request_headers(self, given: Iterable[Header]) -> list[Header]:
        """Headers without hop-by-hop ones, with the key where the sandbox put its dummy."""
        headers = end_to_end(given, _OURS)
        keys = {b"authorization": b"Bearer " + self.key, b"x-api-key": self.key, b"api-key": self.key}
        real = [(name, keys.get(name, value)) for name, value in headers]
        return [(b"host", self.authority), (b"accept-encoding", b"identity"), (b"connection", b"close"), *real]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, its certificate checked. Raises OSError (ssl's errors are such), asyncio.TimeoutError."""
        connecting = asyncio.open_connection(
            self.host,
            self.port,
            ssl=tls() if self.secure else None,
            server_hostname=self.host if self.secure else None,
            limit=1 << 18,
        )
        return await asyncio.wait_for(connecting, CONNECT_S)


def end_to_end(headers: Iterable[Header], dropped: Iterable[bytes] = ()) -> list[Header]:
    """Headers (names in lower case) without those that concern one connection alone."""
    headers = list(headers)
    named = {
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",") if name
    }
    out = _HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in headers if name not in out]


@cache
def tls() -> ssl.SSLContext:
    """Certificates as OpenSSL finds them ($SSL_CERT_FILE, $SSL_CERT_DIR, the system's), else certifi's."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or (paths.capath and any(os.scandir(paths.capath)))):
        import certifi  # comes with httpx

        context.load_verify_locations(certifi.where())
    return context
