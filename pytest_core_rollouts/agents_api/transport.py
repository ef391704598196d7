"""One try of one call over HTTP. With `direct` and `network` the only module that knows an HTTP library.

Requests go past httpx's layers (URLs, redirects, cookies, authentication), which cost CPU and do nothing that we want:
straight to the server by `direct`, or by httpcore, which is what httpx itself sends them with, through a proxy. httpx
reads the base URL and finds the certificate authorities, once.
"""

from __future__ import annotations

import functools
import importlib.util
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import httpx

from .address import proxy_for, shown_proxy
from .direct import DirectConnections
from .errors import AgentsAPIError, ConnectionFailed, DeadlinePassed, InvalidResponse, StreamLost, TooLarge, printable
from .network import AsyncioNetwork
from .responses import ERROR_LIMIT, Call, Reply, refusal
from .retry import RetryPolicy
from .timelimit import TimeLimit

__all__ = ["Transport"]

KEEPALIVE = 30.0
"""Seconds for which an idle connection is kept."""

_BROKEN = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)
"""Whatever ends an exchange before its answer is whole."""


class Transport:
    """Two connections to one server: one for calls, one for an event stream."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        policy: Callable[[], RetryPolicy],
        max_bytes: int,
        proven: Callable[[], bool],
    ) -> None:
        self.base_url = base_url
        self.has_answered = False
        self._proven = proven
        self._policy = policy
        self._max_bytes = max_bytes
        self._key = api_key
        self._url = httpx.URL(base_url)
        self._headers = [
            (b"Host", self._url.netloc),
            (b"Authorization", f"Bearer {api_key}".encode()),
            (b"OpenAI-Beta", b"agents=v1"),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", b"pytest-core-rollouts"),
        ]
        proxy = proxy_for(base_url)
        self._via = f" through the proxy {shown_proxy(proxy)} that the environment names" if proxy else ""
        self._http = _open(proxy, tls=base_url.startswith("https:"))

    @property
    def is_proven(self) -> bool:
        """Whether this server has answered as a Core does, here or to others."""
        return self.has_answered or self._proven()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call, deadline: float | None) -> Reply:
        """One try; returns the whole, successful answer. Raises AgentsAPIError.

        Neither the server's pace nor the size of its answer can hold us: a try ends after the policy's `try_timeout`
        or at `deadline`, and a body over its cap is given up.
        """
        async with self._faults_named(call, deadline):
            response = await self._http.handle_async_request(self._request(call, self._policy().read_timeout))
            try:
                headers = _headers(response)
                body = await self._body(call, response, headers)
            finally:
                await response.aclose()
        return self._judged(call, Reply(response.status, headers, body))

    @asynccontextmanager
    async def stream(
        self, call: Call, deadline: float | None
    ) -> AsyncIterator[tuple[str | None, AsyncGenerator[bytes, None]]]:
        """Opens an event stream, in one try: its request id, and the chunks that arrive.

        Raises AgentsAPIError, StreamLost once it is open.
        """
        async with self._faults_named(call, deadline):
            response = await self._http.handle_async_request(self._request(call, self._policy().stream_silence))
        try:
            headers = _headers(response)
            kind = headers.get("content-type", "")
            if response.status != 200 or not kind.startswith("text/event-stream"):
                async with self._faults_named(call, deadline):
                    body = await self._body(call, response, headers)
                reply = self._judged(call, Reply(response.status, headers, body))
                problem = f"HTTP {reply.status}, but no event stream: {printable(kind, 60) or 'no stated type'}"
                raise _unwanted(InvalidResponse, call, headers, problem)
            yield Reply(200, headers, b"").request_id, self._chunks(call, response)
        finally:
            await response.aclose()

    async def _chunks(self, call: Call, response: httpcore.Response) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.aiter_stream():
                yield chunk
        except httpcore.ReadTimeout:
            problem = f"the event stream was silent for {self._policy().stream_silence:g} s"
        except _BROKEN as error:
            problem = f"the event stream broke off ({_cause(error)})"
        else:
            return
        raise StreamLost(problem, method=call.method, path=call.path) from None

    def _request(self, call: Call, read_timeout: float) -> httpcore.Request:
        headers = [*self._headers, (b"Accept", call.accept.encode())]
        if call.body is not None:
            headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(call.body))]
        if call.idempotency_key is not None:
            headers.append((b"Idempotency-Key", call.idempotency_key.encode()))
        policy = self._policy()
        timeouts = {
            "connect": policy.connect_timeout,
            "pool": policy.connect_timeout,
            "read": read_timeout,
            "write": policy.read_timeout,
        }
        url = httpcore.URL(
            scheme=self._url.raw_scheme,
            host=self._url.raw_host,
            port=self._url.port,
            target=self._url.raw_path + call.path.encode(),
        )
        extensions = {"timeout": timeouts}
        return httpcore.Request(call.method, url, headers=headers, content=call.body, extensions=extensions)

    async def _body(self, call: Call, response: httpcore.Response, headers: Mapping[str, str]) -> bytes:
        """The body within its cap. Of an error's body the beginning is enough."""
        failed = response.status >= 300
        limit = ERROR_LIMIT if failed else self._max_bytes if call.max_bytes is None else call.max_bytes
        announced = headers.get("content-length", "")
        if not failed and announced.isdecimal() and int(announced[:18]) > limit:
            raise _unwanted(TooLarge, call, headers, f"the body holds {announced[:18]} bytes, at most {limit} are read")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise _unwanted(InvalidResponse, call, headers, "the body is compressed although that was not asked for")
        parts: list[bytes] = []
        size = 0
        async for chunk in response.aiter_stream():
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                if failed:
                    break
                raise _unwanted(TooLarge, call, headers, f"the body holds more than the {limit} bytes that are read")
        return b"".join(parts)

    def _judged(self, call: Call, reply: Reply) -> Reply:
        if reply.status >= 300:
            raise refusal(call, reply, self.base_url, proven=self.is_proven, via=self._via, secret=self._key)
        return reply

    @asynccontextmanager
    async def _faults_named(self, call: Call, deadline: float | None) -> AsyncIterator[None]:
        """Limits the time of a try and turns whatever breaks it into an error that names call, server and proxy."""
        policy = self._policy()
        left = policy.try_timeout if deadline is None else min(policy.try_timeout, deadline - policy.clock())
        kind: type[ConnectionFailed] = ConnectionFailed
        advice, permanent, late = None, False, False
        if left <= 0:
            raise DeadlinePassed("not sent, since the deadline has passed", method=call.method, path=call.path)
        try:
            async with TimeLimit(left):
                yield
        except TimeoutError:
            kind, late = ConnectionFailed if left == policy.try_timeout else DeadlinePassed, True
            problem = f"no complete answer from {self.base_url} within {left:.3g} s{self._via}"
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            root = _root(error)
            untrusted = isinstance(root, ssl.SSLCertVerificationError)
            gone = policy.refused_is_final and isinstance(root, ConnectionRefusedError)
            permanent = untrusted or gone
            problem = f"cannot connect to {self.base_url}{self._via} ({_cause(error)})"
            if gone:
                advice = "its process has ended"
            elif untrusted:
                advice = "set SSL_CERT_FILE to the certificate of the authority that signed the server's"
            elif isinstance(root, ssl.SSLError):
                advice = "does the server speak https on this port?"
            elif self._via:
                advice = "is the proxy running, and meant for this server? (if not, set NO_PROXY)"
            else:
                advice = "is the Core running there?"
        except httpcore.ProxyError as error:
            problem = f"cannot reach {self.base_url}{self._via} ({_cause(error)})"
            advice = "set NO_PROXY if the Core can be reached directly"
        except _BROKEN as error:
            late = isinstance(error, httpcore.TimeoutException)
            problem = f"no complete answer from {self.base_url}{self._via} ({_cause(error)})"
        else:
            return
        # Without its cause: the frames of the HTTP library hold the key in their local variables.
        fault = kind(problem, method=call.method, path=call.path, advice=advice)
        fault.permanent, fault.late = permanent, late
        raise fault from None


