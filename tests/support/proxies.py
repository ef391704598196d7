"""A model proxy between a client of HTTP and a server of raw bytes, all in one event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from pytest_core_rollouts.embedded.model import ModelProxy, ModelSettings, TurnLabels
from pytest_core_rollouts.embedded.model_provider import ModelProvider

KEY = 'sk-real"key\\0123456789'
LABELS = TurnLabels("session-1", "turn-1", rollout_id="run.task.agent.3", sample="3")

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Server:
    """A server of raw bytes on loopback. `requests`: head and body of each request, for handlers that note them."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.heads: list[list[str]] = []
        self.bodies: list[bytes] = []
        self.asked = asyncio.Event()

    async def read(self, reader: Reader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        self.heads.append(head)
        lengths = [int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:")]
        self.bodies.append(await reader.readexactly(lengths[0]) if lengths else b"")
        self.asked.set()


Handler: TypeAlias = Callable[[Server, Reader, Writer], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[Server]:
    async def handle(reader: Reader, writer: Writer) -> None:
        try:
            await handler(server, reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20, **options)
    server = Server(listening.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listening.close()


def replying(body: bytes, status: str = "200 OK", *headers: str) -> Handler:
    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return handler


@asynccontextmanager
async def proxied(
    tmp_path: Path,
    base_url: str,
    protocol: str = "responses",
    labels: TurnLabels = LABELS,
    replied: bool = False,
    **settings: Any,
) -> AsyncIterator[tuple[ModelProxy, httpx.AsyncClient]]:
    path = tmp_path / "m.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    provider = ModelProvider(protocol, base_url, KEY)
    proxy = ModelProxy(listener, path, provider, ModelSettings(**settings), labels, replied=replied)
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with proxy, httpx.AsyncClient(transport=transport, base_url="http://inside", timeout=20) as client:
        yield proxy, client
    assert not path.exists()


def asyncio_test(test: Callable[..., Awaitable[None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 60))

    run.__name__ = getattr(test, "__name__", "test")
    run.__doc__ = test.__doc__
    return run


def sse(*events: Any) -> bytes:
    """The bytes of a stream of events."""
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
