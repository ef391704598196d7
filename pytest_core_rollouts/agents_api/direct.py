"""HTTP/1.1 to a server that no proxy stands before: h11 over asyncio's own transports.

httpcore's pool and connections serve any event loop, many hosts and HTTP/2: measured, that is as much CPU again as all
the rest of a request. So they are used through proxies only; the requests, answers and errors are theirs here too.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress

import h11
import httpcore

from .network import AsyncioNetwork

__all__ = ["DirectConnections"]

READ_BYTES = 64 * 1024
MOST_HEAD = 100 * 1024
"""Bytes of an answer's head, or of a chunk's, that are read."""


class DirectConnections:
    """Connections to one server, kept for `keepalive` seconds after their last use, and as many as are in use at once.

    Has what httpcore's pools have of methods, and raises the same errors.
    """

    def __init__(self, tls: ssl.SSLContext, *, keepalive: float) -> None:
        self._tls = tls
        self._keepalive = keepalive
        self._network = AsyncioNetwork()
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send the request, and return once the answer's head is there; its `aclose` gives the connection back."""
        connection = await self._kept() or await self._opened(request)
        try:
            return await connection.exchange(request, self._idle.append)
        except BaseException:
            await connection.aclose()
            raise

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()

    async def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(self._keepalive):
                return connection
            await connection.aclose()
        return None

    async def _opened(self, request: httpcore.Request) -> _Connection:
        url, seconds = request.url, request.extensions["timeout"]["connect"]
        host, encrypted = url.host.decode("ascii"), url.scheme == b"https"
        stream = await self._network.connect_tcp(host, url.port or (443 if encrypted else 80), seconds)
        if encrypted:
            stream = await stream.start_tls(self._tls, host, seconds)
        return _Connection(stream)


class _Connection:
    """One connection: a request and its answer at a time."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._since = time.monotonic()

    def is_usable(self, keepalive: float) -> bool:
        """Whether it has not idled for too long, nor been closed by the server."""
        return time.monotonic() - self._since < keepalive and not self._stream.get_extra_info("is_readable")

    async def exchange(
        self, request: httpcore.Request, give_back: Callable[[_Connection], object]
    ) -> httpcore.Response:
        seconds = request.extensions["timeout"]
        with suppress(httpcore.WriteError):  # a server may answer and close before it has read the request
            await self._stream.write(self._written(request), seconds["write"])
        head = await self.next_event(seconds["read"])
        while isinstance(head, h11.InformationalResponse):
            head = await self.next_event(seconds["read"])
        if not isinstance(head, h11.Response):
            raise httpcore.RemoteProtocolError("the server's answer has no head")
        body = _Body(self, seconds["read"], give_back)
        return httpcore.Response(head.status_code, headers=head.headers.raw_items(), content=body)

    def _written(self, request: httpcore.Request) -> bytes:
        head = h11.Request(method=request.method, target=request.url.target, headers=request.headers)
        assert isinstance(request.stream, Iterable), "requests are made of bytes"
        body = [h11.Data(data=chunk) for chunk in request.stream]
        return b"".join(self._http.send(event) or b"" for event in (head, *body, h11.EndOfMessage()))

    async def next_event(self, seconds: float) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next piece of the answer. Raises httpcore.ReadTimeout, ReadError and RemoteProtocolError."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise httpcore.RemoteProtocolError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            data = await self._stream.read(READ_BYTES, seconds)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise httpcore.RemoteProtocolError("Server disconnected without sending a response.")
            self._http.receive_data(data)

    async def end(self, give_back: Callable[[_Connection], object]) -> None:
        """The answer is done with: the connection is for the next one, unless something of it was not read."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._since = time.monotonic()
            give_back(self)
        else:
            await self.aclose()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Body:
    """An answer's body as it arrives."""

    def __init__(self, connection: _Connection, seconds: float, give_back: Callable[[_Connection], object]) -> None:
        self._connection = connection
        self._seconds = seconds
        self._give_back = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._connection.next_event(self._seconds), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        await self._connection.end(self._give_back)
