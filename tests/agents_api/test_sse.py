from __future__ import annotations

import random

import pytest

from pytest_core_rollouts.agents_api.sse import EventTooLarge, Parser, ServerSentEvent
from tests.support.tables import rows

STREAM = (
    "\ufeffdata: with a BOM\r\n\r\n"
    ": a comment\n"
    "event: first\ndata: one\ndata:two\ndata\n\n"
    "event: never seen\n\n"
    "id: 7\rretry: 10\rdata: carriage returns\r\r"
    "data:  two spaces: and a colon é€😀\r\n\n"
    "data: \ufeffnot a BOM\n\n"
    "data: unfinished\n"
).encode()
EVENTS = [
    ServerSentEvent("message", "with a BOM"),
    ServerSentEvent("first", "one\ntwo\n"),
    ServerSentEvent("message", "carriage returns"),
    ServerSentEvent("message", " two spaces: and a colon é€😀"),
    ServerSentEvent("message", "\ufeffnot a BOM"),
]


def parse(chunks: list[bytes], parser: Parser | None = None) -> list[ServerSentEvent]:
    parser = parser or Parser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_stream_in_one_chunk() -> None:
    assert parse([STREAM]) == EVENTS


def test_stream_byte_by_byte() -> None:
    assert parse([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@rows("seed", range(20))
def test_stream_cut_anywhere(seed: int) -> None:
    cuts = sorted(random.Random(seed).choices(range(len(STREAM)), k=12))
    chunks = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert parse(chunks) == EVENTS


def test_crlf_in_two_chunks_ends_one_line() -> None:
    assert parse([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]) == [ServerSentEvent("message", "a\nb")]


def test_cr_cr_ends_two_lines() -> None:
    assert parse([b"data: a\r", b"\rdata: b\n\n"]) == [
        ServerSentEvent("message", "a"),
        ServerSentEvent("message", "b"),
    ]


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert parse([b"data: \xff\xfe\n\n"]) == [ServerSentEvent("message", "\ufffd\ufffd")]


def test_comments_count_as_lines() -> None:
    parser = Parser()
    assert parser.feed(b": keepalive") == []
    assert parser.lines == 0
    parser.feed(b"\n")
    assert parser.lines == 1


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"data: " + b"x" * 400] * 5, id="one endless line"),
        pytest.param([b"data: " + b"x" * 100 + b"\n"] * 20, id="endless lines of one event"),
    ],
)
def test_event_size_is_bounded(chunks: list[bytes]) -> None:
    parser = Parser(limit=1000)
    with pytest.raises(EventTooLarge, match="1000"):
        parse(chunks, parser)


def test_limit_is_per_event() -> None:
    assert len(parse([b"data: " + b"x" * 900 + b"\n\n"] * 50, Parser(limit=1000))) == 50
