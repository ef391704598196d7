"""Server-sent events out of a stream's chunks, whatever way the chunks are cut."""

from __future__ import annotations

import re
from collections.abc import Iterator

EVENT_LIMIT = 16 * 1024 * 1024  # bytes of one event

_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventReader:
    """Feed it chunks; it yields each event's data. An event beyond the limit ends the reading: `overflowed`."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.overflowed = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if self.overflowed:
            return
        start = max(0, len(self._pending) - 3)  # an end may have been cut in two
        self._pending += chunk
        while (end := _END_OF_EVENT.search(self._pending, start)) is not None:
            event = bytes(self._pending[: end.start()])
            del self._pending[: end.end()]
            start = 0
            if data := _data_of(event):
                yield data
        if len(self._pending) > EVENT_LIMIT:
            self._pending.clear()
            self.overflowed = True


def _data_of(event: bytes) -> bytes:
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
