"""Server-sent events: bytes in, whole events out."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["EventTooLarge", "Parser", "ServerSentEvent"]


class EventTooLarge(ValueError):
    """One event is larger than the parser may hold."""


class ServerSentEvent(NamedTuple):
    event: str
    data: str


@dataclass
class Parser:
    """Parses a stream by the HTML standard, however it is cut into chunks.

    Lines end in LF, CR or CRLF; a BOM at the start is dropped; bytes that are no UTF-8 become U+FFFD; several
    `data` lines join with LF; an event without data is none. An event may hold `limit` characters.
    """

    limit: int = 16 * 1024 * 1024
    lines: int = 0  # whole lines so far, comments too: any of them is a sign of life

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True
        self._skip_lf = False
        self._partial: list[str] = []
        self._event = ""
        self._data: list[str] = []
        self._partial_size = self._data_size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes. Raises EventTooLarge."""
        text = self._decoder.decode(chunk)
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if self._skip_lf and text:
            # The CR that ended the last chunk ended its line too: an LF now is the rest of that line's end.
            self._skip_lf = False
            text = text.removeprefix("\n")
        self._skip_lf = self._skip_lf or text.endswith("\r")
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events = []
        for part in whole:
            line = "".join((*self._partial, part)) if self._partial else part
            self._partial, self._partial_size = [], 0
            event = self._line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest)
        if self._data_size + self._partial_size > self.limit:
            raise EventTooLarge(f"one event of the stream is over {self.limit} characters")
        return events

    def _line(self, line: str) -> ServerSentEvent | None:
        self.lines += 1
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._data_size += len(value) + 1
        elif field == "event":
            self._event = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data = self._event, self._data
        self._event, self._data, self._data_size = "", [], 0
        return ServerSentEvent(event or "message", "\n".join(data)) if data else None