def _open(proxy: str | None, *, tls: bool) -> DirectConnections | httpcore.AsyncConnectionPool:
    if proxy is None:
        return DirectConnections(_trusted() if tls else _trusting_nobody(), keepalive=KEEPALIVE)
    own: dict[str, Any] = {
        "ssl_context": _trusted(),
        "max_connections": 2,
        "max_keepalive_connections": 2,
        "keepalive_expiry": KEEPALIVE,
        "network_backend": AsyncioNetwork(),
    }
    try:
        where = httpx.URL(proxy)
    except httpx.InvalidURL:
        where = httpx.URL()
    if where.scheme not in ("http", "https", "socks5", "socks5h") or not where.host:
        raise ValueError(
            f"the environment names the proxy {shown_proxy(proxy)}: expected http://, https:// or socks5://"
        )
    url = httpcore.URL(scheme=where.raw_scheme, host=where.raw_host, port=where.port, target=b"/")
    user = (where.username.encode(), where.password.encode()) if where.userinfo else None
    if where.scheme.startswith("http"):
        encrypted = _trusted() if where.scheme == "https" else None
        return httpcore.AsyncHTTPProxy(url, proxy_auth=user, proxy_ssl_context=encrypted, **own)
    if importlib.util.find_spec("socksio") is None:
        raise ValueError(
            f"the environment names the SOCKS proxy {shown_proxy(proxy)}: install httpx[socks] or set NO_PROXY"
        )
    return httpcore.AsyncSOCKSProxy(url, proxy_auth=user, **own)


@functools.lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """One for the whole process: reading the authorities takes longer than a call. Honors SSL_CERT_FILE."""
    return httpx.create_ssl_context()


@functools.lru_cache(maxsize=1)
def _trusting_nobody() -> ssl.SSLContext:
    """For plain http, where none is used; should one ever be, every handshake fails."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _headers(response: httpcore.Response) -> dict[str, str]:
    """Headers by their names in lower case; what came several times is joined."""
    headers: dict[str, str] = {}
    for name_, value_ in response.headers:
        name, value = name_.decode("ascii").lower(), value_.decode("utf-8", "replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _unwanted(kind: type[AgentsAPIError], call: Call, headers: Mapping[str, str], problem: str) -> AgentsAPIError:
    return kind(problem, method=call.method, path=call.path, request_id=Reply(0, headers, b"").request_id)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return error


def _cause(error: Exception) -> str:
    """What broke, as far as the library says it: some of its errors are empty but for their class."""
    text = str(error) or str(_root(error))
    name = type(error).__name__
    return f"{name}: {printable(text, 200)}" if text else name
