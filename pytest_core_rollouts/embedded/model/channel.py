"""HTTP/1.1 over an asyncio stream, parsed and written by h11."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import h11

_CHUNK = 1 << 16
# Bytes of a request or status line and its headers. A sandbox may have many requests begun at once.
_HEAD_LIMITS = {h11.SERVER: 64 * 1024, h11.CLIENT: 256 * 1024}


async def serve_unix(
    listener: socket.socket, handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> asyncio.Server:
    """Serve on a listening unix socket. The caller removes its file.

    asyncio would remove it too (from Python 3.13 on), but by the name that the socket was bound to, which was a path in
    /proc that may name another file by then.
    """
    options: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    return await asyncio.start_unix_server(handle, sock=listener, **options)


class Broken(Exception):
    """The peer closed the connection or broke the rules of HTTP. `channel`: which peer."""

    def __init__(self, channel: Channel, why: Exception | str) -> None:
        super().__init__(str(why) or type(why).__name__)
        self.channel = channel


class Channel:
    """One connection. `role`: `h11.SERVER` or `h11.CLIENT`, of this process."""

    def __init__(
        self, role: type[h11.SERVER] | type[h11.CLIENT], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection = h11.Connection(role, max_incomplete_event_size=_HEAD_LIMITS[role])
        self._reader = reader
        self._writer = writer

    async def next_request(self, head_s: float) -> Any:
        """Return the next request's head, or another event of h11 if the peer closed. Raises Broken.

        A connection may be idle for any time. A head must be complete `head_s` seconds after its first byte.
        """
        deadline: float | None = None
        try:
            while (event := self.connection.next_event()) is h11.NEED_DATA:
                seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self.connection.receive_data(await asyncio.wait_for(self._reader.read(_CHUNK), seconds_left))
                deadline = deadline or time.monotonic() + head_s
        except asyncio.TimeoutError as error:
            raise Broken(self, f"the request's head was not complete after {head_s:g} seconds") from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise Broken(self, error) from error
        return event

    async def next_event(self, timeout: float | None = None) -> Any:
        """Return the next event of h11. Raises Broken; asyncio.TimeoutError if nothing comes for `timeout` seconds."""
        try:
            while (event := self.connection.next_event()) is h11.NEED_DATA:
                if self.connection.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                reading = self._reader.read(_CHUNK)
                data = await (reading if timeout is None else asyncio.wait_for(reading, timeout))
                self.connection.receive_data(data)
        except (OSError, h11.RemoteProtocolError) as error:
            if isinstance(error, asyncio.TimeoutError):  # an OSError from Python 3.11 on
                raise
            raise Broken(self, error) from error
        return event

    async def send(self, event: Any, timeout: float | None = None) -> None:
        """Send an event and wait until there is room for more. Raises Broken, asyncio.TimeoutError."""
        try:
            data = self.connection.send(event)
            if data:
                self._writer.write(data)
                await (self._writer.drain() if timeout is None else asyncio.wait_for(self._writer.drain(), timeout))
        except (OSError, h11.LocalProtocolError) as error:
            if isinstance(error, asyncio.TimeoutError):
                raise
            raise Broken(self, error) from error

    @property
    def reusable(self) -> bool:
        """Return True if another request may follow on this connection."""
        return self.connection.our_state is h11.DONE and self.connection.their_state is h11.DONE

    def abort(self) -> None:
        """Reset the connection, so that a peer in the middle of a reply sees that it is incomplete."""
        self._writer.transport.abort()
