"""Connections for httpcore, made of asyncio's own transports.

httpcore's usual ones go through anyio, which serves any event loop: measured, that is a quarter of a rollout's CPU.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from .timelimit import TimeLimit

__all__ = ["AsyncioNetwork"]

FOR_EVER = float(365 * 24 * 3600)
SECOND_FAMILY_AFTER = 0.25
"""Seconds after which a host's next address is tried beside the first (RFC 8305)."""
MOST_UNREAD = 256 * 1024
"""Bytes that wait to be read before the other side is made to wait."""


class AsyncioNetwork(httpcore.AsyncNetworkBackend):
    """Makes connections in the running event loop."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection. Raises httpcore.ConnectTimeout and httpcore.ConnectError."""
        loop = asyncio.get_running_loop()
        source = None if local_address is None else (local_address, 0)
        try:
            async with TimeLimit(_seconds(timeout)):
                _, connection = await loop.create_connection(
                    _Connection, host, port, local_addr=source, happy_eyeballs_delay=SECOND_FAMILY_AFTER
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        connection.set_options(socket_options or ())
        return connection


class _Connection(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection: what arrives waits here until it is read, within bounds."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._paused = False
        self._ended = False
        self._fault: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > MOST_UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> None:
        self._ended = True
        _wake(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._fault = error
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._writer = self._writer or asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writer)
        self._writer = None

    # ---- called by httpcore

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes, none at the end. Raises httpcore.ReadTimeout and httpcore.ReadError."""
        if not self._unread and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            await _woken(self._reader, timeout, httpcore.ReadTimeout)
        if not self._unread and self._fault is not None:
            raise httpcore.ReadError(str(self._fault)) from self._fault
        data = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        if self._paused and len(self._unread) <= MOST_UNREAD:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends bytes, or leaves a bounded number to be sent. Raises httpcore.WriteTimeout and httpcore.WriteError."""
        if self._ended or self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)
        if self._writer is not None:
            await _woken(self._writer, timeout, httpcore.WriteTimeout)
            if self._fault is not None:
                raise httpcore.WriteError(str(self._fault)) from self._fault

    async def aclose(self) -> None:
        """Ends it at once: whatever is still to be sent or read is of no use to anybody any more."""
        self._ended = True
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Goes on encrypted. Raises httpcore.ConnectTimeout and httpcore.ConnectError."""
        loop = asyncio.get_running_loop()
        try:
            async with TimeLimit(_seconds(timeout)):
                transport = await loop.start_tls(self._transport, self, ssl_context, server_hostname=server_hostname)
        except TimeoutError as error:
            await self.aclose()
            raise httpcore.ConnectTimeout(str(error)) from ssl.SSLError("the TLS handshake did not end")
        except (OSError, TypeError) as error:  # TypeError: of Python 3.10, which knows no TLS within TLS
            await self.aclose()
            raise httpcore.ConnectError(str(error)) from error
        if transport is None:
            raise httpcore.ConnectError("the connection broke off in the TLS handshake")
        self._transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """`is_readable`: of an idle connection, whether the other side has closed it."""
        if info == "is_readable":
            return bool(self._unread) or self._ended
        return self._transport.get_extra_info({"client_addr": "sockname", "server_addr": "peername"}.get(info, info))

    def set_options(self, options: Iterable[Any]) -> None:
        for option in options:
            self._transport.get_extra_info("socket").setsockopt(*option)


def _seconds(timeout: float | None) -> float:
    return FOR_EVER if timeout is None else timeout


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _woken(waiter: asyncio.Future[None], timeout: float | None, late: type[Exception]) -> None:
    """Wait for what `waiter` stands for; raises `late` after `timeout` seconds."""
    if timeout is None:
        await waiter
        return
    timer = waiter.get_loop().call_later(timeout, _expire, waiter, late, timeout)
    try:
        await waiter
    finally:
        timer.cancel()


def _expire(waiter: asyncio.Future[None], late: type[Exception], seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(late(f"nothing within {seconds:g} s"))
