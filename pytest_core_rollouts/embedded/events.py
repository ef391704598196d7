"""A Session's live events as server-sent events, for present subscribers only; nothing is kept or replayed."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from .ids import new_id

KEEPALIVE_S = 15.0
BUFFERED_EVENTS = 256
BUFFERED_BYTES = 64 * 1024 * 1024

_CONNECTED = b": connected\n\n"
_KEEPALIVE = b": keepalive\n\n"


class EventBus:
    """One Session's subscribers. Publishing never waits: a subscriber that falls behind is disconnected."""

    def __init__(self) -> None:
        self._streams: set[EventStream] = set()

    @property
    def has_subscribers(self) -> bool:
        """Whether anyone is subscribed."""
        return bool(self._streams)

    def publish(self, type: str, members: Mapping[str, Any]) -> None:
        """Send an event to the present subscribers."""
        if self._streams:
            frame = _frame(type, {"event_id": new_id("evt"), "type": type, **members})
            for stream in tuple(self._streams):
                stream.put(type, frame)

    def subscribe(self, ends_at: Callable[[str], bool] = lambda _: False) -> EventStream:
        """Return a stream of the events published from now on. It closes after the first with `ends_at(type)`."""
        stream = EventStream(self._streams.discard, ends_at)
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """End every stream after the events that it still holds."""
        for stream in tuple(self._streams):
            stream.close()


class EventStream:
    """One subscriber's frames, bounded. Iterate `frames` once; ending the iteration unsubscribes."""

    def __init__(self, unsubscribe: Callable[[EventStream], None], ends_at: Callable[[str], bool]) -> None:
        self._unsubscribe = unsubscribe
        self._ends_at = ends_at
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, type: str, frame: bytes) -> None:
        """Add a frame; if there is no room, add an error instead and close."""
        if self._closed:
            return
        full = len(self._frames) >= BUFFERED_EVENTS or (self._bytes > 0 and self._bytes + len(frame) > BUFFERED_BYTES)
        if full:
            frame = _INTERRUPTED
        self._frames.append(frame)
        self._bytes += len(frame)
        if full or self._ends_at(type):
            self.close()
        self._changed.set()

    def close(self) -> None:
        """End the stream after the frames that it still holds."""
        self._closed = True
        self._unsubscribe(self)
        self._changed.set()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the response's bytes, keepalive comments included, to the end of the stream."""
        try:
            yield _CONNECTED
            while True:
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame)
                    yield frame
                if self._closed:
                    return
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), KEEPALIVE_S)
                except asyncio.TimeoutError:
                    yield _KEEPALIVE
        finally:
            self.close()


def _frame(type: str, event: Mapping[str, Any]) -> bytes:
    return f"event: {type}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


_INTERRUPTED = _frame(
    "error",
    {
        "type": "error",
        "error": {
            "type": "server_error",
            "code": "stream_interrupted",
            "message": "The client read too slowly; subscribe again and read the Session's Items.",
        },
    },
)
