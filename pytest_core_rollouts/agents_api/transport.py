"""One try of one call, over an httpx transport.

The only module that imports httpx, which costs 90 ms and 14 MB, so it is imported when the first Client is made.

Requests go straight to a transport.
`httpx.AsyncClient` adds redirects, cookies and authentication, none of which may happen here, and a third of the CPU.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

import anyio  # httpx is built on it
import httpx

from .address import proxy_for, without_credentials
from .errors import ConnectionFailed, DeadlinePassed, InvalidResponse, StreamLost, TooLarge, short_line
from .responses import ERROR_LIMIT, Call, Reply, refusal
from .retry import RetryPolicy

__all__ = ["Transport"]

KEEPALIVE = 30.0
"""Seconds for which an idle connection is kept."""


class Transport:
    """Sends requests to one server, and turns everything that can go wrong into an AgentsAPIError.

    `http` sends them; by default, a new `httpx.AsyncHTTPTransport`. One per client: it looks through all its
    connections for each request, so sharing one between many clients costs more than it saves.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        policy: Callable[[], RetryPolicy],
        max_bytes: int,
        proven: Callable[[], bool],
        http: httpx.AsyncBaseTransport | None = None,
        *,
        permissions: Sequence[str] = (),
    ) -> None:
        self.base_url = base_url
        self.has_answered = False
        self._proven = proven
        self._policy = policy
        self._max_bytes = max_bytes
        self._key = api_key
        self._permissions = permissions
        try:
            host = httpx.URL(base_url).netloc.decode("ascii")
        except httpx.InvalidURL as error:
            raise ValueError(f"base URL {base_url!r}: {error}") from None
        self._headers = {
            "Host": host,
            "Authorization": f"Bearer {api_key}",
            "OpenAI-Beta": "agents=v1",
            "Accept-Encoding": "identity",
            "User-Agent": "pytest-core-rollouts",
        }
        proxy = proxy_for(base_url) if http is None else None
        self._via = f" through the proxy {without_credentials(proxy)} from the environment" if proxy else ""
        self._http = _open(proxy) if http is None else http

    @property
    def is_proven(self) -> bool:
        """Whether this server has answered as a Core does, to this client or to others."""
        return self.has_answered or self._proven()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(self, call: Call, deadline: float | None) -> Reply:
        """Make one try and return the complete, successful answer. Raises AgentsAPIError.

        A slow or endless answer can't hold the caller: a try ends after the policy's `try_timeout` or at `deadline`,
        and a body over its limit is not read to its end.
        """
        async with self._translate_errors(call, deadline):
            response = await self._http.handle_async_request(self._request(call, self._policy().read_timeout))
            try:
                body = await self._read_body(call, response)
            finally:
                await response.aclose()
        return self._successful(call, Reply(response.status_code, response.headers, body))

    @asynccontextmanager
    async def stream(
        self, call: Call, deadline: float | None
    ) -> AsyncIterator[tuple[str | None, AsyncGenerator[bytes, None]]]:
        """Open an event stream, in one try: yields its request id and the chunks that arrive.

        Raises AgentsAPIError; once the stream is open, StreamLost.
        """
        async with self._translate_errors(call, deadline):
            response = await self._http.handle_async_request(self._request(call, self._policy().stream_silence))
        try:
            reply = Reply(response.status_code, response.headers, b"")
            content_type = reply.headers.get("content-type", "")
            if reply.status != 200 or not content_type.startswith("text/event-stream"):
                async with self._translate_errors(call, deadline):
                    body = await self._read_body(call, response)
                self._successful(call, Reply(reply.status, reply.headers, body))
                got = short_line(content_type, 60) or "no content type"
                problem = f"HTTP {reply.status}: expected an event stream, got {got}"
                raise call.fault(InvalidResponse, problem, reply.request_id)
            yield reply.request_id, self._chunks(call, response)
        finally:
            await response.aclose()

    async def _chunks(self, call: Call, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(_raw_chunks(response)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpx.ReadTimeout:
            problem = f"the event stream was silent for {self._policy().stream_silence:g} s"
        except (httpx.TransportError, OSError) as error:
            problem = f"the event stream broke off ({_reason(error)})"
        else:
            return
        raise call.fault(StreamLost, problem) from None

    def _request(self, call: Call, read_timeout: float) -> httpx.Request:
        headers = self._headers | {"Accept": call.accept}
        if call.method != "GET":
            headers["Content-Length"] = str(len(call.body or b""))
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        policy = self._policy()
        timeouts = {
            "connect": policy.connect_timeout,
            "pool": policy.connect_timeout,
            "read": read_timeout,
            "write": policy.read_timeout,
        }
        # With `stream`, httpx does not add its headers, which takes half of the time of making a request.
        stream = httpx.ByteStream(call.body or b"")
        url = self.base_url + call.path
        return httpx.Request(call.method, url, headers=headers, stream=stream, extensions={"timeout": timeouts})

    async def _read_body(self, call: Call, response: httpx.Response) -> bytes:
        """Read the body up to its limit. Of an error's body the beginning is enough."""
        reply = Reply(response.status_code, response.headers, b"")
        limit = ERROR_LIMIT if reply.failed else self._max_bytes if call.max_bytes is None else call.max_bytes
        announced = reply.headers.get("content-length", "")
        if not reply.failed and announced.isdecimal() and int(announced[:18]) > limit:
            problem = f"the body has {announced[:18]} bytes; at most {limit} are read"
            raise call.fault(TooLarge, problem, reply.request_id)
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            problem = "the body is compressed although the request did not allow it"
            raise call.fault(InvalidResponse, problem, reply.request_id)
        parts: list[bytes] = []
        size = 0
        async with aclosing(_raw_chunks(response)) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > limit and reply.failed:
                    break
                if size > limit:
                    raise call.fault(TooLarge, f"the body has more than {limit} bytes", reply.request_id)
        return b"".join(parts)

    def _successful(self, call: Call, reply: Reply) -> Reply:
        if reply.failed:
            raise refusal(
                call,
                reply,
                self.base_url,
                proven=self.is_proven,
                via=self._via,
                secret=self._key,
                permissions=self._permissions,
            )
        return reply

    @asynccontextmanager
    async def _translate_errors(self, call: Call, deadline: float | None) -> AsyncIterator[None]:
        """Limit the time of a try, and turn what ends it into an error that names call, server and proxy."""
        policy = self._policy()
        seconds, late = policy.try_timeout, ConnectionFailed
        if deadline is not None and deadline - policy.clock() < seconds:
            seconds, late = deadline - policy.clock(), DeadlinePassed
        if seconds <= 0:
            raise call.fault(DeadlinePassed, "not sent because the deadline has passed")
        try:
            with anyio.fail_after(seconds):
                yield
        except (httpx.TransportError, OSError) as error:
            # TimeoutError, which is an OSError, is raised by fail_after only: httpx has its own kinds.
            if isinstance(error, TimeoutError):
                problem = f"no complete answer from {self.base_url} within {seconds:.3g} s{self._via}"
                fault = call.fault(late, problem)
                fault.late = True
            else:
                fault = self._connection_failed(call, error)
        else:
            return
        # Without the cause: frames of httpx hold the key in their local variables.
        raise fault from None

    def _connection_failed(self, call: Call, error: Exception) -> ConnectionFailed:
        where, reason = f"{self.base_url}{self._via}", _reason(error)
        if isinstance(error, httpx.ProxyError):
            advice = "set NO_PROXY if the Core can be reached directly"
            return call.fault(ConnectionFailed, f"cannot reach {where} ({reason})", advice=advice)
        if not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            fault = call.fault(ConnectionFailed, f"no complete answer from {where} ({reason})")
            fault.late = isinstance(error, httpx.TimeoutException)
            return fault
        causes = _root_causes(error)
        untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes)
        ended = self._policy().refused_is_final and all(isinstance(cause, ConnectionRefusedError) for cause in causes)
        if ended:
            advice = "its process has ended"
        elif untrusted:
            advice = "set SSL_CERT_FILE to the certificate of the authority that signed the server's"
        elif any(isinstance(cause, ssl.SSLError) for cause in causes):
            advice = "check that the server speaks https on this port"
        elif self._via:
            advice = "check that the proxy is running and meant for this server; if not, set NO_PROXY"
        else:
            advice = "check that the Core is running there"
        fault = call.fault(ConnectionFailed, f"cannot connect to {where} ({reason})", advice=advice)
        fault.permanent = untrusted or ended
        return fault


def _open(proxy: str | None) -> httpx.AsyncHTTPTransport:
    """Make a transport, through the proxy if there is one. Raises ValueError for a proxy that can't be used."""
    tls = _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=2, keepalive_expiry=KEEPALIVE)
    if proxy is None:
        return httpx.AsyncHTTPTransport(verify=tls, limits=limits)
    shown = without_credentials(proxy)
    try:
        url = httpx.URL(proxy)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https", "socks5", "socks5h") or not url.host:
        raise ValueError(f"the environment names the proxy {shown}: expected http://, https:// or socks5://")
    try:
        through = httpx.Proxy(url, ssl_context=tls if url.scheme == "https" else None)
        return httpx.AsyncHTTPTransport(verify=tls, limits=limits, proxy=through)
    except ImportError:
        raise ValueError(
            f"the environment names the SOCKS proxy {shown}: install httpx[socks] or set NO_PROXY"
        ) from None


@functools.lru_cache(maxsize=1)
def _tls_context(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """Return the process's only context: reading the certificate authorities takes longer than a call.

    httpx reads SSL_CERT_FILE and SSL_CERT_DIR itself; they are arguments so that a change is noticed.
    """
    return httpx.create_ssl_context()


def _raw_chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. httpx declares an iterator, but it is a generator, which can be closed."""
    return cast("AsyncGenerator[bytes, None]", response.aiter_raw())


def _root_causes(error: BaseException) -> list[BaseException]:
    """The errors at the start of the chain: several where several addresses of a host were tried."""
    if cause := error.__cause__ or error.__context__:
        return _root_causes(cause)
    several: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return [root for each in several for root in _root_causes(each)] or [error]


def _reason(error: Exception) -> str:
    """What went wrong, in the words of the operating system or TLS if there are any: httpx's are often empty."""
    roots = {str(root): None for root in _root_causes(error)} if isinstance(error, httpx.ConnectError) else {}
    text = ", ".join(filter(None, roots)) or str(error) or str(_root_causes(error)[0])
    name = type(error).__name__
    return f"{name}: {short_line(text, 200)}" if text else name
