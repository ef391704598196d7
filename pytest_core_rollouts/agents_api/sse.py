"""Server-sent events: bytes in, whole events out."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["EventTooLarge", "Parser", "ServerSentEvent"]


class EventTooLarge(ValueError):
    """One event is larger than the parser's limit."""


class ServerSentEvent(NamedTuple):
    event: str
    data: str


@dataclass
class Parser:
    """Parses a stream by the HTML standard, wherever it is cut into chunks.

    Lines end in LF, CR or CRLF. A BOM at the start is dropped. Bytes that are not UTF-8 become U+FFFD.
    Several `data` lines are joined with LF. An event without data is ignored.
    An event may have `limit` characters.
    """

    limit: int = 16 * 1024 * 1024
    lines: int = 0  # complete lines so far, with comments: any line shows that the stream is alive

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True
        self._skip_lf = False
        self._partial: list[str] = []
        self._event = ""
        self._data: list[str] = []
        self._partial_size = self._data_size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises EventTooLarge."""
        text = self._decoder.decode(chunk)
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if self._skip_lf and text:
            # The last chunk ended with CR, which ended its line: an LF now belongs to the same line end.
            self._skip_lf = False
            text = text.removeprefix("\n")
        self._skip_lf = self._skip_lf or text.endswith("\r")
        *complete, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events = []
        for part in complete:
            line = "".join((*self._partial, part)) if self._partial else part
            self._partial, self._partial_size = [], 0
            event = self._line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest)
        if self._data_size + self._partial_size > self.limit:
            raise EventTooLarge(f"an event of the stream has more than {self.limit} characters")
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
