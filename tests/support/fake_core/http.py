"""HTTP/1.1 by hand, so that every way in which a server can misbehave is one line away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

MOST_HEAD = 64 * 1024
MOST_BODY = 64 * 1024 * 1024
RESET = struct.pack("ii", 1, 0)  # linger on, for no time: close() sends RST


@dataclass
class Request:
    """A request as it arrived. `headers` keep order and repeats; names are in lower case.

    `route` is the client's name of the call (create, turns, items, ...; "" for an unknown path), `nth` counts the
    requests of that route (from 1), `target` is the request line's, `connection` identifies the connection.
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    connection: int = 0
    at: float = 0.0
    route: str = ""
    nth: int = 0
    status: int | None = None  # what was answered; None while it was not

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        self.path = parts.path
        self.segments = [unquote(part) for part in parts.path.split("/")[1:]]
        self.query = parse_qsl(parts.query, keep_blank_values=True)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def session_id(self) -> str | None:
        return self.segments[3] if len(self.segments) > 3 else None


@dataclass
class Response:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. `processed`: it takes effect first, so that only its answer is lost.

    With none of `status`, `reset`, `hang`, the regular answer is sent (and the request is processed), mangled by the
    rest: `delay` seconds late; only the first `cut` bytes of its body, delimited by `framing` (`length` announces
    the whole length, `chunked` ends without its last chunk, `close` ends as if it were whole), then closed or
    (`reset_after_cut`) reset; every byte `drip` seconds after the last; `endless`: the body again and again.
    """

    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    hang: bool = False
    processed: bool = False
    delay: float = 0.0
    cut: int | None = None
    framing: str = "length"
    reset_after_cut: bool = False
    drip: float = 0.0
    endless: bool = False

    @property
    def lets_through(self) -> bool:
        return self.processed or not (self.reset or self.hang or self.status is not None)


class Gone(Exception):
    """The connection will be closed."""


@dataclass
class HttpServer:
    """Serves `handle` on connections; `fault` may spoil any of its answers."""

    handle: Callable[[Request], Response]
    admit: Callable[[Request], Fault | None]
    connections: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def drop_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        # Cancelled: the whole server stops, and a task of asyncio's streams may not end so.
        expected = (Gone, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        self._open.add(writer)
        with contextlib.suppress(*expected):
            while True:
                request = await _read(reader, number)
                fault = self.admit(request)
                if fault is not None and fault.delay:
                    await asyncio.sleep(fault.delay)
                response = self.handle(request) if fault is None or fault.lets_through else Response(500)
                if fault is None:
                    request.status = response.status
                    await _send(writer, request, response)
                else:
                    await _spoil(writer, request, response, fault)
                if request.header("connection") == "close":
                    break
        self._open.discard(writer)
        writer.close()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head[:-4].split("\r\n")
    method, target, version = start.split(" ")
    if version != "HTTP/1.1":
        raise Gone
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    request = Request(method, target, headers, connection=connection)
    length = int(request.header("content-length") or 0)
    if length > MOST_BODY or request.header("transfer-encoding"):
        raise Gone
    request.body = await reader.readexactly(length) if length else b""
    return request


async def _send(writer: asyncio.StreamWriter, request: Request, response: Response) -> None:
    if response.stream is not None:
        await _send_stream(writer, response)
        return
    writer.write(_head(response, {"Content-Length": str(len(response.body))}) + response.body)
    await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, response: Response) -> None:
    assert response.stream is not None
    writer.write(_head(response, {"Transfer-Encoding": "chunked"}))
    async with contextlib.aclosing(response.stream) as chunks:
        async for chunk in chunks:
            writer.write(_chunk(chunk))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _spoil(writer: asyncio.StreamWriter, request: Request, response: Response, fault: Fault) -> None:
    if fault.hang:
        await asyncio.Event().wait()
    if fault.reset:
        _reset(writer)
    if fault.status is not None:
        response = Response(fault.status, fault.body, dict(fault.headers))
    request.status = response.status
    if fault.endless:
        writer.write(_head(response, {"Transfer-Encoding": "chunked"}))
        while True:
            writer.write(_chunk(response.body or b"x" * 65536))
            await writer.drain()
    if fault.cut is None and not fault.drip:
        await _send(writer, request, response)
        return
    await _drip(writer, _framed(response, fault), fault.drip)
    if fault.cut is not None:
        if fault.reset_after_cut:
            await asyncio.sleep(0.02)  # or the reset overtakes what was sent
            _reset(writer)
        raise Gone


def _framed(response: Response, fault: Fault) -> bytes:
    body = response.body if fault.cut is None else response.body[: fault.cut]
    if fault.framing == "chunked":
        return _head(response, {"Transfer-Encoding": "chunked"}) + _chunk(body)
    if fault.framing == "close":
        return _head(response, {"Connection": "close"}) + body
    return _head(response, {"Content-Length": str(len(response.body))}) + body


async def _drip(writer: asyncio.StreamWriter, data: bytes, seconds: float) -> None:
    for piece in [data] if not seconds else [data[i : i + 1] for i in range(len(data))]:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(seconds)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
    raise Gone


def _head(response: Response, framing: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    headers = {"Content-Type": "application/json", **response.headers, **framing}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {response.status} {phrase}\r\n{lines}\r\n".encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""
